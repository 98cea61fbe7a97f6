// How blocks hand each other values: a flagged message of 8 bytes is a value and the step that it belongs to, its tag.
// The reader looks until the tag is the right one. Four values in 16 bytes have no room for a tag: there the last bit
// of the first one is the tag's parity, which says to which of two steps they belong.

#include "patience.cuh"
#include "message.cuh"

// A piece of memory serves every second step; from one to the next, the parity changes. The first is 1: memory starts
// as 0.
__device__ Word parity_of(Word tag) { return ~((tag - 1) / 2) & 1; }

__device__ void send_four(float4* to, float4 values, Word tag) {
    const Word first = __float_as_uint(values.x) & ~1u | parity_of(tag);
    const Message low = (Message)__float_as_uint(values.y) << 32 | first;
    const Message high = (Message)__float_as_uint(values.w) << 32 | __float_as_uint(values.z);
    st_relaxed_gpu(to, low, high);
}

__device__ bool is_of(float4 four, Word tag) { return (__float_as_uint(four.x) & 1) == parity_of(tag); }

// N messages, or pairs of them, or fours, asked for at once; at(i) is where the i-th is. What is not there yet is asked
// for again. A whole warp waits together: lanes that leave a loop one by one are slow to come together again.
template <typename Item, int N>
struct MailOf {
    Item items[N];

    template <typename At>
    __device__ void ask(At at) {
#pragma unroll
        for (int i = 0; i < N; i++) ld_relaxed_gpu(items[i], at(i));
    }

    template <typename At>
    __device__ void wait(Word tag, At at, Awaited what) {
        Word turns = 0;
        for (;;) {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; i++) all = all && is_of(items[i], tag);
            if (__all_sync(~0u, all)) break;
#pragma unroll
            for (int i = 0; i < N; i++) ld_relaxed_gpu(items[i], at(i), !is_of(items[i], tag));
            if (give_up_together(turns, what, tag)) break;
        }
    }
};

template <int N>
struct Mail : MailOf<ulonglong2, N> {
    __device__ float2 operator[](int i) const {
        return make_float2(value_of(this->items[i].x), value_of(this->items[i].y));
    }
};

template <int N>
struct SingleMail : MailOf<Message, N> {
    __device__ float operator[](int i) const { return value_of(this->items[i]); }
};

// Wait for one message. By a whole warp, each lane for its own, or all for the same.
__device__ float receive(const Message* from, Word tag, Awaited what) {
    const auto at = [=](int) { return from; };
    SingleMail<1> mail;
    mail.ask(at);
    mail.wait(tag, at, what);
    return mail[0];
}

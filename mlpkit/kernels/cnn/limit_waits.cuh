// Waits that come to an end: who has waited for seconds writes down for what. From then on nobody waits any more, and
// the kernel runs through to its end, with numbers that mean nothing; the host makes a sentence of what was written.

#include "limit_shapes.cuh"

#ifndef PATIENCE
#define PATIENCE (1 << 22)  // turns of a loop: a second or two
#endif

// What is waited for. The host has the names: see cuda_conv_fused.py.
enum Awaited { NEW_DENSE, NEW_CONVS, SLOPES_THERE, CONVS_THERE };

// At the beginning of every block's shared memory.
struct Head {
    Word64* failure;
    Word64 dense;  // a barrier of copies
};
static_assert(sizeof(Head) <= HEAD, "");

__device__ Head& head() { return *(Head*)shared_bytes; }

__device__ bool somebody_gave_up() {
    Word64 found;
    ld_relaxed_gpu(found, head().failure);
    return found != 0;
}

// Whether nobody waits any more, after so many turns. Not inlined: it is hardly ever called.
__device__ __noinline__ bool look_up(Word turns, Awaited what, Word step) {
    if (turns > PATIENCE) atomicCAS(head().failure, 0ull, (Word64)(what + 1) << 48 | (Word64)blockIdx.x << 32 | step);
    return somebody_gave_up();
}

__device__ bool give_up(Word& turns, Awaited what, Word step) {
    return time_to_look(turns) && look_up(turns, what, step);
}

// Until a counter has come so far: what was written before is there, for all threads after the next __syncthreads.
__device__ void wait_for(const Word* counter, Word number, Awaited what, Word step) {
    Word turns = 0;
    while (ld_acquire_gpu(counter) < number && !give_up(turns, what, step)) {
    }
}

__device__ void wait_for_copy(Word64* barrier, Word phase, Awaited what, Word step) {
    Word turns = 0;
    while (!mbarrier_try_wait(barrier, phase) && !give_up(turns, what, step)) {
    }
}

// A number with the step that it belongs to, in 8 bytes that are written and read as a whole: the reader looks until
// the step is the right one, so nobody waits for a barrier between them.
typedef Word64 Packet;

__device__ void send(Packet* to, float value, Word step) {
    st_relaxed_gpu(to, (Packet)step << 32 | __float_as_uint(value));
}

__device__ bool is_of(Packet packet, Word step) { return (Word)(packet >> 32) == step; }
__device__ bool is_of(ulonglong2 packets, Word step) { return is_of(packets.x, step) && is_of(packets.y, step); }
__device__ float value_of(Packet packet) { return __uint_as_float((Word)packet); }

// N packets, or pairs of them, asked for at once; at(i) is where the i-th is, 0 where this thread has none. What is not
// there yet is asked for again. A whole warp waits together.
template <typename Item, int N>
struct Mail {
    Item items[N];

    template <typename At>
    __device__ void ask(At at) {
#pragma unroll
        for (int i = 0; i < N; i++) items[i] = {}, ld_relaxed_gpu(items[i], at(i), at(i) != 0);
    }

    template <typename At>
    __device__ void wait(Word step, At at, Awaited what) {
        Word turns = 0;
        for (;;) {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; i++) all = all && (at(i) == 0 || is_of(items[i], step));
            if (__all_sync(~0u, all)) break;
#pragma unroll
            for (int i = 0; i < N; i++) ld_relaxed_gpu(items[i], at(i), at(i) != 0 && !is_of(items[i], step));
            if (time_to_look(turns) && __any_sync(~0u, look_up(turns, what, step))) break;
        }
    }
};

// Let shared memory up to the dense weights be zeros (the borders around images stay so), and the barriers be ready.
__device__ void begin(Word64* failure) {
    for (int e = threadIdx.x; e < DENSE_AT / 16; e += THREADS) ((float4*)shared_bytes)[e] = make_float4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) {
        head().failure = failure;
        mbarrier_init<1>(&head().dense);
        fence_proxy_async();
    }
    __syncthreads();
}

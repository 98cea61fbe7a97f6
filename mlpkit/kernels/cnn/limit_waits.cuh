// How the blocks wait for each other, and for copies: until it is there, or until somebody has waited for seconds.

#include "limit_shapes.cuh"

// What is waited for. The host has the names: see cuda_conv_fused.py.
enum Awaited { NEW_DENSE, NEW_CONVS, SLOPES_THERE, CONVS_THERE, NEIGHBOURS_SUMS, OTHER_GPUS };

#include "watch.cuh"
#include "message.cuh"
#include "ranks.cuh"

// At the beginning of every block's shared memory.
struct Head {
    Word64* failure;  // as `Watch` has it
    Word64 dense[2];  // barriers of copies: of the first dense layer's weights, and of the others'
    Word64 sums[2];   // barriers of what the neighbour sends: on the way forward, and back
};
static_assert(sizeof(Head) <= HEAD, "");

__device__ Head& head() { return *(Head*)shared_bytes; }

// Until a counter has come so far: what was written before is there, for all threads after the next __syncthreads.
__device__ void wait_for(const Word* counter, Word number, Awaited what, Word step) {
    Word turns = 0;
    while (ld_acquire_gpu(counter) < number && !give_up(turns, what, step)) {
    }
}

__device__ void wait_for_copy(Word64* barrier, Word phase, Awaited what, Word step) {
    Word turns = 0;
    if constexpr (!STREAMS) {
        while (!mbarrier_try_wait(barrier, phase) && !give_up(turns, what, step)) {
        }
    }
}

// Where two blocks share an image: what each wrote in its shared memory before is there for the other one after.
__device__ void meet_neighbour() {
    if constexpr (IMAGE_BLOCKS > 1) barrier_cluster_arrive(), barrier_cluster_wait();
}

// Send the neighbour a value of those that it waits for at a barrier, to where this block has `own`.
__device__ void send_neighbour(const float* own, float value, Word64* barrier) {
    const Word other = 1 - half();
    st_async(mapa(shared_address(own), other), value, mapa(shared_address(barrier), other));
}

// N messages, or pairs of them, asked for at once; at(i) is where the i-th is, 0 where this thread has none. What is
// not there yet is asked for again. A whole warp waits together.
template <typename Item, int N>
struct Mail {
    static const int COUNT = N;
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
        if constexpr (!STREAMS) {
            mbarrier_init<1>(&head().dense[0]), mbarrier_init<1>(&head().dense[1]);
            mbarrier_init<1>(&head().sums[0]), mbarrier_init<1>(&head().sums[1]);
            fence_proxy_async();
        }
    }
    __syncthreads();
}

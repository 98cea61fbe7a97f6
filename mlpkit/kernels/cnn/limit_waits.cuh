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
    Word64 dense, convs;  // barriers of copies
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

// Let shared memory up to the dense weights be zeros (the borders around images stay so), and the barriers be ready.
__device__ void begin(Word64* failure) {
    for (int e = threadIdx.x; e < DENSE_AT / 16; e += THREADS) ((float4*)shared_bytes)[e] = make_float4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) {
        head().failure = failure;
        mbarrier_init<1>(&head().dense);
        mbarrier_init<1>(&head().convs);
        fence_proxy_async();
    }
    __syncthreads();
}

// A warp's 32 threads do one instruction at a time, together. What that gives: values go from register to register.
// What it costs: where the threads diverge, each branch is run in turn. And what happens where all want the same
// number.

#ifndef THREADS
#define THREADS 256
#endif
#define EVERYONE 0xffffffffu  // all lanes of the warp

constexpr int WARPS = THREADS / 32;

// ---- Sums of rows (rows, n): what a thread has read, a block's threads add up in three ways ----

__device__ float own_sum(const float* row, int n, int first, int threads) {
    float sum = 0;
    for (int i = first; i < n; i += threads) sum += row[i];
    return sum;
}

__device__ float warp_sum(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(EVERYONE, x, distance);
    return x;  // every lane has it
}

extern "C" __global__ void sum_shared(const float* x, float* sums, int n) {
    __shared__ float part[THREADS];
    part[threadIdx.x] = own_sum(x + (size_t)blockIdx.x * n, n, threadIdx.x, THREADS);
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

extern "C" __global__ void sum_shuffled(const float* x, float* sums, int n) {
    __shared__ float part[WARPS];
    const float sum = warp_sum(own_sum(x + (size_t)blockIdx.x * n, n, threadIdx.x, THREADS));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const float total = warp_sum(threadIdx.x < WARPS ? part[threadIdx.x] : 0);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// A warp a row: nobody waits for anybody.
extern "C" __global__ void sum_by_warps(const float* x, float* sums, int n) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    const float total = warp_sum(own_sum(x + (size_t)row * n, n, threadIdx.x % 32, 32));
    if (threadIdx.x % 32 == 0) sums[row] = total;
}

// sums: zeros.
extern "C" __global__ void sum_atomic(const float* x, float* sums, int n) {
    atomicAdd(&sums[blockIdx.x], own_sum(x + (size_t)blockIdx.x * n, n, threadIdx.x, THREADS));
}

// ---- Divergence: in each round a thread takes one of so many branches, which differ in a factor ----

template <bool BY_WARP>
__device__ void go(float* x, int branches, int rounds) {
    const int mine = (BY_WARP ? threadIdx.x / 32 : threadIdx.x) % branches;
    float y = x[blockIdx.x * THREADS + threadIdx.x];
    for (int branch = 0; branch < branches; branch++) {
        if (mine == branch) {
#pragma unroll 1
            for (int round = 0; round < rounds; round++) y = y * 0.5f + branch;
        }
    }
    x[blockIdx.x * THREADS + threadIdx.x] = y;
}

extern "C" __global__ void part_lanes(float* x, int branches, int rounds) { go<false>(x, branches, rounds); }
extern "C" __global__ void part_warps(float* x, int branches, int rounds) { go<true>(x, branches, rounds); }

// ---- One number that all want: how many labels there are of each class ----

template <typename Count>
__device__ void for_labels(const int* labels, int n, Count count) {
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) count(labels[i]);
}

extern "C" __global__ void count_global(const int* labels, unsigned* counts, int n, int classes) {
    for_labels(labels, n, [&](int label) { atomicAdd(&counts[label], 1); });
}

// A block counts for itself, in shared memory, and adds what it found once.
template <typename Count>
__device__ void count_in_block(const int* labels, unsigned* counts, int n, int classes, Count count) {
    extern __shared__ unsigned own[];
    for (int i = threadIdx.x; i < classes; i += THREADS) own[i] = 0;
    __syncthreads();
    for_labels(labels, n, [&](int label) { count(own, label); });
    __syncthreads();
    for (int i = threadIdx.x; i < classes; i += THREADS) atomicAdd(&counts[i], own[i]);
}

extern "C" __global__ void count_shared(const int* labels, unsigned* counts, int n, int classes) {
    count_in_block(labels, counts, n, classes, [](unsigned* own, int label) { atomicAdd(&own[label], 1); });
}

// Of the lanes that are here with the same label, one counts for all; lanes that come later count for themselves.
extern "C" __global__ void count_by_warps(const int* labels, unsigned* counts, int n, int classes) {
    count_in_block(labels, counts, n, classes, [](unsigned* own, int label) {
        const unsigned alike = __match_any_sync(__activemask(), label);
        if (threadIdx.x % 32 == __ffs(alike) - 1) atomicAdd(&own[label], __popc(alike));
    });
}

// All-reduce from within a kernel: several GPUs of one host add up a vector of each, with no host and no library.
//
// Each GPU has one chunk of the vector: it reads the chunk from all the others over NVLink, adds up, each with its weight,
// and writes the sum to all of them. That is a reduce-scatter and an all-gather, which take a ring 2 (ranks - 1) steps;
// where every GPU reaches every other one, one step each will do. All add up in the order of the ranks, so all have the
// same bits.
//
// A block waits for the block of its number on each other GPU, twice: until all have their vectors, and until all have
// written. So no block waits for one that is not running: there are no more blocks than a GPU has multiprocessors.

#include "ptx.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 512
#endif
#ifndef RANKS
#define RANKS 2
#endif
#ifndef PATIENCE
#define PATIENCE 120000000000ll  // ns: others may still compile their kernels
#endif

struct Peers {
    float* vectors[RANKS];
    Word* flags[RANKS];  // of each GPU: (2, ranks, blocks), who has come how far
};

// Let each other GPU's block of this number know that this one has come so far, and wait until they all have.
__device__ void meet(const Peers& all, int rank, int stage, Word turn, Word* failure) {
    __threadfence_system();  // what this thread has written is there before anybody is told
    __syncthreads();
    const int other = threadIdx.x;
    if (other < RANKS) {
        st_release_sys(all.flags[other] + (stage * RANKS + rank) * gridDim.x + blockIdx.x, turn);
        const Word* flag = all.flags[rank] + (stage * RANKS + other) * gridDim.x + blockIdx.x;
        const long long since = globaltimer();
        for (Word looks = 1; (int)(ld_acquire_sys(flag) - turn) < 0; looks++) {
            if (looks % 1024) continue;
            if (globaltimer() - since > PATIENCE) st_release_sys(failure, 1 + other);
            if (ld_acquire_sys(failure)) break;
        }
    }
    __syncthreads();
}

// sum + weight x, rounded after each of the two, as the sum of products that others have computed is.
__device__ float plus(float sum, float weight, float x) { return __fadd_rn(sum, __fmul_rn(weight, x)); }

// A part of the vectors in fours of floats: `count` from `first` on, but that those from `hole` on are `skipped`. tail: so
// many floats behind the last four.
struct Part {
    int first, count, hole, skipped, tail;

    __device__ int at(int i) const { return first + i + (first + i >= hole ? skipped : 0); }
};

const int AT_ONCE = RANKS <= 2 ? 4 : RANKS <= 4 ? 2 : 1;  // fours of each rank that a thread asks for before it waits

// weights: of all ranks. turns: how often each block has been here, this GPU's own. failure: 0, or who was waited for in
// vain, from 1 on.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void all_reduce(Peers all, int rank, Part part, const float* weights,
                                                                       Word* turns, Word* failure) {
    const Word turn = turns[blockIdx.x] + 1;
    float weight[RANKS];
#pragma unroll
    for (int other = 0; other < RANKS; other++) weight[other] = weights[other];
    meet(all, rank, 0, turn, failure);
    if (threadIdx.x == 0) turns[blockIdx.x] = turn;
    const int first = (long long)part.count * rank / RANKS, last = (long long)part.count * (rank + 1) / RANKS;
    const int stride = gridDim.x * BLOCK_THREADS;
    for (int start = first + blockIdx.x * BLOCK_THREADS + threadIdx.x; start < last; start += AT_ONCE * stride) {
        float4 x[AT_ONCE][RANKS];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = part.at(min(start + k * stride, last - 1));
#pragma unroll
            for (int other = 0; other < RANKS; other++) x[k][other] = __ldcg((const float4*)all.vectors[other] + i);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            float4 sum = {};
#pragma unroll
            for (int other = 0; other < RANKS; other++) {
                const float w = weight[other];
                sum.x = plus(sum.x, w, x[k][other].x), sum.y = plus(sum.y, w, x[k][other].y);
                sum.z = plus(sum.z, w, x[k][other].z), sum.w = plus(sum.w, w, x[k][other].w);
            }
            if (start + k * stride >= last) break;
#pragma unroll
            for (int other = 0; other < RANKS; other++) ((float4*)all.vectors[other])[part.at(start + k * stride)] = sum;
        }
    }
    if (rank == RANKS - 1 && blockIdx.x == 0 && threadIdx.x < part.tail) {
        const int i = 4 * part.at(part.count) + threadIdx.x;
        float sum = 0;
        for (int other = 0; other < RANKS; other++) sum = plus(sum, weight[other], __ldcg(all.vectors[other] + i));
        for (int other = 0; other < RANKS; other++) all.vectors[other][i] = sum;
    }
    meet(all, rank, 1, turn, failure);
}

// All-reduce over NVLink, by a kernel of each GPU, with no host and no library: for steps that are recorded.
//
// A long part of the vector may have come early: the copy engines of the other GPUs have written theirs into this one's
// memory while it still computed, and then a count. It is added up where it lies. The rest goes from GPU to GPU as flagged
// messages, see ranks.cuh. All GPUs add up in the order of the ranks, so all have the same bits.
//
// No block waits for one that is not running: there are no more than multiprocessors.

#include "ptx.cuh"

extern __shared__ __align__(128) unsigned char shared_bytes[];

#define PATIENCE (1 << 28)  // minutes: others may still compile the kernels of their step
enum Awaited { OTHER_GPUS };

#include "watch.cuh"
#include "ranks.cuh"

// What came early: `count` fours of floats, `first` fours from the beginning of the vector on.
struct Early {
    const float4* of[RANKS];
    const Word* times;      // (2, RANKS), how often it came from each GPU, and how often it was sent to each
    Word* consumed[RANKS];  // of each GPU: (RANKS,), how many blocks of each other GPU have read what it had sent
    int first, count;
};

__device__ void add_up_early(float4* vector, const Early& early, const float* weights, int rank, Word turn) {
    const int other = threadIdx.x % RANKS;
    if (threadIdx.x < 2 * RANKS && other != rank) {  // here is all that comes, and gone all that is written over
        Word turns = 0;
        while ((int)(ld_acquire_sys(early.times + threadIdx.x) - turn) < 0 && !give_up(turns, OTHER_GPUS, turn)) {
        }
    }
    float w[RANKS];
#pragma unroll
    for (int k = 0; k < RANKS; k++) w[k] = weights[k];
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < early.count; i += gridDim.x * blockDim.x) {
        float4 x[RANKS], sum = {};
#pragma unroll
        for (int k = 0; k < RANKS; k++) x[k] = __ldcg(k == rank ? vector + early.first + i : early.of[k] + i);
#pragma unroll
        for (int k = 0; k < RANKS; k++) {
            sum.x = __fadd_rn(sum.x, __fmul_rn(w[k], x[k].x)), sum.y = __fadd_rn(sum.y, __fmul_rn(w[k], x[k].y));
            sum.z = __fadd_rn(sum.z, __fmul_rn(w[k], x[k].z)), sum.w = __fadd_rn(sum.w, __fmul_rn(w[k], x[k].w));
        }
        vector[early.first + i] = sum;
    }
    __syncthreads();
    if (threadIdx.x < RANKS && other != rank) red_release_sys_add(early.consumed[other] + rank, 1);
}

const int AT_ONCE = RANKS <= 4 ? 4 : 2;  // floats that a thread asks for before it waits

// Replace the n floats of each GPU's vector by the weighted sums of all. weights: (RANKS,). turns: (2, gridDim.x), how
// often each block has been here, and how often something came early. ranks: without `before` and `weight`.
extern "C" __global__ __launch_bounds__(512) void all_reduce(float* vector, int n, Early early, const float* weights,
                                                             Word* turns, Word64* failure, Ranks ranks) {
    if (threadIdx.x == 0) watch().failure = failure;
    Word* turn = turns + blockIdx.x;
    ranks.before = turn[0], ranks.weight = weights[ranks.rank];
    const Word arrival = turn[gridDim.x] + (early.count > 0);
    __syncthreads();
    if (threadIdx.x == 0) turn[0] = ranks.before + 1, turn[gridDim.x] = arrival;

    const int rest = n - 4 * early.count, stride = gridDim.x * blockDim.x;
    const auto place = [&](int i) { return i < 4 * early.first ? i : i + 4 * early.count; };
    for (int pass = 0; pass < 2; pass++) {
        for (int start = blockIdx.x * blockDim.x + threadIdx.x; start < rest; start += AT_ONCE * stride) {
            float own[AT_ONCE];
            const auto at = [=](int i) { return start + i * stride < rest ? start + i * stride : -1; };
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) own[i] = at(i) < 0 ? 0 : vector[place(at(i))];
            if (pass == 0) {
                ranks.send(own, at, 1);
                continue;
            }
            ranks.sum(own, at, 1);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (at(i) >= 0) vector[place(at(i))] = own[i];
            }
        }
        if (pass == 0 && early.count) add_up_early((float4*)vector, early, weights, ranks.rank, arrival);
    }
}

// Count what this GPU is about to send early, once all blocks of all others have read what it had sent before: blocks a
// GPU. consumed: as in Early, this GPU's own.
extern "C" __global__ void count_early(Word* sent, const Word* consumed, int blocks, int rank, Word64* failure) {
    if (threadIdx.x == 0) watch().failure = failure;
    __syncthreads();
    const Word before = *sent;
    if (threadIdx.x < RANKS && threadIdx.x != rank) {
        Word turns = 0;
        while ((int)(ld_acquire_sys(consumed + threadIdx.x) - before * blocks) < 0 && !give_up(turns, OTHER_GPUS, before)) {
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *sent = before + 1;
}

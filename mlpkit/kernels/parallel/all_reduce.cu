// All-reduce over NVLink, by kernels of each GPU, with no host and no library: for steps that are recorded.
//
// A long part of the vector goes early: copy engines bring a GPU what it is to add up, `add_up` does that where it lies,
// and where others have added up the rest, copy engines bring their sums. In between all GPUs meet. What is left goes from
// GPU to GPU as flagged messages, see ranks.cuh: between two, all numbers to the other one; among more, each number to its
// owner, who adds up and sends the sum to all. That is always in the order of the ranks, so all have the same bits.
//
// No block waits for one that is not running: there are no more than multiprocessors.

#include "ptx.cuh"

extern __shared__ __align__(128) unsigned char shared_bytes[];

#define PATIENCE (1 << 28)  // minutes: others may still compile the kernels of their step
enum Awaited { OTHER_GPUS };

#include "watch.cuh"
#include "ranks.cuh"

// Of each GPU: (RANKS,), how often each other one has come to a meeting.
struct Came {
    Word* to[RANKS];
};

// Let all GPUs meet: what one has asked for before is done when others go on. met: how often this one has; one warp.
extern "C" __global__ void meet_others(Word* met, Came came, int rank, Word64* failure) {
    if (threadIdx.x == 0) watch().failure = failure;
    __syncthreads();
    const Word turn = *met + 1;
    const int other = threadIdx.x;
    if (other < RANKS && other != rank) {
        red_release_sys_add(came.to[other] + rank, 1);
        Word turns = 0;
        while ((int)(ld_acquire_sys(came.to[rank] + other) - turn) < 0 && !give_up(turns, OTHER_GPUS, turn)) {
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *met = turn;
}

// Replace a GPU's own numbers, `count` fours of floats, by the weighted sums of all. of (RANKS, row), in fours: what came
// from the others. weights: (RANKS,).
extern "C" __global__ void add_up(float4* own, const float4* of, int row, int count, const float* weights, int rank) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    begin_in_turn();
    if (i >= count) return;
    float4 x[RANKS], sum = {};
#pragma unroll
    for (int k = 0; k < RANKS; k++) x[k] = __ldcg(k == rank ? own + i : of + (long long)k * row + i);
#pragma unroll
    for (int k = 0; k < RANKS; k++) {
        const float w = weights[k];
        sum.x = __fadd_rn(sum.x, __fmul_rn(w, x[k].x)), sum.y = __fadd_rn(sum.y, __fmul_rn(w, x[k].y));
        sum.z = __fadd_rn(sum.z, __fmul_rn(w, x[k].z)), sum.w = __fadd_rn(sum.w, __fmul_rn(w, x[k].w));
    }
    own[i] = sum;
}

const int AT_ONCE = RANKS <= 4 ? 4 : 2;  // floats that a thread asks for before it waits

#ifndef TWO_STEPS
#define TWO_STEPS (RANKS > 2)  // whether each float has an owner, who adds it up and tells all others
#endif

// Replace the n floats of each GPU's vector by the weighted sums of all, but for `early` from `first` on. weights:
// (RANKS,). times (gridDim.x,): how often each block has been here. ranks: without `before` and `weight`.
extern "C" __global__ __launch_bounds__(512) void all_reduce(float* vector, int n, int first, int early,
                                                             const float* weights, Word* times, Word64* failure,
                                                             Ranks ranks) {
    if (threadIdx.x == 0) watch().failure = failure;
    begin_in_turn();
    ranks.before = times[blockIdx.x], ranks.weight = weights[ranks.rank];
    __syncthreads();
    if (threadIdx.x == 0) times[blockIdx.x] = ranks.before + 1;

    const int rest = n - early, stride = gridDim.x * blockDim.x, here = ranks.rank;
    const auto place = [=](int i) { return i < first ? i : i + early; };
    const auto owner = [](int i) { return i / 32 % RANKS; };  // a warp's numbers have one
    const auto owns = [=](int other, int i) { return !TWO_STEPS || owner(i) == other; };
    Ranks sums = ranks;  // they are weighted already
    sums.weight = 1;
    for (int pass = 0; pass < 2 + TWO_STEPS; pass++) {
        for (int start = blockIdx.x * blockDim.x + threadIdx.x; start < rest; start += AT_ONCE * stride) {
            float x[AT_ONCE];
            const auto at = [=](int i) { return start + i * stride < rest ? start + i * stride : -1; };
            const auto mine = [=](int i) { return at(i) >= 0 && owns(here, at(i)) ? at(i) : -1; };
            const auto others = [=](int i) { return at(i) >= 0 && !owns(here, at(i)) ? at(i) : -1; };
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) x[i] = pass == 2 || at(i) < 0 ? 0 : vector[place(at(i))];
            if (pass == 0) {
                ranks.send(x, at, 1, owns);
                continue;
            }
            if (pass == 1) {
                ranks.sum(x, mine, 1);
                if (TWO_STEPS) sums.send(x, mine, 1);
            } else {
                ranks.receive(x, others, 1, owner);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int to = pass == 1 ? mine(i) : others(i);
                if (to >= 0) vector[place(to)] = x[i];
            }
        }
    }
}

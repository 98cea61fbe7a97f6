// Time stamps, for those who want to know how long the stages of a step take. Who includes this says first how many
// blocks have some, STAMPED_BLOCKS, whether these are all, ALL_STAMPED, and how many a step has room for, STAGES.

#include "ptx.cuh"

#ifndef STAMPED_STEPS
#define STAMPED_STEPS 0  // so many, after the first 100
#endif

#if STAMPED_STEPS
__device__ long long stamps[STAMPED_BLOCKS][STAMPED_STEPS][STAGES];  // ns
// At a step's first stamp: the multiprocessor that the block is on, and its own clock
__device__ long long clocks[STAMPED_BLOCKS][STAMPED_STEPS][2];

// Write down when the block's first thread comes to a stage.
__device__ void stamp(int step, int stage) {
    const bool mine = threadIdx.x == 0 && (ALL_STAMPED || blockIdx.x < STAMPED_BLOCKS);
    if (mine && step >= 100 && step < 100 + STAMPED_STEPS) {
        stamps[blockIdx.x][step - 100][stage] = globaltimer();
        if (stage == 0) {
            clocks[blockIdx.x][step - 100][0] = smid();
            clocks[blockIdx.x][step - 100][1] = clock64();
        }
    }
}
#else
__device__ void stamp(int step, int stage) {}
#endif

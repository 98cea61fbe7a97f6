// Time stamps, for those who want to know how long the stages of a step take.

#include "limit_shapes.cuh"

#ifndef STAMPED_STEPS
#define STAMPED_STEPS 0  // so many, after the first 100
#endif

#if STAMPED_STEPS
__device__ long long stamps[GRID][STAMPED_STEPS][16];  // ns
__device__ int& stamped_step() { return *(int*)(shared_bytes + HEAD - 4); }

// Write down when the block's first thread comes to a stage. Stage 0 begins a step, counted from 1.
__device__ void stamp(int stage, int step = 0) {
    if (threadIdx.x) return;
    if (stage == 0) stamped_step() = step;
    const int at = stamped_step() - 101;
    if (at >= 0 && at < STAMPED_STEPS) stamps[blockIdx.x][at][stage] = globaltimer();
}
#else
__device__ void stamp(int stage, int step = 0) {}
#endif

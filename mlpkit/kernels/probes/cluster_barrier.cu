// needs sm_90
// Blocks of a cluster wait for each other without a counter in memory: the chip has a barrier for them.

#include "ptx.cuh"

#ifndef BLOCKS
#define BLOCKS 8  // of a cluster; more than 8 must be allowed first
#endif

static_assert(BLOCKS >= 1 && BLOCKS <= 16, "no chip has clusters of more than 16 blocks");

extern "C" __global__ void __cluster_dims__(BLOCKS) cluster_barrier(int rounds) {
    for (int round = 0; round < rounds; round++) {
        barrier_cluster_arrive();
        barrier_cluster_wait();
    }
}

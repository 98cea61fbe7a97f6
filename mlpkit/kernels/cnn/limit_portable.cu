// limit.cu on any chip since Ampere (2020), of which blocks may have as little as 99 KiB of shared memory.
//
// No two blocks are neighbours here, and nobody copies but threads. The dense weights don't fit into shared memory: of
// the largest layer threads keep some in registers, and what is left they read through the L2 cache whenever they need
// it. On the way back through the convolutions sums of some rows take the place of others', which are added to them.

#define STREAMS 1
#include "limit_train.cuh"

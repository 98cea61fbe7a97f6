// What the blocks of the kernel of whole epochs wait for. How a wait comes to an end: see `watch.cuh`.

#include "network.cuh"

// The host has the names: see cuda_persistent.py.
enum Awaited { THE_IMAGES, A1, A2, A3, DZ1, DZ2, DZ3, DZ4, NEW_W2, NEW_W3, NEW_W4, OTHER_HALF, OTHER_GPUS };

#include "watch.cuh"

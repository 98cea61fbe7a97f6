// The network that the kernels of whole epochs train: three hidden layers of WIDTH units, in batches of at most BATCH.

#include "ptx.cuh"

#ifndef INPUTS
#define INPUTS 784
#endif
#ifndef CLASSES
#define CLASSES 10
#endif
#ifndef BATCH
#define BATCH 128  // rows in use, and rows that fill up
#endif
#ifndef ADAM
#define ADAM 0
#endif

const int THREADS = 512, WARPS = THREADS / 32, WIDTH = 128, TILE = 16;

static_assert(INPUTS > 0 && INPUTS % 16 == 0, "images are copied and multiplied in pieces of 16 pixels");
static_assert(CLASSES > 0 && CLASSES <= TILE, "the last layer has one tile of classes");
static_assert(BATCH % 32 == 0, "the tensor cores take 32 rows at once");
static_assert(ADAM == 0 || ADAM == 1, "ADAM says whether parameters have Adam's averages");

// theta: the weights of all layers, then the biases of all layers.
const int W1 = 0, W2 = INPUTS * WIDTH, W3 = W2 + WIDTH * WIDTH, W4 = W3 + WIDTH * WIDTH;
const int B1 = W4 + WIDTH * CLASSES, B2 = B1 + WIDTH, B3 = B2 + WIDTH, B4 = B3 + WIDTH;

extern __shared__ __align__(128) unsigned char shared_bytes[];

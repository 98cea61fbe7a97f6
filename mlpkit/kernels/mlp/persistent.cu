// A whole epoch in one launch. The blocks stay, keep what they need close by, and hand each other values; so the GPU
// must hold all of them at once, one on each multiprocessor.
//
//   Column blocks (64): each owns 2 columns of W1, and has the whole batch of images in shared memory. Half of its
//   warps compute its columns of a1, and when their gradient comes back they update these columns and go straight on to
//   the next batch: nobody else needs to see W1. The other half has a tile of 16 x 16 of W3 and one of W2, and waits
//   for nothing but their gradients. (At batch 256 two neighbours share the images, and own 4 columns.)
//
//   Row blocks (up to 64): each takes 1, 2 or 4 examples from a1 through the other layers to the loss and back to dz1.
//   Its threads hold W2 and W3 in registers, where the way there and the way back use them both. No two rows need each
//   other, so there is no waiting in between. After dz1 it updates two rows of W4 (or four). Before it waits for a1 it
//   loads the new W3, then the new W2, W4 and biases.
//
// A smaller GPU may have fewer row blocks, each with more examples, and less memory for images: see the macros. On one
// that is smaller still a block takes the parts of several, one after the other: in rounds. Then the values that are in
// registers here are in its local memory, which is in the caches.
//
// How values are handed over: a flagged message of 8 bytes is a value and the step that it belongs to. The reader looks
// until the step is the right one; so the data are their own signal, and arrive in the time of one write and one read.
// W2 and W3, of which there are many, travel in messages of four values in 16 bytes, with no room for a step: there the
// last bit of the first value says which of two steps it belongs to. (The owner of a weight keeps it in full.)
//
// The images are bytes, so products with them are integer products. W1 (and dz1, for W1's gradient) become integers of
// 31 bits, split into four bytes with signs; the tensor cores multiply bytes by bytes and add up without any rounding.
// The result is closer to the true one than a sum in float32.

#ifndef MOST_ROW_BLOCKS
#define MOST_ROW_BLOCKS 64  // or 32, 16, 8, where there are fewer multiprocessors
#endif
#ifndef SHARED_BY
#define SHARED_BY (BATCH <= 128 ? 1 : 2)  // column blocks that share the images of a batch
#endif
#ifndef BUFFERS
#define BUFFERS 2  // batches of images that a column block has room for; with 1, the next one can't come early
#endif
#ifndef COLUMN_ROUNDS
#define COLUMN_ROUNDS 1  // column blocks' parts that one block takes in turn: 1, 2, 4, 8
#endif
#ifndef ROW_ROUNDS
#define ROW_ROUNDS 1  // and row blocks' parts
#endif

#include "network.cuh"
#include "optimizer.cuh"
#include "splits.cuh"
#include "pixels.cuh"
#include "messages.cuh"
#include "ranks.cuh"
#include "bulk_copy.cuh"
#include "reductions.cuh"

static_assert(BATCH == 32 || BATCH == 64 || BATCH == 128 || BATCH == 256, "rows are dealt out to blocks and to warps");

const int COLUMN_BLOCKS = 64, ROWS = BATCH <= MOST_ROW_BLOCKS ? 1 : BATCH / MOST_ROW_BLOCKS;  // of a row block
const int ROW_BLOCKS = BATCH / ROWS;
const int UNITS = WIDTH / ROW_BLOCKS;  // rows of W4 that a row block owns
const int COLUMN_GRID = COLUMN_BLOCKS / COLUMN_ROUNDS, ROW_GRID = ROW_BLOCKS / ROW_ROUNDS;  // blocks that there are

// Two neighbours share a batch whose images are too many for one of them: each has the images of half of the batch, and
// four columns; both end up with the same weights.
const int SHARE = SHARED_BY;
static_assert(SHARE == 1 || SHARE == 2, "a batch's images are in one column block, or half of them in each of two");
static_assert(BUFFERS == 1 || BUFFERS == 2, "a column block has a buffer for one batch of images, or for two");
static_assert(ROWS == 1 || ROWS == 2 || ROWS == 4, "a row block takes 1, 2 or 4 examples");
static_assert(COLUMN_GRID * COLUMN_ROUNDS == COLUMN_BLOCKS && COLUMN_GRID % SHARE == 0, "neighbours are two blocks");
static_assert(ROW_GRID * ROW_ROUNDS == ROW_BLOCKS, "each block takes as many parts");
static_assert(COLUMN_BLOCKS * 2 == WIDTH, "a column block owns two columns of W1");
static_assert(COLUMN_BLOCKS * TILE * TILE == WIDTH * WIDTH, "a column block owns a tile of W2, and one of W3");
static_assert(UNITS * ROW_BLOCKS == WIDTH && UNITS % 2 == 0, "pairs of messages bring the inputs of a row of W4");

const int STAMPED_BLOCKS = COLUMN_GRID + ROW_GRID, STAGES = 12;
const bool ALL_STAMPED = true;
#include "stamps.cuh"

// Flagged messages of (BATCH, WIDTH) values. They lie as a tile's warp reads them: the tensor cores give each of its
// lanes one row in four, and two columns in sixteen.
struct Tiled {
    Message of[WIDTH / TILE][BATCH / 4][TILE / 2][4][2];

    __device__ Message* at(Word row, Word column) {
        return &of[column / TILE][row / 4][column % TILE / 2][row % 4][column % 2];
    }
    __device__ const Message* at(Word row, Word column) const { return ((Tiled*)this)->at(row, column); }
};

// What the blocks hand each other, twice: while some still read one step's messages, others write the next step's.
struct Messages {
    Tiled a1, a2, dz2, dz3;
    Message dz4[BATCH][TILE];
    Message a3[ROW_BLOCKS][BATCH][UNITS], dz1[COLUMN_BLOCKS][BATCH][2];  // by columns: each block reads a few of them
    float4 W[2][WIDTH][WIDTH / 4];  // W3; W2
    Message b[2][WIDTH], W4[CLASSES][WIDTH], b4[TILE];
    Message dW1[SHARE == 1 ? 1 : COLUMN_BLOCKS][PIXEL_TILES][32][2], db1[COLUMN_BLOCKS][4];  // of half a batch
};

typedef Messages Exchange[2];

struct Arguments {
    const unsigned char* X;
    const long long *y, *order;
    int examples, batch_size;
    Vectors vectors;
    const Rates* rates;  // of each step
    Settings settings;
    float* row_losses;  // (steps, batch_size)
    Messages* exchange;  // two
    Ranks ranks;
};

__device__ Rates rates_of(const Arguments& arguments, int step) {
    const float* rates = &arguments.rates[step].lr;
    return {__ldg(rates), __ldg(rates + 1), __ldg(rates + 2)};
}

// Where gradients are sent to other GPUs from, by the thread that has them: so a warp's lie side by side.
const int FIRST_SENT = COLUMN_BLOCKS * ((PIXEL_TILES + 7) / 8) * SHARE * 256, TILES_SENT = COLUMN_BLOCKS * 3 * 256;
const int TILES_AT = FIRST_SENT, LAST_AT = TILES_AT + TILES_SENT, B1_AT = LAST_AT + ROW_BLOCKS * THREADS;
const int HERE = B1_AT + COLUMN_BLOCKS * 4, SLOTS = HERE + COLUMN_BLOCKS + ROW_BLOCKS;

// Call act(round) for each of the parts that a block takes in turn. (Where that is one, there is no loop.)
template <int ROUNDS, typename Act>
__device__ void in_rounds(Act act) {
    if constexpr (ROUNDS == 1) {
        act(0);
    } else {
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round++) act(round);
    }
}

#include "column_blocks.cuh"
#include "row_blocks.cuh"

// Train on the examples in arguments.order. Grid: COLUMN_GRID + ROW_GRID. The exchange starts as zeros.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    train(const unsigned char* X, const long long* y, const long long* order, int examples, int batch_size,
          float* row_losses, Word64* failure, Messages* exchange, float* theta, float* m, float* v, const Rates* rates,
          float beta1, float rest1, float beta2, float rest2, float eps, float l2, float shrink, Ranks ranks) {
    if (threadIdx.x == 0) watch().failure = failure;
    __syncthreads();
    if (somebody_gave_up()) return;  // in an epoch before
    if (threadIdx.x == 0) ranks.meet(HERE + blockIdx.x);
    __syncthreads();
    const Settings settings = {beta1, rest1, beta2, rest2, eps, l2, shrink};
    const Vectors vectors = {theta, m, v};
    const Arguments arguments = {X,     y,        order,      examples, batch_size, vectors,
                                 rates, settings, row_losses, exchange, ranks};
    const int steps = (examples + batch_size - 1) / batch_size;
    if (blockIdx.x < COLUMN_GRID) {
        column_block(arguments, steps);
    } else {
        row_block(arguments, steps);
    }
    __syncthreads();
    if (threadIdx.x == 0 && somebody_gave_up()) theta[0] = __uint_as_float(0x7fffffff);  // a NaN: this is no result
}

// What a launch needs, which the host can't work out by itself.
extern "C" __global__ void requirements(int* answer) {
    answer[0] = sizeof(Exchange);
    answer[1] = max(sizeof(ColumnShared), sizeof(RowShared));
    answer[2] = COLUMN_GRID + ROW_GRID;
    answer[3] = THREADS;
    answer[4] = SLOTS;
}

// What is known before the kernel runs: the shapes of the layers, and where all their values lie.

#include "ptx.cuh"

#ifndef PIXEL
#define PIXEL unsigned char  // or float
#endif
#ifndef CHANNELS  // of an image
#define CHANNELS 1
#define HEIGHT 28
#define WIDTH 28
#endif
#ifndef CONVS  // channels, size and padding of each convolution
#define CONVS 6, 5, 2, 16, 5, 0
#endif
#ifndef DENSE  // units of each dense layer; the last are the classes
#define DENSE 120, 84, 10
#endif
#ifndef BATCH
#define BATCH 128
#endif
#ifndef GRID  // blocks, all of them on the GPU at once
#define GRID 132
#endif
#ifndef BLOCK_THREADS
#define BLOCK_THREADS 512
#endif
#ifndef ADAM
#define ADAM 0
#endif
#ifndef PAIRS
#define PAIRS 0  // whether two blocks share what they read
#endif
#ifndef IMAGE_BLOCKS
#define IMAGE_BLOCKS 1  // blocks that share an image: one, or two neighbours
#endif
#ifndef FIRST_WINDOWS
#define FIRST_WINDOWS 7  // windows of a row that a lane takes at most, back through the first convolution
#endif
#ifndef MOST_WINDOWS
#define MOST_WINDOWS (IMAGE_BLOCKS > 1 ? 3 : 5)  // that a thread takes of a row, forward
#endif
#ifndef STREAMS
#define STREAMS 0  // whether dense weights come through the L2 cache, and there is no unit that copies
#endif
#ifndef SHARED_LIMIT  // bytes that a block may have
#define SHARED_LIMIT 232448
#endif

extern __shared__ __align__(128) unsigned char shared_bytes[];

const int TOGETHER = PAIRS ? 2 : 1;  // blocks of a cluster
const int THREADS = BLOCK_THREADS, WARPS = THREADS / 32;
constexpr int CONV_LIST[] = {CONVS}, DENSE_LIST[] = {DENSE};
constexpr int BLOCKS = sizeof(CONV_LIST) / sizeof(int) / 3, LAYERS = sizeof(DENSE_LIST) / sizeof(int);

constexpr int up_to(int multiple, int n) { return (n + multiple - 1) / multiple * multiple; }
constexpr int parts(int n, int size) { return (n + size - 1) / size; }
constexpr int most(int x, int y) { return x > y ? x : y; }
constexpr int least(int x, int y) { return x < y ? x : y; }
constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// A convolution with its pooling: ci images of h x w become co of oh x ow, and then of ph x pw.
struct Shape {
    int ci, h, w, co, k, pad, oh, ow, ph, pw;

    constexpr int rows() const { return h + 2 * pad; }
    constexpr int taps() const { return ci * k * k; }
    constexpr int windows() const { return ph * pw; }
    constexpr int outputs() const { return co * ph * pw; }

    // Channels out come in groups of at most four, whose weights for a tap are read at once.
    constexpr int groups() const { return parts(co, 4); }
    constexpr int each() const { return parts(co, groups()); }

    // A thread takes so many windows of a row, in one channel out; there are so many threads to a row.
    constexpr int pieces() const { return parts(pw, MOST_WINDOWS); }
    constexpr int piece() const { return parts(pw, pieces()); }

    // Values from a row to the next. Half a warp reads pairs at once, and its rows shall be in different banks.
    constexpr int stride() const { return (most(w + 2 * pad, 2 * piece() * pieces() + k - 1) + 1) / 4 * 4 + 2; }

    // Values from a channel to the next, where lanes take channels and rows of taps.
    constexpr int plane() const {
        int best = 0, fewest = 1000;
        for (int more = 0; more < 32; more += 2) {
            int hits[2][16] = {}, worst[2] = {};
            for (int i = 0; i < 32 && i < ci * k; i++) {
                int& here = hits[i / 16][(i / k * more + i % k * stride()) / 2 % 16];
                worst[i / 16] = most(worst[i / 16], ++here);
            }
            if (worst[0] + worst[1] < fewest) best = more, fewest = worst[0] + worst[1];
        }
        return up_to(32, rows() * stride()) + best;
    }
};

constexpr Shape shape(int block) {
    Shape s = {0, 0, 0, CHANNELS, 0, 0, 0, 0, HEIGHT, WIDTH};
    for (int i = 0; i <= block; i++) {
        const int k = CONV_LIST[3 * i + 1], pad = CONV_LIST[3 * i + 2];
        const int oh = s.ph + 2 * pad - k + 1, ow = s.pw + 2 * pad - k + 1;
        s = {s.co, s.ph, s.pw, CONV_LIST[3 * i], k, pad, oh, ow, oh / 2, ow / 2};
    }
    return s;
}

// ---- An image's halves ----

// Two blocks that share an image go through the first convolution both. Then each takes half of the channels that come
// out of the second one, and the weights of the first dense layer that they meet; on the way back, too. At last each
// takes half of the first convolution's channels. So they hand each other sums twice: of the first dense layer's
// outputs, and of the gradients that come to the first convolution. All else both compute.
__device__ int half() { return IMAGE_BLOCKS > 1 ? blockIdx.x % IMAGE_BLOCKS : 0; }
__device__ int first_image() { return blockIdx.x / IMAGE_BLOCKS; }
constexpr int forward_channels(int block) { return shape(block).co / (block == BLOCKS - 1 ? IMAGE_BLOCKS : 1); }
constexpr int back_channels(int block) { return shape(block).co / IMAGE_BLOCKS; }

// ---- Dense layers ----

constexpr int units(int layer) { return layer < 0 ? shape(BLOCKS - 1).outputs() : DENSE_LIST[layer]; }
constexpr int inputs(int layer) { return units(layer - 1); }
constexpr int wide(int layer) { return up_to(4, units(layer)); }  // a row of weights, filled up

// Of a layer's inputs, those whose weights this block has
constexpr int rows_here(int layer) { return inputs(layer) / (layer ? 1 : IMAGE_BLOCKS); }
template <int layer>
__device__ int first_row() {
    return layer ? 0 : half() * rows_here(0);
}

// A warp has some rows of weights, and a lane some of their fours; where a row has few, more rows lie side by side.
struct Sharing {
    int rows, fours;

    constexpr int lanes() const { return least(32, power_of_two(fours)); }  // of a row
    constexpr int columns() const { return parts(fours, lanes()); }         // fours of a lane
    constexpr int slots() const { return WARPS * 32 / lanes(); }
    constexpr int each() const { return parts(rows, slots()); }  // rows of a slot
};

constexpr Sharing sharing(int layer) { return {rows_here(layer), wide(layer) / 4}; }

constexpr int largest() {
    int best = 0;
    for (int i = 1; i < LAYERS; i++) best = rows_here(i) * wide(i) > rows_here(best) * wide(best) ? i : best;
    return best;
}
const int LARGEST = largest();

// ---- A block's shared memory: bytes, each piece begins at a multiple of 16 ----

constexpr int HEAD = 128;  // where failures are written down, and two barriers
constexpr int plane_bytes(int block) { return up_to(16, 4 * (shape(block).ci * shape(block).plane() + 4)); }
constexpr int planes_at(int block) { return block ? planes_at(block - 1) + plane_bytes(block - 1) : HEAD; }
constexpr int CONV_AT = planes_at(BLOCKS);

// The weights of the convolutions, as they are handed over: [group][tap][4], and after them all biases. Then the dense
// layers' biases, and their weights row after row.
constexpr int conv_packed(int block) {
    return block ? conv_packed(block - 1) + shape(block - 1).groups() * shape(block - 1).taps() * 4 : 0;
}
constexpr int conv_bias_packed(int block) {
    return block ? conv_bias_packed(block - 1) + up_to(4, shape(block - 1).co) : conv_packed(BLOCKS);
}
constexpr int CONV_PACKED = conv_bias_packed(BLOCKS);
constexpr int bias_packed(int layer) { return layer ? bias_packed(layer - 1) + wide(layer - 1) : CONV_PACKED; }
constexpr int BIASES_PACKED = bias_packed(LAYERS) - CONV_PACKED;
constexpr int dense_packed(int layer) {
    return layer ? dense_packed(layer - 1) + inputs(layer - 1) * wide(layer - 1) : CONV_PACKED + BIASES_PACKED;
}
constexpr int PACKED = dense_packed(LAYERS);

constexpr int BIASES_AT = CONV_AT + 4 * CONV_PACKED;

// Activations: the inputs of each dense layer, and at last the outputs. Slopes: the gradient of each layer's outputs.
constexpr int activations_before(int layer) { return layer ? activations_before(layer - 1) + wide(layer - 2) : 0; }
constexpr int slopes_before(int layer) { return layer ? slopes_before(layer - 1) + wide(layer - 1) : 0; }
constexpr int ACTIVATIONS = activations_before(LAYERS), SLOPES = slopes_before(LAYERS);
constexpr int ACTIVATIONS_AT = BIASES_AT + 4 * BIASES_PACKED;
constexpr int SLOPES_AT = ACTIVATIONS_AT + 4 * (ACTIVATIONS + wide(LAYERS - 1));

// Which of its four places each pooled maximum came from
constexpr int codes_at(int block) {
    return block ? codes_at(block - 1) + up_to(16, shape(block - 1).outputs()) : SLOPES_AT + 4 * SLOPES;
}

// Into how many parts a convolution's sums are cut, so that no thread is idle: each part has so many channels in.
constexpr int items(int block) {  // of a part
    const Shape s = shape(block);
    return forward_channels(block) * s.ph * s.pieces();
}
constexpr int channels_in(int block) {
    const Shape s = shape(block);
    return parts(s.ci, least(s.ci, most(1, THREADS / items(block))));
}
constexpr int splits(int block) { return parts(shape(block).ci, channels_in(block)); }
constexpr int sums_of_parts(int block) {  // fours
    return splits(block) == 1 ? 0 : splits(block) * shape(block).outputs();
}

// On the way back: what comes to each pooled value, and from which place it came
constexpr int routes_before(int block) { return block ? routes_before(block - 1) + 8 * shape(block - 1).outputs() : 0; }

// What the neighbour sends: its sums.
constexpr int SWAP_AT = up_to(16, codes_at(BLOCKS));
constexpr int SWAP_BACK_AT = SWAP_AT + (IMAGE_BLOCKS > 1 ? 4 * wide(0) : 0);
constexpr int swap_back_elements() {
    const Shape s = shape(BLOCKS - 1);
    return s.ci * s.h * s.w;
}

// What has no other place, for a while: parts of sums; the routes, and after them the weights of all convolutions but
// the first, turned round.
constexpr int SCRATCH_AT = SWAP_BACK_AT + (IMAGE_BLOCKS > 1 ? up_to(16, 4 * swap_back_elements() / IMAGE_BLOCKS) : 0);
constexpr int transposed_bytes(int block) { return up_to(16, 4 * shape(block).co * shape(block).taps()); }
constexpr int transposed_before(int block) {
    if (block > 1) return transposed_before(block - 1) + transposed_bytes(block - 1);
    int need = up_to(16, routes_before(BLOCKS));
    for (int i = 0; i < LAYERS; i++) need = most(need, 4 * WARPS * wide(i));
    return need;
}
constexpr int scratch_bytes() {
    int need = most(transposed_before(most(1, BLOCKS)), 4 * WARPS * 32 * 4);
    for (int i = 0; i < BLOCKS; i++) need = most(need, 16 * sums_of_parts(i));
    return up_to(128, need);
}
constexpr int DENSE_AT = up_to(128, SCRATCH_AT + scratch_bytes());

// How many rows of a slot lie in shared memory: all, but of the largest layer what there is room for; the others wait
// in registers.
constexpr int others() {
    int bytes = 0;
    for (int i = 0; i < LAYERS; i++) bytes += i == LARGEST ? 0 : 4 * rows_here(i) * wide(i);
    return bytes;
}
constexpr int resident(int layer) {
    const Sharing s = sharing(layer);
    if (STREAMS) return 0;
    const int fits = (SHARED_LIMIT - DENSE_AT - others()) / (4 * s.slots() * wide(layer));
    return layer == LARGEST && 4 * rows_here(layer) * wide(layer) > SHARED_LIMIT - DENSE_AT - others() ? most(0, fits)
                                                                                                     : s.each();
}
const int MOST_KEPT = 12;  // fours of a thread
constexpr int kept_rows() {
    const Sharing s = sharing(LARGEST);
    const int others = most(0, s.each() - resident(LARGEST));
    return STREAMS ? least(others, MOST_KEPT / s.columns()) : others;
}
constexpr int dense_bytes(int layer) {
    const Sharing s = sharing(layer);
    return 4 * wide(layer) * (resident(layer) < s.each() ? resident(layer) * s.slots() : rows_here(layer));
}
constexpr int dense_at(int layer) { return layer ? dense_at(layer - 1) + dense_bytes(layer - 1) : DENSE_AT; }

// ---- Theta: all weights, layer after layer, and then all biases ----

constexpr int conv_weights(int block) {
    return block ? conv_weights(block - 1) + shape(block - 1).co * shape(block - 1).taps() : 0;
}
constexpr int dense_weights(int layer) {
    return layer ? dense_weights(layer - 1) + inputs(layer - 1) * units(layer - 1) : conv_weights(BLOCKS);
}
constexpr int conv_biases(int block) {
    return block ? conv_biases(block - 1) + shape(block - 1).co : dense_weights(LAYERS);
}
constexpr int dense_biases(int layer) {
    return layer ? dense_biases(layer - 1) + units(layer - 1) : conv_biases(BLOCKS);
}

// The gradients of an example's convolutions: all weights, and then all biases
constexpr int CONV_WEIGHTS = conv_weights(BLOCKS), CONV_BIASES = conv_biases(BLOCKS) - dense_weights(LAYERS);
constexpr int PARTIAL = up_to(4, CONV_WEIGHTS + CONV_BIASES);

// ---- On the way back, in the place of the dense weights, or behind what is still needed ----

// A block adds up so many parameters of the convolutions, sixteen lanes two of each at a time: see limit_update.cuh.
const int CONV_EACH = up_to(2, parts(PARTIAL, GRID)), PASSES = parts(CONV_EACH, 32);
constexpr int still_needed() { return most(transposed_before(most(1, BLOCKS)), 4 * PASSES * WARPS * 32); }
constexpr int LATE_AT = STREAMS ? up_to(128, SCRATCH_AT + still_needed()) : DENSE_AT;

struct Division {  // back through a convolution but the first: see limit_convs.cuh
    int lanes, chunks, windows, span, groups, each;
    int slots;  // rows whose weights' gradients have places of their own: all, if they fit
};
constexpr Division divided(int block, int most_groups) {
    const Shape s = shape(block);
    const int lanes = parts(s.ci * s.k, 32), chunks = parts(s.pw, 5), windows = parts(s.pw, chunks);
    const int co = back_channels(block), groups = least(least(co, most_groups), most(1, WARPS / (s.ph * chunks * lanes)));
    const int each = parts(co, groups);
    return {lanes, chunks, windows, 2 * windows + s.k - 1, parts(co, each), each, s.ph * chunks};
}
constexpr int rows_of_parts(int block) { return shape(block).ph * divided(block, 1).chunks; }
constexpr int dw_bytes(int block, const Division& d) { return up_to(16, d.slots * transposed_bytes(block)); }
// Sums for the inputs' gradients: so many from a column to the next, and from a row of outputs to the next. Who adds
// them up reads down one column after another: so their rows are in different banks, and those of the next one, too.
constexpr int column(int block) { return 32 * divided(block, 1).lanes + (STREAMS ? 1 : shape(block).h % 32); }
constexpr int piece(int block) { return up_to(32, divided(block, 1).span * column(block)) + 1; }
constexpr int dx_bytes(int block, const Division& d) {
    return up_to(16, 4 * d.groups * rows_of_parts(block) * 2 * piece(block));
}
// The division that takes the fewest turns, of those that fit.
constexpr Division division(int block) {
    Division best = divided(block, WARPS);
    if (!STREAMS) return best;
    int fewest = 1 << 30;
    for (int groups = best.groups; groups > 0; groups--) {
        for (int slots = rows_of_parts(block); slots > 0; slots--) {
            Division d = divided(block, groups);
            d.slots = slots;
            const int turns = parts(rows_of_parts(block), slots) * parts(slots * d.lanes * d.groups, WARPS) * d.each;
            const bool fits = LATE_AT + dw_bytes(block, d) + dx_bytes(block, d) <= SHARED_LIMIT;
            if (fits && turns < fewest) best = d, fewest = turns;
        }
    }
    return best;
}
constexpr int dw_bytes(int block) { return dw_bytes(block, division(block)); }
constexpr int dx_bytes(int block) { return dx_bytes(block, division(block)); }

struct First {  // back through the first convolution
    int lanes, chunks, windows, span, groups, each;
};
constexpr First first_division() {
    const Shape s = shape(0);
    const int chunks = parts(s.pw, FIRST_WINDOWS), windows = parts(s.pw, chunks), co = back_channels(0);
    const int lanes = parts(chunks * s.ph * s.ci * s.k, 32);  // and rows, and taps: the same for all channels
    int each = co;  // channels that a warp takes in turn: that all have few of them
    for (int fewer = co - 1; fewer > 0; fewer--) {
        if (parts(lanes * parts(co, fewer), WARPS) * fewer < parts(lanes * parts(co, each), WARPS) * each) each = fewer;
    }
    return {lanes, chunks, windows, 2 * windows + s.k - 1, parts(co, each), each};
}
constexpr int late_bytes() {
    const Shape s = shape(0);
    int need = most(4 * first_division().chunks * s.co * s.ph * s.taps(), 4 * WARPS * 32 * 20);
    for (int i = 1; i < BLOCKS; i++) need = most(need, dw_bytes(i) + dx_bytes(i));
    return need;
}
constexpr int SHARED_BYTES = most(dense_at(LAYERS), LATE_AT + late_bytes());

static_assert(IMAGE_BLOCKS == 1 || (IMAGE_BLOCKS == 2 && PAIRS && BLOCKS == 2 && 2 * BATCH <= GRID),
              "two neighbours an image");
static_assert(IMAGE_BLOCKS == 1 || (shape(0).co % 2 == 0 && shape(BLOCKS - 1).co % 2 == 0 && inputs(0) % 8 == 0),
              "half an image a block");
static_assert(IMAGE_BLOCKS == 1 || swap_back_elements() % 2 == 0, "half an image a block");
static_assert(!PAIRS || (GRID % 2 == 0 && BATCH <= GRID), "pairs take one image each");
static_assert(!STREAMS || (!PAIRS && IMAGE_BLOCKS == 1), "blocks have no neighbours");
static_assert(THREADS % 128 == 0 && BLOCKS >= 1 && LAYERS >= 1, "");
static_assert(SHARED_BYTES <= SHARED_LIMIT, "too large for shared memory");
static_assert(kept_rows() * sharing(LARGEST).columns() <= MOST_KEPT, "too large for shared memory and registers");

template <int n>
struct Constant {
    static constexpr int value = n;
};

// The number of this thread, from which nothing is worked out long before it is needed, and kept in registers since.
__device__ int thread() { return now((int)threadIdx.x); }

__device__ float* shared_floats(int at) { return (float*)(shared_bytes + at); }

// A whole epoch in one launch. The blocks stay, keep what they need close by, and hand each other numbers; so the GPU
// must hold all of them at once, one on each multiprocessor.
// needs sm_90
//
//   Column blocks (64): each owns 2 columns of W1, and has the whole batch of images in shared memory. It computes its
//   columns of a1, and when their gradient comes back it updates its columns and goes straight on to the next batch:
//   nobody else needs to see W1. In between, half of its warps update a tile of 16 x 16 of W3, the other half one of W2.
//
//   Row blocks (up to 64): each takes 1, 2 or 4 examples from a1 through the other layers to the loss and back to dz1.
//   Its threads hold W2 and W3 in registers, where the way there and the way back use them both. No two rows need each
//   other, so there is no waiting in between. After dz1 it updates two rows of W4 (or four), and loads the new W3; the
//   new W2, W4 and biases it loads as the next step begins, before it waits for a1.
//
// How numbers are handed over: a packet of 8 bytes is a number and the step that it belongs to. The reader looks until
// the step is the right one; so the data are their own signal, and arrive in the time of one write and one read.
// W2 and W3, of which there are many, travel in packets of four numbers in 16 bytes, with no room for a step: there the
// last bit of the first number says which of two steps it belongs to. (The owner of a weight keeps it in full.)
//
// The images are bytes, so products with them are integer products. W1 (and dz1, for W1's gradient) become integers of
// 31 bits, cut into four digits of 8 bits; the tensor cores multiply bytes by digits and add up without any rounding.
// The result is closer to the true one than a sum in float32.

#include "digits.cuh"

#ifndef INPUTS
#define INPUTS 784  // a multiple of 16
#endif
#ifndef CLASSES
#define CLASSES 10  // at most 16
#endif
#ifndef BATCH
#define BATCH 128  // 32, 64, 128 or 256: rows in use, and rows that fill up
#endif
#ifndef ADAM
#define ADAM 0
#endif
#ifndef MARKED_STEPS
#define MARKED_STEPS 0  // so many steps' times are written down, after the first 100
#endif

#include "optimizer.cuh"

const int THREADS = 512, WARPS = 16, WIDTH = 128, TILE = 16;
const int COLUMN_BLOCKS = 64, ROWS = BATCH <= 64 ? 1 : BATCH / 64, ROW_BLOCKS = BATCH / ROWS;
const int UNITS = WIDTH / ROW_BLOCKS;  // rows of W4 that a row block owns
const int BUFFERS = BATCH <= 128 ? 2 : 1;  // of images: while one batch is worked on, the next arrives

// theta: the weights of all layers, then the biases of all layers.
const int W1 = 0, W2 = INPUTS * WIDTH, W3 = W2 + WIDTH * WIDTH, W4 = W3 + WIDTH * WIDTH;
const int B1 = W4 + WIDTH * CLASSES, B2 = B1 + WIDTH, B3 = B2 + WIDTH, B4 = B3 + WIDTH;

typedef unsigned long long Packet;

// What the blocks hand each other, twice: while some still read one step's packets, others write the next step's.
struct Packets {
    Packet a1[BATCH][WIDTH], a2[BATCH][WIDTH], dz2[BATCH][WIDTH], dz3[BATCH][WIDTH], dz4[BATCH][TILE];
    Packet a3[ROW_BLOCKS][BATCH][UNITS], dz1[COLUMN_BLOCKS][BATCH][2];  // by columns: each block reads a few of them
    float4 W[2][WIDTH][WIDTH / 4];  // W3; W2
    Packet b[2][WIDTH], W4[CLASSES][WIDTH], b4[TILE];
};

typedef Packets Exchange[2];

struct Arguments {
    const unsigned char* X;
    const long long *y, *order;
    int examples, batch_size;
    Vectors vectors;
    const Rates* rates;  // of each step
    Settings settings;
    float* row_losses;  // (steps, batch_size)
    Packets* exchange;  // two
};

extern __shared__ __align__(128) unsigned char shared_bytes[];

#if MARKED_STEPS
__device__ long long marks[COLUMN_BLOCKS + ROW_BLOCKS][MARKED_STEPS][12];  // ns

// Write down when the block's first thread comes to a stage. (The multiprocessors' clocks don't all run at one rate.)
__device__ void mark(int step, int stage) {
    if (threadIdx.x == 0 && step >= 100 && step < 100 + MARKED_STEPS) {
        long long now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
        marks[blockIdx.x][step - 100][stage] = now;
    }
}
#else
__device__ void mark(int step, int stage) {}
#endif

// ---- Handing over ----

__device__ void give_up_after_a_while(Word& looks) {
    if (++looks > (1u << 24)) __trap();  // seconds: another block must have failed
}

__device__ void send(Packet* to, float value, Word tag) {
    const Packet packet = (Packet)tag << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(packet) : "memory");
}

// Read what is at a place, if it is asked for. (A condition of the instruction, not a branch: lanes stay together.)
__device__ void look(Packet& packet, const Packet* at, bool asked = true) {
    asm volatile("{ .reg .pred asked; setp.ne.u32 asked, %2, 0; @asked ld.relaxed.gpu.global.u64 %0, [%1]; }"
                 : "+l"(packet)
                 : "l"(at), "r"((Word)asked)
                 : "memory");
}

__device__ void look(ulonglong2& packets, const Packet* at, bool asked = true) {
    asm volatile("{ .reg .pred asked; setp.ne.u32 asked, %3, 0; @asked ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2]; }"
                 : "+l"(packets.x), "+l"(packets.y)
                 : "l"(at), "r"((Word)asked)
                 : "memory");
}

__device__ bool is_of(Packet packet, Word tag) { return (Word)(packet >> 32) == tag; }
__device__ bool is_of(ulonglong2 packets, Word tag) { return is_of(packets.x, tag) && is_of(packets.y, tag); }
__device__ float value_of(Packet packet) { return __uint_as_float((Word)packet); }

// N packets, or pairs of them, asked for at once; at(i) is where the i-th is. What is not there yet is asked for again.
// A whole warp waits together: lanes that leave a loop one by one are slow to come together again.
template <typename Item, int N>
struct MailOf {
    Item items[N];

    template <typename At>
    __device__ void ask(At at) {
#pragma unroll
        for (int i = 0; i < N; i++) look(items[i], at(i));
    }

    template <typename At>
    __device__ void wait(Word tag, At at) {
        Word looks = 0;
        for (;;) {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; i++) all = all && is_of(items[i], tag);
            if (__all_sync(~0u, all)) break;
#pragma unroll
            for (int i = 0; i < N; i++) look(items[i], at(i), !is_of(items[i], tag));
            give_up_after_a_while(looks);
        }
    }
};

template <int N>
struct Mail : MailOf<ulonglong2, N> {
    __device__ float2 operator[](int i) const {
        return make_float2(value_of(this->items[i].x), value_of(this->items[i].y));
    }
};

template <int N>
struct SingleMail : MailOf<Packet, N> {
    __device__ float operator[](int i) const { return value_of(this->items[i]); }
};

// Wait for one packet. By a whole warp, each lane for its own, or all for the same.
__device__ float receive(const Packet* from, Word tag) {
    const auto at = [=](int) { return from; };
    SingleMail<1> mail;
    mail.ask(at);
    mail.wait(tag, at);
    return mail[0];
}

// Four numbers in one piece of 16 bytes, which the GPU reads and writes as a whole. `mark` is the first one's last bit.
__device__ void send_four(float4* to, float4 values, Word mark) {
    const Word first = __float_as_uint(values.x) & ~1u | mark;
    const Packet low = (Packet)__float_as_uint(values.y) << 32 | first;
    const Packet high = (Packet)__float_as_uint(values.w) << 32 | __float_as_uint(values.z);
    asm volatile("{ .reg .b128 four; mov.b128 four, {%1, %2}; st.relaxed.gpu.global.b128 [%0], four; }" ::"l"(to), "l"(low),
                 "l"(high)
                 : "memory");
}

__device__ void look(float4& four, const float4* at, bool asked = true) {
    asm volatile("{ .reg .b64 low, high; .reg .b128 four; .reg .pred asked; setp.ne.u32 asked, %5, 0;"
                 " mov.b64 low, {%0, %1}; mov.b64 high, {%2, %3}; mov.b128 four, {low, high};"
                 " @asked ld.relaxed.gpu.global.b128 four, [%4];"
                 " mov.b128 {low, high}, four; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
                 : "+f"(four.x), "+f"(four.y), "+f"(four.z), "+f"(four.w)
                 : "l"(at), "r"((Word)asked)
                 : "memory");
}

__device__ bool has_mark(float4 four, Word mark) { return (__float_as_uint(four.x) & 1) == mark; }

// A piece of memory serves every second step; from one to the next, the mark changes. The first is 1: memory starts as 0.
__device__ Word mark_of(Word tag) { return ~((tag - 1) / 2) & 1; }

// Half of a block's warps work on W3, the other half on W2, and neither waits for the other.
__device__ void sync_half(int half) { asm volatile("bar.sync %0, %1;" ::"r"(1 + half), "n"(THREADS / 2) : "memory"); }

// ---- Copies that a unit of their own makes: they arrive while all threads do other things ----

// A barrier in shared memory goes into its next phase when one thread has arrived, and all bytes that it expects.
__device__ void start(Packet* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.proxy.async.shared::cta;" ::"r"(
                     (Word)__cvta_generic_to_shared(barrier))
                 : "memory");
}

// Arrive, and expect so many bytes.
__device__ void expect(Packet* barrier, Word bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((Word)__cvta_generic_to_shared(barrier)),
                 "r"(bytes)
                 : "memory");
}

__device__ void copy(unsigned char* to, const unsigned char* from, Word bytes, Packet* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (Word)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes), "r"((Word)__cvta_generic_to_shared(barrier))
                 : "memory");
}

__device__ bool is_over(Packet* barrier, Word phase) {
    Word over;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"((Word)__cvta_generic_to_shared(barrier)), "r"(phase)
                 : "memory");
    return over;
}

__device__ void wait_for(Packet* barrier, Word phase) {
    Word looks = 0;
    while (!is_over(barrier, phase)) give_up_after_a_while(looks);
}

__device__ Rates rates_of(const Arguments& arguments, int step) {
    const float* rates = &arguments.rates[step].lr;
    return {__ldg(rates), __ldg(rates + 1), __ldg(rates + 2)};
}

// ---- Tensor cores, what digits.cuh leaves ----

__device__ void multiply_half(int (&c)[4], Word a0, Word a1, Word b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

__device__ Word shortened(float x) {
    Word y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// A number of 24 bits is the sum of two of 11 bits and almost nothing.
template <int N>
__device__ void split(const float (&x)[N], Word (&high)[N], Word (&low)[N]) {
    for (int i = 0; i < N; i++) {
        high[i] = shortened(x[i]);
        low[i] = shortened(x[i] - __uint_as_float(high[i]));
    }
}

// The product in full, but for low times low.
__device__ void multiply(float (&c)[4], const Word (&a_high)[4], const Word (&a_low)[4], const float (&b)[2]) {
    Word high[2], low[2];
    split(b, high, low);
    multiply_short(c, a_low, high);
    multiply_short(c, a_high, low);
    multiply_short(c, a_high, high);
}

// ---- Column blocks ----

const int PIXEL_TILES = INPUTS / 16, TILES_A_WARP = (PIXEL_TILES + WARPS - 1) / WARPS;
const int ROW_TILES = BATCH / 16, SPLITS = WARPS / ROW_TILES;  // warps that share a tile's sum over the pixels
const int STEPS_A_SPLIT = (INPUTS / 32 + SPLITS - 1) / SPLITS;
const int STEPS_AT_ONCE = STEPS_A_SPLIT > 4 ? 4 : STEPS_A_SPLIT > 0 ? STEPS_A_SPLIT : 1;  // as the registers allow
const int TILE_WARPS = WARPS / 2;                              // eight warps have a tile of W3, eight one of W2
const int MAIL_ROWS = BATCH <= 128 ? BATCH / TILE_WARPS : 16;  // whose packets a warp asks for at a time
const int MOST_AHEAD = BATCH > 128 ? 0 : 1;                    // as the registers allow
const int AHEAD = PIXEL_TILES / WARPS < MOST_AHEAD ? PIXEL_TILES / WARPS : MOST_AHEAD;  // tiles of pixels, for dW1

struct ColumnShared {
    unsigned char x[BUFFERS][BATCH][INPUTS];
    unsigned char W[8][INPUTS];  // four digits of each of two columns
    Word dz[32][BATCH / 16];     // dz1's digits, as the tensor cores want them
    union {
        int sums[SPLITS][BATCH][8];       // of the first layer's products
        float parts[WARPS][TILE * TILE];  // of a tile's gradient
    };
    float bias_parts[WARPS][TILE];
    Packet arrived[BUFFERS];  // the barriers that count the images' bytes
    Word largest[WARPS];
    float unit[2];  // of the sums of products of pixels and dz1's integers
    Parameter b1[2], hidden_bias[2][TILE];  // the latter only in some blocks
};

// Ask for the images of a batch, and go on. By the last threads, which have time where there are two buffers: the copies
// are queued one after the other.
const int FETCHERS = BUFFERS > 1 ? 128 : THREADS;

__device__ void fetch(const Arguments& arguments, ColumnShared& shared, int step) {
    const int first = step * arguments.batch_size, n = min(arguments.batch_size, arguments.examples - first);
    const int row = (int)threadIdx.x - (THREADS - FETCHERS), buffer = step % BUFFERS;
    if (row == 0) expect(&shared.arrived[buffer], n * INPUTS);
    if (row >= 0 && row < n) {
        const unsigned char* image = arguments.X + __ldg(arguments.order + first + row) * INPUTS;
        copy(shared.x[buffer][row], image, INPUTS, &shared.arrived[buffer]);
    }
}

// A lane's share of W1: of pixel tile warp + 16 i, one pixel of one column.
struct FirstWeights {
    Parameter of[TILES_A_WARP];
    int biased, next;  // the exponent that the digits were made with, and a guess for the next step's

    static __device__ int tile(int i) { return threadIdx.x / 32 + i * WARPS; }
    static __device__ bool has(int i) { return (i + 1) * WARPS <= PIXEL_TILES || tile(i) < PIXEL_TILES; }
    static __device__ int column() { return threadIdx.x % 4 / 2; }
    static __device__ int pixel(int i) { return tile(i) * 16 + threadIdx.x % 32 / 4 * 2 + threadIdx.x % 2; }
    static __device__ int place(int i) { return W1 + pixel(i) * WIDTH + blockIdx.x * 2 + column(); }

    // Write the digits into shared memory. The exponent is guessed from the last step's, and checked on the way.
    __device__ void write_digits(ColumnShared& shared) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        bool fits;
        do {
            Word largest = 0;
#pragma unroll
            for (int i = 0; i < TILES_A_WARP; i++) {
                if (has(i)) {
                    largest = max(largest, magnitude(of[i].w));
                    const Word mine = digits(of[i].w, scale(biased));
                    const Word other = __shfl_xor_sync(~0u, mine, 1);  // the pixel beside mine
                    const bool odd = lane % 2;
                    const Word two = odd ? __byte_perm(other, mine, 0x7362) : __byte_perm(mine, other, 0x5140);
                    unsigned char* row = &shared.W[4 * column() + 2 * odd][pixel(i) - odd];
                    *(unsigned short*)row = two;
                    *(unsigned short*)(row + INPUTS) = two >> 16;
                }
            }
            largest = __reduce_max_sync(~0u, largest);
            if (lane == 0) shared.largest[warp] = largest;
            __syncthreads();
            const int found = biased_exponent(__reduce_max_sync(~0u, shared.largest[lane % WARPS]));
            fits = found <= biased;
            if (!fits) {
                biased = found;
                __syncthreads();
            } else {
                next = min(found + 1, 255);
            }
        } while (!fits);
    }
};

// a1 = relu(x W1 + b1) for the block's two columns.
__device__ void first_layer(ColumnShared& shared, const unsigned char (*x)[INPUTS], float inverse, Packets& packets,
                            Word tag) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row_tile = warp % ROW_TILES, split = warp / ROW_TILES;
    const unsigned char* a_row = &x[row_tile * 16 + lane % 16][lane / 16 * 16];
    const unsigned char* b_row = &shared.W[lane / 4][lane % 4 * 4];
    const float unit = inverse / 255;
    int even[4] = {}, odd[4] = {};  // two sums, so that a product need not wait for the one before
#pragma unroll
    for (int start = 0; start < STEPS_A_SPLIT; start += STEPS_AT_ONCE) {
        Word a[STEPS_AT_ONCE][4], b[STEPS_AT_ONCE][2];  // loaded ahead of the products
#pragma unroll
        for (int i = 0; i < STEPS_AT_ONCE; i++) {
            const int k = min(((start + i) * SPLITS + split) * 32, INPUTS - 32);
            load_matrices(a[i], a_row + k);
            for (int j = 0; j < 2; j++) b[i][j] = *(const Word*)(b_row + k + 16 * j);
        }
#pragma unroll
        for (int i = 0; i < STEPS_AT_ONCE; i++) {
            if (((start + i) * SPLITS + split) * 32 + 32 <= INPUTS) multiply(i % 2 ? odd : even, a[i], b[i][0], b[i][1]);
        }
    }
    if (INPUTS % 32 && split == SPLITS - 1) {
        Word a[4];
        load_matrices(a, &x[row_tile * 16 + lane % 16][INPUTS - 16]);  // the last two matrices repeat the first two
        multiply_half(odd, a[0], a[1], *(const Word*)(b_row + INPUTS - 16));
    }
    for (int half = 0; half < 2; half++) {
        int* to = &shared.sums[split][row_tile * 16 + half * 8 + lane / 4][lane % 4 * 2];
        *(int2*)to = make_int2(even[2 * half] + odd[2 * half], even[2 * half + 1] + odd[2 * half + 1]);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 2 * BATCH; e += THREADS) {
        const int row = e / 2, column = e % 2;
        long long sum = 0;
        for (int part = 0; part < SPLITS; part++) {
            const int4 s = *(const int4*)&shared.sums[part][row][4 * column];
            sum += s.x + ((long long)s.y << 8) + ((long long)s.z << 16) + ((long long)s.w << 24);
        }
        const float z = (float)sum * unit + shared.b1[column].w;
        send(&packets.a1[row][2 * blockIdx.x + column], z < 0 ? 0 : z, tag);  // in this order a NaN stays a NaN
    }
    __syncthreads();  // the sums' memory serves the tiles, too
}

// Receive dz1 of one of the block's columns, write its digits into shared memory, and return the sum over the rows.
// By one warp. A lane has four rows, those that one register of the tensor cores' input holds; or eight, or none.
__device__ float receive_dz1(ColumnShared& shared, Packets& packets, Word tag, int column) {
    const int lane = threadIdx.x % 32, GROUPS = (BATCH / 4 + 31) / 32;
    float dz[GROUPS][4], sum = 0;
    Word largest = 0;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        const int task = group * 32 + lane, first = task % (BATCH / 16) * 16, t = task / (BATCH / 16);
        const auto at = [&](int i) { return &packets.dz1[blockIdx.x][first + 2 * (t % 4) + i % 2 + i / 2 * 8][column]; };
        SingleMail<4> mail;
        mail.ask(at);
        mail.wait(tag, at);
        for (int i = 0; i < 4; i++) {
            dz[group][i] = t < 4 ? mail[i] : 0;
            largest = max(largest, magnitude(dz[group][i]));
            sum += dz[group][i];
        }
    }
    const int biased = biased_exponent(__reduce_max_sync(~0u, largest));
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        const int task = group * 32 + lane, reg = task % (BATCH / 16), t = task / (BATCH / 16);
        Word d[4];
        for (int i = 0; i < 4; i++) d[i] = digits(dz[group][i], scale(biased));
        const Word low[2] = {__byte_perm(d[0], d[1], 0x5140), __byte_perm(d[2], d[3], 0x5140)};
        const Word high[2] = {__byte_perm(d[0], d[1], 0x7362), __byte_perm(d[2], d[3], 0x7362)};
        Word(*to)[BATCH / 16] = &shared.dz[16 * column + t % 4];
        if (t < 4) {
            to[0][reg] = __byte_perm(low[0], low[1], 0x5410);
            to[4][reg] = __byte_perm(low[0], low[1], 0x7632);
            to[8][reg] = __byte_perm(high[0], high[1], 0x5410);
            to[12][reg] = __byte_perm(high[0], high[1], 0x7632);
        }
    }
    if (lane == 0) shared.unit[column] = inverse_scale(biased) / 255;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    return sum;
}

// x^T for a tile of 16 pixels and all rows, as the tensor cores want it.
struct Pixels {
    Word of[BATCH / 32][4];

    __device__ void load(const unsigned char (*x)[INPUTS], int tile) {
#pragma unroll
        for (int step = 0; step < BATCH / 32; step++) {
            Word pairs[4];  // a register has two pixels of two rows; the tensor cores want four rows of one pixel
            load_transposed(pairs, &x[step * 32 + threadIdx.x % 32][tile * 16]);
            of[step][0] = __byte_perm(pairs[0], pairs[1], 0x6420);
            of[step][1] = __byte_perm(pairs[0], pairs[1], 0x7531);
            of[step][2] = __byte_perm(pairs[2], pairs[3], 0x6420);
            of[step][3] = __byte_perm(pairs[2], pairs[3], 0x7531);
        }
    }
};

// W1's gradient, x^T dz1, for the block's columns, and the update. ahead: the pixels of the first tiles.
__device__ void update_first(FirstWeights& weights, ColumnShared& shared, const Pixels* ahead,
                             const unsigned char (*x)[INPUTS], const Arguments& arguments, Rates rates) {
    const int lane = threadIdx.x % 32;
    const float unit = shared.unit[weights.column()];
    Word b[BATCH / 16];
#pragma unroll
    for (int i = 0; i < BATCH / 16; i++) b[i] = shared.dz[lane][i];
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        if (weights.has(i)) {
            Pixels pixels;
            if (i < AHEAD) {
                pixels = ahead[i];
            } else {
                pixels.load(x, weights.tile(i));
            }
            int c[4] = {};
#pragma unroll
            for (int step = 0; step < BATCH / 32; step++) multiply(c, pixels.of[step], b[2 * step], b[2 * step + 1]);
            // An even lane has the two low digits' sums of two pixels, the odd one beside it the two high digits'.
            const bool odd = lane % 2;
            const float first = (float)c[0] + 256.0f * c[1], second = (float)c[2] + 256.0f * c[3];
            const float other = __shfl_xor_sync(~0u, odd ? first : second, 1);
            const float sum = odd ? other + 65536.0f * second : first + 65536.0f * other;
            weights.of[i].update(sum * unit, arguments.settings, rates, true);
        }
    }
}

// The hidden layers' gradients: warps 0 to 7 have a tile of W3, warps 8 to 15 one of W2; in blocks 0 to 7
// each half has 16 numbers of a bias, too.
struct HiddenTile {
    Parameter weight;

    static __device__ int layer() { return threadIdx.x / 32 / TILE_WARPS; }  // 0 for W3, 1 for W2
    static __device__ int row() { return blockIdx.x / 8 * TILE; }
    static __device__ int column() { return blockIdx.x % 8 * TILE; }
    static __device__ int element() { return threadIdx.x % (TILE * TILE); }  // of the tile, that a thread updates
    static __device__ int weight_place() {
        return (layer() ? W2 : W3) + (row() + element() / TILE) * WIDTH + column() + element() % TILE;
    }
    static __device__ bool has_bias() { return row() == 0 && element() < TILE; }
    static __device__ int bias_place() { return (layer() ? B2 : B3) + column() + element() % TILE; }

    static __device__ int first_row() { return threadIdx.x / 32 % TILE_WARPS * (BATCH / TILE_WARPS); }
    // The i-th pair of numbers that a lane asks for: just what it has to bring to the tensor cores.
    static __device__ const Packet* place(const Packet (*packets)[WIDTH], int start, int i, int column) {
        const int lane = threadIdx.x % 32, row = i * 4 + lane % 4;
        return &packets[first_row() + start + row][column + lane / 4 * 2];
    }

    // One packet to look for, before all of the gradient's are asked for. (To look at all of these all the time would
    // keep everybody else's packets waiting.) For W2 it is one of them; for W3 one that is sent shortly before them.
    static __device__ const Packet* herald(const Packets& packets) {
        return layer() ? &packets.dz2[first_row()][column()] : &packets.a3[column() / UNITS][first_row()][0];
    }

    // Hand the tile, and the bias, to the row blocks. Four lanes put their weights together.
    __device__ void send_to(Packets& packets, Word tag, const ColumnShared& shared) const {
        const int first = threadIdx.x % 32 & ~3;
        const float four[4] = {__shfl_sync(~0u, weight.w, first), __shfl_sync(~0u, weight.w, first + 1),
                               __shfl_sync(~0u, weight.w, first + 2), __shfl_sync(~0u, weight.w, first + 3)};
        if (threadIdx.x % 4 == 0) {
            float4* to = &packets.W[layer()][row() + element() / TILE][(column() + element() % TILE) / 4];
            send_four(to, make_float4(four[0], four[1], four[2], four[3]), mark_of(tag));
        }
        if (has_bias()) send(&packets.b[layer()][column() + element()], shared.hidden_bias[layer()][element()].w, tag);
    }

    __device__ void update(const Packets& packets, Word tag, ColumnShared& shared, const Arguments& arguments,
                           Rates rates) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const Packet(*ins)[WIDTH] = layer() ? packets.a1 : packets.a2;
        const Packet(*slopes)[WIDTH] = layer() ? packets.dz2 : packets.dz3;
        float sums[2][4] = {}, bias_sums[2] = {};  // sums: of even and of odd columns
        for (int start = 0; start < BATCH / TILE_WARPS; start += MAIL_ROWS) {
            Mail<MAIL_ROWS / 4> a, dz;
            const auto a_at = [&](int i) { return place(ins, start, i, row()); };
            const auto dz_at = [&](int i) { return place(slopes, start, i, column()); };
            a.ask(a_at);
            if (start == 0) receive(herald(packets), tag);
            dz.ask(dz_at);
            a.wait(tag, a_at);
            dz.wait(tag, dz_at);
#pragma unroll
            for (int i = 0; i < MAIL_ROWS / 4; i += 2) {
                const float2 none = {0, 0}, a0 = a[i], a1 = MAIL_ROWS > 4 ? a[(i + 1) % (MAIL_ROWS / 4)] : none;
                const float2 dz0 = dz[i], dz1 = MAIL_ROWS > 4 ? dz[(i + 1) % (MAIL_ROWS / 4)] : none;
                Word high[4], low[4];
                split({a0.x, a0.y, a1.x, a1.y}, high, low);
                multiply(sums[0], high, low, {dz0.x, dz1.x});
                multiply(sums[1], high, low, {dz0.y, dz1.y});
                bias_sums[0] += dz0.x + dz1.x;
                bias_sums[1] += dz0.y + dz1.y;
            }
        }
        for (int i = 0; i < 2; i++) {
            float* to = &shared.parts[warp][(lane / 4 * 2 + i) * TILE + lane % 4 * 4];
            *(float4*)to = make_float4(sums[0][2 * i], sums[1][2 * i], sums[0][2 * i + 1], sums[1][2 * i + 1]);
            for (int distance = 1; distance < 4; distance *= 2) bias_sums[i] += __shfl_xor_sync(~0u, bias_sums[i], distance);
            shared.bias_parts[warp][lane / 4 * 2 + i] = bias_sums[i];  // four lanes have the same
        }
        sync_half(layer());
        const int first = layer() * TILE_WARPS;
        float g = 0;
#pragma unroll
        for (int part = 0; part < TILE_WARPS; part++) g += shared.parts[first + part][element()];
        weight.update(g, arguments.settings, rates, true);
        if (has_bias()) {
            g = 0;
            for (int part = 0; part < TILE_WARPS; part++) g += shared.bias_parts[first + part][element()];
            shared.hidden_bias[layer()][element()].update(g, arguments.settings, rates, false);
        }
    }
};

// Call act(parameter, place in theta) for the block's few parameters that are in shared memory.
template <typename Act>
__device__ void for_small_parameters(ColumnShared& shared, Act act) {
    const int e = threadIdx.x;
    if (e < 2) act(shared.b1[e], B1 + 2 * blockIdx.x + e);
    if (HiddenTile::has_bias()) act(shared.hidden_bias[HiddenTile::layer()][e % TILE], HiddenTile::bias_place());
}

__device__ void column_block(const Arguments& arguments, int steps) {
    ColumnShared& shared = *(ColumnShared*)shared_bytes;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    FirstWeights first;
    HiddenTile tile;
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        if (first.has(i)) first.of[i].load(arguments.vectors, first.place(i));
    }
    tile.weight.load(arguments.vectors, tile.weight_place());
    for_small_parameters(shared, [&](Parameter& parameter, int place) { parameter.load(arguments.vectors, place); });

    if (threadIdx.x < BUFFERS) start(&shared.arrived[threadIdx.x]);
    __syncthreads();
    fetch(arguments, shared, 0);
    tile.send_to(arguments.exchange[0], 1, shared);
    first.biased = 30;
    first.write_digits(shared);
    for (int step = 0; step < steps; step++) {
        const Word tag = step + 1;
        Packets &packets = arguments.exchange[step % 2], &next = arguments.exchange[(step + 1) % 2];
        const Rates rates = rates_of(arguments, step);
        const unsigned char(*x)[INPUTS] = shared.x[step % BUFFERS];
        mark(step, 0);
        wait_for(&shared.arrived[step % BUFFERS], step / BUFFERS % 2);
        first_layer(shared, x, inverse_scale(first.biased), packets, tag);

        mark(step, 1);
        if (BUFFERS > 1 && step + 1 < steps) fetch(arguments, shared, step + 1);
        tile.update(packets, tag, shared, arguments, rates);
        tile.send_to(next, tag + 1, shared);

        mark(step, 2);
        Pixels ahead[AHEAD + 1];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i].load(x, first.tile(i));
        float db1;
        if (warp < 2) db1 = receive_dz1(shared, packets, tag, warp);  // a warp a column; both are done with W3 by then
        __syncthreads();
        mark(step, 3);
        update_first(first, shared, ahead, x, arguments, rates);
        if (warp < 2 && lane == 0) shared.b1[warp].update(db1, arguments.settings, rates, false);
        mark(step, 4);
        first.biased = first.next;
        first.write_digits(shared);
        if (BUFFERS == 1 && step + 1 < steps) fetch(arguments, shared, step + 1);
    }
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        if (first.has(i)) first.of[i].store(arguments.vectors, first.place(i));
    }
    tile.weight.store(arguments.vectors, tile.weight_place());
    for_small_parameters(shared, [&](Parameter& parameter, int place) { parameter.store(arguments.vectors, place); });
}

// ---- Row blocks ----

const int SHARERS = THREADS / (ROWS * WIDTH);  // threads that add up one sum's parts
const int STRIDE = ROWS * WIDTH + 32 / SHARERS;  // so that they read from different banks

struct RowShared {
    float parts[WARPS][STRIDE];
    float a[3][ROWS][WIDTH], dz[2][ROWS][WIDTH];
    float W4[CLASSES][WIDTH], b[2][WIDTH], b4[TILE];  // W4: transposed; b: of the third layer, and of the second
    float logits[ROWS][TILE], dz4[ROWS][TILE];
    float last_parts[WARPS][UNITS + 1][TILE];  // of the gradients of W4's rows, and of b4's
    Parameter last[UNITS + 1][TILE];           // these rows; b4, in the last block
};

// Add up each of `sums` over the lanes of a warp, for all of them at once. Two lanes `distance` apart trade halves of what
// they have, until each lane is left with one sum, sums[0]: the first lanes with the first one. (Half is 0 where lanes
// have nothing left to part, and add up the same sum.)
template <int half, int distance>
__device__ void add_up_across_lanes(float* sums) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < (half ? half : 1); i++) {
        const float mine = half && upper ? sums[i + half] : sums[i];
        const float other = half && !upper ? sums[i + half] : sums[i];
        sums[i] = mine + __shfl_xor_sync(~0u, other, distance);
    }
    if constexpr (distance > 1) add_up_across_lanes<half / 2, distance / 2>(sums);
}

// A thread's share of a layer's weights, 8 rows and 4 columns: warp w has rows 8 w and so on, a lane 4 columns.
struct HeldWeights {
    float4 row[8];

    static __device__ const float4* place(const float4 (*W)[WIDTH / 4]) {
        return &W[threadIdx.x / 32 * 8][threadIdx.x % 32];
    }

    // Wait until the warp's first weights of a step are there; the others are hardly later.
    static __device__ void look_for(const float4 (*W)[WIDTH / 4], Word tag) {
        Word looks = 0;
        float4 first;
        do {
            look(first, &W[threadIdx.x / 32 * 8][0]);
            give_up_after_a_while(looks);
        } while (!has_mark(first, mark_of(tag)));
    }

    __device__ void ask(const float4 (*W)[WIDTH / 4]) {
#pragma unroll
        for (int i = 0; i < 8; i++) look(row[i], place(W) + i * (WIDTH / 4));
    }

    __device__ void wait(const float4 (*W)[WIDTH / 4], Word tag) {
        const Word mark = mark_of(tag);
        Word looks = 0;
        for (;;) {
            bool all = true;
#pragma unroll
            for (int i = 0; i < 8; i++) all = all && has_mark(row[i], mark);
            if (__all_sync(~0u, all)) break;
#pragma unroll
            for (int i = 0; i < 8; i++) look(row[i], place(W) + i * (WIDTH / 4), !has_mark(row[i], mark));
            give_up_after_a_while(looks);
        }
    }

    __device__ void load(const float4 (*W)[WIDTH / 4], Word tag) {
        ask(W);
        wait(W, tag);
    }

    // Return relu(in W + b) for the thread's row and column.
    __device__ float forward(RowShared& shared, const float (*in)[WIDTH], const float* b) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 low = *(const float4*)&in[r][8 * warp], high = *(const float4*)&in[r][8 * warp + 4];
            const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            float4 sum = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum.x += x[i] * row[i].x, sum.y += x[i] * row[i].y;
                sum.z += x[i] * row[i].z, sum.w += x[i] * row[i].w;
            }
            *(float4*)&shared.parts[warp][r * WIDTH + 4 * lane] = sum;
        }
        __syncthreads();
        const int e = threadIdx.x / SHARERS, sharer = threadIdx.x % SHARERS;
        float z = 0;
#pragma unroll
        for (int part = 0; part < WARPS; part += SHARERS) z += shared.parts[part + sharer][e];
        for (int distance = 1; distance < SHARERS; distance *= 2) z += __shfl_xor_sync(~0u, z, distance);
        z += b[e % WIDTH];
        return z < 0 ? 0 : z;
    }

    // below (if any) <- the gradient before the ReLU that returned a, from that after the layer. to(r, k): where it is sent.
    template <typename To>
    __device__ void backward(const float (*dz)[WIDTH], const float (*a)[WIDTH], float (*below)[WIDTH], Word tag,
                             To to) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, SUMS = 8 * ROWS;
        float sums[SUMS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 d = *(const float4*)&dz[r][4 * lane];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sums[8 * r + i] = d.x * row[i].x + d.y * row[i].y + d.z * row[i].z + d.w * row[i].w;
            }
        }
        add_up_across_lanes<SUMS / 2, 16>(sums);
        const int e = lane / (32 / SUMS), r = e / 8, k = 8 * warp + e % 8;
        if (lane % (32 / SUMS) == 0) {
            const float slope = a[r][k] > 0 ? sums[0] : 0;
            if (below) below[r][k] = slope;
            send(to(r, k), slope, tag);
        }
    }
};

// The largest of N numbers; as a tree, so that no comparison has to wait for many others.
template <int N>
__device__ float largest(const float (&z)[N]) {
    if constexpr (N == 1) {
        return z[0];
    } else {
        float half[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) half[i] = fmaxf(z[i], z[i + N / 2]);
        return largest(half);
    }
}

// The last layer, the loss, and dz3. A thread has one unit of one row, as it comes from the layer before. one: 1 / n.
__device__ void last_layer(RowShared& shared, Packets& packets, float a3, int n, float one, int label,
                           const Arguments& arguments, int step, Word tag) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int r = threadIdx.x / SHARERS / WIDTH, j = threadIdx.x / SHARERS % WIDTH;
    const int row = (blockIdx.x - COLUMN_BLOCKS) * ROWS + r;
    const bool sends = threadIdx.x % SHARERS == 0, has_row = warp % (WARPS / ROWS) == 0;  // a warp for each row
    if (sends) {
        shared.a[2][r][j] = a3;
        send(&packets.a3[j / UNITS][row][j % UNITS], a3, tag);
    }
    __syncthreads();
#pragma unroll
    for (int task = warp; task < ROWS * CLASSES; task += WARPS) {
        const int r = task / CLASSES, c = task % CLASSES;
        const float4 a = *(const float4*)&shared.a[2][r][4 * lane], w = *(const float4*)&shared.W4[c][4 * lane];
        float z = a.x * w.x + a.y * w.y + a.z * w.z + a.w * w.w;
        for (int distance = 16; distance > 0; distance /= 2) z += __shfl_xor_sync(~0u, z, distance);
        if (lane == 0) shared.logits[r][c] = z + shared.b4[c];
    }
    __syncthreads();
    float total, above;
    if (has_row) {  // a lane has a class
        const int c = lane % TILE, known = min(c, CLASSES - 1);
        float z[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++) z[i] = shared.logits[r][i < CLASSES ? i : 0];
        above = shared.logits[r][known] - largest(z);
        const float power = c < CLASSES ? expf(above) : 0;
        total = power;
        for (int distance = TILE / 2; distance > 0; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
        shared.dz4[r][c] = row < n ? __fdividef(power, total * n) - (c == label ? one : 0) : 0;  // a row that fills up: 0
    }
    __syncthreads();
    float da3 = 0;
#pragma unroll
    for (int c = 0; c < CLASSES; c++) da3 += shared.dz4[r][c] * shared.W4[c][j];
    if (sends) {
        const float dz3 = a3 > 0 ? da3 : 0;
        shared.dz[1][r][j] = dz3;
        send(&packets.dz3[row][j], dz3, tag);
    }
    if (has_row && lane < CLASSES) send(&packets.dz4[row][lane], shared.dz4[r][lane], tag);
    if (has_row && lane == label && row < n) {
        arguments.row_losses[(long long)step * arguments.batch_size + row] = logf(total) - above;
    }
    __syncthreads();
}

// The block's rows of W4, and b4. A thread has a class, and some of the batch.
__device__ void update_last(RowShared& shared, const Packets& packets, Word tag, const Arguments& arguments,
                            Rates rates) {
    const int GROUPS = THREADS / TILE, EACH = BATCH / GROUPS, block = blockIdx.x - COLUMN_BLOCKS;
    const int column = threadIdx.x % TILE, group = threadIdx.x / TILE, warp = threadIdx.x / 32;
    const int known = min(column, CLASSES - 1);  // the threads beyond the classes do what nobody looks at
    const auto a_at = [&](int i) { return &packets.a3[block][i % EACH * GROUPS + group][i / EACH * 2]; };
    const auto dz_at = [&](int i) { return &packets.dz4[i * GROUPS + group][known]; };
    Mail<EACH * UNITS / 2> a;
    SingleMail<EACH> dz;
    a.ask(a_at);
    dz.ask(dz_at);
    a.wait(tag, a_at);
    dz.wait(tag, dz_at);
    float g[UNITS + 1] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int unit = 0; unit < UNITS; unit += 2) {
            g[unit] += a[unit / 2 * EACH + i].x * dz[i];
            g[unit + 1] += a[unit / 2 * EACH + i].y * dz[i];
        }
        g[UNITS] += dz[i];
    }
#pragma unroll
    for (int i = 0; i <= UNITS; i++) {
        g[i] += __shfl_xor_sync(~0u, g[i], TILE);
        shared.last_parts[warp][i][column] = g[i];  // both lanes have the same
    }
    __syncthreads();
    const int i = group;
    if (i <= UNITS) {
        float sum = 0;
#pragma unroll
        for (int part = 0; part < WARPS; part++) sum += shared.last_parts[part][i][column];
        shared.last[i][column].update(sum, arguments.settings, rates, i < UNITS);
    }
}

// Call act(parameter, place in theta, column, row) for the block's rows of W4 and for b4, each by the thread that updates it.
template <typename Act>
__device__ void for_last(RowShared& shared, Act act) {
    const int column = threadIdx.x % TILE, i = threadIdx.x / TILE, row = (blockIdx.x - COLUMN_BLOCKS) * UNITS + i;
    if (column >= CLASSES) return;
    if (i < UNITS) act(shared.last[i][column], W4 + row * CLASSES + column, column, row);
    if (i == UNITS && blockIdx.x == COLUMN_BLOCKS + ROW_BLOCKS - 1) act(shared.last[i][column], B4 + column, column, WIDTH);
}

// Hand them to the row blocks.
__device__ void send_last(RowShared& shared, Packets& packets, Word tag) {
    for_last(shared, [&](Parameter& parameter, int, int column, int row) {
        send(row < WIDTH ? &packets.W4[column][row] : &packets.b4[column], parameter.w, tag);
    });
}

__device__ void row_block(const Arguments& arguments, int steps) {
    RowShared& shared = *(RowShared*)shared_bytes;
    const int first = (blockIdx.x - COLUMN_BLOCKS) * ROWS;
    const int e = threadIdx.x / SHARERS, r = e / WIDTH, j = e % WIDTH;  // the row and unit that this thread ends up with
    const bool sends = threadIdx.x % SHARERS == 0;
    // The example's place in the data set is asked for two steps ahead, and its label one. (Half of such a number will do.)
    const auto half_of = [](const long long* number) { return __ldg((const int*)number); };
    const auto place = [&](int step) { return min(step * arguments.batch_size + first + r, arguments.examples - 1); };
    int label = half_of(arguments.y + half_of(arguments.order + place(0))), example = half_of(arguments.order + place(1));
    HeldWeights second, third;
    for_last(shared, [&](Parameter& parameter, int place, int, int) { parameter.load(arguments.vectors, place); });
    send_last(shared, arguments.exchange[0], 1);
    third.load(arguments.exchange[0].W[0], 1);
    for (int step = 0; step < steps; step++) {
        const Word tag = step + 1;
        Packets &packets = arguments.exchange[step % 2], &next = arguments.exchange[(step + 1) % 2];
        const int n = min(arguments.batch_size, arguments.examples - step * arguments.batch_size);
        const int next_label = half_of(arguments.y + example);
        example = half_of(arguments.order + place(step + 2));
        const float one = 1.0f / n;

        const auto two = [](int i) { return (threadIdx.x + i * THREADS) % (CLASSES * WIDTH / 2) * 2; };
        const auto W4_at = [&](int i) { return &packets.W4[0][0] + two(i); };
        const int hidden = threadIdx.x % (2 * WIDTH), column = threadIdx.x % CLASSES;
        const auto bias_at = [&](int i) { return i ? &packets.b4[column] : &packets.b[0][0] + hidden; };
        Mail<2> W4;
        SingleMail<2> b;
        mark(step, 0);
        second.look_for(packets.W[1], tag);
        mark(step, 1);
        W4.ask(W4_at);
        b.ask(bias_at);
        second.ask(packets.W[1]);
        W4.wait(tag, W4_at);
        b.wait(tag, bias_at);
        for (int i = 0; i < 2; i++) *(float2*)&shared.W4[two(i) / WIDTH][two(i) % WIDTH] = W4[i];
        if (threadIdx.x < 2 * WIDTH) shared.b[hidden / WIDTH][hidden % WIDTH] = b[0];
        if (threadIdx.x < CLASSES) shared.b4[column] = b[1];
        mark(step, 2);
        second.wait(packets.W[1], tag);
        mark(step, 3);
        const float a1 = receive(&packets.a1[first + r][j], tag);
        if (sends) shared.a[0][r][j] = a1;
        __syncthreads();

        mark(step, 4);
        const float a2 = second.forward(shared, shared.a[0], shared.b[1]);
        if (sends) {
            shared.a[1][r][j] = a2;
            send(&packets.a2[first + r][j], a2, tag);
        }
        __syncthreads();
        mark(step, 5);
        const float a3 = third.forward(shared, shared.a[1], shared.b[0]);
        mark(step, 6);
        last_layer(shared, packets, a3, n, one, label, arguments, step, tag);
        mark(step, 7);
        third.backward(shared.dz[1], shared.a[1], shared.dz[0], tag,
                       [&](int r, int k) { return &packets.dz2[first + r][k]; });
        __syncthreads();
        mark(step, 8);
        second.backward(shared.dz[0], shared.a[0], nullptr, tag,
                        [&](int r, int k) { return &packets.dz1[k / 2][first + r][k % 2]; });
        mark(step, 9);
        update_last(shared, packets, tag, arguments, rates_of(arguments, step));
        send_last(shared, next, tag + 1);
        mark(step, 10);
        third.look_for(next.W[0], tag + 1);
        mark(step, 11);
        third.load(next.W[0], tag + 1);
        label = next_label;
    }
    for_last(shared, [&](Parameter& parameter, int place, int, int) { parameter.store(arguments.vectors, place); });
}

// Train on the examples in arguments.order. Grid: COLUMN_BLOCKS + ROW_BLOCKS. The exchange starts as zeros.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    train(const unsigned char* X, const long long* y, const long long* order, int examples, int batch_size,
          float* row_losses, Packets* exchange, float* theta, float* m, float* v, const Rates* rates, float beta1,
          float rest1, float beta2, float rest2, float eps, float l2, float shrink) {
    const Settings settings = {beta1, rest1, beta2, rest2, eps, l2, shrink};
    const Arguments arguments = {X, y, order, examples, batch_size, {theta, m, v}, rates, settings, row_losses, exchange};
    const int steps = (examples + batch_size - 1) / batch_size;
    if (blockIdx.x < COLUMN_BLOCKS) {
        column_block(arguments, steps);
    } else {
        row_block(arguments, steps);
    }
}

// What a launch needs, which the host can't work out by itself.
extern "C" __global__ void requirements(int* answer) {
    answer[0] = sizeof(Exchange);
    answer[1] = max(sizeof(ColumnShared), sizeof(RowShared));
    answer[2] = COLUMN_BLOCKS + ROW_BLOCKS;
    answer[3] = THREADS;
}

// A whole epoch in one launch. The blocks stay, keep what they need close by, and hand each other numbers; so the GPU
// must hold all of them at once, one on each multiprocessor.
//
//   Column blocks (64): each owns 2 columns of W1, and has the whole batch of images in shared memory. It computes its
//   columns of a1, and when their gradient comes back it updates its columns and goes straight on to the next batch:
//   nobody else needs to see W1. In between, it updates a tile of 16 x 16 of W2, one of W3, and two rows of W4.
//
//   Row blocks (up to 64): each takes 1, 2 or 4 examples from a1 through the other layers to the loss and back to dz1.
//   Its threads hold W2 and W3 in registers, where the way there and the way back use them both; it loads them anew
//   after each step. No two rows need each other, so there is no waiting in between.
//
// How numbers are handed over: a packet of 8 bytes is a number and the step that it belongs to. The reader looks until
// the step is the right one; so the data are their own signal, and arrive in the time of one write and one read.
// Only W2, W3 and W4, of which there are many and read by all, wait for a counter instead.
//
// The images are bytes, so products with them are integer products. W1 (and dz1, for W1's gradient) become integers of
// 31 bits, cut into four digits of 8 bits; the tensor cores multiply bytes by digits and add up without any rounding.
// The result is closer to the true one than a sum in float32.

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

const int THREADS = 512, WARPS = 16, WIDTH = 128, TILE = 16;
const int COLUMN_BLOCKS = 64, ROWS = BATCH <= 64 ? 1 : BATCH / 64, ROW_BLOCKS = BATCH / ROWS;
const int BUFFERS = BATCH <= 128 ? 2 : 1;  // of images: while one batch is worked on, the next arrives

// theta: the weights of all layers, then the biases of all layers.
const int W1 = 0, W2 = INPUTS * WIDTH, W3 = W2 + WIDTH * WIDTH, W4 = W3 + WIDTH * WIDTH;
const int B1 = W4 + WIDTH * CLASSES, B2 = B1 + WIDTH, B3 = B2 + WIDTH, B4 = B3 + WIDTH;

typedef unsigned long long Packet;
typedef unsigned int Word;

// What the blocks hand each other, twice: while some still read one step's packets, others write the next step's.
struct Packets {
    Packet a[3][BATCH][WIDTH];    // what layers 1 to 3 return
    Packet dz[2][BATCH][WIDTH];   // gradients after layers 2 and 3
    Packet dz4[BATCH][TILE];
    Packet dz1[COLUMN_BLOCKS][BATCH][2];
};

struct Exchange {
    Packets of[2];
    Word updated[2][32];  // how often a half of a column block has: W3; W2. 32: each in its own piece of the cache
};

struct Arguments {
    const unsigned char* X;
    const long long *y, *order;
    int examples, batch_size;
    float *theta, *m, *v;
    const float* rates;  // (steps, 3): the rate, and Adam's: by how much its averages are still too small
    float beta1, rest1, beta2, rest2, eps, l2, shrink;  // rest: 1 - beta, as float64 has it
    float* row_losses;  // (steps, batch_size)
    Exchange* exchange;
};

extern __shared__ __align__(128) unsigned char shared_bytes[];

#if MARKED_STEPS
__device__ long long marks[COLUMN_BLOCKS + ROW_BLOCKS][MARKED_STEPS][12];  // the multiprocessor's clock

// Write down when the block's first thread comes to a stage.
__device__ void mark(int step, int stage) {
    if (threadIdx.x == 0 && step >= 100 && step < 100 + MARKED_STEPS) {
        long long now;
        asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
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

__device__ Packet look(const Packet* at) {
    Packet packet;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(packet) : "l"(at) : "memory");
    return packet;
}

__device__ ulonglong2 look_at_two(const Packet* at) {
    ulonglong2 packets;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(packets.x), "=l"(packets.y) : "l"(at) : "memory");
    return packets;
}

__device__ bool is_of(Packet packet, Word tag) { return (Word)(packet >> 32) == tag; }
__device__ float value_of(Packet packet) { return __uint_as_float((Word)packet); }

__device__ float receive(const Packet* from, Word tag) {
    Packet packet;
    Word looks = 0;
    while (!is_of(packet = look(from), tag)) give_up_after_a_while(looks);
    return value_of(packet);
}

// N pairs of neighbours, asked for at once; at(i) is where the i-th pair is. What is not there yet is asked for again.
template <int N>
struct Mail {
    ulonglong2 packets[N];

    template <typename At>
    __device__ void ask(At at) {
        for (int i = 0; i < N; i++) packets[i] = look_at_two(at(i));
    }

    template <typename At>
    __device__ void wait(Word tag, At at) {
        Word looks = 0;
        bool all;
        do {
            all = true;
            for (int i = 0; i < N; i++) {
                if (is_of(packets[i].x, tag) && is_of(packets[i].y, tag)) continue;
                all = false;
                packets[i] = look_at_two(at(i));
            }
            give_up_after_a_while(looks);
        } while (!all);
    }

    __device__ float2 operator[](int i) const { return make_float2(value_of(packets[i].x), value_of(packets[i].y)); }
};

// Half of a block's warps work on W3, the other half on W2, and neither waits for the other: a barrier for one half.
__device__ void sync_half(int half) { asm volatile("bar.sync %0, %1;" ::"r"(1 + half), "n"(THREADS / 2) : "memory"); }

// Everything that the half has written is there for whoever sees the counter.
__device__ void count_on(Word* counter, int half) {
    sync_half(half);
    if (threadIdx.x % (THREADS / 2) == THREADS / 2 - 1) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    }
}

__device__ void wait_for_count(const Word* counter, Word count) {
    if (threadIdx.x == 0) {
        Word found, looks = 0;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
            give_up_after_a_while(looks);
        } while (found < count);
    }
    __syncthreads();
}

// ---- The optimizer: a parameter, with Adam's two averages ----

struct Rates {
    float lr, m_is, v_is;
};

__device__ Rates rates_of(const Arguments& arguments, int step) {
    const float* rates = arguments.rates + 3 * step;
    return {__ldg(rates), __ldg(rates + 1), __ldg(rates + 2)};
}

struct Parameter {
    float w;
#if ADAM
    float m, v;
#endif

    __device__ void load(const Arguments& arguments, int place) {
        w = arguments.theta[place];
#if ADAM
        m = arguments.m[place];
        v = arguments.v[place];
#endif
    }

    __device__ void store(const Arguments& arguments, int place) const {
        arguments.theta[place] = w;
#if ADAM
        arguments.m[place] = m;
        arguments.v[place] = v;
#endif
    }

    __device__ void update(float g, const Arguments& arguments, Rates rates, bool is_weight) {
        if (is_weight) {  // only weights decay
            g += arguments.l2 * w;
            w -= rates.lr * arguments.shrink * w;
        }
#if ADAM
        m = arguments.beta1 * m + arguments.rest1 * g;
        v = arguments.beta2 * v + arguments.rest2 * g * g;
        w -= rates.lr * (m / rates.m_is) / (sqrtf(v / rates.v_is) + arguments.eps);
#else
        w -= rates.lr * g;
#endif
    }
};

// ---- Integers for floats ----

// A number w becomes the integer w * 2^(29 - exponent), below 2^30 for numbers up to 2^(exponent + 1).
// `biased` is the exponent as float32 stores it, + 127; 255 stands for infinity and NaN.
__device__ int biased_exponent(Word largest) { return max((int)(largest >> 23), 30); }
__device__ float scale(int biased) { return __uint_as_float((Word)(283 - biased) << 23); }
__device__ float inverse_scale(int biased) { return __uint_as_float(biased == 255 ? 0x7fffffffu : (biased - 29) << 23); }

// Four bytes from -128 to 127: integer = d[0] + 256 d[1] + 65536 d[2] + 16777216 d[3].
__device__ Word digits(float w, float scale) { return (__float2int_rn(w * scale) + 0x00808080) ^ 0x00808080; }

__device__ Word magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }  // ordered as numbers are, NaN on top

// ---- Tensor cores: c += a b, a 16 x 32 bytes without a sign, b 32 x 8 bytes with one ----

__device__ void multiply(int (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ void multiply_half(int (&c)[4], Word a0, Word a1, Word b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

__device__ void load_matrices(Word (&a)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((Word)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ void load_transposed(Word (&a)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((Word)__cvta_generic_to_shared(row))
                 : "memory");
}

// ---- Column blocks ----

const int PIXEL_TILES = INPUTS / 16, TILES_A_WARP = (PIXEL_TILES + WARPS - 1) / WARPS;
const int ROW_TILES = BATCH / 16, SPLITS = WARPS / ROW_TILES;  // warps that share a tile's sum over the pixels
const int TILE_WARPS = WARPS / 2;                              // eight warps have a tile of W3, eight one of W2
const int MAIL_ROWS = BATCH <= 128 ? BATCH / TILE_WARPS : 16;  // whose packets a warp asks for at a time
const int STAGE_ROWS = MAIL_ROWS < 8 ? MAIL_ROWS : 8;          // whose numbers it has in shared memory at a time
const int MOST_AHEAD = BATCH > 128 ? 0 : 2;                    // as the registers allow
const int AHEAD = PIXEL_TILES / WARPS < MOST_AHEAD ? PIXEL_TILES / WARPS : MOST_AHEAD;  // tiles of pixels, for dW1

struct ColumnShared {
    unsigned char x[BUFFERS][BATCH][INPUTS];
    unsigned char W[8][INPUTS];  // four digits of each of two columns
    Word dz[32][BATCH / 16];     // dz1's digits, as the tensor cores want them
    union {
        int sums[SPLITS][BATCH][8];             // of the first layer's products
        float stage[WARPS][2][8][TILE];         // a few rows of a and dz
        float parts[WARPS][TILE * TILE];        // of a tile's gradient
    };
    float bias_parts[WARPS][TILE];
    Word largest[WARPS];
    float inverse;  // what dz1's integers stand for
    Parameter b1[2], hidden_bias[2][TILE], last[TILE][2], last_bias[TILE];  // some of them only in some blocks
};

// Ask for the images of a batch, and go on; the copies are there after wait_for_copies. A warp an image.
__device__ void fetch(const Arguments& arguments, unsigned char (*x)[INPUTS], int step) {
    const long long first = (long long)step * arguments.batch_size;
    const int n = min((long long)arguments.batch_size, arguments.examples - first);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    long long example = 0;  // a lane knows one of the warp's
    if (lane * WARPS + warp < n) example = __ldg(arguments.order + first + lane * WARPS + warp);
    for (int i = 0; i * WARPS + warp < n; i++) {
        const unsigned char* from = arguments.X + __shfl_sync(~0u, example, i) * INPUTS;
        for (int piece = lane * 16; piece < INPUTS; piece += 32 * 16) {
            const Word to = __cvta_generic_to_shared(&x[i * WARPS + warp][piece]);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + piece) : "memory");
        }
    }
}

__device__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A lane's share of W1: of pixel tile warp + 16 i, one pixel of one column.
struct FirstWeights {
    Parameter of[TILES_A_WARP];
    int biased, next;  // the exponent that the digits were made with, and a guess for the next step's

    static __device__ int tile(int i) { return (WARPS - 1 - threadIdx.x / 32) + i * WARPS; }  // warp 0 has other work too
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
    int even[4] = {}, odd[4] = {};  // two sums, so that a product need not wait for the one before
#pragma unroll 3
    for (int k = split * 32; k + 32 <= INPUTS; k += SPLITS * 64) {
        Word a[4];
        load_matrices(a, a_row + k);
        multiply(even, a, *(const Word*)(b_row + k), *(const Word*)(b_row + k + 16));
        const int later = k + SPLITS * 32;
        if (later + 32 <= INPUTS) {
            load_matrices(a, a_row + later);
            multiply(odd, a, *(const Word*)(b_row + later), *(const Word*)(b_row + later + 16));
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
        const float z = (float)sum * (inverse / 255) + shared.b1[column].w;
        send(&packets.a[0][row][2 * blockIdx.x + column], z < 0 ? 0 : z, tag);  // in this order a NaN stays a NaN
    }
}

// Receive dz1 of the block's columns, write its digits into shared memory, and return the sums over the rows.
// By one warp. A lane has four rows of each column: those that one register of the tensor cores' input holds.
__device__ float2 receive_dz1(ColumnShared& shared, Packets& packets, Word tag) {
    const int lane = threadIdx.x % 32, GROUPS = (BATCH / 4 + 31) / 32;
    Mail<4> mail;
    float2 dz[GROUPS][4], sum = {0, 0};
    Word largest = 0;
    for (int group = 0; group < GROUPS; group++) {
        const int task = group * 32 + lane, first = task % (BATCH / 16) * 16, t = task / (BATCH / 16);
        const auto at = [&](int i) { return &packets.dz1[blockIdx.x][first + 2 * t + i % 2 + i / 2 * 8][0]; };
        if (t < 4) {
            mail.ask(at);
            mail.wait(tag, at);
        }
        for (int i = 0; i < 4; i++) {
            const float2 pair = dz[group][i] = t < 4 ? mail[i] : make_float2(0, 0);
            largest = max(largest, max(magnitude(pair.x), magnitude(pair.y)));
            sum.x += pair.x;
            sum.y += pair.y;
        }
    }
    const int biased = biased_exponent(__reduce_max_sync(~0u, largest));
    for (int group = 0; group < GROUPS; group++) {
        const int task = group * 32 + lane, reg = task % (BATCH / 16), t = task / (BATCH / 16);
        if (t >= 4) continue;
        for (int column = 0; column < 2; column++) {
            Word d[4];
            for (int i = 0; i < 4; i++) d[i] = digits(column ? dz[group][i].y : dz[group][i].x, scale(biased));
            const Word low[2] = {__byte_perm(d[0], d[1], 0x5140), __byte_perm(d[2], d[3], 0x5140)};
            const Word high[2] = {__byte_perm(d[0], d[1], 0x7362), __byte_perm(d[2], d[3], 0x7362)};
            Word(*to)[BATCH / 16] = &shared.dz[16 * column + t];
            to[0][reg] = __byte_perm(low[0], low[1], 0x5410);
            to[4][reg] = __byte_perm(low[0], low[1], 0x7632);
            to[8][reg] = __byte_perm(high[0], high[1], 0x5410);
            to[12][reg] = __byte_perm(high[0], high[1], 0x7632);
        }
    }
    if (lane == 0) shared.inverse = inverse_scale(biased);
    for (int distance = 16; distance > 0; distance /= 2) {
        sum.x += __shfl_xor_sync(~0u, sum.x, distance);
        sum.y += __shfl_xor_sync(~0u, sum.y, distance);
    }
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
    const float unit = shared.inverse / 255;
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
            weights.of[i].update(sum * unit, arguments, rates, true);
        }
    }
}

// The hidden layers' gradients: warps 0 to 7 have a tile of W3, warps 8 to 15 one of W2; blocks 0 to 7 a bias, too.
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
    static __device__ const Packet* place(const Packet (*packets)[WIDTH], int start, int i, int column) {
        const int e = i * 32 + threadIdx.x % 32;  // eight lanes a row
        return &packets[first_row() + start + e / 8][column + e % 8 * 2];
    }

    __device__ void update(const Packets& packets, Word tag, ColumnShared& shared, const Arguments& arguments,
                           Rates rates) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float sums[2][4] = {}, bias_sums[4] = {};
        for (int start = 0; start < BATCH / TILE_WARPS; start += MAIL_ROWS) {
            Mail<MAIL_ROWS / 4> a, dz;
            const auto a_at = [&](int i) { return place(packets.a[1 - layer()], start, i, row()); };
            const auto dz_at = [&](int i) { return place(packets.dz[1 - layer()], start, i, column()); };
            a.ask(a_at);
            dz.ask(dz_at);
            a.wait(tag, a_at);
            dz.wait(tag, dz_at);
#pragma unroll
            for (int stage = 0; stage < MAIL_ROWS; stage += STAGE_ROWS) {
#pragma unroll
                for (int i = 0; i < STAGE_ROWS / 4; i++) {
                    const int r = i * 4 + lane / 8, pair = lane % 8 * 2;
                    *(float2*)&shared.stage[warp][0][r][pair] = a[stage / 4 + i];
                    *(float2*)&shared.stage[warp][1][r][pair] = dz[stage / 4 + i];
                }
                __syncwarp();
#pragma unroll
                for (int r = 0; r < STAGE_ROWS; r++) {
                    const float2 left = *(const float2*)&shared.stage[warp][0][r][lane / 4 * 2];
                    const float4 right = *(const float4*)&shared.stage[warp][1][r][lane % 4 * 4];
                    const float l[2] = {left.x, left.y}, d[4] = {right.x, right.y, right.z, right.w};
                    for (int j = 0; j < 4; j++) {
                        for (int i = 0; i < 2; i++) sums[i][j] += l[i] * d[j];
                        bias_sums[j] += d[j];
                    }
                }
                __syncwarp();
            }
        }
        for (int i = 0; i < 2; i++) {
            float* to = &shared.parts[warp][(lane / 4 * 2 + i) * TILE + lane % 4 * 4];
            *(float4*)to = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
        }
        if (lane < 4) {
            for (int j = 0; j < 4; j++) shared.bias_parts[warp][lane * 4 + j] = bias_sums[j];
        }
        sync_half(layer());
        const int first = layer() * TILE_WARPS;
        float g = 0;
#pragma unroll
        for (int part = 0; part < TILE_WARPS; part++) g += shared.parts[first + part][element()];
        weight.update(g, arguments, rates, true);
        arguments.theta[weight_place()] = weight.w;
        if (has_bias()) {
            g = 0;
            for (int part = 0; part < TILE_WARPS; part++) g += shared.bias_parts[first + part][element()];
            Parameter& bias = shared.hidden_bias[layer()][element()];
            bias.update(g, arguments, rates, false);
            arguments.theta[bias_place()] = bias.w;
        }
    }
};

// Two rows of W4, a class a warp; the last block has the bias, too.
__device__ void update_last(ColumnShared& shared, const Packets& packets, Word tag, const Arguments& arguments,
                            Rates rates) {
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32, row = 2 * blockIdx.x;
    if (column >= CLASSES) return;
    const auto at = [&](int i) { return &packets.a[2][lane + 32 * i][row]; };
    Mail<BATCH / 32> a;
    a.ask(at);
    Packet dz[BATCH / 32];
    for (int i = 0; i < BATCH / 32; i++) dz[i] = look(&packets.dz4[lane + 32 * i][column]);
    a.wait(tag, at);
    float g[3] = {};
    for (int i = 0; i < BATCH / 32; i++) {
        const float slope = is_of(dz[i], tag) ? value_of(dz[i]) : receive(&packets.dz4[lane + 32 * i][column], tag);
        g[0] += a[i].x * slope;
        g[1] += a[i].y * slope;
        g[2] += slope;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        for (int i = 0; i < 3; i++) g[i] += __shfl_xor_sync(~0u, g[i], distance);
    }
    if (lane > 0) return;
    for (int i = 0; i < 2; i++) {
        Parameter& weight = shared.last[column][i];
        weight.update(g[i], arguments, rates, true);
        arguments.theta[W4 + (row + i) * CLASSES + column] = weight.w;
    }
    if (blockIdx.x == COLUMN_BLOCKS - 1) {
        Parameter& bias = shared.last_bias[column];
        bias.update(g[2], arguments, rates, false);
        arguments.theta[B4 + column] = bias.w;
    }
}

// Call act(parameter, place in theta) for the block's few parameters that are in shared memory.
template <typename Act>
__device__ void for_small_parameters(ColumnShared& shared, Act act) {
    const int e = threadIdx.x;
    if (e < 2) act(shared.b1[e], B1 + 2 * blockIdx.x + e);
    if (HiddenTile::has_bias()) act(shared.hidden_bias[HiddenTile::layer()][e % TILE], HiddenTile::bias_place());
    if (e < 2 * CLASSES) act(shared.last[e % CLASSES][e / CLASSES], W4 + 2 * blockIdx.x * CLASSES + e);
    if (e < CLASSES && blockIdx.x == COLUMN_BLOCKS - 1) act(shared.last_bias[e], B4 + e);
}

// Not inlined, nor is row_block: so that each of the two has all registers for itself.
__device__ __noinline__ void column_block(const Arguments& arguments, int steps) {
    ColumnShared& shared = *(ColumnShared*)shared_bytes;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    FirstWeights first;
    HiddenTile tile;
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        if (first.has(i)) first.of[i].load(arguments, first.place(i));
    }
    tile.weight.load(arguments, tile.weight_place());
    for_small_parameters(shared, [&](Parameter& parameter, int place) { parameter.load(arguments, place); });

    fetch(arguments, shared.x[0], 0);
    wait_for_copies();
    first.biased = 30;
    first.write_digits(shared);
    for (int step = 0; step < steps; step++) {
        const Word tag = step + 1;
        Packets& packets = arguments.exchange->of[step % 2];
        const Rates rates = rates_of(arguments, step);
        const unsigned char(*x)[INPUTS] = shared.x[step % BUFFERS];
        mark(step, 0);
        first_layer(shared, x, inverse_scale(first.biased), packets, tag);

        mark(step, 1);
        Pixels ahead[AHEAD + 1];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i].load(x, first.tile(i));
        // While the row blocks are busy, one thread looks; every block at another row.
        if (threadIdx.x == 0) receive(&packets.dz4[blockIdx.x % BATCH][0], tag);
        __syncthreads();
        mark(step, 2);
        update_last(shared, packets, tag, arguments, rates);
        mark(step, 3);
        if (BUFFERS > 1 && step + 1 < steps) fetch(arguments, shared.x[(step + 1) % BUFFERS], step + 1);
        mark(step, 4);
        tile.update(packets, tag, shared, arguments, rates);
        count_on(arguments.exchange->updated[tile.layer()], tile.layer());
        mark(step, 5);

        float2 db1;
        if (warp == 0) db1 = receive_dz1(shared, packets, tag);
        __syncthreads();
        mark(step, 6);
        update_first(first, shared, ahead, x, arguments, rates);
        if (threadIdx.x < 2) shared.b1[lane].update(lane ? db1.y : db1.x, arguments, rates, false);
        mark(step, 7);
        wait_for_copies();
        first.biased = first.next;
        first.write_digits(shared);
        if (BUFFERS == 1 && step + 1 < steps) {
            fetch(arguments, shared.x[0], step + 1);
            wait_for_copies();
            __syncthreads();
        }
    }
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        if (first.has(i)) first.of[i].store(arguments, first.place(i));
    }
    tile.weight.store(arguments, tile.weight_place());
    for_small_parameters(shared, [&](Parameter& parameter, int place) { parameter.store(arguments, place); });
}

// ---- Row blocks ----

const int SHARERS = THREADS / (ROWS * WIDTH);  // threads that add up one sum's parts
const int STRIDE = ROWS * WIDTH + 32 / SHARERS;  // so that they read from different banks

struct RowShared {
    float parts[WARPS][STRIDE];
    float a[3][ROWS][WIDTH], dz[3][ROWS][WIDTH];
    float W4[CLASSES][WIDTH];  // transposed
    float b[2][WIDTH], b4[TILE];
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

    __device__ void load(const float* W) {
        const float4* from = (const float4*)(W + threadIdx.x / 32 * 8 * WIDTH) + threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 8; i++) row[i] = __ldcg(from + i * (WIDTH / 4));
    }

    // next <- relu(in W + b)
    __device__ void forward(RowShared& shared, const float (*in)[WIDTH], const float* b, float (*next)[WIDTH],
                            Packet (*packets)[WIDTH], int first, Word tag) const {
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
        const int e = threadIdx.x / SHARERS, r = e / WIDTH, j = e % WIDTH;
        float z = 0;
#pragma unroll
        for (int part = 0; part < WARPS; part += SHARERS) z += shared.parts[part + threadIdx.x % SHARERS][e];
        for (int distance = 1; distance < SHARERS; distance *= 2) z += __shfl_xor_sync(~0u, z, distance);
        z += b[j];
        if (threadIdx.x % SHARERS == 0) {
            next[r][j] = z < 0 ? 0 : z;
            send(&packets[first + r][j], next[r][j], tag);
        }
        __syncthreads();
    }

    // below <- the gradient before the ReLU that returned a, from that after the layer. to(r, k): where it is sent.
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
            below[r][k] = a[r][k] > 0 ? sums[0] : 0;
            send(to(r, k), below[r][k], tag);
        }
        __syncthreads();
    }
};

// The last layer, the loss, and the gradient of the last hidden layer: a warp a row, so that no other has to be waited
// for. A lane has four of the row's units; then two lanes a class; then four units again.
__device__ void last_layer(RowShared& shared, Packets& packets, int first, int n, int label, float* row_loss, Word tag) {
    const int lane = threadIdx.x % 32, r = threadIdx.x / 32;
    if (r < ROWS) {
        const float4 a = *(const float4*)&shared.a[2][r][4 * lane];
        float z[TILE] = {};
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
            const float4 w = *(const float4*)&shared.W4[c][4 * lane];
            z[c] = a.x * w.x + a.y * w.y + a.z * w.z + a.w * w.w;
        }
        add_up_across_lanes<TILE / 2, 16>(z);
        const int c = lane / 2;
        const float logit = c < CLASSES ? z[0] + shared.b4[c] : -__uint_as_float(0x7f800000u);  // minus infinity
        float largest = logit;
        for (int distance = 16; distance > 1; distance /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
        }
        const float power = expf(logit - largest);
        float total = power;
        for (int distance = 16; distance > 1; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
        const bool used = first + r < n;  // else the row only fills up the batch
        const float dz4 = used ? power / (total * n) - (c == label ? 1.0f / n : 0.0f) : 0.0f;
        if (lane % 2 == 0) send(&packets.dz4[first + r][c], dz4, tag);

        float4 da = {0, 0, 0, 0};
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
            const float4 w = *(const float4*)&shared.W4[c][4 * lane];
            const float d = __shfl_sync(~0u, dz4, 2 * c);
            da.x += d * w.x, da.y += d * w.y, da.z += d * w.z, da.w += d * w.w;
        }
        da = {a.x > 0 ? da.x : 0, a.y > 0 ? da.y : 0, a.z > 0 ? da.z : 0, a.w > 0 ? da.w : 0};
        *(float4*)&shared.dz[2][r][4 * lane] = da;
        const float values[4] = {da.x, da.y, da.z, da.w};
        for (int i = 0; i < 4; i++) send(&packets.dz[1][first + r][4 * lane + i], values[i], tag);
        if (used && lane == 2 * label) row_loss[r] = logf(total) - (logit - largest);
    }
    __syncthreads();
}

__device__ __noinline__ void row_block(const Arguments& arguments, int steps) {
    RowShared& shared = *(RowShared*)shared_bytes;
    const int first = (blockIdx.x - COLUMN_BLOCKS) * ROWS, warp = threadIdx.x / 32;
    const float* theta = arguments.theta;
    HeldWeights second, third;
    int example = warp < ROWS && first + warp < arguments.examples ? arguments.order[first + warp] : -1;
    for (int step = 0; step < steps; step++) {
        const Word tag = step + 1;
        Packets& packets = arguments.exchange->of[step % 2];
        const long long start = (long long)step * arguments.batch_size, next = start + arguments.batch_size;
        const int n = min((long long)arguments.batch_size, arguments.examples - start);
        const int label = example < 0 ? -1 : arguments.y[example];
        const bool has_next = warp < ROWS && next + first + warp < arguments.examples;
        example = has_next ? arguments.order[next + first + warp] : -1;

        mark(step, 0);
        wait_for_count(arguments.exchange->updated[0], step * COLUMN_BLOCKS);
        third.load(theta + W3);
        wait_for_count(arguments.exchange->updated[1], step * COLUMN_BLOCKS);
        mark(step, 1);
        second.load(theta + W2);
        for (int e = threadIdx.x; e < WIDTH * CLASSES; e += THREADS) {
            shared.W4[e % CLASSES][e / CLASSES] = __ldcg(theta + W4 + e);
        }
        const float* biases = theta + B2;  // and B3
        if (threadIdx.x < 2 * WIDTH) shared.b[threadIdx.x / WIDTH][threadIdx.x % WIDTH] = __ldcg(biases + threadIdx.x);
        if (threadIdx.x < CLASSES) shared.b4[threadIdx.x] = __ldcg(theta + B4 + threadIdx.x);
        mark(step, 2);
        if (threadIdx.x < ROWS * WIDTH) {
            const int r = threadIdx.x / WIDTH, k = threadIdx.x % WIDTH;
            shared.a[0][r][k] = receive(&packets.a[0][first + r][k], tag);
        }
        __syncthreads();

        mark(step, 3);
        second.forward(shared, shared.a[0], shared.b[0], shared.a[1], packets.a[1], first, tag);
        mark(step, 4);
        third.forward(shared, shared.a[1], shared.b[1], shared.a[2], packets.a[2], first, tag);
        mark(step, 5);
        last_layer(shared, packets, first, n, label, arguments.row_losses + start + first, tag);
        mark(step, 6);
        third.backward(shared.dz[2], shared.a[1], shared.dz[1], tag,
                       [&](int r, int k) { return &packets.dz[0][first + r][k]; });
        mark(step, 7);
        second.backward(shared.dz[1], shared.a[0], shared.dz[0], tag,
                        [&](int r, int k) { return &packets.dz1[k / 2][first + r][k % 2]; });
    }
}

// Train on the examples in arguments.order. Grid: COLUMN_BLOCKS + ROW_BLOCKS. The exchange starts as zeros.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    train(const unsigned char* X, const long long* y, const long long* order, int examples, int batch_size,
          float* row_losses, Exchange* exchange, float* theta, float* m, float* v, const float* rates, float beta1,
          float rest1, float beta2, float rest2, float eps, float l2, float shrink) {
    const Arguments arguments = {X,     y,     order, examples, batch_size, theta, m,      v,          rates,
                                 beta1, rest1, beta2, rest2,    eps,        l2,    shrink, row_losses, exchange};
    const int steps = (examples + batch_size - 1) / batch_size;
    if (blockIdx.x < COLUMN_BLOCKS) {
        column_block(arguments, steps);
    } else {
        row_block(arguments, steps);
    }
}

// How much memory a launch needs, which the host can't work out by itself.
extern "C" __global__ void requirements(int* answer) {
    answer[0] = sizeof(Exchange);
    answer[1] = max(sizeof(ColumnShared), sizeof(RowShared));
    answer[2] = COLUMN_BLOCKS + ROW_BLOCKS;
}

// The blocks of persistent.cu that own columns of W1, and a tile of W2 and one of W3. Their warps are three groups that
// share nothing but a multiprocessor, and never wait for each other: eight have W1, four the tile of W3, four that of
// W2. (A step's code has to be short: it is hardly ever run twice in a row, and the caches for instructions are small.)

const int FIRST_WARPS = 8, FIRST_THREADS = 32 * FIRST_WARPS;
const int TILE_WARPS = 4, TILE_THREADS = 32 * TILE_WARPS;

static_assert(FIRST_THREADS + 2 * TILE_THREADS == THREADS, "three groups of warps");

const int IMAGES = BATCH / SHARE, COLUMNS = 2 * SHARE;  // of a block

const int TILES_A_WARP = (PIXEL_TILES + FIRST_WARPS - 1) / FIRST_WARPS;
const int MOST_AHEAD = ADAM ? 3 : 2;  // the fastest: more take registers that others need
const int AHEAD = PIXEL_TILES / FIRST_WARPS < MOST_AHEAD ? PIXEL_TILES / FIRST_WARPS : MOST_AHEAD;  // tiles, for dW1
const int ROW_GROUPS = IMAGES / 32, SPLITS = FIRST_WARPS / ROW_GROUPS;  // warps that share 32 rows' sums
const int STEPS_A_SPLIT = (INPUTS / 32 + SPLITS - 1) / SPLITS;
const int STEPS_AT_ONCE = STEPS_A_SPLIT > 4 ? 4 : STEPS_A_SPLIT > 0 ? STEPS_A_SPLIT : 1;  // as the registers allow
const int PAIRS = 4 * SHARE, OWN = PAIRS > SPLITS ? PAIRS / SPLITS : 1;  // of a lane's sums, and what it has in the end
const int REGISTERS = IMAGES / 16, WIDE = REGISTERS < 4 ? REGISTERS : 4;                  // of a lane, for dz1's splits
const int MAIL_ROWS = BATCH / TILE_WARPS < 32 ? BATCH / TILE_WARPS : 32;  // whose messages a warp asks for at a time

static_assert(FIRST_SENT == COLUMN_BLOCKS * TILES_A_WARP * SHARE * FIRST_THREADS, "each gradient has its place");
static_assert(TILES_SENT == COLUMN_BLOCKS * 3 * 2 * TILE_THREADS, "each gradient has its place");
static_assert(SPLITS * ROW_GROUPS == FIRST_WARPS, "each warp has 32 rows, and a share of the pixels");

struct ColumnShared {
    Watch watch;
    unsigned char x[BUFFERS][IMAGES][INPUTS];      // while one batch is worked on, the next arrives
    unsigned char W[4 * COLUMNS][INPUTS];          // four splits of each column
    Word dz[SHARE][REGISTERS / WIDE][32][WIDE];    // dz1's splits, as the tensor cores want them
    int2 sums[ROW_GROUPS][PAIRS][SPLITS - 1][32];  // of the first layer's products: from warp to warp
    float parts[2][TILE_WARPS][TILE * TILE];       // of the tiles' gradients
    float bias_parts[2][TILE_WARPS][TILE];
    BulkCopies images[BUFFERS];
    Word largest[FIRST_WARPS];
    float unit[COLUMNS];  // of the sums of products of pixels and dz1's integers
    Parameter b1[COLUMN_ROUNDS][COLUMNS];
};

// ---- The warps that have W1 ----

__device__ void sync_first() { bar_sync<FIRST_THREADS>(1); }

__device__ Word column_part(int round) { return blockIdx.x + round * COLUMN_GRID; }  // of COLUMN_BLOCKS
__device__ int first_column(Word part) { return part / SHARE * COLUMNS; }
__device__ int first_image() { return blockIdx.x % SHARE * IMAGES; }  // of the batch, in every round

// Ask for the block's images of a batch, and go on. All warps take part: the copies of one wait for each other.
__device__ void fetch(const Arguments& arguments, ColumnShared& shared, int step) {
    const int start = step * arguments.batch_size, n = min(arguments.batch_size, arguments.examples - start);
    const auto in_batch = [](int row) { return first_image() + row; };
    const auto has = [=](int row) { return in_batch(row) < n; };
    const auto from = [&](int row) { return arguments.X + __ldg(arguments.order + start + in_batch(row)) * INPUTS; };
    const int count = min(max(n - first_image(), 0), IMAGES);
    shared.images[step % BUFFERS].ask<FIRST_THREADS>(shared.x[step % BUFFERS], count, has, from);
}

// A lane's share of W1: of every FIRST_WARPS-th tile of 16 pixels, one pixel of one column, or of one in each pair.
struct FirstWeights {
    Parameter of[TILES_A_WARP][SHARE];
    Word part;         // whose columns they are
    int biased, next;  // the exponent that the splits were made with, and a guess for the next step's

    static __device__ int tile(int i) { return FIRST_WARPS - 1 - threadIdx.x / 32 + i * FIRST_WARPS; }
    static __device__ bool has(int i) { return (i + 1) * FIRST_WARPS <= PIXEL_TILES || tile(i) < PIXEL_TILES; }
    static __device__ int column() { return threadIdx.x % 4 / 2; }
    static __device__ int pixel(int i) { return tile(i) * 16 + threadIdx.x % 32 / 4 * 2 + threadIdx.x % 2; }
    __device__ int place(int i, int pair) const {
        return W1 + pixel(i) * WIDTH + first_column(part) + 2 * pair + now(column());
    }

    // Call act(parameter, i, pair) for each of the lane's weights.
    template <typename Act>
    __device__ void for_each(Act act) {
#pragma unroll
        for (int i = 0; i < TILES_A_WARP; i++) {
            for (int pair = 0; pair < SHARE && has(i); pair++) act(of[i][pair], i, pair);
        }
    }

    // Write the splits into shared memory. The exponent is guessed from the last step's, and checked on the way.
    __device__ void write_splits(ColumnShared& shared) {
        const int lane = threadIdx.x % 32;
        for (;;) {
            Word largest = 0;
            for_each([&](Parameter& parameter, int i, int pair) {
                largest = max(largest, magnitude(parameter.w));
                const Word mine = splits(parameter.w, scale(biased));
                const Word other = __shfl_xor_sync(~0u, mine, 1);  // the pixel beside mine
                const bool odd = lane % 2;
                const Word two = odd ? __byte_perm(other, mine, 0x7362) : __byte_perm(mine, other, 0x5140);
                unsigned char* row = &shared.W[8 * pair + 4 * column() + 2 * odd][pixel(i) - odd];
                *(unsigned short*)row = two;
                *(unsigned short*)(row + INPUTS) = two >> 16;
            });
            largest = __reduce_max_sync(~0u, largest);
            if (lane == 0) shared.largest[threadIdx.x / 32] = largest;
            sync_first();
            const int found = biased_exponent(__reduce_max_sync(~0u, shared.largest[lane % FIRST_WARPS]));
            next = min(found + 1, 255);
            if (found <= biased) break;
            biased = found;
            sync_first();
        }
    }
};

// A warp's share of x W1: 32 rows, and of the pixels 32 at a time, every SPLITS-th time.
struct FirstSums {
    static const int ACCUMULATORS = 2 / SHARE;  // for each half of the rows, so that a product need not wait for the last
    int of[SHARE][2][ACCUMULATORS][4];

    static __device__ int split() { return threadIdx.x / 32 / ROW_GROUPS; }
    static __device__ int row() { return threadIdx.x / 32 % ROW_GROUPS * 32; }
    static __device__ bool all_have(int i) { return (i + 1) * SPLITS <= INPUTS / 32; }
    static __device__ bool has(int i) { return all_have(i) || i * SPLITS + split() < INPUTS / 32; }
    // (Without a limit that depends on the warp all of these are a constant apart, and take no registers.)
    static __device__ int pixel(int i) {
        const int first = split() * 32, more = i * SPLITS * 32;
        return all_have(i) ? first + more : min(first + more, INPUTS - 32);
    }
    static __device__ const unsigned char* splits(const ColumnShared& shared, int pair) {
        return &shared.W[8 * pair + threadIdx.x % 32 / 4][threadIdx.x % 4 * 4];
    }

    __device__ FirstSums(const ColumnShared& shared, const unsigned char (*x)[INPUTS]) : of{} {
        const int lane = threadIdx.x % 32;
        const unsigned char* a_row = &x[row() + lane % 16][lane / 16 * 16];
#pragma unroll
        for (int start = 0; start < STEPS_A_SPLIT; start += STEPS_AT_ONCE) {
            Word a[STEPS_AT_ONCE][2][4], b[STEPS_AT_ONCE][SHARE][2];  // loaded ahead of the products
#pragma unroll
            for (int i = 0; i < STEPS_AT_ONCE; i++) {
                for (int j = 0; j < 2; j++) {
                    for (int pair = 0; pair < SHARE; pair++) {
                        b[i][pair][j] = *(const Word*)(splits(shared, pair) + pixel(start + i) + 16 * j);
                        if (!has(start + i)) b[i][pair][j] = 0;
                    }
                    ldmatrix_x4(a[i][j], a_row + 16 * j * INPUTS + pixel(start + i));
                }
            }
#pragma unroll
            for (int i = 0; i < STEPS_AT_ONCE; i++) {
                for (int half = 0; half < 2; half++) {
                    for (int pair = 0; pair < SHARE; pair++) {
                        mma_m16n8k32_u8s8(of[pair][half][i % ACCUMULATORS], a[i][half], b[i][pair][0], b[i][pair][1]);
                    }
                }
            }
        }
        if (INPUTS % 32 && split() == SPLITS - 1) {
            for (int half = 0; half < 2; half++) {
                Word a[4];  // the last two matrices repeat the first two
                ldmatrix_x4(a, &x[row() + 16 * half + lane % 16][INPUTS - 16]);
                for (int pair = 0; pair < SHARE; pair++) {
                    const Word b = *(const Word*)(splits(shared, pair) + INPUTS - 16);
                    mma_m16n8k16_u8s8(of[pair][half][ACCUMULATORS - 1], a[0], a[1], b);
                }
            }
        }
    }

    // Those of two splits: of one of each pair of columns, and of the lane's first row in 8, in the next 8, ...
    __device__ int2 pair(int k) const {
        const int(&accumulators)[ACCUMULATORS][4] = of[k / 4][k % 4 / 2], e = k % 2 * 2;
        int2 two = make_int2(accumulators[0][e], accumulators[0][e + 1]);
        for (int i = 1; i < ACCUMULATORS; i++) two.x += accumulators[i][e], two.y += accumulators[i][e + 1];
        return two;
    }
};

// a1 = relu(x W1 + b1) for a part's columns and the block's images. The warps that have the same rows deal out their sums: each
// ends up with OWN of the PAIRS, which the others have put into shared memory for it.
__device__ void first_layer(ColumnShared& shared, int round, const FirstSums& sums, float inverse, Messages& messages,
                            Word tag) {
    const int first = first_column(column_part(round)), thread = now(threadIdx.x), lane = thread % 32;
    const int group = thread / 32 % ROW_GROUPS, me = thread / 32 / ROW_GROUPS;
    int2 own[OWN] = {};  // sums of a split have some 25 bits
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const int owner = k / OWN;
        if (owner == me) {
            own[k % OWN] = sums.pair(k);
        } else {
            shared.sums[group][k][me < owner ? me : me - 1][lane] = sums.pair(k);
        }
    }
    bar_sync<32 * SPLITS>(4 + group);
    if (me * OWN >= PAIRS) return;
    long long halves[OWN];  // an even lane has those of two low splits, the odd one beside it those of the high ones
#pragma unroll
    for (int i = 0; i < OWN; i++) {
#pragma unroll
        for (int from = 0; from < SPLITS - 1; from++) {
            const int2 two = shared.sums[group][me * OWN + i][from][lane];
            own[i].x += two.x, own[i].y += two.y;
        }
        halves[i] = own[i].x + 256ll * own[i].y;
    }
    const float unit = inverse * (1 / 255.0f);  // as exact as a quotient: `inverse` is a power of two
    const bool odd = lane % 2;
#pragma unroll
    for (int i = 0; i < OWN; i += 2) {  // the even lane takes one of them, and the odd one beside it the next, if any
        const int last = i + 1 < OWN ? i + 1 : i, taken = odd ? last : i;
        const long long other = __shfl_xor_sync(~0u, odd ? halves[i] : halves[last], 1);
        const long long low = odd ? other : halves[i], high = odd ? halves[last] : other;
        const int k = me * OWN + taken, image = group * 32 + k % 4 * 8 + lane / 4, column = k / 4 * 2 + lane % 4 / 2;
        const float z = (float)(low + (high << 16)) * unit + shared.b1[round][column].w;
        // In this order a NaN stays a NaN.
        if (OWN > 1 || !odd) send(messages.a1.at(first_image() + image, first + column), z < 0 ? 0 : z, tag);
    }
}

// Receive dz1 of one of a part's columns, write its splits into shared memory, and return the lane's share of the
// sum over the rows. By one warp. A lane has four rows, those that a register of the tensor cores' input holds; or none.
__device__ float receive_dz1(ColumnShared& shared, Word part, const Messages& messages, Word tag, int column) {
    const int lane = now(threadIdx.x) % 32, reg = lane / 4 % REGISTERS, t = lane % 4, all = first_column(part) + column;
    const bool mine = lane < 4 * REGISTERS;
    const auto at = [&](int i) {
        return &messages.dz1[all / 2][first_image() + reg * 16 + 2 * t + i % 2 + i / 2 * 8][all % 2];
    };
    SingleMail<4> mail;
    mail.ask(at);
    mail.wait(tag, at, DZ1);
    float dz[4];
    Word largest = 0;
    for (int i = 0; i < 4; i++) {
        dz[i] = mine ? mail[i] : 0;
        largest = max(largest, magnitude(dz[i]));
    }
    const int biased = biased_exponent(__reduce_max_sync(~0u, largest));
    const Splits splits(make_float4(dz[0], dz[1], dz[2], dz[3]), scale(biased));
    for (int d = 0; d < 4 && mine; d++) {
        shared.dz[column / 2][reg / WIDE][16 * (column % 2) + 4 * d + t][reg % WIDE] = splits.of[d];
    }
    if (lane == 0) shared.unit[column] = inverse_scale(biased) * (1 / 255.0f);
    return dz[0] + dz[1] + dz[2] + dz[3];
}

typedef float FirstGradient[TILES_A_WARP][SHARE];

// W1's gradient, x^T dz1, for the block's columns, over its images. ahead: the pixels of the first tiles.
__device__ void first_gradient(FirstGradient& g, const ColumnShared& shared, const Pixels<IMAGES>* ahead,
                               const unsigned char (*x)[INPUTS]) {
    const int lane = threadIdx.x % 32;
    Word b[SHARE][REGISTERS];
#pragma unroll
    for (int pair = 0; pair < SHARE; pair++) {
#pragma unroll
        for (int i = 0; i < REGISTERS; i++) b[pair][i] = shared.dz[pair][i / WIDE][lane][i % WIDE];
    }
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        if (FirstWeights::has(i)) {
            Pixels<IMAGES> pixels;
            if (i < AHEAD) {
                pixels = ahead[i];
            } else {
                pixels.load(x, FirstWeights::tile(i));
            }
#pragma unroll
            for (int pair = 0; pair < SHARE; pair++) {
                int c[4] = {};
#pragma unroll
                for (int step = 0; step < IMAGES / 32; step++) {
                    mma_m16n8k32_u8s8(c, pixels.of[step], b[pair][2 * step], b[pair][2 * step + 1]);
                }
                // An even lane has the two low splits' sums of two pixels, the odd one beside it the two high splits'.
                // In 31 bits there is room for both: the pixels are fewer than 2^8, the splits 2^7, the images 2^8.
                const bool odd = lane % 2;
                const float first = c[0] + 256 * c[1], second = c[2] + 256 * c[3];
                const float other = __shfl_xor_sync(~0u, odd ? first : second, 1);
                const float sum = odd ? other + 65536.0f * second : first + 65536.0f * other;
                // (Rounded before the other half of the batch is added, so that both blocks come to the same sum.)
                g[i][pair] = __fmul_rn(sum, shared.unit[2 * pair + FirstWeights::column()]);
            }
        }
    }
}

// Add what the block's neighbour has from the other half of the batch.
__device__ void add_other_half(FirstGradient& g, Word part, Messages& messages, Word tag) {
    const int thread = now(threadIdx.x), lane = thread % 32;
    const int tile = FIRST_WARPS - 1 - thread / 32;  // FirstWeights::tile(0), which would be kept in a register
    const auto place = [=](Message(*from)[32][2], int i) { return from[tile + i * FIRST_WARPS][lane]; };
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        for (int pair = 0; pair < SHARE && FirstWeights::has(i); pair++) {
            send(place(messages.dW1[part], i) + pair, g[i][pair], tag);
        }
    }
    if (!FirstWeights::has(0)) return;
    const auto at = [&](int i) { return place(messages.dW1[part ^ 1], FirstWeights::has(i) ? i : 0); };
    Mail<TILES_A_WARP> mail;
    mail.ask(at);
    mail.wait(tag, at, OTHER_HALF);
#pragma unroll
    for (int i = 0; i < TILES_A_WARP; i++) {
        g[i][0] += mail[i].x;
        g[i][SHARE - 1] += mail[i].y;
    }
}

// Add what other GPUs have from their batches. db1: of the warp's column, in its first lane.
__device__ void add_other_gpus(FirstGradient& g, Word part, float& db1, const Ranks& ranks, Word tag) {
    const int N = TILES_A_WARP * SHARE;
    const auto at = [=](int i) -> int {
        if (i == N) return threadIdx.x % 32 || threadIdx.x / 32 >= COLUMNS ? -1 : B1_AT + part * 4 + (int)threadIdx.x / 32;
        return FirstWeights::has(i / SHARE) ? (part * N + i) * FIRST_THREADS + threadIdx.x : -1;
    };
    float own[N + 1];
#pragma unroll
    for (int i = 0; i < N; i++) own[i] = g[i / SHARE][i % SHARE];
    own[N] = db1;
    ranks.send(own, at, tag);
    ranks.sum(own, at, tag);
#pragma unroll
    for (int i = 0; i < N; i++) g[i / SHARE][i % SHARE] = own[i];
    db1 = own[N];
}

// The sum of a value over the lanes, and over both halves of the batch where two blocks share it.
__device__ float sum_over_rows(float x, Word part, Messages& messages, Word tag, int column) {
    x = warp_sum<32>(x);
    if (SHARE == 1) return x;
    if (threadIdx.x % 32 == 0) send(&messages.db1[part][column], x, tag);
    return x + receive(&messages.db1[part ^ 1][column], tag, OTHER_HALF);
}

__device__ void first_warps(const Arguments& arguments, ColumnShared& shared, int steps) {
    const int warp = threadIdx.x / 32;
    FirstWeights all[COLUMN_ROUNDS];
    const auto b1_place = [](int round) { return B1 + first_column(column_part(round)) + threadIdx.x; };
    in_rounds<COLUMN_ROUNDS>([&](int round) {
        FirstWeights& first = all[round];
        first.part = column_part(round);
        first.next = 30;
        first.for_each([&](Parameter& w, int i, int pair) { w.load(arguments.vectors, first.place(i, pair)); });
        if (threadIdx.x < COLUMNS) shared.b1[round][threadIdx.x].load(arguments.vectors, b1_place(round));
    });

    if (threadIdx.x < BUFFERS) shared.images[threadIdx.x].start();
    sync_first();
    fetch(arguments, shared, 0);
    for (int step = 0; step < steps; step++) {
        const Word tag = step + 1;
        Messages& messages = arguments.exchange[step % 2];
        const Rates rates = rates_of(arguments, step);
        const unsigned char(*x)[INPUTS] = shared.x[step % BUFFERS];
        in_rounds<COLUMN_ROUNDS>([&](int round) {
            FirstWeights& first = all[round];
            if (round > 0) sync_first();  // now the splits' memory can be written again
            first.biased = first.next;
            first.write_splits(shared);
            stamp(step, 0);
            if (round == 0) shared.images[step % BUFFERS].wait(step / BUFFERS % 2, tag, sync_first);
            first_layer(shared, round, FirstSums(shared, x), inverse_scale(first.biased), messages, tag);
        });

        stamp(step, 1);
        if (BUFFERS == 2 && step + 1 < steps) fetch(arguments, shared, step + 1);
        Pixels<IMAGES> ahead[AHEAD + 1];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i].load_now(x, FirstWeights::tile(i));
        stamp(step, 2);
        in_rounds<COLUMN_ROUNDS>([&](int round) {
            FirstWeights& first = all[round];
            const Word part = column_part(round);
            float db1;
            if (round > 0) sync_first();  // now dz1's memory can be written again
            if (warp < COLUMNS) db1 = receive_dz1(shared, part, messages, tag, warp);  // a warp a column
            sync_first();
            stamp(step, 3);
            FirstGradient g;
            first_gradient(g, shared, ahead, x);
            if (BUFFERS == 1 && round == COLUMN_ROUNDS - 1) {
                sync_first();  // now the images' memory can be written again
                if (step + 1 < steps) fetch(arguments, shared, step + 1);
            }
            if constexpr (SHARE == 2) add_other_half(g, part, messages, tag);
            if constexpr (RANKS > 1) {
                if (warp < COLUMNS) db1 = sum_over_rows(db1, part, messages, tag, warp);
                add_other_gpus(g, part, db1, arguments.ranks, tag);
            }
            first.for_each([&](Parameter& w, int i, int pair) { w.update(g[i][pair], arguments.settings, rates, true); });
            if (warp < COLUMNS) {  // one GPU waits for the other half of the batch when W1 is done
                if constexpr (RANKS == 1) db1 = sum_over_rows(db1, part, messages, tag, warp);
                if (threadIdx.x % 32 == 0) shared.b1[round][warp].update(db1, arguments.settings, rates, false);
            }
        });
        stamp(step, 4);
    }
    sync_first();  // for b1
    in_rounds<COLUMN_ROUNDS>([&](int round) {
        FirstWeights& first = all[round];
        first.for_each([&](Parameter& w, int i, int pair) { w.store(arguments.vectors, first.place(i, pair)); });
        if (threadIdx.x < COLUMNS) shared.b1[round][threadIdx.x].store(arguments.vectors, b1_place(round));
    });
}

// ---- The warps that have the tiles ----

// A value of 24 bits is the sum of two of 11 bits and almost nothing.
template <int N>
__device__ void split(const float (&x)[N], Word (&high)[N], Word (&low)[N]) {
    for (int i = 0; i < N; i++) {
        high[i] = cvt_rna_tf32(x[i]);
        low[i] = cvt_rna_tf32(x[i] - __uint_as_float(high[i]));
    }
}

// The product in full, but for low times low.
__device__ void multiply_split(float (&c)[4], const Word (&a_high)[4], const Word (&a_low)[4], const float (&b)[2]) {
    Word high[2], low[2];
    split(b, high, low);
    mma_m16n8k8_tf32(c, a_low, high);
    mma_m16n8k8_tf32(c, a_high, low);
    mma_m16n8k8_tf32(c, a_high, high);
}

// A tile of a hidden layer's weights, of which a thread has two values side by side; in parts 0 to 7 some threads have
// a bias, too.
struct HiddenTile {
    Word part;
    Parameter weights[2], bias;

    static __device__ int layer() { return (threadIdx.x - FIRST_THREADS) / TILE_THREADS; }  // 0 for W3, 1 for W2
    static __device__ int thread() { return threadIdx.x % TILE_THREADS; }
    __device__ int row() const { return part / 8 * TILE; }
    __device__ int column() const { return part % 8 * TILE; }
    __device__ int weight_row() const { return row() + thread() / 8; }
    __device__ int weight_column() const { return column() + thread() % 8 * 2; }
    __device__ bool has_bias() const { return row() == 0 && thread() < TILE; }
    static __device__ void sync() { bar_sync<TILE_THREADS>(2 + layer()); }

    // Call act(parameter, place in theta) for the thread's parameters.
    template <typename Act>
    __device__ void for_each(Act act) {
        const int place = now((layer() ? W2 : W3) + weight_row() * WIDTH + weight_column());
        for (int i = 0; i < 2; i++) act(weights[i], place + i);
        if (has_bias()) act(bias, (layer() ? B2 : B3) + column() + thread());
    }

    // Hand the tile, and the bias, to the row blocks. Two lanes put their weights together.
    __device__ void send_to(Messages& messages, Word tag) const {
        const float third = __shfl_xor_sync(~0u, weights[0].w, 1), fourth = __shfl_xor_sync(~0u, weights[1].w, 1);
        if (threadIdx.x % 2 == 0) {
            float4* to = &messages.W[layer()][weight_row()][weight_column() / 4];
            send_four(to, make_float4(weights[0].w, weights[1].w, third, fourth), tag);
        }
        if (has_bias()) send(&messages.b[layer()][column() + thread()], bias.w, tag);
    }

    // Two values in each of a warp's rows: just what a lane has to bring to the tensor cores. One message is looked for
    // before all are asked for. (To look at all of them all the time would keep everybody else's messages waiting.)
    struct Elements : Mail<MAIL_ROWS / 4> {
        __device__ void receive_all(const Tiled& messages, int start, int column, Word tag, Awaited what) {
            const int lane = threadIdx.x % 32, row = thread() / 32 * (BATCH / TILE_WARPS) + start + lane % 4;
            const Message* begin = messages.at(row, column + lane / 4 * 2);
            const auto at = [=](int i) { return begin + i * 4 * TILE; };  // four rows on
            receive(at(0), tag, what);
            this->ask(at);
            this->wait(tag, at, what);
        }
    };

    // The sums over a warp's rows, of even and of odd columns.
    __device__ void gradient(float (&sums)[2][4], float (&bias_sums)[2], const Messages& messages, Word tag) const {
        const int N = MAIL_ROWS / 8;
        const Tiled &ins = layer() ? messages.a1 : messages.a2, &slopes = layer() ? messages.dz2 : messages.dz3;
        for (int start = 0; start < BATCH / TILE_WARPS; start += MAIL_ROWS) {
            Word high[N][4], low[N][4];  // of what the layer got, which is there long before the slopes
            Elements a, dz;
            a.receive_all(ins, start, row(), tag, layer() ? A1 : A2);
#pragma unroll
            for (int i = 0; i < N; i++) {
                split({a[2 * i].x, a[2 * i].y, a[2 * i + 1].x, a[2 * i + 1].y}, high[i], low[i]);
                for (int k = 0; k < 4; k++) high[i][k] = now(high[i][k]), low[i][k] = now(low[i][k]);
            }
            dz.receive_all(slopes, start, column(), tag, layer() ? DZ2 : DZ3);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float2 first = dz[2 * i], second = dz[2 * i + 1];
                multiply_split(sums[0], high[i], low[i], {first.x, second.x});
                multiply_split(sums[1], high[i], low[i], {first.y, second.y});
                bias_sums[0] += first.x + second.x;
                bias_sums[1] += first.y + second.y;
            }
        }
    }

    __device__ void update(const Messages& messages, Word tag, ColumnShared& shared, const Arguments& arguments,
                           Rates rates) {
        const int lane = threadIdx.x % 32, warp = thread() / 32;
        float sums[2][4] = {}, bias_sums[2] = {};
        gradient(sums, bias_sums, messages, tag);
        auto& parts = shared.parts[layer()];
        auto& bias_parts = shared.bias_parts[layer()];
        for (int i = 0; i < 2; i++) {
            float* to = &parts[warp][(lane / 4 * 2 + i) * TILE + lane % 4 * 4];
            *(float4*)to = make_float4(sums[0][2 * i], sums[1][2 * i], sums[0][2 * i + 1], sums[1][2 * i + 1]);
            bias_parts[warp][lane / 4 * 2 + i] = warp_sum_from_nearest<4>(bias_sums[i]);  // the same in four lanes
        }
        sync();
        float2 g = {0, 0};
        float bias_g = 0;
#pragma unroll
        for (int part = 0; part < TILE_WARPS; part++) {
            const float2 two = *(const float2*)&parts[part][2 * thread()];
            g.x += two.x, g.y += two.y;
            if (has_bias()) bias_g += bias_parts[part][thread()];
        }
        sync();  // now the parts' memory can be written again
        float own[3] = {g.x, g.y, bias_g};
        const auto at = [&](int i) -> int {
            return i < 2 || has_bias() ? TILES_AT + (part * 3 + i) * 2 * TILE_THREADS + threadIdx.x - FIRST_THREADS : -1;
        };
        arguments.ranks.send(own, at, tag);
        arguments.ranks.sum(own, at, tag);
        weights[0].update(own[0], arguments.settings, rates, true);
        weights[1].update(own[1], arguments.settings, rates, true);
        if (has_bias()) bias.update(own[2], arguments.settings, rates, false);
    }
};

__device__ void tile_warps(const Arguments& arguments, ColumnShared& shared, int steps) {
    HiddenTile all[COLUMN_ROUNDS];
    in_rounds<COLUMN_ROUNDS>([&](int round) {
        HiddenTile& tile = all[round];
        tile.part = column_part(round);
        tile.for_each([&](Parameter& parameter, int place) { parameter.load(arguments.vectors, place); });
        tile.send_to(arguments.exchange[0], 1);
    });
    for (int step = 0; step < steps; step++) {
        const Word tag = step + 1;
        in_rounds<COLUMN_ROUNDS>([&](int round) {
            all[round].update(arguments.exchange[step % 2], tag, shared, arguments, rates_of(arguments, step));
            all[round].send_to(arguments.exchange[(step + 1) % 2], tag + 1);
        });
    }
    in_rounds<COLUMN_ROUNDS>([&](int round) {
        all[round].for_each([&](Parameter& parameter, int place) { parameter.store(arguments.vectors, place); });
    });
}

__device__ void column_block(const Arguments& arguments, int steps) {
    ColumnShared& shared = *(ColumnShared*)shared_bytes;
    if (threadIdx.x < FIRST_THREADS) {
        first_warps(arguments, shared, steps);
    } else {
        tile_warps(arguments, shared, steps);
    }
}

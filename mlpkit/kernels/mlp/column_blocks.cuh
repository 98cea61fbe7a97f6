// The blocks of persistent.cu that own columns of W1, and a tile of W2 and one of W3.

const int TILES_A_WARP = (PIXEL_TILES + WARPS - 1) / WARPS;
const int ROW_TILES = BATCH / 16, SPLITS = WARPS / ROW_TILES;  // warps that share a tile's sum over the pixels
const int STEPS_A_SPLIT = (INPUTS / 32 + SPLITS - 1) / SPLITS;
const int STEPS_AT_ONCE = STEPS_A_SPLIT > 4 ? 4 : STEPS_A_SPLIT > 0 ? STEPS_A_SPLIT : 1;  // as the registers allow
const int TILE_WARPS = WARPS / 2;                              // eight warps have a tile of W3, eight one of W2
const int MAIL_ROWS = BATCH <= 128 ? BATCH / TILE_WARPS : 16;  // whose packets a warp asks for at a time
const int MOST_AHEAD = BATCH > 128 ? 0 : 1;                    // as the registers allow
const int AHEAD = PIXEL_TILES / WARPS < MOST_AHEAD ? PIXEL_TILES / WARPS : MOST_AHEAD;  // tiles of pixels, for dW1

static_assert(SPLITS * ROW_TILES == WARPS, "each warp has a tile of rows, and a share of the pixels");
static_assert(BATCH % TILE_WARPS == 0 && BATCH / TILE_WARPS % MAIL_ROWS == 0, "a warp has as many rows as the others");

struct ColumnShared {
    unsigned char x[BUFFERS][BATCH][INPUTS];
    unsigned char W[8][INPUTS];  // four digits of each of two columns
    Word dz[32][BATCH / 16];     // dz1's digits, as the tensor cores want them
    union {
        int sums[SPLITS][BATCH][8];       // of the first layer's products
        float parts[WARPS][TILE * TILE];  // of a tile's gradient
    };
    float bias_parts[WARPS][TILE];
    BulkCopies images[BUFFERS];
    Word largest[WARPS];
    float unit[2];  // of the sums of products of pixels and dz1's integers
    Parameter b1[2], hidden_bias[2][TILE];  // the latter only in some blocks
};

// Ask for the images of a batch, and go on. By the last threads, which have time where there are two buffers: the copies
// are queued one after the other.
const int FETCHERS = BUFFERS > 1 ? 128 : THREADS;

static_assert(BATCH <= FETCHERS, "a thread asks for an image");

__device__ void fetch(const Arguments& arguments, ColumnShared& shared, int step) {
    const int first = step * arguments.batch_size, n = min(arguments.batch_size, arguments.examples - first);
    const int row = (int)threadIdx.x - (THREADS - FETCHERS), buffer = step % BUFFERS;
    if (row == 0) shared.images[buffer].expect(n * INPUTS);
    if (row >= 0 && row < n) {
        const unsigned char* image = arguments.X + __ldg(arguments.order + first + row) * INPUTS;
        shared.images[buffer].copy(shared.x[buffer][row], image, INPUTS);
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
            ldmatrix_x4(a[i], a_row + k);
            for (int j = 0; j < 2; j++) b[i][j] = *(const Word*)(b_row + k + 16 * j);
        }
#pragma unroll
        for (int i = 0; i < STEPS_AT_ONCE; i++) {
            if (((start + i) * SPLITS + split) * 32 + 32 <= INPUTS) mma_m16n8k32_u8s8(i % 2 ? odd : even, a[i], b[i][0], b[i][1]);
        }
    }
    if (INPUTS % 32 && split == SPLITS - 1) {
        Word a[4];
        ldmatrix_x4(a, &x[row_tile * 16 + lane % 16][INPUTS - 16]);  // the last two matrices repeat the first two
        mma_m16n8k16_u8s8(odd, a[0], a[1], *(const Word*)(b_row + INPUTS - 16));
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
        const Digits digits(make_float4(dz[group][0], dz[group][1], dz[group][2], dz[group][3]), scale(biased));
        for (int d = 0; d < 4 && t < 4; d++) shared.dz[16 * column + 4 * d + t % 4][reg] = digits.of[d];
    }
    if (lane == 0) shared.unit[column] = inverse_scale(biased) / 255;
    return warp_sum<32>(sum);
}

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
            for (int step = 0; step < BATCH / 32; step++) mma_m16n8k32_u8s8(c, pixels.of[step], b[2 * step], b[2 * step + 1]);
            // An even lane has the two low digits' sums of two pixels, the odd one beside it the two high digits'.
            const bool odd = lane % 2;
            const float first = (float)c[0] + 256.0f * c[1], second = (float)c[2] + 256.0f * c[3];
            const float other = __shfl_xor_sync(~0u, odd ? first : second, 1);
            const float sum = odd ? other + 65536.0f * second : first + 65536.0f * other;
            weights.of[i].update(sum * unit, arguments.settings, rates, true);
        }
    }
}

// A number of 24 bits is the sum of two of 11 bits and almost nothing.
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
            send_four(to, make_float4(four[0], four[1], four[2], four[3]), tag);
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
                multiply_split(sums[0], high, low, {dz0.x, dz1.x});
                multiply_split(sums[1], high, low, {dz0.y, dz1.y});
                bias_sums[0] += dz0.x + dz1.x;
                bias_sums[1] += dz0.y + dz1.y;
            }
        }
        for (int i = 0; i < 2; i++) {
            float* to = &shared.parts[warp][(lane / 4 * 2 + i) * TILE + lane % 4 * 4];
            *(float4*)to = make_float4(sums[0][2 * i], sums[1][2 * i], sums[0][2 * i + 1], sums[1][2 * i + 1]);
            shared.bias_parts[warp][lane / 4 * 2 + i] = warp_sum_from_nearest<4>(bias_sums[i]);  // the same in four lanes
        }
        bar_sync<THREADS / 2>(1 + layer());  // neither half of the warps waits for the other
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

    if (threadIdx.x < BUFFERS) shared.images[threadIdx.x].start();
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
        stamp(step, 0);
        shared.images[step % BUFFERS].wait(step / BUFFERS % 2);
        first_layer(shared, x, inverse_scale(first.biased), packets, tag);

        stamp(step, 1);
        if (BUFFERS > 1 && step + 1 < steps) fetch(arguments, shared, step + 1);
        tile.update(packets, tag, shared, arguments, rates);
        tile.send_to(next, tag + 1, shared);

        stamp(step, 2);
        Pixels ahead[AHEAD + 1];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i].load(x, first.tile(i));
        float db1;
        if (warp < 2) db1 = receive_dz1(shared, packets, tag, warp);  // a warp a column; both are done with W3 by then
        __syncthreads();
        stamp(step, 3);
        update_first(first, shared, ahead, x, arguments, rates);
        if (warp < 2 && lane == 0) shared.b1[warp].update(db1, arguments.settings, rates, false);
        stamp(step, 4);
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

// The blocks of persistent.cu that take examples from a1 to the loss and back to dz1, and own rows of W4.

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

static_assert(SHARERS * ROWS * WIDTH == THREADS, "each thread has one sum, or shares it with a few others");
static_assert(STRIDE % 4 == 0, "parts are written four at a time");
static_assert(sizeof(RowShared) <= 227 << 10, "a block has at most 227 KiB of shared memory");

// A thread's share of a layer's weights, 8 rows and 4 columns: warp w has rows 8 w and so on, a lane 4 columns.
struct HeldWeights {
    MailOf<float4, 8> row;

    static __device__ const float4* place(const float4 (*W)[WIDTH / 4], int i) {
        return &W[threadIdx.x / 32 * 8][threadIdx.x % 32] + i * (WIDTH / 4);
    }

    // Wait until the warp's first weights of a step are there; the others are hardly later.
    static __device__ void look_for(const float4 (*W)[WIDTH / 4], Word tag) {
        Word turns = 0;
        float4 first;
        do {
            ld_relaxed_gpu(first, &W[threadIdx.x / 32 * 8][0]);
            give_up_after_a_while(turns);
        } while (!is_of(first, tag));
    }

    __device__ void ask(const float4 (*W)[WIDTH / 4]) {
        row.ask([=](int i) { return place(W, i); });
    }

    __device__ void wait(const float4 (*W)[WIDTH / 4], Word tag) {
        row.wait(tag, [=](int i) { return place(W, i); });
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
                const float4 w = row.items[i];
                sum.x += x[i] * w.x, sum.y += x[i] * w.y, sum.z += x[i] * w.z, sum.w += x[i] * w.w;
            }
            *(float4*)&shared.parts[warp][r * WIDTH + 4 * lane] = sum;
        }
        __syncthreads();
        const int e = threadIdx.x / SHARERS, sharer = threadIdx.x % SHARERS;
        float z = 0;
#pragma unroll
        for (int part = 0; part < WARPS; part += SHARERS) z += shared.parts[part + sharer][e];
        z = warp_sum_from_nearest<SHARERS>(z) + b[e % WIDTH];
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
                const float4 w = row.items[i];
                sums[8 * r + i] = d.x * w.x + d.y * w.y + d.z * w.z + d.w * w.w;
            }
        }
        warp_sums<SUMS / 2, 16>(sums);
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
        const float z = warp_sum<32>(a.x * w.x + a.y * w.y + a.z * w.z + a.w * w.w);
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
        total = warp_sum<TILE>(power);
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
        stamp(step, 0);
        second.look_for(packets.W[1], tag);
        stamp(step, 1);
        W4.ask(W4_at);
        b.ask(bias_at);
        second.ask(packets.W[1]);
        W4.wait(tag, W4_at);
        b.wait(tag, bias_at);
        for (int i = 0; i < 2; i++) *(float2*)&shared.W4[two(i) / WIDTH][two(i) % WIDTH] = W4[i];
        if (threadIdx.x < 2 * WIDTH) shared.b[hidden / WIDTH][hidden % WIDTH] = b[0];
        if (threadIdx.x < CLASSES) shared.b4[column] = b[1];
        stamp(step, 2);
        second.wait(packets.W[1], tag);
        stamp(step, 3);
        const float a1 = receive(&packets.a1[first + r][j], tag);
        if (sends) shared.a[0][r][j] = a1;
        __syncthreads();

        stamp(step, 4);
        const float a2 = second.forward(shared, shared.a[0], shared.b[1]);
        if (sends) {
            shared.a[1][r][j] = a2;
            send(&packets.a2[first + r][j], a2, tag);
        }
        __syncthreads();
        stamp(step, 5);
        const float a3 = third.forward(shared, shared.a[1], shared.b[0]);
        stamp(step, 6);
        last_layer(shared, packets, a3, n, one, label, arguments, step, tag);
        stamp(step, 7);
        third.backward(shared.dz[1], shared.a[1], shared.dz[0], tag,
                       [&](int r, int k) { return &packets.dz2[first + r][k]; });
        __syncthreads();
        stamp(step, 8);
        second.backward(shared.dz[0], shared.a[0], nullptr, tag,
                        [&](int r, int k) { return &packets.dz1[k / 2][first + r][k % 2]; });
        stamp(step, 9);
        update_last(shared, packets, tag, arguments, rates_of(arguments, step));
        send_last(shared, next, tag + 1);
        stamp(step, 10);
        third.look_for(next.W[0], tag + 1);
        stamp(step, 11);
        third.load(next.W[0], tag + 1);
        label = next_label;
    }
    for_last(shared, [&](Parameter& parameter, int place, int, int) { parameter.store(arguments.vectors, place); });
}

// The blocks of persistent.cu that take examples from a1 to the loss and back to dz1, and own rows of W4.

const int SUM_THREADS = THREADS / (ROWS * WIDTH);  // threads that add up one sum's parts
const int STRIDE = ROWS * WIDTH + 32 / SUM_THREADS;  // so that they read from different banks
const int PARTS = WARPS / ROWS;  // warps that share a row

struct RowShared {
    Watch watch;
    float parts[WARPS][STRIDE];
    float a[2][ROWS][WIDTH], dz[2][ROWS][WIDTH];
    float logits[ROWS][TILE][PARTS + 4];  // as each of a row's warps has them from its units
    float2 loss[ROWS];  // is log(x) - y
    float last_parts[WARPS][UNITS + 1][TILE];  // of the gradients of W4's rows, and of b4's
    Parameter last[ROW_ROUNDS][UNITS + 1][TILE];  // these rows; b4, in the last block
};

__device__ Word row_part(int round) { return blockIdx.x - COLUMN_GRID + round * ROW_GRID; }  // of ROW_BLOCKS

static_assert(SUM_THREADS * ROWS * WIDTH == THREADS, "each thread has one sum, or shares it with a few others");
static_assert(STRIDE % 4 == 0, "parts are written four at a time");
static_assert(sizeof(RowShared) <= 227 << 10, "a block has at most 227 KiB of shared memory");

// On the way back lanes trade sums: first those of examples, then those of four of a warp's eight rows of weights. A
// lane that will be left with the upper half of them begins with it, so that in these trades nobody has to choose.
const int TRADES_OF_EXAMPLES = ROWS == 1 ? 0 : ROWS == 2 ? 1 : 2;
const int UPPER_FOUR = 16 / ROWS;  // the bit of a lane that has its last four rows first

// A thread's share of a layer's weights, 8 rows and 4 columns: warp w has rows 8 w and so on, a lane 4 columns.
struct ResidentWeights {
    MailOf<float4, 8> row;

    static __device__ int four() { return threadIdx.x & UPPER_FOUR ? 4 : 0; }
    static __device__ const float4* place(const float4 (*W)[WIDTH / 4], int i) {
        const int first = threadIdx.x / 32 * 8 + (i < 4 ? four() : 4 - four());
        return &W[first][threadIdx.x % 32] + i % 4 * (WIDTH / 4);
    }

    // Wait until the warp's first weights of a step are there; the others are hardly later.
    static __device__ void look_for(const float4 (*W)[WIDTH / 4], Word tag, Awaited what) {
        Word turns = 0;
        float4 first;
        do {
            ld_relaxed_gpu(first, &W[threadIdx.x / 32 * 8][0]);
        } while (!is_of(first, tag) && !give_up(turns, what, tag));
    }

    __device__ void ask(const float4 (*W)[WIDTH / 4]) {
        row.ask([=](int i) { return place(W, i); });
    }

    __device__ void wait(const float4 (*W)[WIDTH / 4], Word tag, Awaited what) {
        row.wait(tag, [=](int i) { return place(W, i); }, what);
    }

    // Return relu(in W + b) for the thread's row and column.
    __device__ float forward(RowShared& shared, const float (*in)[WIDTH], float b) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 low = *(const float4*)&in[r][8 * warp + four()];
            const float4 high = *(const float4*)&in[r][8 * warp + 4 - four()];
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
        const int e = threadIdx.x / SUM_THREADS, sum_thread = threadIdx.x % SUM_THREADS;
        float z = 0;
#pragma unroll
        for (int part = 0; part < WARPS; part += SUM_THREADS) z += shared.parts[part + sum_thread][e];
        z = warp_sum_from_nearest<SUM_THREADS>(z) + b;
        return z < 0 ? 0 : z;
    }

    // below (if any) <- the gradient before the ReLU that returned a, from that after the layer. to(r, k): where it is sent.
    template <typename To>
    __device__ void backward(const float (*dz)[WIDTH], const float (*a)[WIDTH], float (*below)[WIDTH], Word tag,
                             To to) const {
        const int lane = threadIdx.x % 32, SUMS = 8 * ROWS;
        const int first_row = lane * ROWS / 32;
        float sums[SUMS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 d = *(const float4*)&dz[r ^ first_row][4 * lane];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float4 w = row.items[i];
                sums[8 * r + i] = d.x * w.x + d.y * w.y + d.z * w.z + d.w * w.w;
            }
        }
        warp_sums<SUMS / 2, 16, 1, TRADES_OF_EXAMPLES + 1>(sums);
        const int thread = now(threadIdx.x), e = thread % 32 / (32 / SUMS), r = e / 8, k = thread / 32 * 8 + e % 8;
        if (lane % (32 / SUMS) == 0) {
            const float slope = a[r][k] > 0 ? sums[0] : 0;
            if (below) below[r][k] = slope;
            send(to(r, k), slope, tag);
        }
    }
};

// What a thread needs of the last layer, and of the biases: W4 of its unit, for every SUM_THREADS-th class; b2 and b3 of
// its unit; b4 of its lane's class.
struct SmallWeights {
    static const int EACH = (CLASSES + SUM_THREADS - 1) / SUM_THREADS;
    SingleMail<EACH> W4;
    SingleMail<3> b;

    static __device__ int class_of(int i) { return i * SUM_THREADS + threadIdx.x % SUM_THREADS; }
    static __device__ bool has(int i) { return class_of(i) < CLASSES; }

    static __device__ auto W4_at(const Messages& messages) {
        const int thread = now(threadIdx.x);
        return [=, &messages](int i) {
            return &messages.W4[min(i * SUM_THREADS + thread % SUM_THREADS, CLASSES - 1)][thread / SUM_THREADS % WIDTH];
        };
    }
    static __device__ auto b_at(const Messages& messages) {
        const int thread = now(threadIdx.x), unit = thread / SUM_THREADS % WIDTH;
        return [=, &messages](int i) {
            return i < 2 ? &messages.b[i][unit] : &messages.b4[min(thread % TILE, CLASSES - 1)];
        };
    }
    __device__ void ask(const Messages& messages) {
        W4.ask(W4_at(messages));
        b.ask(b_at(messages));
    }
    __device__ void wait(const Messages& messages, Word tag) {
        W4.wait(tag, W4_at(messages), NEW_W4);
        b.wait(tag, b_at(messages), NEW_W4);
    }
};

// Values' bits so that they are ordered as the values are, NaN on top, and back.
__device__ Word ordered(float x) {
    const int bits = __float_as_uint(x);
    return bits ^ (bits >> 31 | 0x80000000);
}
__device__ float from_ordered(Word bits) { return __uint_as_float(bits ^ ((int)~bits >> 31 | 0x80000000)); }

// The last layer and dz3. A thread has one unit of one row, as it comes from the layer before. one: 1 / n. Each warp
// finds the softmax of its row by itself, so that they need to meet only once.
__device__ void last_layer(RowShared& shared, Word part, Messages& messages, float a3, int n, float one, int label,
                           const SmallWeights& weights, Word tag) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, EACH = SmallWeights::EACH;
    const int r = threadIdx.x / SUM_THREADS / WIDTH, j = threadIdx.x / SUM_THREADS % WIDTH;
    const int row = part * ROWS + r;
    const bool sends = threadIdx.x % SUM_THREADS == 0;
    float sums[TILE / SUM_THREADS] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) sums[i] = a3 * weights.W4[i];
    warp_sums<TILE / SUM_THREADS / 2, 16, SUM_THREADS>(sums);  // over the warp's units; two neighbours have one
    const int unit = lane / SUM_THREADS;
    if (unit % 2 == 0) shared.logits[r][unit / 2 * SUM_THREADS + lane % SUM_THREADS][warp % PARTS] = sums[0];
    if (sends) send(&messages.a3[j / UNITS][row][j % UNITS], a3, tag);
    __syncthreads();
    const int c = lane % TILE;
    float z = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part += 4) {
        const float4 four = *(const float4*)&shared.logits[r][c][part];
        z += (four.x + four.y) + (four.z + four.w);
    }
    z = c < CLASSES ? z + weights.b[2] : __uint_as_float(0xff800000);  // -infinity
    const float above = z - from_ordered(__reduce_max_sync(~0u, ordered(z)));
    const float power = expf(above);
    float dz4[EACH], total = 0, da3 = 0;  // of the thread's classes; of these alone, at first
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        dz4[i] = __shfl_sync(~0u, power, SmallWeights::class_of(i) % TILE);
        if (SmallWeights::has(i)) total += dz4[i];
    }
    total = warp_sum_from_nearest<SUM_THREADS>(total);
    const float share = __fdividef(1, total * n);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        dz4[i] = dz4[i] * share - (SmallWeights::class_of(i) == label ? one : 0);
        if (SmallWeights::has(i)) da3 += dz4[i] * weights.W4[i];
    }
    da3 = warp_sum_from_nearest<SUM_THREADS>(da3);
    const float dz3 = a3 > 0 && row < n ? da3 : 0;  // a row that fills up: 0
    if (sends) {
        shared.dz[1][r][j] = dz3;
        send(messages.dz3.at(row, j), dz3, tag);
    }
    if (warp % PARTS == 0 && lane < CLASSES) {  // a warp for each row
        send(&messages.dz4[row][lane], row < n ? power * share - (lane == label ? one : 0) : 0, tag);
        if (lane == label) shared.loss[r] = make_float2(total, above);
    }
    __syncthreads();
}

// The losses, which nobody waits for.
__device__ void write_losses(const RowShared& shared, Word part, int n, const Arguments& arguments, int step) {
    const int r = now(threadIdx.x), row = part * ROWS + r;
    if (r < ROWS && row < n) {
        arguments.row_losses[(long long)step * arguments.batch_size + row] = logf(shared.loss[r].x) - shared.loss[r].y;
    }
}

// A part's rows of W4, and b4. A thread has a class, and some of the batch.
__device__ void update_last(RowShared& shared, int round, const Messages& messages, Word tag,
                            const Arguments& arguments, Rates rates) {
    const int GROUPS = THREADS / TILE, EACH = BATCH / GROUPS, part = row_part(round);
    const int thread = now(threadIdx.x), column = thread % TILE, group = thread / TILE, warp = thread / 32;
    const int known = min(column, CLASSES - 1);  // the threads beyond the classes do what nobody looks at
    const auto a_at = [&](int i) { return &messages.a3[part][i % EACH * GROUPS + group][i / EACH * 2]; };
    const auto dz_at = [&](int i) { return &messages.dz4[i * GROUPS + group][known]; };
    Mail<EACH * UNITS / 2> a;
    SingleMail<EACH> dz;
    a.ask(a_at);
    dz.ask(dz_at);
    a.wait(tag, a_at, A3);
    dz.wait(tag, dz_at, DZ4);
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
        for (int warp = 0; warp < WARPS; warp++) sum += shared.last_parts[warp][i][column];
        float own[1] = {sum};
        const auto at = [=](int) { return LAST_AT + part * THREADS + (int)threadIdx.x; };
        arguments.ranks.send(own, at, tag);
        arguments.ranks.sum(own, at, tag);
        shared.last[round][i][column].update(own[0], arguments.settings, rates, i < UNITS);
    }
}

// Call act(parameter, place in theta, column, row) for a part's rows of W4 and for b4, each by the thread that updates it.
template <typename Act>
__device__ void for_last(RowShared& shared, int round, Act act) {
    const Word part = row_part(round);
    const int column = threadIdx.x % TILE, i = threadIdx.x / TILE, row = part * UNITS + i;
    auto& last = shared.last[round];
    if (column >= CLASSES) return;
    if (i < UNITS) act(last[i][column], W4 + row * CLASSES + column, column, row);
    if (i == UNITS && part == ROW_BLOCKS - 1) act(last[i][column], B4 + column, column, WIDTH);
}

// Hand them to the row blocks.
__device__ void send_last(RowShared& shared, int round, Messages& messages, Word tag) {
    for_last(shared, round, [&](Parameter& parameter, int, int column, int row) {
        send(row < WIDTH ? &messages.W4[column][row] : &messages.b4[column], parameter.w, tag);
    });
}

__device__ void row_block(const Arguments& arguments, int steps) {
    RowShared& shared = *(RowShared*)shared_bytes;
    const int e = threadIdx.x / SUM_THREADS, r = e / WIDTH, j = e % WIDTH;  // the row and unit that this thread ends with
    const bool sends = threadIdx.x % SUM_THREADS == 0;
    // The example's place in the data set is asked for two steps ahead, and its label one. (Half of such a number will do.)
    const auto half_of = [](const long long* number) { return __ldg((const int*)number); };
    const auto place = [&](int round, int step) {
        const int first = row_part(round) * ROWS;
        return half_of(arguments.order + min(step * arguments.batch_size + first + r + 1, arguments.examples) - 1);
    };
    int label[ROW_ROUNDS], next_label[ROW_ROUNDS], example[ROW_ROUNDS];
    ResidentWeights second, third;
    in_rounds<ROW_ROUNDS>([&](int round) {
        label[round] = half_of(arguments.y + place(round, 0)), example[round] = place(round, 1);
        for_last(shared, round, [&](Parameter& parameter, int at, int, int) { parameter.load(arguments.vectors, at); });
        send_last(shared, round, arguments.exchange[0], 1);
    });
    for (int step = 0; step < steps; step++) {
        const Word tag = step + 1;
        Messages &messages = arguments.exchange[step % 2], &next = arguments.exchange[(step + 1) % 2];
        const int n = min(arguments.batch_size, arguments.examples - step * arguments.batch_size);
        in_rounds<ROW_ROUNDS>([&](int round) {
            next_label[round] = half_of(arguments.y + example[round]);
            example[round] = place(round, step + 2);
        });
        const float one = 1.0f / n;

        SmallWeights small;
        stamp(step - 1, 10);
        third.look_for(messages.W[0], tag, NEW_W3);
        stamp(step - 1, 11);
        third.ask(messages.W[0]);
        third.wait(messages.W[0], tag, NEW_W3);
        stamp(step, 0);
        second.look_for(messages.W[1], tag, NEW_W2);
        stamp(step, 1);
        small.ask(messages);
        second.ask(messages.W[1]);
        small.wait(messages, tag);
        stamp(step, 2);
        second.wait(messages.W[1], tag, NEW_W2);
        stamp(step, 3);
        in_rounds<ROW_ROUNDS>([&](int round) {
            const Word part = row_part(round), first = part * ROWS;
            const float a1 = receive(messages.a1.at(first + r, j), tag, A1);
            if (round > 0) __syncthreads();  // now the rows' memory can be written again
            if (sends) shared.a[0][r][j] = a1;
            __syncthreads();
            stamp(step, 4);
            const float a2 = second.forward(shared, shared.a[0], small.b[1]);
            if (sends) {
                shared.a[1][r][j] = a2;
                send(messages.a2.at(first + r, j), a2, tag);
            }
            __syncthreads();
            stamp(step, 5);
            const float a3 = third.forward(shared, shared.a[1], small.b[0]);
            stamp(step, 6);
            last_layer(shared, part, messages, a3, n, one, label[round], small, tag);
            stamp(step, 7);
            third.backward(shared.dz[1], shared.a[1], shared.dz[0], tag,
                           [&](int r, int k) { return messages.dz2.at(first + r, k); });
            __syncthreads();
            stamp(step, 8);
            second.backward(shared.dz[0], shared.a[0], nullptr, tag,
                            [&](int r, int k) { return &messages.dz1[k / 2][first + r][k % 2]; });
            write_losses(shared, part, n, arguments, step);
            stamp(step, 9);
        });
        in_rounds<ROW_ROUNDS>([&](int round) {
            if (round > 0) __syncthreads();  // now the sums' memory can be written again
            update_last(shared, round, messages, tag, arguments, rates_of(arguments, step));
            send_last(shared, round, next, tag + 1);
            label[round] = next_label[round];
        });
    }
    in_rounds<ROW_ROUNDS>([&](int round) {
        for_last(shared, round, [&](Parameter& parameter, int at, int, int) { parameter.store(arguments.vectors, at); });
    });
}

// An image through a convolution with ReLU and pooling, and back. Of each window of two by two values only the largest
// is computed further, and gets a gradient: so on the way back three quarters of the values are zeros of which nobody
// knows, and what ReLU sets to zero is skipped, too.

#include "limit_shapes.cuh"
#include "limit_stamps.cuh"
#include "limit_waits.cuh"

__device__ void multiply_add(float4& sum, float x, const float4& w) {
    sum.x += x * w.x, sum.y += x * w.y, sum.z += x * w.z, sum.w += x * w.w;
}

// Where the images lie that go into a block; those that go out of the last one are the first dense layer's inputs.
template <int block>
__device__ float* plane_of(int channel) {
    return shared_floats(planes_at(block)) + channel * shape(block).plane();
}

// Two values of a row, of which the second may be one too many.
template <int SPAN>
__device__ void read_pair(float (&x)[SPAN], int i, const float* row, bool inside) {
    const float2 pair = inside ? *(const float2*)(row + i) : float2{0, 0};
    x[i] = pair.x;
    if (i + 1 < SPAN) x[i + 1] = pair.y;
}

// The largest of four values, the first of equal ones, and its place.
template <int block>
__device__ void pool(int channel, int window, const float (&z)[4]) {
    constexpr Shape s = shape(block);
    float best = z[0];
    int code = 0;
#pragma unroll
    for (int i = 1; i < 4; i++) {
        if (z[i] > best || z[i] != z[i]) best = z[i], code = i;
    }
    best = best < 0 ? 0 : best;  // in this order a NaN stays a NaN
    shared_bytes[codes_at(block) + channel * s.windows() + window] = code;
    if constexpr (block + 1 < BLOCKS) {
        constexpr Shape next = shape(block + 1);
        const int y = window / s.pw + next.pad, x = window % s.pw + next.pad;
        plane_of<block + 1>(channel)[y * next.stride() + x] = best;
    } else {
        shared_floats(ACTIVATIONS_AT)[channel * s.windows() + window] = best;
    }
}

// Add up the parts of each window's sums.
template <int block>
__device__ void add_parts() {
    constexpr Shape s = shape(block);
    const float4* sums = (const float4*)shared_floats(SCRATCH_AT);
    constexpr int OUTPUTS = forward_channels(block) * s.windows();
    const int first = block == BLOCKS - 1 ? half() * forward_channels(block) : 0;
    for (int e = thread(); e < OUTPUTS; e += THREADS) {
        const int channel = first + e / s.windows();
        const float b = (shared_floats(CONV_AT) + conv_bias_packed(block))[channel];
        float z[4] = {b, b, b, b};
#pragma unroll
        for (int part = 0; part < splits(block); part++) {
            const float4 four = sums[part * OUTPUTS + e];
            z[0] += four.x, z[1] += four.y, z[2] += four.z, z[3] += four.w;
        }
        pool<block>(channel, e % s.windows(), z);
    }
    __syncthreads();
}

// A thread takes two rows of outputs, that is up to five pooled ones, in one channel out, and some channels in.
// The lanes of a warp have different channels out, so they read the same inputs.
template <int block, typename Meanwhile>
__device__ void conv_forward(Meanwhile meanwhile) {
    constexpr Shape s = shape(block);
    constexpr int SPLITS = splits(block), IN = channels_in(block), WINDOWS = s.piece();
    constexpr int SPAN = 2 * WINDOWS + s.k - 1, LANES = forward_channels(block), OUTPUTS = LANES * s.windows();
    const int from = block == BLOCKS - 1 ? half() * forward_channels(block) : 0;
    const float* weights = shared_floats(CONV_AT) + conv_packed(block);
    const float* biases = shared_floats(CONV_AT) + conv_bias_packed(block);
    float4* sums = (float4*)shared_floats(SCRATCH_AT);
#pragma unroll 1
    for (int item = thread(); item < items(block) * SPLITS; item += THREADS) {
        const int lane = item % LANES, channel = from + lane, piece = item / LANES % s.pieces();
        const int py = item / LANES / s.pieces() % s.ph, part = item / items(block), first = piece * WINDOWS;
        const float* in = plane_of<block>(part * IN) + 2 * py * s.stride() + 2 * first;
        const float* w = weights + (channel / s.each() * s.taps() + part * IN * s.k * s.k) * 4 + channel % s.each();
        float z[2][2 * WINDOWS] = {};
#pragma unroll 1
        for (int ci = part * IN; ci < min(s.ci, (part + 1) * IN); ci++) {
            float row[2][SPAN];
            const auto read = [&](int r) {
#pragma unroll
                for (int i = 0; i < SPAN; i += 2) read_pair(row[r % 2], i, in + r * s.stride(), true);
            };
            read(0);
#pragma unroll
            for (int r = 0; r < s.k; r++) {
                read(r + 1);
#pragma unroll
                for (int c = 0; c < s.k; c++) {
                    const float tap = w[(r * s.k + c) * 4];
#pragma unroll
                    for (int x = 0; x < 2 * WINDOWS; x++) {
                        z[0][x] += row[r % 2][x + c] * tap, z[1][x] += row[(r + 1) % 2][x + c] * tap;
                    }
                }
            }
            in += s.plane(), w += s.k * s.k * 4;
        }
        const float b = SPLITS > 1 ? 0 : biases[channel];
#pragma unroll
        for (int i = 0; i < WINDOWS; i++) {
            const float* top = z[0] + 2 * i;
            const float* low = z[1] + 2 * i;
            const int window = py * s.pw + first + i;
            if (WINDOWS * s.pieces() > s.pw && first + i >= s.pw) break;
            const float four[4] = {top[0] + b, top[1] + b, low[0] + b, low[1] + b};
            if constexpr (SPLITS == 1) pool<block>(channel, window, four);
            else sums[part * OUTPUTS + lane * s.windows() + window] = {four[0], four[1], four[2], four[3]};
        }
    }
    if (block == BLOCKS - 1) meanwhile();
    __syncthreads();
    if constexpr (SPLITS > 1) add_parts<block>();
}

// Where the gradients of an example's convolutions go.
struct Partial {
    Message* to;
    Word step;

    __device__ void put(int e, float value) const { send(to + e, value, step); }
};

// What comes to a pooled value, and from which of its four places it came.
struct Route {
    float slope;
    int from;
};

template <int block>
__device__ Route* routes() {
    return (Route*)(shared_bytes + SCRATCH_AT + routes_before(block));
}

template <int block>
__device__ void put_route(int e, float slope) {
    routes<block>()[e] = {slope, shared_bytes[codes_at(block) + e]};
}

// The sums of the slopes of each channel: a warp a channel.
template <int block>
__device__ void conv_biases_back(Partial partial) {
    constexpr Shape s = shape(block);
    const int lane = thread() % 32;
    const int end = (half() + 1) * back_channels(block);
    for (int channel = end - back_channels(block) + WARPS - 1 - thread() / 32; channel < end; channel += WARPS) {
        float sum = 0;
        for (int i = lane; i < s.windows(); i += 32) sum += routes<block>()[channel * s.windows() + i].slope;
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
        if (lane == 0) partial.put(CONV_WEIGHTS + conv_biases(block) - conv_biases(0) + channel, sum);
    }
}

// The slope of one output, through the taps of one row: to the inputs, and to the weights.
template <int K, int FROM, int SPAN>
__device__ void through(float slope, const float (&w)[K], float (&dw)[K], const float (&x)[SPAN], float (&dx)[SPAN]) {
#pragma unroll
    for (int c = 0; c < K; c++) {
        dx[FROM + c] += slope * w[c];
        dw[c] += slope * x[FROM + c];
    }
}

template <int K, int PX, int SPAN>
__device__ void route_back(Route route, const float (&w)[K], float (&dw)[K], const float (&x)[2][SPAN],
                           float (&dx)[2][SPAN]) {
    if (route.slope == 0) return;  // the same for the whole warp, as is the place
    if (route.from < 2) {
        if (route.from == 0) through<K, 2 * PX>(route.slope, w, dw, x[0], dx[0]);
        else through<K, 2 * PX + 1>(route.slope, w, dw, x[0], dx[0]);
    } else {
        if (route.from == 2) through<K, 2 * PX>(route.slope, w, dw, x[1], dx[1]);
        else through<K, 2 * PX + 1>(route.slope, w, dw, x[1], dx[1]);
    }
}

template <int K, int PX, int WINDOWS, int SPAN>
__device__ void routes_back(const Route (&row)[WINDOWS], const float (&w)[K], float (&dw)[K], const float (&x)[2][SPAN],
                            float (&dx)[2][SPAN]) {
    if constexpr (PX < WINDOWS) {
        route_back<K, PX>(row[PX], w, dw, x, dx);
        routes_back<K, PX + 1>(row, w, dw, x, dx);
    }
}

// Weights as theta has them, so that lanes read them from different banks. By all warps but the first.
template <int block>
__device__ void transpose_weights() {
    if constexpr (block < BLOCKS) {
        constexpr Shape s = shape(block);
        const float* weights = shared_floats(CONV_AT) + conv_packed(block);
        float* transposed = shared_floats(SCRATCH_AT + transposed_before(block));
        for (int e = thread() - 32; e < s.co * s.taps(); e += THREADS - 32) {
            const int channel = e / s.taps(), tap = e % s.taps();
            transposed[e] = weights[(channel / s.each() * s.taps() + tap) * 4 + channel % s.each()];
        }
        transpose_weights<block + 1>();
    }
}

// Back through a convolution: a warp takes a row of pooled values (or a piece of it) in some of the channels out, one
// after another; a lane takes a channel in and a row of the taps. So the two rows of inputs that it needs, and the sums
// of their gradients, stay in registers; the warp branches to the place that a maximum came from.
template <int block>
__device__ void conv_back_parts() {
    constexpr Shape s = shape(block);
    constexpr Division division = ::division(block);
    const float* transposed = shared_floats(SCRATCH_AT + transposed_before(block));
    float* dw_parts = shared_floats(LATE_AT);
    float* dx_parts = shared_floats(LATE_AT + dw_bytes(block));
    constexpr int OUT = back_channels(block);
    const int lane = thread() % 32, before = half() * OUT;
    constexpr int SLOTS = division.slots, ROWS = rows_of_parts(block);
#pragma unroll 1
    for (int before_rows = 0; before_rows < ROWS; before_rows += SLOTS) {
        if (before_rows) __syncthreads();  // what is added to is there
#pragma unroll 1
        for (int task = thread() / 32; task < SLOTS * division.lanes * division.groups; task += WARPS) {
            const int line = before_rows + task % SLOTS, rest = task / SLOTS;
            if (SLOTS < ROWS && line >= ROWS) continue;
            const int chunk = line % division.chunks, py = line / division.chunks;
            const int mine = rest % division.lanes * 32 + lane, group = rest / division.lanes;
            const int first = chunk * division.windows;
            const bool exists = mine < s.ci * s.k;
            const int used = exists ? mine : 0, there = s.pw - first;
            const float* in = plane_of<block>(used / s.k) + (2 * py + used % s.k) * s.stride() + 2 * first;
            float x[2][division.span], dx[2][division.span] = {};
#pragma unroll
            for (int i = 0; i < division.span; i += 2) {
                const bool inside = division.chunks == 1 || 2 * first + i < s.w + 2 * s.pad;
                read_pair(x[0], i, in, inside), read_pair(x[1], i, in + s.stride(), inside);
            }
#pragma unroll 1
            for (int channel = group * division.each; channel < min(OUT, (group + 1) * division.each); channel++) {
                float w[s.k], dw[s.k] = {};
#pragma unroll
                for (int c = 0; c < s.k; c++) w[c] = transposed[(before + channel) * s.taps() + used * s.k + c];
                const Route* routes_of = routes<block>() + ((before + channel) * s.ph + py) * s.pw + first;
                Route row[division.windows];
#pragma unroll
                for (int px = 0; px < division.windows; px++) {
                    row[px] = division.chunks == 1 || px < there ? routes_of[px] : Route{0, 0};
                }
                routes_back<s.k, 0>(row, w, dw, x, dx);
                float* to = dw_parts + (task % SLOTS * OUT + channel) * s.taps() + used * s.k;
                for (int c = 0; c < s.k; c++) {
                    if (exists) to[c] = SLOTS < ROWS && before_rows ? to[c] + dw[c] : dw[c];
                }
            }
#pragma unroll
            for (int dy = 0; dy < 2; dy++) {
                float* to = dx_parts + (((group * division.chunks + chunk) * s.ph + py) * 2 + dy) * piece(block) + mine;
#pragma unroll
                for (int i = 0; i < division.span; i++) to[i * column(block)] = dx[dy][i];
            }
        }
    }
    __syncthreads();
}

// Add up what the warps left: the gradients of the weights, and of the inputs, which are the routes of the block below.
template <int block>
__device__ void conv_back_sums(Partial partial, Word phase) {
    constexpr Shape s = shape(block), below = shape(block - 1);
    constexpr Division division = ::division(block);
    const float* dw_parts = shared_floats(LATE_AT);
    const float* dx_parts = shared_floats(LATE_AT + dw_bytes(block));
    constexpr int OUT = back_channels(block), ELEMENTS = s.ci * s.h * s.w, PART = ELEMENTS / IMAGE_BLOCKS;
    const float* others = shared_floats(SWAP_BACK_AT);
    const auto sum_of = [&](int e) {  // columns, then rows of a channel: the last change fastest
        const int y = e % s.h, x = e / s.h % s.w, ci = e / s.h / s.w;
        float sum = 0;
#pragma unroll
        for (int r = 0; r < s.k; r++) {
            const int from = y + s.pad - r;  // a row of outputs
#pragma unroll
            for (int chunk = 0; chunk < division.chunks; chunk++) {
                const int at = x + s.pad - 2 * chunk * division.windows;
                const bool there = from >= 0 && from < 2 * s.ph && at >= 0 && at < division.span;
                const int lane = at * column(block) + ci * s.k + r;
                const float* part = dx_parts + (chunk * s.ph * 2 + from) * piece(block) + lane;
#pragma unroll
                for (int group = 0; group < division.groups; group++) {
                    sum += there ? part[group * division.chunks * s.ph * 2 * piece(block)] : 0;
                }
            }
        }
        return sum;
    };
    const auto put = [&](int e, float sum) {
        const int y = e % s.h, x = e / s.h % s.w, ci = e / s.h / s.w;
        const float value = plane_of<block>(ci)[(y + s.pad) * s.stride() + x + s.pad];
        put_route<block - 1>((ci * below.ph + y) * below.pw + x, value > 0 ? sum : 0);
    };
    if constexpr (IMAGE_BLOCKS > 1) {
#pragma unroll
        for (int i = 0; i < parts(PART, THREADS); i++) {
            const int mine = thread() + i * THREADS;
            if (mine < PART) send_neighbour(others + mine, sum_of((1 - half()) * PART + mine), &head().sums[1]);
        }
    }
    float own[parts(PART, THREADS)];
#pragma unroll
    for (int i = 0; i < parts(PART, THREADS); i++) {
        const int mine = thread() + i * THREADS, e = half() * PART + mine;
        if (mine < PART) own[i] = sum_of(e);
        if (IMAGE_BLOCKS == 1 && mine < PART) put(e, own[i]);
    }
#pragma unroll
    for (int i = 0; i < parts(OUT * s.taps(), THREADS); i++) {
        const int e = thread() + i * THREADS;
        if (e >= OUT * s.taps()) break;
        float sum = 0;
#pragma unroll
        for (int row = 0; row < division.slots; row++) sum += dw_parts[row * OUT * s.taps() + e];
        partial.put(conv_weights(block) + half() * OUT * s.taps() + e, sum);
    }
    conv_biases_back<block>(partial);
    if constexpr (IMAGE_BLOCKS > 1) {
        wait_for_copy(&head().sums[1], phase, NEIGHBOURS_SUMS, partial.step);
#pragma unroll
        for (int i = 0; i < parts(PART, THREADS); i++) {
            const int mine = thread() + i * THREADS;
            if (mine < PART) put(half() * PART + mine, own[i] + others[mine]);
        }
    }
    __syncthreads();
}

// The gradient of the first convolution's weights. A lane takes a row of pooled values (or a piece of it) and a row of
// the taps; so the places that maxima came from differ from lane to lane: it picks one of two rows, and of two columns.
template <typename Meanwhile>
__device__ void first_conv_back(Partial partial, Meanwhile meanwhile) {
    constexpr Shape s = shape(0);
    constexpr First division = first_division();
    constexpr int ROWS = s.ci * s.k, ALL = s.ph * ROWS, OUT = back_channels(0), LAST = division.chunks * ALL - 1;
    const int before = half() * OUT;
    float* dw_parts = shared_floats(LATE_AT);
    const int lane = thread() % 32;
#pragma unroll 1
    for (int task = thread() / 32; task < division.lanes * division.groups; task += WARPS) {
        const int mine = task % division.lanes * 32 + lane, group = task / division.lanes, used = min(mine, LAST);
        const int chunk = used / ALL, py = used % ALL / ROWS, row = used % ROWS;
        const int first = chunk * division.windows;
        const float* in = plane_of<0>(row / s.k) + (2 * py + row % s.k) * s.stride() + 2 * first;
        float x[2][division.span];
#pragma unroll
        for (int i = 0; i < division.span; i += 2) read_pair(x[0], i, in, true), read_pair(x[1], i, in + s.stride(), true);
#pragma unroll 1
        for (int channel = group * division.each; channel < min(OUT, (group + 1) * division.each); channel++) {
            const Route* row_of = routes<0>() + ((before + channel) * s.ph + py) * s.pw + first;
            float dw[s.k] = {};
#pragma unroll
            for (int px = 0; px < division.windows; px++) {
                Route route = row_of[px];
                if (division.windows * division.chunks > s.pw && first + px >= s.pw) route.slope = 0;
                const bool below = route.from >= 2, right = route.from % 2;
                float picked[s.k + 1];
#pragma unroll
                for (int c = 0; c <= s.k; c++) picked[c] = below ? x[1][2 * px + c] : x[0][2 * px + c];
#pragma unroll
                for (int c = 0; c < s.k; c++) dw[c] += route.slope * (right ? picked[c + 1] : picked[c]);
            }
            float* to = dw_parts + ((chunk * OUT + channel) * ALL + used % ALL) * s.k;
            for (int c = 0; c < s.k; c++) {
                if (mine == used) to[c] = dw[c];
            }
        }
    }
    meanwhile();
    __syncthreads();
    for (int e = thread(); e < OUT * s.taps(); e += THREADS) {
        const float* from = dw_parts + e / s.taps() * s.ph * s.taps() + e % s.taps();
        float sum = 0;
#pragma unroll
        for (int chunk = 0; chunk < division.chunks; chunk++) {
#pragma unroll
            for (int row = 0; row < s.ph; row++) sum += from[(chunk * OUT * s.ph + row) * s.taps()];
        }
        partial.put(before * s.taps() + e, sum);
    }
    conv_biases_back<0>(partial);
    if ((CONV_WEIGHTS + CONV_BIASES) % 2 && thread() == 0 && half() == 0) partial.put(CONV_WEIGHTS + CONV_BIASES, 0);
    __syncthreads();
}

// meanwhile(): what is asked for before the last sums are added up, and needed after them.
template <int block, typename Meanwhile>
__device__ void convs_forward(Meanwhile meanwhile) {
    if constexpr (block < BLOCKS) {
        conv_forward<block>(meanwhile);
        if (block == 0) stamp(11);
        convs_forward<block + 1>(meanwhile);
    }
}

// meanwhile(): what one thread does while the others are at the last sums.
template <int block, typename Meanwhile>
__device__ void convs_back(Partial partial, Word phase, Meanwhile meanwhile) {
    if constexpr (block > 0) {
        conv_back_parts<block>();
        if (block == 1) stamp(13);
        conv_back_sums<block>(partial, phase);
        if (block == 1) stamp(14);
        convs_back<block - 1>(partial, phase, meanwhile);
    } else {
        first_conv_back(partial, meanwhile);
    }
}

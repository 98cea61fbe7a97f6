// One example through the dense layers, to the loss, and back, by one block.

#include "limit_shapes.cuh"

// Sums over lanes that trade halves of what they have: a lane is left with the sums from lane * COUNT / LANES on.
template <int COUNT, int LANES>
__device__ void trade_sums(float* sums) {
    if constexpr (LANES > 1) {
        constexpr int DISTANCE = LANES / 2, HALF = COUNT / 2;
        const bool upper = thread() & DISTANCE;
#pragma unroll
        for (int i = 0; i < most(HALF, 1); i++) {
            const float mine = HALF && upper ? sums[i + HALF] : sums[i];
            const float other = HALF && !upper ? sums[i + HALF] : sums[i];
            sums[i] = mine + __shfl_xor_sync(~0u, other, DISTANCE);
        }
        trade_sums<most(HALF, 1), DISTANCE>(sums);
    }
}

// Of the largest layer, the weights that don't fit into shared memory, or some of them: the others are read from `from`.
struct Kept {
    const float* from;
    float4 of[most(1, kept_rows())][sharing(LARGEST).columns()];

    __device__ void ask(const float* packed) {
        constexpr Sharing s = sharing(LARGEST);
        const int slot = thread() / s.lanes(), lane = thread() % s.lanes();
        this->from = packed;
        for (int e = thread(); STREAMS && e < BIASES_PACKED; e += THREADS)
            shared_floats(BIASES_AT)[e] = __ldcg(packed + CONV_PACKED + e);
        const float* from = packed + dense_packed(LARGEST) + first_row<LARGEST>() * wide(LARGEST);
        const float4* weights = (const float4*)from;
#pragma unroll
        for (int i = 0; i < kept_rows(); i++) {
            const int k = min(slot * s.each() + resident(LARGEST) + i, s.rows - 1);
#pragma unroll
            for (int c = 0; c < s.columns(); c++) {
                of[i][c] = __ldcg(weights + k * s.fours + min(lane + c * s.lanes(), s.fours - 1));
            }
        }
    }

    template <int layer>
    __device__ float4 get(int slot, int i, int four, int c) const {
        if constexpr (STREAMS) {
            constexpr Sharing s = sharing(layer);
            const float4* rows = (const float4*)(from + dense_packed(layer));
            if (layer != LARGEST || i >= kept_rows()) return __ldcg(rows + (slot * s.each() + i) * s.fours + four);
        }
        if (i >= resident(layer)) return of[layer == LARGEST ? i - resident(layer) : 0][layer == LARGEST ? c : 0];
        return ((const float4*)shared_floats(dense_at(layer)))[(slot * resident(layer) + i) * sharing(layer).fours + four];
    }
};

template <int layer>
__device__ float* activations_of() {  // its inputs
    return shared_floats(ACTIVATIONS_AT) + activations_before(layer);
}
template <int layer>
__device__ float* slopes_of() {
    return shared_floats(SLOPES_AT) + slopes_before(layer);
}

template <int layer>
__device__ void dense_forward(const Kept& kept, Word step, Word phase) {
    constexpr Sharing s = sharing(layer);
    constexpr int FOURS = s.fours, LANES = s.lanes(), EACH = s.each(), COLUMNS = s.columns();
    const int slot = thread() / LANES, lane = thread() % LANES;
    const float* x = activations_of<layer>() + first_row<layer>();
    float4 sums[COLUMNS] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int k = slot * EACH + i;
        if (EACH * s.slots() > s.rows && k >= s.rows) break;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            multiply_add(sums[c], x[k], kept.get<layer>(slot, i, min(lane + c * LANES, FOURS - 1), c));
        }
    }
    float4* left = (float4*)shared_floats(SCRATCH_AT) + thread() / 32 * FOURS;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        for (int distance = 16; distance >= LANES; distance /= 2) {
            sums[c].x += __shfl_xor_sync(~0u, sums[c].x, distance);
            sums[c].y += __shfl_xor_sync(~0u, sums[c].y, distance);
            sums[c].z += __shfl_xor_sync(~0u, sums[c].z, distance);
            sums[c].w += __shfl_xor_sync(~0u, sums[c].w, distance);
        }
        if (thread() % 32 < LANES && lane + c * LANES < FOURS) left[lane + c * LANES] = sums[c];
    }
    __syncthreads();
    constexpr bool SHARED = IMAGE_BLOCKS > 1 && layer == 0;
    constexpr int ROUNDS = parts(units(layer), THREADS);
    const float* others = shared_floats(SWAP_AT);
    float z[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int j = min(thread() + i * THREADS, units(layer) - 1);
        z[i] = SHARED && half() ? 0 : shared_floats(BIASES_AT)[bias_packed(layer) - CONV_PACKED + j];
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) z[i] += shared_floats(SCRATCH_AT)[warp * 4 * FOURS + j];
        if (SHARED && thread() + i * THREADS == j) send_neighbour(others + j, z[i], &head().sums[0]);
    }
    if (SHARED) wait_for_copy(&head().sums[0], phase, NEIGHBOURS_SUMS, step);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int j = thread() + i * THREADS;
        if (j >= units(layer)) break;
        if (SHARED) z[i] += others[j];
        activations_of<layer + 1>()[j] = layer + 1 < LAYERS && z[i] < 0 ? 0 : z[i];
    }
    __syncthreads();
}

// The gradient of the layer's inputs, where ReLU let them through. put(k, gradient): where it goes.
template <int layer, typename Put>
__device__ void dense_back(const Kept& kept, Put put) {
    constexpr Sharing s = sharing(layer);
    constexpr int FOURS = s.fours, LANES = s.lanes(), EACH = s.each(), COLUMNS = s.columns();
    constexpr int COUNT = power_of_two(EACH), LEFT = most(1, COUNT / LANES), SHARE = most(1, LANES / COUNT);
    const int slot = thread() / LANES, lane = thread() % LANES;
    const float* x = activations_of<layer>() + first_row<layer>();
    float4 dz[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const bool there = lane + c * LANES < FOURS;
        dz[c] = there ? ((const float4*)slopes_of<layer>())[lane + c * LANES] : make_float4(0, 0, 0, 0);
    }
    float sums[COUNT] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (EACH * s.slots() > s.rows && slot * EACH + i >= s.rows) break;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float4 w = kept.get<layer>(slot, i, min(lane + c * LANES, FOURS - 1), c);
            sums[i] += dz[c].x * w.x + dz[c].y * w.y + dz[c].z * w.z + dz[c].w * w.w;
        }
    }
    trade_sums<COUNT, LANES>(sums);
#pragma unroll
    for (int i = 0; i < LEFT; i++) {
        const int mine = lane / SHARE * LEFT + i, k = slot * EACH + mine;
        if (lane % SHARE == 0 && mine < EACH && k < s.rows) put(first_row<layer>() + k, x[k] > 0 ? sums[i] : 0);
    }
    __syncthreads();
}

// The loss of the example, and the gradient of the outputs of the last layer: by one warp.
__device__ float softmax_back(int label, int n) {
    constexpr int CLASSES = units(LAYERS - 1);
    const int lane = thread() % 32;
    const float* z = activations_of<LAYERS>();
    float* slope = slopes_of<LAYERS - 1>();
    float top = z[0], sum = 0;
    for (int j = 1; j < CLASSES; j++) top = z[j] > top ? z[j] : top;
    const auto e_of = [&](int j) { return j < CLASSES ? expf(z[min(j, CLASSES - 1)] - top) : 0; };
#pragma unroll
    for (int i = 0; i < parts(CLASSES, 32); i++) sum += e_of(lane + 32 * i);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
#pragma unroll
    for (int i = 0; i < parts(wide(LAYERS - 1), 32); i++) {
        const int j = lane + 32 * i;
        const float gradient = (e_of(j) - (j == label ? sum : 0)) / (sum * n);  // (p - one if it is the label) / n
        if (j < wide(LAYERS - 1)) slope[j] = gradient;
    }
    return logf(sum) + top - z[label];
}

template <int layer>
__device__ void denses_forward(const Kept& kept, Word step, Word phase) {
    if constexpr (layer < LAYERS) {
        if (layer == 1) wait_for_copy(&head().dense[1], phase, NEW_DENSE, step);
        dense_forward<layer>(kept, step, phase);
        denses_forward<layer + 1>(kept, step, phase);
    }
}

// All but the first layer.
template <int layer>
__device__ void denses_back(const Kept& kept) {
    if constexpr (layer > 0) {
        dense_back<layer>(kept, [](int k, float slope) { slopes_of<layer - 1>()[k] = slope; });
        denses_back<layer - 1>(kept);
    }
}

// The end of a network: linear layers with ReLU between them, softmax cross-entropy, and the backward pass: three
// kernels.
//
// The first layer is wide: its sums are split-K, in slices, so that all multiprocessors have a part (`forward_parts`).
// All that follows is little, and of one example alone: a block has an example, adds up its slices, and goes on to the
// loss and back to the first layer's gradient (`examples`). What is left are products that nobody waits for: the
// weights' gradients, and that of the input, all at once (`gradients`).
//
// Where the first layer's products are Hopper's own, dense_wgmma.cu has the first and the last kernel (WGMMA).

#include "dense.cuh"

#ifndef SLICES
#define SLICES 15  // of the first layer's inputs: their sums come all at once
#endif
#ifndef TOP
#define TOP 0  // units of the last layer, where they are NARROW at most, and each of its inputs has a thread; else 0
#endif
#ifndef WGMMA
#define WGMMA 0  // whether the first layer's gradient leaves as fp16 parts, too
#endif

// parts (slices, n, units): the first layer's sums over `slice` of its inputs each.
extern "C" __global__ __launch_bounds__(THREADS, 1)
void forward_parts(const __grid_constant__ Network net, float* parts, int slice)
{
    begin_in_turn();
    const Layer& first = net.layers[0];
    const int across = tiles_of(first.units), down = tiles_of(net.n), i = blockIdx.x / (across * down);
    const int row = blockIdx.x / across % down * TILE, column = blockIdx.x % across * TILE;
    float* to = parts + (size_t)i * net.n * first.units;
    tile<false, false>({first.x, net.n, first.inputs}, {first.W, first.inputs, first.units}, to, net.n, first.units,
                       row, column, i * slice, min(i * slice + slice, first.inputs));
}

// ---- One example ----

__device__ float relu(float z) { return z < 0 ? 0 : z; }  // in this order a NaN stays a NaN

// The sum over lanes of a group of 16; all of them get it.
__device__ float group_sum(float x)
{
    for (int distance = 8; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

// Copy elements to shared memory, 16 bytes at a time where that is possible. A commit of the copies is left to do.
__device__ void fetch(float* to, const float* from, int elements)
{
    if (elements % 4 == 0 && (size_t)from % 16 == 0 && (size_t)to % 16 == 0) {
        for (int i = 4 * threadIdx.x; i < elements; i += 4 * THREADS) cp_async<16>(to + i, from + i);
    } else {
        for (int i = threadIdx.x; i < elements; i += THREADS) cp_async<4>(to + i, from + i);
    }
}

#if !TOP
// Softmax cross-entropy of an example, and its gradient in the logits' place. By a warp.
static __device__ __forceinline__ void softmax(const Network& net, const Layer& top, int row, const long long* labels,
                                               float* dz, float* row_losses)
{
    const int label = labels[row];
    const float right = dz[label];
    float largest = dz[0], total = 0;
    for (int j = 1; j < top.units; ++j) largest = fmaxf(largest, dz[j]);
    for (int j = threadIdx.x; j < top.units; j += 32) total += expf(dz[j] - largest);
    for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
    const float scale = 1 / (total * net.n);
    __syncwarp();
    for (int j = threadIdx.x; j < top.units; j += 32) {
        dz[j] = expf(dz[j] - largest) * scale - (j == label ? 1.0f / net.n : 0.0f);
        top.dz[(size_t)row * top.units + j] = dz[j];
    }
    if (threadIdx.x == 0) row_losses[row] = logf(total) - (right - largest);
}
#endif

// dz_before, the gradient before the ReLU in front of a layer, from dz, that after the layer. before: what the ReLU
// returned.
static __device__ __forceinline__ void backward(const Network& net, int l, int row, const float* W, const float* before,
                                                const float* dz, float* dz_before)
{
    const Layer& layer = net.layers[l];
    const int lanes = layer.units <= 16 ? 1 : 16, lane = threadIdx.x % lanes;  // of an input
    #pragma unroll 2
    for (int first = 0; first < layer.inputs; first += THREADS / lanes) {
        const int k = first + threadIdx.x / lanes;
        float sum = 0;
        #pragma unroll 8
        for (int j = lane; j < layer.units && k < layer.inputs; j += lanes) sum += dz[j] * W[k * layer.units + j];
        if (lanes > 1) sum = group_sum(sum);
        if (lane == 0 && k < layer.inputs) {
            dz_before[k] = before[k] > 0 ? sum : 0;
            net.layers[l - 1].dz[(size_t)row * layer.inputs + k] = dz_before[k];
        }
    }
    __syncthreads();
}

#if WGMMA
// The first layer's gradient of an example as fp16 parts, eight units a piece: to (PARTS, units / 8, n), with a scale of
// its own. By a warp.
static __device__ __forceinline__ void leave_parts(const Network& net, int row, const float* dz, Piece* to,
                                                   float* scales)
{
    const int groups = net.layers[0].units / 8, group = threadIdx.x;
    float x[8] = {};
    #pragma unroll
    for (int j = 0; j < 8; ++j)
        if (group < groups) x[j] = dz[8 * group + j];
    const float scale = scale_for(__reduce_max_sync(~0u, __float_as_uint(largest_of(x))));
    Piece parts[PARTS];
    pieces_of(x, scale, parts);
    #pragma unroll
    for (int part = 0; part < PARTS; ++part)
        if (group < groups) put(to + (size_t)(part * groups + group) * net.n + row, parts[part]);
    if (group == 0) scales[row] = scale;
}
#endif

#if TOP
// A narrow last layer, the loss, and the way back to the layer before: a thread has one of the inputs and its weights,
// and each warp finds all of the logits, so that one barrier is enough.
struct Top {
    float W[TOP], b;
    int label;

    // What was there before `forward_parts` began.
    __device__ void load(const Layer& layer, int given)
    {
        const int k = threadIdx.x, unit = threadIdx.x % NARROW;
        label = given;
        b = unit < TOP ? layer.b[unit] : 0;
        #pragma unroll
        for (int j = 0; j < TOP; ++j) W[j] = k < layer.inputs ? layer.W[k * TOP + j] : 0;
    }

    // The logits, one a lane, from each thread's input y; -infinity where there is none. partial: THREADS.
    __device__ float logit(float y, float* partial) const
    {
        constexpr int WARPS = THREADS / 32;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit = threadIdx.x % NARROW;
        float sums[NARROW] = {};
        #pragma unroll
        for (int j = 0; j < TOP; ++j) sums[j] = y * W[j];
        #pragma unroll
        for (int step = 0; step < 4; ++step) {  // lanes share the sums: lane i will have number i / 2
            const int many = NARROW / 2 >> step;
            const bool upper = lane & 2 * many;
            #pragma unroll
            for (int j = 0; j < NARROW / 2; ++j) {
                if (j >= many) break;
                const float send = upper ? sums[j] : sums[j + many], keep = upper ? sums[j + many] : sums[j];
                sums[j] = keep + __shfl_xor_sync(~0u, send, 2 * many);
            }
        }
        sums[0] += __shfl_xor_sync(~0u, sums[0], 1);
        if (lane % 2 == 0) partial[warp * NARROW + lane / 2] = sums[0];
        __syncthreads();
        float z = b;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) z += partial[w * NARROW + unit];
        return unit < TOP ? z : __uint_as_float(0xff800000);  // -infinity
    }

    // Write the loss and the logits' gradient, and return that before the ReLU in front of the layer. y: what the ReLU
    // returned.
    __device__ float there_and_back(const Network& net, int row, float y, float* partial, float* row_losses) const
    {
        const int unit = threadIdx.x % NARROW;
        const float z = logit(y, partial), right = __shfl_sync(~0u, z, label);
        float largest = z;
        for (int distance = NARROW / 2; distance > 0; distance /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
        const float e = unit < TOP ? expf(z - largest) : 0, total = group_sum(e);
        const float dz = e * (1 / (total * net.n)) - (unit == label ? 1.0f / net.n : 0.0f);
        if (threadIdx.x < TOP) net.layers[net.count - 1].dz[(size_t)row * TOP + threadIdx.x] = dz;
        if (threadIdx.x == 0) row_losses[row] = logf(total) - (right - largest);
        float sum = 0;
        #pragma unroll
        for (int j = 0; j < TOP; ++j) sum += __shfl_sync(~0u, dz, j) * W[j];
        return y > 0 ? sum : 0;
    }
};
#endif

// Activations from the first layer's partial sums: a thread has units of its own.
static __device__ __forceinline__ void add_slices(const Network& net, const float* parts, const float* biases, float* to)
{
    const Layer& layer = net.layers[0];
    const int row = blockIdx.x, units = layer.units;
    for (int j = threadIdx.x; j < units; j += THREADS) {
        float sum = 0;
        #pragma unroll 32
        for (int s = 0; s < SLICES; ++s) sum += parts[((size_t)s * net.n + row) * units + j];
        sum = biases[j] + sum;
        to[j] = net.count > 1 ? relu(sum) : sum;
        if (net.count > 1) layer.y[(size_t)row * units + j] = to[j];
    }
}

// Activations `here` of a later layer. partial: max(THREADS, units).
static __device__ __forceinline__ void later_layer(const Network& net, int l, const float* W, const float* biases,
                                                   const float* before, float* here, float* partial)
{
    const Layer& layer = net.layers[l];
    const int units = layer.units, groups = max(1, THREADS / units);
    for (int i = threadIdx.x; i < groups * units; i += THREADS) {
        const int group = i / units, j = i % units;
        float sum = 0;
        #pragma unroll 8
        for (int k = group; k < layer.inputs; k += groups) sum += before[k] * W[k * units + j];
        partial[i] = sum;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < units; j += THREADS) {
        float sum = biases[j];
        for (int group = 0; group < groups; ++group) sum += partial[group * units + j];
        here[j] = l < net.count - 1 ? relu(sum) : sum;
        if (l < net.count - 1) layer.y[(size_t)blockIdx.x * units + j] = here[j];
    }
    __syncthreads();
}

// In shared memory: the activations of each layer but the last, partial sums, the gradients of two layers, all biases,
// and if they fit, the weights of all layers but the first (and the TOP), which are `resident`. They and the labels
// were there before `forward_parts` began.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void examples(const __grid_constant__ Network net, const float* parts, const long long* labels, float* row_losses,
              int widest, int resident, Word* largest_of_dx
#if WGMMA
              , Piece* dz_parts, float* dz_scales
#endif
)
{
    float* activations = reinterpret_cast<float*>(shared_bytes);
    const int row = blockIdx.x, last = net.count - 1, later = last - (TOP > 0);  // later: the last one but the TOP
    float *partial = activations + last * widest, *dz = partial + max(THREADS, widest), *dz_before = dz + widest;
    float *biases = dz_before + widest, *weights = biases + net.count * widest, *end = weights;
    for (int l = 1; l <= later && resident; ++l) {
        const int elements = net.layers[l].inputs * net.layers[l].units;
        fetch(end, net.layers[l].W, elements);
        end += elements;
    }
    for (int l = 0; l <= later; ++l)  // each thread those that it will read
        for (int j = threadIdx.x; j < net.layers[l].units; j += THREADS) biases[l * widest + j] = net.layers[l].b[j];
#if TOP
    Top top;
    top.load(net.layers[last], labels[row]);
#endif
    begin_in_turn();
    if (largest_of_dx && blockIdx.x == 0 && threadIdx.x == 0) *largest_of_dx = 0;  // before `gradients` looks for it
    add_slices(net, parts, biases, last ? activations : dz);
    if (later > 0 || !TOP) {
        cp_async_wait_all();
        __syncthreads();
    }
    for (int l = 1; l <= later; ++l) {
        float* here = l == last ? dz : activations + l * widest;
        later_layer(net, l, resident ? weights : net.layers[l].W, biases + l * widest, activations + (l - 1) * widest,
                    here, partial);
        weights += net.layers[l].inputs * net.layers[l].units;
    }
#if TOP
    const int k = threadIdx.x, inputs = net.layers[last].inputs;
    const float y = k < inputs ? activations[later * widest + k] : 0;  // this thread's own
    const float back = top.there_and_back(net, row, y, partial, row_losses);
    if (k < inputs) dz[k] = net.layers[later].dz[(size_t)row * inputs + k] = back;
    __syncthreads();
#else
    if (threadIdx.x < 32) softmax(net, net.layers[last], row, labels, dz, row_losses);
    __syncthreads();
#endif
    for (int l = later; l > 0; --l) {
        const Layer& layer = net.layers[l];
        const float* before = activations + (l - 1) * widest;
        const float* W = resident ? weights -= layer.inputs * layer.units : layer.W;
        backward(net, l, row, W, before, dz, dz_before);
        float* other = dz;
        dz = dz_before, dz_before = other;
    }
#if WGMMA
    if (threadIdx.x < 32) leave_parts(net, row, dz, dz_parts, dz_scales);
#endif
}

// largest: null, or for the bits of the largest magnitude in dx, 0 before.
// First the blocks of dx, whose sums are the longest, then those of dW and db, layer by layer; the last is the loss's.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void gradients(const __grid_constant__ Network net, const float* row_losses, float* losses, int* step, Word* largest)
{
    begin_in_turn();
    int block = blockIdx.x;
    const Layer& first = net.layers[0];
    const int inputs = tiles_of(first.inputs), tiles_of_dx = net.dx ? tiles_of(net.n) * inputs : 0;
    if (block < tiles_of_dx) {
        tile<false, true>({first.dz, net.n, first.units}, {first.W, first.inputs, first.units}, net.dx, net.n,
                          first.inputs, block / inputs * TILE, block % inputs * TILE, 0, first.units, largest);
        return;
    }
    block -= tiles_of_dx;
    rest(net, block, 0, row_losses, losses, step);
}

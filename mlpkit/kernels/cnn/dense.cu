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

// In shared memory: the activations of each layer but the last, partial sums, the gradients of two layers, and if they
// fit, the weights of all layers but the first, which are `resident`: they come while the slices are added up.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void examples(const __grid_constant__ Network net, const float* parts, const long long* labels, float* row_losses,
              int widest, int resident, Word* largest_of_dx
#if WGMMA
              , Piece* dz_parts, float* dz_scales
#endif
)
{
    float* activations = reinterpret_cast<float*>(shared_bytes);
    float *partial = activations + (MOST - 1) * widest, *dz = partial + max(THREADS, widest), *dz_before = dz + widest;
    const int row = blockIdx.x, last = net.count - 1;
    float *weights = dz_before + widest, *end = weights;
    for (int l = 1; l <= last && resident; ++l) {
        const int elements = net.layers[l].inputs * net.layers[l].units;
        fetch(end, net.layers[l].W, elements);
        end += elements;
    }
    begin_in_turn();  // these weights were there before `forward_parts` began
    if (largest_of_dx && blockIdx.x == 0 && threadIdx.x == 0) *largest_of_dx = 0;  // before `gradients` looks for it
    for (int l = 0; l <= last; ++l) {
        const Layer& layer = net.layers[l];
        const float* W = resident ? weights : layer.W;
        const int units = layer.units, groups = l ? max(1, THREADS / units) : 1;
        float* here = l == last ? dz : activations + l * widest;
        const float* before = activations + (l - 1) * widest;
        for (int i = threadIdx.x; i < groups * units; i += THREADS) {
            const int group = i / units, j = i % units;
            float sum = 0;
            if (l == 0) {
                #pragma unroll 32
                for (int s = 0; s < SLICES; ++s) sum += parts[((size_t)s * net.n + row) * units + j];
            } else {
                #pragma unroll 8
                for (int k = group; k < layer.inputs; k += groups) sum += before[k] * W[k * units + j];
            }
            partial[i] = sum;
        }
        if (l == 0) cp_async_wait_all();
        if (l > 0) weights += layer.inputs * units;
        __syncthreads();
        for (int j = threadIdx.x; j < units; j += THREADS) {
            float sum = layer.b[j];
            for (int group = 0; group < groups; ++group) sum += partial[group * units + j];
            here[j] = l < last ? relu(sum) : sum;
            if (l < last) layer.y[(size_t)row * units + j] = here[j];
        }
        __syncthreads();
    }
    if (threadIdx.x < 32) softmax(net, net.layers[last], row, labels, dz, row_losses);
    __syncthreads();
    for (int l = last; l > 0; --l) {
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

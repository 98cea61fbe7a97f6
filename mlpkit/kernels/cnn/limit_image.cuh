// An image through all layers and back, by one block: between the layers everything stays in shared memory. Out go the
// inputs and the slopes of the dense layers, and the gradients of the convolutions, which are small.

#include "limit_shapes.cuh"
#include "limit_waits.cuh"
#include "limit_places.cuh"
#include "limit_convs.cuh"
#include "limit_dense.cuh"
#include "limit_update.cuh"

// The thread that waits for other blocks, and tells them something: of a warp that often has nothing else to do.
// All others take in what comes from outside before an image's first convolution: it would keep them waiting.
const int CLERK = THREADS - 32, TAKERS = CLERK;

const int PIXELS = CHANNELS * HEIGHT * WIDTH;

// What the blocks hand each other; all of it begins as zeros.
struct Exchange {
    Word slopes_there, rest0[31], dense_new, rest1[31];  // how many blocks, counted over all steps; a line each
    alignas(16) float packed[up_to(4, PACKED)];
    alignas(16) float activations[BATCH * ACTIVATIONS];
    alignas(16) float slopes[BATCH * SLOPES];
    alignas(16) Message partials[BATCH * PARTIAL];  // gradients of convolutions
    alignas(16) Message convs[CONV_PACKED];        // their parameters

    __device__ Given given() { return {activations, slopes, partials, packed, convs}; }
};

// pixel / 255, rounded as a division rounds (for every pixel), without the time that a division takes.
__device__ float number(unsigned char pixel) {
    const float unit = 1 / 255.f, near = pixel * unit;
    return fmaf(fmaf(-near, 255.f, pixel), unit, near);
}
__device__ float number(float x) { return x; }

// An image on its way to shared memory, asked for long before.
struct Image {
    PIXEL pixels[parts(PIXELS, TAKERS)];
    int label;

    __device__ void ask(const PIXEL* X, const long long* y, long long index) {
#pragma unroll
        for (int i = 0; i < parts(PIXELS, TAKERS); i++) {
            const int e = thread() + i * TAKERS;
            if (e < PIXELS) pixels[i] = X[index * PIXELS + e];
        }
        label = y[index];
    }

    __device__ void put() const {
        constexpr Shape s = shape(0);
#pragma unroll
        for (int i = 0; thread() < TAKERS && i < parts(PIXELS, TAKERS); i++) {
            const int e = thread() + i * TAKERS, ci = e / (HEIGHT * WIDTH), y = e / WIDTH % HEIGHT, x = e % WIDTH;
            if (e < PIXELS) plane_of<0>(ci)[(y + s.pad) * s.stride() + x + s.pad] = number(pixels[i]);
        }
    }
};

// Ask for a copy to shared memory. Two neighbours need the same: then each asks for every second piece, for both.
__device__ void ask(void* to, const float* from, int bytes, Word64* barrier, int piece) {
    if constexpr (TOGETHER == 1) cp_async_bulk(to, from, bytes, barrier);
    else if (piece % TOGETHER == blockIdx.x % TOGETHER) cp_async_bulk_multicast(to, from, bytes, barrier, 3);
}

// A piece of memory that is not cut already.
template <int FLOATS>
__device__ void ask_whole(float* to, const float* from, Word64* barrier) {
    constexpr int FIRST = FLOATS / 8 * 4;
    if constexpr (FIRST > 0) ask(to, from, 4 * FIRST, barrier, 0);
    ask(to + FIRST, from + FIRST, 4 * (FLOATS - FIRST), barrier, 1);
}

// Ask for the dense weights, as far as shared memory holds them.
template <int layer = 0>
__device__ void ask_dense(const float* packed) {
    if constexpr (layer < LAYERS) {
        constexpr Sharing s = sharing(layer);
        constexpr bool both = layer || IMAGE_BLOCKS == 1;  // whether neighbours need the same
        const float* from = packed + dense_packed(layer) + first_row<layer>() * wide(layer);
        if constexpr (resident(layer) == s.each()) {
            float* to = shared_floats(dense_at(layer));
            if (both) ask_whole<dense_bytes(layer) / 4>(to, from, &head().dense[layer > 0]);
            else cp_async_bulk(to, from, dense_bytes(layer), &head().dense[layer > 0]);
        } else if constexpr (resident(layer) > 0) {
            for (int slot = 0; slot < s.slots(); slot++) {
                float* to = shared_floats(dense_at(layer)) + slot * resident(layer) * wide(layer);
                const int rows = max(0, min(resident(layer), s.rows - slot * s.each()));
                const float* rows_from = from + slot * s.each() * wide(layer);
                if (rows && both) ask(to, rows_from, 4 * rows * wide(layer), &head().dense[layer > 0], slot);
                if (rows && !both) cp_async_bulk(to, rows_from, 4 * rows * wide(layer), &head().dense[layer > 0]);
            }
        }
        ask_dense<layer + 1>(packed);
    }
}

constexpr int asked_bytes(int first, int end) {
    int bytes = 0;
    for (int i = first; i < end; i++) {
        const Sharing s = sharing(i);
        for (int slot = 0; slot < s.slots(); slot++) {
            bytes += 4 * wide(i) * most(0, least(resident(i), s.rows - slot * s.each()));
        }
    }
    return bytes;
}

// One thread asks for the dense weights of step number `step`. waits: whether blocks of this launch write them.
template <bool waits>
__device__ void ask_weights(const Exchange& exchange, Word step) {
    if (waits) wait_for(&exchange.dense_new, GRID * step, NEW_DENSE, step);
    if (STREAMS) return;  // threads read them: after the next barrier
    fence_proxy_async_all();
    mbarrier_arrive_expect_tx(&head().dense[0], 4 * BIASES_PACKED + asked_bytes(0, 1));
    mbarrier_arrive_expect_tx(&head().dense[1], asked_bytes(1, LAYERS));
    ask_whole<BIASES_PACKED>(shared_floats(BIASES_AT), exchange.packed + CONV_PACKED, &head().dense[0]);
    ask_dense(exchange.packed);
}

// The convolutions' parameters, on their way to where the convolutions read them.
struct Convs {
    Mail<Message, parts(CONV_PACKED, TAKERS)> mail;
    Word wanted = 0;  // a bit for each that this thread takes: found out once

    __device__ Convs() {
#pragma unroll
        for (int i = 0; i < mail.COUNT; i++) {
            wanted |= (Word)(thread() < TAKERS && is_parameter(thread() + i * TAKERS)) << i;
        }
    }
    __device__ auto at(const Message* convs) const {
        const Message* first = convs + thread();
        return [=](int i) { return wanted >> i & 1 ? first + i * TAKERS : (const Message*)0; };
    }
    __device__ void ask(const Message* convs) { mail.ask(at(convs)); }
    __device__ void take(const Message* convs, Word step) {
        mail.wait(step, at(convs), NEW_CONVS);
        float* to = shared_floats(CONV_AT) + thread();
#pragma unroll
        for (int i = 0; i < mail.COUNT; i++) {
            if (wanted >> i & 1) to[i * TAKERS] = value_of(mail.items[i]);
        }
    }
};

// The rows of an example, for the products over the batch: by one warp.
__device__ void put_rows(Exchange& exchange, int image) {
    const float4* activations = (const float4*)shared_floats(ACTIVATIONS_AT);
    const float4* slopes = (const float4*)shared_floats(SLOPES_AT);
    float4* to = (float4*)(exchange.activations + image * ACTIVATIONS);
    constexpr int OWN = rows_here(0) / 4;
    for (int e = thread() % 32; e < ACTIVATIONS / 4; e += 32) {
        if (IMAGE_BLOCKS == 1 || e / OWN == half() || (e >= IMAGE_BLOCKS * OWN && half() == 0)) to[e] = activations[e];
    }
    if (IMAGE_BLOCKS > 1 && half() == 0) return;
    to = (float4*)(exchange.slopes + image * SLOPES);
    for (int e = thread() % 32; e < SLOPES / 4; e += 32) to[e] = slopes[e];
}

// From now on the neighbour's sums of an image count.
__device__ void expect_neighbour() {
    mbarrier_arrive_expect_tx(&head().sums[0], 4 * units(0));
    mbarrier_arrive_expect_tx(&head().sums[1], 4 * swap_back_elements() / IMAGE_BLOCKS);
}

// An image there and back. waits: whether all blocks are of one launch. phase: of the barriers. last: whether it
// is this block's last one of the step.
template <bool waits>
__device__ void through_network(Exchange& exchange, const Image& mine, Convs& convs, int image, int n,
                                Word step, Word phase, bool last, float* row_loss) {
    if (STREAMS) convs = Convs();  // there registers are scarcer than time
    convs.ask(exchange.convs);
    mine.put();
    if (IMAGE_BLOCKS > 1 && thread() == CLERK) expect_neighbour();
    stamp(15);
    convs.take(exchange.convs, step);
    if (BLOCKS == 1 && thread() == CLERK) ask_weights<waits>(exchange, step);  // before the only barrier that there is
    __syncthreads();
    stamp(1);
    if (BLOCKS > 1 && thread() == CLERK) ask_weights<waits>(exchange, step);
    Kept kept;
    convs_forward<0>([&] {
        if constexpr (kept_rows() > 0 || STREAMS) kept.ask(exchange.packed);
    });
    stamp(2);
    wait_for_copy(&head().dense[0], phase, NEW_DENSE, step);
    stamp(3);
    denses_forward<0>(kept, step, phase);
    if (thread() < 32) {
        const float loss = softmax_back(mine.label, n);
        if (thread() == 0 && half() == 0) *row_loss = loss;
    } else {
        transpose_weights<1>();
    }
    __syncthreads();
    stamp(4);
    denses_back<LAYERS - 1>(kept);
    stamp(12);
    dense_back<0>(kept, [](int k, float slope) { put_route<BLOCKS - 1>(k, slope); });
    stamp(5);
    if (thread() / 32 == CLERK / 32) put_rows(exchange, image), __syncwarp();
    if (waits && last && thread() == CLERK) red_release_gpu_add(&exchange.slopes_there, 1);
    convs_back<BLOCKS - 1>({exchange.partials + image * PARTIAL, step}, phase, [&] {  // all rows are there after this
        if (waits && last && thread() == CLERK) wait_for(&exchange.slopes_there, GRID * step, SLOPES_THERE, step);
    });
    stamp(6);
}

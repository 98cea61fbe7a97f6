// A convolutional network's training step in two kernels. Between them stands what must wait for the whole batch:
//
//   images   a block takes an image through all layers, to the loss, and back
//   update   the dense layers' gradients are products over the batch, and the convolutions' are sums: each is used up
//            as soon as it is there
// needs sm_90

#include "limit_image.cuh"
#include "limit_update.cuh"

// Grid: n, the examples of this batch. steps: two counts of the epoch's steps, of which each kernel reads its own.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    images(const PIXEL* X, const long long* y, const long long* order, int* steps, int n, float* row_losses,
           Word64* failure, Exchange* exchange) {
    begin(failure);
    const long long place = (long long)steps[0] * BATCH + blockIdx.x;
    Image image;
    image.ask(X, y, order[place]);
    Convs convs;
    through_network<false>(*exchange, image, convs, blockIdx.x, n, 1, 0, true, row_losses + place);
    if (blockIdx.x == 0 && threadIdx.x == 0) steps[1] = steps[0];
}

// Grid: GRID.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    update(int* steps, int n, Exchange* exchange, float* theta, float* m, float* v, const Rates* rates, float beta1,
           float rest1, float beta2, float rest2, float eps, float l2, float shrink) {
    const Settings settings = {beta1, rest1, beta2, rest2, eps, l2, shrink};
    const Vectors vectors = {theta, m, v};
    Owned owned;
    owned.load(vectors);
    const int step = steps[1];
    const Rates rate = {rates[step].lr, rates[step].m, rates[step].v};
    ask_rows(exchange->given(), n);
    owned.update(exchange->given(), n, settings, rate, Ranks(), 1, 1);
    owned.store(vectors);
    if (blockIdx.x == 0 && threadIdx.x == 0) steps[0] = step + 1;
}

// Put the weights where `images` reads them: before the first step. Grid: GRID.
extern "C" __global__ void __launch_bounds__(THREADS, 1) pack(Exchange* exchange, float* theta, float* m, float* v) {
    Owned owned;
    owned.load({theta, m, v});
    owned.publish(exchange->packed, exchange->convs, 1);
}

// What a launch needs, which the host can't work out by itself.
extern "C" __global__ void requirements(int* answer) {
    answer[0] = sizeof(Exchange);
    answer[1] = SHARED_BYTES;
    answer[2] = most(DENSE_AT + 4 * WARPS * 32 * SUMS, SCRATCH_AT + 4 * PASSES * WARPS * 32);
    answer[3] = GRID;
    answer[4] = THREADS;
}

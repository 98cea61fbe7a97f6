// The kernel that stays for an epoch: see limit.cu, and limit_portable.cu.

#include "limit_image.cuh"
#include "limit_update.cuh"

#if PAIRS
#define NEIGHBOURS __cluster_dims__(TOGETHER)
#else
#define NEIGHBOURS
#endif

// Train on the examples in `order`. Grid: GRID blocks of THREADS.
extern "C" __global__ void NEIGHBOURS __launch_bounds__(THREADS, 1)
    train(const PIXEL* X, const long long* y, const long long* order, int examples, float* row_losses, Word64* failure,
          Exchange* exchange, float* theta, float* m, float* v, const Rates* rates, float beta1, float rest1,
          float beta2, float rest2, float eps, float l2, float shrink, Ranks ranks) {
    begin(failure);
    meet_neighbour();  // before anything is read there
    if (somebody_gave_up()) return;  // in an epoch before
    if (threadIdx.x == 0) ranks.meet(HERE + blockIdx.x);
    const Settings settings = {beta1, rest1, beta2, rest2, eps, l2, shrink};
    const Vectors vectors = {theta, m, v};
    const Given given = exchange->given();
    const int steps = (examples + BATCH - 1) / BATCH;
    Owned owned;
    owned.load(vectors);
    owned.publish(exchange->packed, exchange->convs, 1);
    Image image;
    Convs convs;
    if (first_image() < min(BATCH, examples)) image.ask(X, y, order[first_image()]);
    const auto first_of = [&](int step) {  // the number of this block's first example
        const int at = step * BATCH + first_image();
        return first_image() < BATCH && at < examples ? order[at] : 0;
    };
    long long next = first_of(1);  // asked for so early that nobody waits for it
    __syncthreads();
    if (threadIdx.x == 0) red_release_gpu_add(&exchange->dense_new, 1);
    Word phase = 0;
    for (int step = 0; step < steps; step++) {
        const int n = min(BATCH, examples - step * BATCH);
        const Word tag = step + 1;
        stamp(0, tag);
        for (int at = first_image(); at < n; at += GRID / IMAGE_BLOCKS, phase ^= 1) {
            if (at >= GRID / IMAGE_BLOCKS) image.ask(X, y, order[step * BATCH + at]);
            float* row_loss = row_losses + (long long)step * BATCH + at;
            through_network<true>(*exchange, image, convs, at, n, tag, phase, at + GRID / IMAGE_BLOCKS >= n, row_loss);
        }
        if (PAIRS && IMAGE_BLOCKS == 1 && blockIdx.x >= n) {  // the neighbour may need its half of the weights
            if (threadIdx.x == 0) ask_weights<true>(*exchange, tag);
            wait_for_copy(&head().dense[0], phase, NEW_DENSE, tag);  // all, as the update uses that memory
            wait_for_copy(&head().dense[1], phase, NEW_DENSE, tag);
            phase ^= 1;
        }
        if (first_image() >= n) {  // who has images has waited on their way
            if (threadIdx.x == 0) red_release_gpu_add(&exchange->slopes_there, 1);
            if (threadIdx.x == 0) wait_for(&exchange->slopes_there, GRID * tag, SLOPES_THERE, tag);
            __syncthreads();
        }
        ask_rows(given, n);
        const Rates rate = {rates[step].lr, rates[step].m, rates[step].v};
        image.ask(X, y, next);
        next = first_of(step + 2);
        stamp(7);
        owned.update(given, n, settings, rate, ranks, tag, tag + 1);
        if (threadIdx.x == CLERK) red_release_gpu_add(&exchange->dense_new, 1);
        stamp(10);
    }
    owned.store(vectors);
    meet_neighbour();  // who may still read from here
    __syncthreads();
    if (threadIdx.x == 0 && somebody_gave_up()) theta[0] = __uint_as_float(0x7fffffff);  // a NaN: this is no result
}

// What a launch needs, which the host can't work out by itself.
extern "C" __global__ void requirements(int* answer) {
    answer[0] = sizeof(Exchange);
    answer[1] = SHARED_BYTES;
    answer[2] = GRID;
    answer[3] = THREADS;
    answer[4] = SLOTS;
}

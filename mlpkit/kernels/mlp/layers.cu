// What lies between the matrix products of a training step, in as few kernels as the dependencies allow.
//
// Arrays are (n, features), one row an example, row after row. REAL is the network's type; PIXEL that of the images.

#ifndef PIXEL
#define PIXEL REAL
#endif
#include "in_turn.cuh"
#include "values.cuh"
#include "reductions.cuh"

// Copy the examples of batch number *step, which `order` names, and look up the rate of that step. A block an example.
extern "C" __global__ void next_batch(const PIXEL* X, const long long* y, const long long* order, const int* step,
                                      int batch_size, int inputs, REAL* x, long long* labels, const double* rates,
                                      const long long* first_t, REAL* rate, REAL* t) {
    const int row = blockIdx.x;
    wait_for_the_kernel_ahead();
    const long long example = order[(long long)*step * batch_size + row];
    for (int i = threadIdx.x; i < inputs; i += blockDim.x) {
        x[(long long)row * inputs + i] = number(X[example * inputs + i]);
    }
    if (threadIdx.x == 0) {
        labels[row] = y[example];
        if (row == 0) {
            *rate = rates[*step];
            *t = *first_t + *step;
        }
    }
}

// The n rows of X that `index` names, `width` values each; and the labels of these rows, where y is given.
extern "C" __global__ void gather(const PIXEL* X, const long long* index, PIXEL* rows, int n, int width,
                                  const long long* y, long long* labels) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * width) rows[i] = X[index[i / width] * width + i % width];
    if (y && i < n) labels[i] = y[index[i]];
}

// z <- relu(z + b).
extern "C" __global__ void add_bias_relu(REAL* z, const REAL* b, int n, int features) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * features) {
        const REAL shifted = z[i] + b[i % features];
        z[i] = shifted < 0 ? 0 : shifted;  // in this order a NaN stays a NaN
    }
}

// z <- the gradient of the loss of the logits z + b; losses[*step] <- the mean loss; then *step goes on by one.
// One block, 16 lanes a row. Without b the logits are z, and without step the loss goes to losses[0].
extern "C" __global__ void cross_entropy(REAL* z, const REAL* b, const long long* labels, REAL* losses, int* step,
                                         int n, int classes) {
    const int lanes = 16, lane = threadIdx.x % lanes, rows = blockDim.x / lanes;
    double loss = 0;  // of this lane's rows; all lanes of a row have the same
    for (int first = 0; first < n; first += rows) {
        const int row = min(first + (int)threadIdx.x / lanes, n - 1);  // a lane without a row repeats the last
        const bool mine = first + threadIdx.x / lanes < n;
        REAL* logits = z + (long long)row * classes;
        const auto logit = [=](int j) { return b ? logits[j] + b[j] : logits[j]; };
        const int label = labels[row];
        const REAL right = logit(label);
        REAL largest = -__int_as_float(0x7f800000), total = 0;  // minus infinity
        for (int j = lane; j < classes; j += lanes) largest = max(largest, logit(j));
        largest = warp_max<lanes>(largest);
        for (int j = lane; j < classes; j += lanes) total += exp(logit(j) - largest);
        total = warp_sum<lanes>(total);
        __syncwarp();  // every lane has read the row before it is replaced
        const REAL scale = 1 / (total * n);
        for (int j = lane; j < classes && mine; j += lanes) {
            logits[j] = exp(logit(j) - largest) * scale - (j == label ? REAL(1) / n : REAL(0));
        }
        if (mine) loss += log(total) - (right - largest);
    }
    __shared__ double sums[64];
    if (lane == 0) sums[threadIdx.x / lanes] = loss;
    __syncthreads();
    if (threadIdx.x < 32) {
        loss = warp_sum<32>((threadIdx.x < rows ? sums[threadIdx.x] : 0.0) +
                          (threadIdx.x + 32 < rows ? sums[threadIdx.x + 32] : 0.0));
        if (threadIdx.x == 0) losses[step ? (*step)++ : 0] = loss / n;
    }
}

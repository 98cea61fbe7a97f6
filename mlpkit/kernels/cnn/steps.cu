// What a recorded step of any network needs around it: its batch, its rate and its number, and a place for its loss.
//
// X lies as it was given, row after row. REAL is the network's type; PIXEL that of the images; TARGET the largest integer
// of which a target is a whole number, whatever its own type: targets are copied, and nobody here looks at them.

#include "ptx.cuh"

#ifndef PIXEL
#define PIXEL unsigned char
#endif
#ifndef REAL
#define REAL float
#endif
#ifndef TARGET
#define TARGET unsigned long long
#endif

extern __shared__ __align__(128) unsigned char shared_bytes[];  // of `hinge`: a sum a warp

__device__ REAL number(unsigned char pixel) { return pixel / REAL(255); }
__device__ REAL number(float x) { return x; }
__device__ REAL number(double x) { return x; }

// Copy the examples of the batch of step number *step + further, and look up what is new in that step: its number, its
// rate, its number t as optimizers count, from 1, and the steps taken before it. `order` names the `examples` of an
// epoch. `parts` blocks an example: each asks for its part of an example of the batch after this one, too, which so is
// near when its turn comes.
extern "C" __global__ void next_batch(const PIXEL* X, const TARGET* y, const int* order, const int* step, int further,
                                      int examples, int batch_size, int inputs, int target_size, int parts, REAL* x,
                                      TARGET* targets, const REAL* rates, const long long* first_t, int* found,
                                      REAL* rate, REAL* t, long long* taken)
{
    const int row = blockIdx.x / parts, part = blockIdx.x % parts, number_of_step = *step + further;
    const long long here = (long long)number_of_step * batch_size + row, after = here + batch_size;
    const long long example = order[here], next = order[after < examples ? after : here];
    for (int i = part * blockDim.x + threadIdx.x; i < inputs; i += parts * blockDim.x) {
        x[(long long)row * inputs + i] = number(X[example * inputs + i]);
        prefetch_global_l2(X + next * inputs + i);
    }
    for (int i = part * blockDim.x + threadIdx.x; i < target_size; i += parts * blockDim.x)
        targets[(long long)row * target_size + i] = y[example * target_size + i];
    if (threadIdx.x == 0 && part == 0 && row == 0) {
        *found = number_of_step;
        *rate = rates[number_of_step];
        *t = *first_t + number_of_step;
        *taken = *first_t + number_of_step - 1;
    }
}

// losses[*step] <- loss; then *step goes on by one. Without step the loss goes to losses[0].
extern "C" __global__ void keep_loss(const REAL* loss, REAL* losses, int* step)
{
    losses[step ? (*step)++ : 0] = *loss;
}

// Loss and gradient of `numpy_baseline.hinge`, by one block; a thread a row.
extern "C" __global__ void hinge(const REAL* z, const long long* labels, REAL* dz, REAL* loss, int n, int classes)
{
    double* sums = reinterpret_cast<double*>(shared_bytes);
    double sum = 0;
    for (int row = threadIdx.x; row < n; row += blockDim.x) {
        const REAL* logits = z + (long long)row * classes;
        const int label = labels[row];
        const REAL right = logits[label];
        int wrong = 0;
        for (int j = 0; j < classes; ++j) {
            const REAL margin = logits[j] - right + 1;
            const bool within = j != label && !(margin <= 0);  // a NaN too
            if (within) sum += margin, ++wrong;
            dz[(long long)row * classes + j] = within ? REAL(1) / n : REAL(0);
        }
        dz[(long long)row * classes + label] = -REAL(wrong) / n;
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < (int)blockDim.x / 32; ++warp) sum += sums[warp];
        *loss = sum / n;
    }
}

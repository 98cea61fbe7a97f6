// The loss of one example and the gradient of its outputs, by a warp: a lane a class, and every 32nd one after it.

#include "reductions.cuh"

// z: CLASSES outputs. slope <- the gradient, for a mean over n examples. Returns the loss. Both lie in shared memory.
template <int CLASSES, typename T>
__device__ T softmax(const T* z, T* slope, int label, int n) {
    const int lane = threadIdx.x % 32;
    T largest = z[0], total = 0;
    for (int j = lane; j < CLASSES; j += 32) largest = max(largest, z[j]);
    largest = warp_max<32>(largest);
    for (int j = lane; j < CLASSES; j += 32) total += slope[j] = exp(z[j] - largest);
    total = warp_sum<32>(total);
    const T scale = 1 / (total * n);
    for (int j = lane; j < CLASSES; j += 32) slope[j] = slope[j] * scale - (j == label ? T(1) / n : T(0));
    return log(total) - (z[label] - largest);
}

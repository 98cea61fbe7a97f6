// SGD's update, which begins before the kernel ahead has ended: it asks for the parameters before it waits for their
// gradient.

#include "in_turn.cuh"
#include "values.cuh"

// theta -= *rate grad, of which the kernel ahead writes grad alone. A thread two parameters.
extern "C" __global__ void sgd(REAL* theta, const REAL* grad, const REAL* rate, int n) {
    const int first = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    REAL w[2], step = *rate;
    for (int e = 0; e < 2; e++) w[e] = first + e < n ? theta[first + e] : 0;
    wait_for_the_kernel_ahead();
    for (int e = 0; e < 2; e++) {
        if (first + e < n) theta[first + e] = w[e] - step * grad[first + e];
    }
}

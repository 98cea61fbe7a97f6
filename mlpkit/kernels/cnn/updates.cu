// An optimizer's update of one long vector of float32, four values a thread, with the rate read from memory.
//
// That is all that a step of a recorded graph needs. The formulas are those of `numpy_baseline`.

#include "ptx.cuh"

struct alignas(16) Four {
    float each[4];
};

// Four values from `first` on, of n.
__device__ void load(float (&to)[4], const float* from, int first, int n)
{
    if (first + 4 <= n) {
        *reinterpret_cast<Four*>(to) = *reinterpret_cast<const Four*>(from + first);
    } else {
        for (int i = 0; i < 4; ++i) to[i] = first + i < n ? from[first + i] : 0;
    }
}

__device__ void store(const float (&elements)[4], float* to, int first, int n)
{
    if (first + 4 <= n) {
        *reinterpret_cast<Four*>(to + first) = *reinterpret_cast<const Four*>(elements);
    } else {
        for (int i = 0; i < 4 && first + i < n; ++i) to[first + i] = elements[i];
    }
}

extern "C" __global__ void sgd(float* theta, const float* grad, const float* lr, int n)
{
    const int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    begin_in_turn();
    if (first >= n) return;
    alignas(16) float w[4], g[4];
    load(g, grad, first, n);
    load(w, theta, first, n);
    const float rate = *lr;
    #pragma unroll
    for (int i = 0; i < 4; ++i) w[i] -= rate * g[i];
    store(w, theta, first, n);
}

struct Settings {
    float beta1, rest1, log1, beta2, rest2, log2, eps;  // rest: 1 - beta; log: of beta
};

// 1 - beta^t, in float32 as exactly as in float64: -expm1(t log beta).
extern "C" __global__ void adam(float* theta, const float* grad, float* m, float* v, const float* t, const float* lr,
                                int n, Settings s)
{
    const int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    begin_in_turn();
    if (first >= n) return;
    alignas(16) float w[4], g[4], means[4], squares[4];
    load(g, grad, first, n);
    load(means, m, first, n);
    load(squares, v, first, n);
    load(w, theta, first, n);
    const float rate = *lr / -expm1f(*t * s.log1), unbias = 1 / -expm1f(*t * s.log2);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        means[i] = s.beta1 * means[i] + s.rest1 * g[i];
        squares[i] = s.beta2 * squares[i] + s.rest2 * g[i] * g[i];
        w[i] -= rate * means[i] / (sqrtf(squares[i] * unbias) + s.eps);
    }
    store(means, m, first, n);
    store(squares, v, first, n);
    store(w, theta, first, n);
}

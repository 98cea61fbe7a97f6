// Batch normalization of x (n, c, area): a block has a channel, for all of its passes. So nobody waits for anybody.
//
// Sums over the batch are made in float64, each in the same order. The channel is read again for each pass: from the
// L2 cache, if it is large.

#ifndef REAL
#define REAL float
#endif

extern __shared__ __align__(128) unsigned char shared_bytes[];  // 512: two sums a warp

struct Sizes {
    int batch, channels, area;
};

// The sums of what all threads of a block have; every one of them gets both.
__device__ void add_up(double& first, double& second)
{
    double(&parts)[2][32] = *reinterpret_cast<double(*)[2][32]>(shared_bytes);
    for (int distance = 16; distance > 0; distance /= 2) {
        first += __shfl_xor_sync(~0u, first, distance);
        second += __shfl_xor_sync(~0u, second, distance);
    }
    __syncthreads();  // what the last call left has been read
    if (threadIdx.x % 32 == 0) {
        parts[0][threadIdx.x / 32] = first;
        parts[1][threadIdx.x / 32] = second;
    }
    __syncthreads();
    first = second = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; ++warp) first += parts[0][warp], second += parts[1][warp];
}

// Where value i of this block's channel lies.
__device__ long long place(const Sizes& s, int i)
{
    return ((long long)(i / s.area) * s.channels + blockIdx.x) * s.area + i % s.area;
}

// The sum of each channel.
extern "C" __global__ __launch_bounds__(1024)
void channel_sums(const REAL* x, REAL* sums, Sizes s)
{
    double sum = 0, nothing = 0;
    for (int i = threadIdx.x; i < s.batch * s.area; i += blockDim.x) sum += x[place(s, i)];
    add_up(sum, nothing);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" __global__ __launch_bounds__(1024)
void batch_norm(const REAL* x, const REAL* gamma, const REAL* beta, REAL* mean, REAL* variance, REAL* y,
                REAL* normalized, REAL* inverse_deviation, Sizes s, REAL momentum, REAL eps)
{
    const int m = s.batch * s.area, c = blockIdx.x;
    double sum = 0, nothing = 0, squares = 0;
    for (int i = threadIdx.x; i < m; i += blockDim.x) sum += x[place(s, i)];
    add_up(sum, nothing);
    const double middle = sum / m;
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        const double away = x[place(s, i)] - middle;
        squares += away * away;
    }
    add_up(squares, nothing);
    const double spread = squares / m;
    const REAL scale = gamma[c], shift = beta[c], center = middle, inverse = 1 / sqrt(spread + eps);
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        const long long at = place(s, i);
        const REAL number = (x[at] - center) * inverse;
        normalized[at] = number;
        y[at] = scale * number + shift;
    }
    if (threadIdx.x == 0) {
        inverse_deviation[c] = inverse;
        mean[c] += momentum * (center - mean[c]);
        variance[c] += momentum * (REAL(spread * m / max(m - 1, 1)) - variance[c]);
    }
}

extern "C" __global__ __launch_bounds__(1024)
void batch_norm_backward(const REAL* dy, const REAL* normalized, const REAL* inverse_deviation, const REAL* gamma,
                         REAL* dgamma, REAL* dbeta, REAL* dx, Sizes s)
{
    const int m = s.batch * s.area, c = blockIdx.x;
    double sum = 0, products = 0;
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        const long long at = place(s, i);
        sum += dy[at];
        products += (double)dy[at] * normalized[at];
    }
    add_up(sum, products);
    const REAL scale = gamma[c] * inverse_deviation[c], mean = sum / m, mean_of_products = products / m;
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        const long long at = place(s, i);
        dx[at] = scale * (dy[at] - mean - normalized[at] * mean_of_products);
    }
    if (threadIdx.x == 0) {
        dgamma[c] = products;
        dbeta[c] = sum;
    }
}

// y, with the running statistics. A thread a value.
extern "C" __global__ void batch_norm_evaluate(const REAL* x, const REAL* gamma, const REAL* beta, const REAL* mean,
                                               const REAL* variance, REAL* y, Sizes s, REAL eps)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)s.batch * s.channels * s.area) return;
    const int c = i / s.area % s.channels;
    y[i] = gamma[c] / sqrt(variance[c] + eps) * (x[i] - mean[c]) + beta[c];
}

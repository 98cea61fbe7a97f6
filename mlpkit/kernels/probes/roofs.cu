// The two limits of a GPU, to measure others by: multiply-adds that never leave the registers, and a copy that never
// meets arithmetic.
//
// The multiply-adds' rate is a little below the hardware's: the loop has instructions of its own, 4 of 68 as CUDA 12.9
// compiles it for sm_90, which leaves 94 %.

constexpr int DEPENDENCY_CHAINS = 32;  // of a thread: each multiply-add has to wait for the last one of its chain

extern "C" __global__ void multiply_adds(float* out, int steps, float factor)
{
    float sums[DEPENDENCY_CHAINS];
    #pragma unroll
    for (int i = 0; i < DEPENDENCY_CHAINS; ++i) sums[i] = threadIdx.x + i;
    for (int step = 0; step < steps; ++step)
        #pragma unroll
        for (int i = 0; i < DEPENDENCY_CHAINS; ++i) sums[i] = sums[i] * factor + 0.5f;
    float total = 0;
    #pragma unroll
    for (int i = 0; i < DEPENDENCY_CHAINS; ++i) total += sums[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

extern "C" __global__ void copy(const float4* from, float4* to, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

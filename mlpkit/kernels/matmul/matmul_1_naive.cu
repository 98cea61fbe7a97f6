// C = A B, a thread for each value of C, and neighbouring threads one below the other. A is (M, K), B (K, N), C (M,
// N), all stored by rows.
//
// The loop is the textbook's. What is wrong is who stands next to whom: the 32 threads of a warp run in step, so at
// each k they ask for 32 values of A at once, and here those lie K apart, in 32 different lines of memory. Memory is
// read in sectors of 32 bytes, so 7 of 8 bytes that arrive are not the ones asked for. They are for the next k, and the
// L1 cache keeps most of them; but where K is a multiple of 32, all 32 values lie in one of its banks, and come one
// after another.
//
// Sectors a warp asks for in each step: 32 of A, 1 of B. The next file changes two lines, and asks for 1 and 4.

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;  // x counts the threads of a warp
    int column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= M || column >= N) return;

    float total = 0;
    for (int k = 0; k < K; ++k) total += A[(size_t)row * K + k] * B[(size_t)k * N + column];
    C[(size_t)row * N + column] = total;
}

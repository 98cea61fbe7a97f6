// C = A B, a thread for each value of C, and neighbouring threads side by side: x counts columns now, not rows.
//
// At each k, the 32 threads of a warp ask for one value of A, the same for all (one sector, sent to all of them), and
// for 32 neighbours in a row of B: 128 bytes in one piece, of which each is used. Loads that fall together in this way
// are called coalesced, and so is the store to C.
//
// Still, each multiply-add needs two loads. 2 M N K values are asked for: at 4096 x 4096 x 4096 that is 550 GB,
// nearly all of it from the caches, which can't bring 8 bytes for every 2 operations. The next file reads each value
// once and uses it 32 times.

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M || column >= N) return;

    float total = 0;
    for (int k = 0; k < K; ++k) total += A[(size_t)row * K + k] * B[(size_t)k * N + column];
    C[(size_t)row * N + column] = total;
}

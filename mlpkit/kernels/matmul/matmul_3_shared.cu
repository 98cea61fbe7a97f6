// C = A B, a block of TILE x TILE threads for each tile of C, with the tiles of A and B that it needs in shared
// memory.
//
// The threads of a block need the same TILE rows of A and TILE columns of B. They fetch a tile of each together, one
// value a thread, wait for each other, and multiply what is now in shared memory, whose 32 banks answer at once.
// Each value that is fetched is used TILE times: memory and caches have to bring 2 M N K / TILE values.
//
// At the edges a thread fetches 0 instead, in A and in B alike. A zero in only one of them would not do: 0 x inf is
// NaN.
//
// Shared memory still brings two values for each multiply-add, and a load from it takes as much of the processor's
// time to issue as the multiply-add itself, or more. The next file lets a thread do 64 multiply-adds with 16 values.

#ifndef TILE
#define TILE 32
#endif

static_assert(TILE * TILE <= 1024, "a block has at most 1024 threads");

extern "C" __global__ __launch_bounds__(TILE * TILE)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    __shared__ float A_tile[TILE][TILE];
    __shared__ float B_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;

    float total = 0;
    for (int start = 0; start < K; start += TILE) {
        bool A_inside = row < M && start + x < K, B_inside = start + y < K && column < N;
        A_tile[y][x] = A_inside ? A[(size_t)row * K + start + x] : 0;
        B_tile[y][x] = B_inside ? B[(size_t)(start + y) * N + column] : 0;
        __syncthreads();  // the tiles are complete
        for (int k = 0; k < TILE; ++k) total += A_tile[y][k] * B_tile[k][x];
        __syncthreads();  // nobody needs them any more
    }
    if (row < M && column < N) C[(size_t)row * N + column] = total;
}

// out = in^T, out (columns, rows) and in (rows, columns) both stored by rows: no arithmetic, only memory.
//
// `direct` reads along rows and so has to write down columns: a warp's 32 stores go to 32 different sectors. `tiled`
// takes a tile of TILE x TILE through shared memory: it reads rows of it, and writes columns of it as rows. Within
// shared memory it has to walk down a column, which would lie in one single bank if rows were 32 values long: one
// read at a time. PAD makes them 33 long, and a column falls into 32 banks.

#ifndef PAD
#define PAD 1
#endif

constexpr int TILE = 32, ROWS = 8;  // a block has 32 x 8 threads, and each of them takes four values

static_assert(TILE % ROWS == 0, "all threads take as many elements");

extern "C" __global__ void direct(const float* in, float* out, int rows, int columns)
{
    int column = blockIdx.x * TILE + threadIdx.x;
    for (int row = blockIdx.y * TILE + threadIdx.y; row < min(rows, (int)(blockIdx.y + 1) * TILE); row += ROWS)
        if (column < columns) out[(size_t)column * rows + row] = in[(size_t)row * columns + column];
}

extern "C" __global__ void tiled(const float* in, float* out, int rows, int columns)
{
    __shared__ float tile[TILE][TILE + PAD];
    int x = threadIdx.x, first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    #pragma unroll
    for (int y = threadIdx.y; y < TILE; y += ROWS)
        if (first_row + y < rows && first_column + x < columns)
            tile[y][x] = in[(size_t)(first_row + y) * columns + first_column + x];
    __syncthreads();
    #pragma unroll
    for (int y = threadIdx.y; y < TILE; y += ROWS)
        if (first_column + y < columns && first_row + x < rows)
            out[(size_t)(first_column + y) * rows + first_row + x] = tile[x][y];
}

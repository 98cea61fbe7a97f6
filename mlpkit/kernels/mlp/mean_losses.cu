// The mean loss of each batch, from those of its examples. A warp adds up a batch, in float64, and in the same way
// whether it is short or not.
//
// Of the epochs of several networks, one after another, `steps` batches each, the last batch has fewer rows.

#ifndef REAL
#define REAL float
#endif

extern "C" __global__ void mean_losses(const REAL* row_losses, REAL* losses, int batches, int steps, int batch_size,
                                       int rows_of_last)
{
    const int batch = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (batch >= batches) return;
    const int rows = batch % steps == steps - 1 ? rows_of_last : batch_size;
    double sum = 0;
    for (int row = lane; row < rows; row += 32) sum += row_losses[(long long)batch * batch_size + row];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) losses[batch] = sum / rows;
}

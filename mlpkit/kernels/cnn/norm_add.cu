// Two gradients that meet where a residual begins, and nothing else is done: their sum, in place.

#include "norm.cuh"

// pieces: of 16 bytes, 4 values or 8. A thread has one.
extern "C" __global__ __launch_bounds__(256)
void add(Piece* to, const Piece* other, long long pieces)
{
    begin_in_turn();
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pieces) return;
    if constexpr (MODE == 0) {
        float x[8], y[8];
        unpack(get(to + i), x), unpack(get(other + i), y);
        #pragma unroll
        for (int c = 0; c < 8; ++c) x[c] += y[c];
        Piece parts[PARTS];
        pieces_of(x, 1, parts);
        put(to + i, parts[0]);
    } else {
        float4 x = *reinterpret_cast<const float4*>(to + i), y = *reinterpret_cast<const float4*>(other + i);
        *reinterpret_cast<float4*>(to + i) = {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
    }
}

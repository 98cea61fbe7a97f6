// The three kernels of an implicit product, whoever multiplies: on CUDA cores or on tensor cores.
//
// Before it stand `Element`, the type of the operands; the tile's sizes; and `multiply_windows` and `multiply_pixels`.

#include "implicit.cuh"

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void forward(Geometry g, const Element* x, const Element* filters, Element* y)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    multiply_windows(forward_product(g), g.images, x, filters, y, shared_bytes);
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void input_gradient(const __grid_constant__ Geometry g, const Element* dy, const Element* filters, Element* dx)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Product phase = gradient_product(g, TILE_M, (g.channels + TILE_N - 1) / TILE_N);
    multiply_windows(phase, g.images, dy, filters, dx, shared_bytes);
}

// slice: pixels of each slice. sums: (slices, k k c, o).
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void weight_gradient(Geometry g, const Element* x, const Element* dy, float* sums, int slice)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    multiply_pixels(g, x, dy, sums, slice, shared_bytes);
}

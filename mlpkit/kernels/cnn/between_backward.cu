// The way back through ReLU and pool: the gradient of the next block's input becomes the operand of two products.
//
// Each window's gradient goes to the pixel that was the largest, and the others get zeros: three quarters of what is
// written are zeros, but products of tensor cores want them. On the way the gradients of each channel are added up for
// the bias. A block has a group of channels and a slice of the images, and leaves its sums: the slices are added up by
// the last kernel of the weight gradient.

#include "between.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32, AT_ONCE = 2;  // AT_ONCE: pixels of a thread

// The window that pixel number `at` is in.
inline int window_of(int at) { return at / WIDE_Z / POOL * ACROSS + at % WIDE_Z / POOL; }

// dy of windows becomes dz of pixels. partial: (slices, 8 groups) for the sums, or null. scale: where fp16 is made.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void backward(const void* dy, const Kept* kept, void* dz, float* partial, Scale* scale, Sizes s,
              int slices, const Word* largest)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word* words = reinterpret_cast<Word*>(shared_bytes);
    float* sums_of_warps = reinterpret_cast<float*>(words + 4);
    begin_in_turn();
    with_scale(scale, words, [&](float factor, bool first) {
        float most = 0;
        for (int item = blockIdx.x; item < s.groups * slices; item += gridDim.x) {
            int group = item / slices, slice = item % slices;
            int image = (int)((long long)s.images * slice / slices);
            int images = (int)((long long)s.images * (slice + 1) / slices) - image;
            float sums[8] = {};
            #pragma unroll 1
            for (int from = threadIdx.x; from < images * AREA; from += AT_ONCE * THREADS) {
                float d[AT_ONCE][8];
                Kept places[AT_ONCE];
                #pragma unroll
                for (int u = 0; u < AT_ONCE; ++u) {  // all loads are under way before the first store
                    int i = from + u * THREADS, number = image + i / AREA;
                    if (i >= images * AREA) break;
                    load(dy, s, number, group, WINDOWS, window_of(i % AREA), d[u]);
                    if constexpr (KEEPS)
                        places[u] = kept[((size_t)number * s.groups + group) * WINDOWS + window_of(i % AREA)];
                }
                #pragma unroll
                for (int u = 0; u < AT_ONCE; ++u) {
                    int i = from + u * THREADS, at = i % AREA, y = at / WIDE_Z, x = at % WIDE_Z;
                    Word place = y % POOL * POOL + x % POOL;
                    if (i >= images * AREA) break;
                    #pragma unroll
                    for (int j = 0; j < 8 && KEEPS; ++j)
                        if (((Word)(places[u] >> BITS * j) & CUT) != place) d[u][j] = 0;
                    store(dz, s, image + i / AREA, group, AREA, at, d[u], factor);
                    most = fmaxf(most, largest_of(d[u]));
                    #pragma unroll
                    for (int j = 0; j < 8; ++j) sums[j] += d[u][j];
                }
            }
            if (!partial || !first) continue;
            float sum = sum_of_warp(sums);
            __syncthreads();  // the sums of the item before are read
            if (threadIdx.x % 4 == 0) sums_of_warps[threadIdx.x / 4] = sum;
            __syncthreads();
            if (threadIdx.x < 8) {
                float total = 0;
                for (int warp = 0; warp < WARPS; ++warp) total += sums_of_warps[warp * 8 + threadIdx.x];
                partial[(slice * s.groups + group) * 8 + threadIdx.x] = total;
            }
        }
        return most;
    }, largest);
}

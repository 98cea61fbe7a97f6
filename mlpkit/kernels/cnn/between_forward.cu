// From a convolution's sums to what the next layer reads: bias, pool and ReLU, and fp16, in one trip through memory.
//
// Pool and ReLU may come in either order: the largest of the values above 0 is the largest value, if that is above 0.
// With POOL 1 and no ReLU it is a change of layout.

#include "between.cuh"

constexpr int THREADS = 256;

// bias: (channels,) or null. kept: (images, groups, windows), null where nothing is. scale: where fp16 is made.
// added, of_added: with ADD an operand, and the scale of its fp16.
extern "C" __global__ __launch_bounds__(THREADS, 3)
void forward(const void* from, const float* bias, void* to, Kept* kept, Scale* scale, const void* added,
             const Scale* of_added, Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    begin_in_turn();
    const float unscale = ADD && SCALED ? 1 / of_added->of : 1;
    with_scale(scale, reinterpret_cast<Word*>(shared_bytes), [&](float factor, bool first) {
        float most = 0;
        for (int i = blockIdx.x * THREADS + threadIdx.x; i < s.images * s.groups * WINDOWS; i += gridDim.x * THREADS) {
            int at = i % WINDOWS, group = i / WINDOWS % s.groups, image = i / WINDOWS / s.groups;
            int corner = at / ACROSS * POOL * WIDE_Z + at % ACROSS * POOL;
            float add[8];
            #pragma unroll
            for (int j = 0; j < 8; ++j) add[j] = bias && group * 8 + j < s.channels ? bias[group * 8 + j] : 0;
            Window window;
            #pragma unroll (POOL <= 2 ? POOL * POOL : 1)
            for (int place = 0; place < PLACES; ++place) {
                float x[8];
                const int pixel = corner + place / POOL * WIDE_Z + place % POOL;
                load(from, s, image, group, AREA, pixel, x);
                #pragma unroll
                for (int j = 0; j < 8; ++j) x[j] += add[j];
                if constexpr (ADD) add_operand(added, unscale, s, image, group, AREA, pixel, x);
                window.look(place, x);
            }
            if constexpr (RELU) window.cut();
            if (KEEPS && first && kept) kept[i] = window.kept();
            store(to, s, image, group, WINDOWS, at, window.best, factor);
            most = fmaxf(most, largest_of(window.best));
        }
        return most;
    });
}

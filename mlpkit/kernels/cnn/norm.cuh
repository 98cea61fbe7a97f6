// What the kernels of batch normalization share: who has which part of the images, and sums over all of them.
//
// Eight channels of an image are a unit: they lie in one piece of memory. A block has such a group of channels of some
// images. It brings these units to shared memory and looks at them twice: once for the sums, if nobody has made them,
// and again, when it has heard of the other blocks' sums. So an array is read from memory once. Units for which there is
// no room are read twice, and so are all but the first group of a block, where there are more groups than blocks.
//
// Where one channel is read (STEM), what is normalized is not in memory at all: nine multiplications are less work than
// four bytes are. It is made again wherever it is needed, from the image.
//
// All of this takes some microseconds, and most instructions run once or a few times: to bring them takes as long as to
// run them. So loops over pixels are not unrolled, but those over the few of a window.
//
// Sums go from threads to warps, blocks and groups in an order that is always the same. So they have the same bits each
// time.

#include "fp16.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 512
#endif
#ifndef POOL
#define POOL 1  // the side of the windows of which the largest value goes on; they lie side by side
#endif
#ifndef RELU
#define RELU 1
#endif
#ifndef ADD
#define ADD 0  // whether another array is added before the ReLU, as at the end of a residual
#endif

#ifndef STEM
#define STEM 0  // whether what is normalized is made here, by a convolution of images of one channel
#define KERNEL 3
#define PADDING 1
#endif

constexpr int WARPS = BLOCK_THREADS / 32, STORED = MODE == 0 ? 1 : 2;  // pieces that 8 channels of a pixel take
constexpr int BARRIERS = 16;
constexpr int NONE = 15;                                         // of a window: nobody's value went on

// n / divisor, from 2^32 / divisor, rounded up: for n times divisor below 2^32. A division takes as long as 30 sums.
inline int divided(int n, int divisor, Word by_divisor) { return divisor == 1 ? n : __umulhi(n, by_divisor); }

struct Sizes {
    int images, groups, channels, height, width;     // groups of 8 channels, and channels that are no padding
    int resident;                                    // units of a block for which there is room in shared memory
    int ctas, together;                              // blocks that share a group, and groups that are had at a time
    int each, more;                                  // images of a block; so many CTAs have one more
    Word by_width, by_across, by_area, by_windows, by_ctas;  // see `divided`; across, windows: those of an image
    float count, part, root;                         // values of a channel, 1 / count, sqrt(count)

    __device__ int area() const { return height * width; }
    __device__ int across() const { return width / POOL; }
    __device__ int area_out() const { return (height / POOL) * (width / POOL); }
    __device__ size_t units() const { return (size_t)images * groups; }
    __device__ int first_image(int cta) const { return cta * each + min(cta, more); }
};

// What a block has of a group: images from begin to end, of which those before `resident` are in shared memory.
struct Share {
    int group, cta, begin, end, resident, groups;

    __device__ Share(const Sizes& s) : groups(s.groups)
    {
        group = divided(blockIdx.x, s.ctas, s.by_ctas), cta = blockIdx.x - group * s.ctas;
        begin = s.first_image(cta), end = s.first_image(cta + 1), resident = min(begin + s.resident, end);
    }
    // Go on to the block's next group.
    __device__ void next(const Sizes& s) { group += s.together, resident = begin; }
    // The number of a unit among those of memory, where an image's groups follow each other.
    __device__ size_t place(int image) const { return (size_t)image * groups + group; }
    __device__ int message(const Sizes& s) const { return (group * s.ctas + cta) * 8; }
};

// This thread's pixels of a share, `size` of each image: it goes from one to the next without a division.
struct Walk {
    int image, i, images, rest, size;

    __device__ Walk(const Share& share, int size, Word by_size) : size(size)
    {
        int before = divided(threadIdx.x, size, by_size);
        image = share.begin + before, i = threadIdx.x - before * size;
        images = divided(BLOCK_THREADS, size, by_size), rest = BLOCK_THREADS - images * size;
    }
    __device__ void next()
    {
        image += images, i += rest;
        if (i >= size) i -= size, ++image;
    }
};

inline Piece get(const Piece* from)
{
    int4 four = *reinterpret_cast<const int4*>(from);
    return {{Word(four.x), Word(four.y), Word(four.z), Word(four.w)}};
}

inline void unpack(const Piece& piece, float (&x)[8])  // bfloat16
{
    #pragma unroll
    for (int j = 0; j < 4; ++j)
        x[2 * j] = __uint_as_float(piece.words[j] << 16), x[2 * j + 1] = __uint_as_float(piece.words[j] & 0xFFFF0000);
}

// The 8 channels of pixel i of a unit: blocked, of `area` pixels.
inline void read(const Piece* unit, int area, int i, float (&x)[8])
{
    if constexpr (MODE == 0) {
        unpack(get(unit + i), x);
    } else {
        float4 low = *reinterpret_cast<const float4*>(unit + i);
        float4 high = *reinterpret_cast<const float4*>(unit + area + i);
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    }
}

inline void write(Piece* unit, int area, int i, const float (&x)[8])
{
    if constexpr (MODE == 0) {
        Piece parts[PARTS];
        pieces_of(x, 1, parts);
        put(unit + i, parts[0]);
    } else {
        *reinterpret_cast<float4*>(unit + i) = {x[0], x[1], x[2], x[3]};
        *reinterpret_cast<float4*>(unit + area + i) = {x[4], x[5], x[6], x[7]};
    }
}

// An operand of products: piece i of a unit, and its low fp16 part `parts` further on; times `unscale`.
inline void read_operand(const Piece* unit, size_t parts, int i, float unscale, float (&x)[8])
{
    if constexpr (MODE == 0) {
        unpack(get(unit + i), x);
    } else {
        Piece high = get(unit + i), low = PARTS == 2 ? get(unit + parts + i) : Piece{};
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            float2 one = cvt_f32_f16x2(high.words[j]), two = PARTS == 2 ? cvt_f32_f16x2(low.words[j]) : float2{0, 0};
            x[2 * j] = (one.x + two.x) * unscale, x[2 * j + 1] = (one.y + two.y) * unscale;
        }
    }
}

// The same, written: pixel i of unit number `place` of an operand of so many units.
inline void write_operand(Piece* to, size_t units, size_t place, int area, int i, const float (&x)[8], float scale)
{
    Piece parts[PARTS];
    pieces_of(x, scale, parts);
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) put(to + (part * units + place) * area + i, parts[part]);
}

// ---- Shared memory: units that the copy engine brings, and who waits for which ----

inline int barrier_of(int resident) { return min(resident, BARRIERS - 1); }  // of the block's unit number `resident`

// Waits for the units of a block, one after the other.
struct Arrivals {
    Word64* barriers;
    int seen;

    __device__ void wait_for(const Share& share, int image)
    {
        int number = barrier_of(image - share.begin);
        if (!HOPPER || image >= share.resident || number == seen) return;
        for (Word turns = 0; !mbarrier_try_wait(&barriers[number], 0);) give_up_after_a_while(turns);
        seen = number;
    }
};

// An array that lies in units, `pieces` long, in `parts` parts: where in shared memory the block's first units are.
struct Units {
    const Piece* far;
    Piece* near;
    size_t step;  // from part to part, in memory
    int pieces, parts;

    __device__ const Piece* at(const Share& share, int image) const
    {
        return near && image < share.resident ? near + (image - share.begin) * pieces * parts
                                          : far + share.place(image) * pieces;
    }
    __device__ size_t part(const Share& share, int image) const { return near && image < share.resident ? pieces : step; }
    __device__ Word bytes() const { return near ? pieces * parts * sizeof(Piece) : 0; }
#if !HOPPER
    // By all threads, for all of the block's first units.
    __device__ void ask(const Share& share) const
    {
        int all = near ? (share.resident - share.begin) * parts * pieces : 0;
        #pragma unroll 4
        for (int n = threadIdx.x; n < all; n += BLOCK_THREADS) {
            int unit = n / (parts * pieces), rest = n - unit * parts * pieces, part = rest / pieces;
            cp_async<16>(near + n, far + part * step + share.place(share.begin + unit) * pieces + rest - part * pieces);
        }
    }
#endif
    __device__ void ask(const Share& share, int number, Word64* barrier) const
    {
        size_t place = share.place(share.begin + number);
        for (int i = 0; near && i < parts; ++i)
            cp_async_bulk(near + (number * parts + i) * pieces, far + i * step + place * pieces, pieces * sizeof(Piece),
                          barrier);
    }
};

constexpr int TAPS = STEM ? KERNEL * KERNEL : 1, HALO = STEM ? KERNEL - 1 : 0;  // pixels that an image is larger by

// What is normalized. Blocked, or images (n, h, w) and filters (o, KERNEL, KERNEL); then `near` are such images with
// their padding, and `set` must be called for a group.
struct Elements {
    Units units;
    const float* filters;
    float w[TAPS][8];

    __device__ static int piece_count(const Sizes& s)  // pieces that a unit takes
    {
        return STEM ? ((s.height + HALO) * (s.width + HALO) + 3) / 4 : s.area() * STORED;
    }

    __device__ void set(const Sizes& s, int group)
    {
        if constexpr (STEM) {
            #pragma unroll
            for (int c = 0; c < 8; ++c)
                #pragma unroll
                for (int tap = 0; tap < TAPS; ++tap)
                    w[tap][c] = group * 8 + c < s.channels ? filters[(group * 8 + c) * TAPS + tap] : 0;
        }
    }

    // The pixels that a window sees.
    __device__ void window(const Sizes& s, const Share& share, int image, int i, float (&seen)[TAPS]) const
    {
        int y = divided(i, s.width, s.by_width), x = i - y * s.width, wide = s.width + HALO;
        const float* near = reinterpret_cast<const float*>(units.near);
        const float* first = near + (image - share.begin) * units.pieces * 4 + y * wide + x;
        if (image < share.resident) {
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) seen[tap] = first[tap / KERNEL * wide + tap % KERNEL];
        } else {
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                seen[tap] = pixel(s, image, y + tap / KERNEL, x + tap % KERNEL);
        }
    }

    // Where pixel (y, x) of an image with its padding is in memory; inside: whether it is, and no padding.
    __device__ const float* place(const Sizes& s, int number, int y, int x, bool& inside) const
    {
        int height = s.height + HALO - 2 * PADDING, width = s.width + HALO - 2 * PADDING;
        y -= PADDING, x -= PADDING;
        inside = y >= 0 && y < height && x >= 0 && x < width;
        const float* images = reinterpret_cast<const float*>(units.far);
        return inside ? images + ((size_t)number * height + y) * width + x : images;
    }
    __device__ float pixel(const Sizes& s, int number, int y, int x) const
    {
        bool inside;
        const float* at = place(s, number, y, x, inside);
        return inside ? *at : 0;
    }

    // About what a pixel is, as the means of the channels tell.
    __device__ float middle(const float (&mean)[8]) const
    {
        float above = 0, below = 0;
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            float of_channel = summed_weights(c);
            above = fmaf(of_channel, mean[c], above), below = fmaf(of_channel, of_channel, below);
        }
        return below > 0 ? __fdividef(above, below) : 0;
    }

    __device__ float summed_weights(int c) const
    {
        float sum = 0;
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) sum += w[tap][c];
        return sum;
    }

    __device__ void multiply(const float (&seen)[TAPS], float (&x)[8]) const
    {
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            x[c] = 0;
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) x[c] = fmaf(seen[tap], w[tap][c], x[c]);
        }
    }

    __device__ void at(const Sizes& s, const Share& share, int image, int i, float (&x)[8]) const
    {
        if constexpr (STEM) {
            float seen[TAPS];
            window(s, share, image, i, seen);
            multiply(seen, x);
        } else {
            read(units.at(share, image), s.area(), i, x);
        }
    }

    // Ask for images with their padding to come to shared memory. By all threads: they are there when all have waited
    // for what they have asked for. Nobody waits before all is under way.
    __device__ void fetch(const Sizes& s, const Share& share) const
    {
        int wide = s.width + HALO, size = (s.height + HALO) * wide;
        float* near = reinterpret_cast<float*>(units.near);
        #pragma unroll 1
        for (int i = threadIdx.x; i < size; i += BLOCK_THREADS) {
            int y = i / wide, x = i - y * wide;
            #pragma unroll 1
            for (int image = share.begin; image < share.resident; ++image) {
                bool inside;
                const float* from = place(s, image, y, x, inside);
                cp_async<4>(near + (image - share.begin) * units.pieces * 4 + i, from, inside);
            }
        }
    }
};

// Ask for the block's first units of two arrays. It is this kernel's turn here, `begin_in_turn`: the first array must
// have been there when the kernel ahead began, and is asked for before. By all threads, who then meet: before Hopper all
// is there when they have.
inline void ask_for(const Share& share, const Units& there, const Units& late, Word64* barriers)
{
#if HOPPER
    int resident = threadIdx.x < 32 ? share.resident - share.begin : 0, lane = threadIdx.x % 32;
    if (threadIdx.x < BARRIERS) mbarrier_init<1>(&barriers[lane]);
    fence_proxy_async();
    __syncwarp();
    if (lane < min(resident, BARRIERS))
        mbarrier_arrive_expect_tx(&barriers[lane],
                                  (lane == BARRIERS - 1 ? resident - lane : 1) * (there.bytes() + late.bytes()));
    __syncwarp();
    #pragma unroll 1
    for (int i = lane; i < resident; i += 32) there.ask(share, i, &barriers[barrier_of(i)]);
    begin_in_turn();
    #pragma unroll 1
    for (int i = lane; i < resident; i += 32) late.ask(share, i, &barriers[barrier_of(i)]);
#else
    begin_in_turn();
    there.ask(share);
    late.ask(share);
    cp_async_wait_all();
#endif
}

// ---- What blocks tell each other ----

// A flagged message arrives whole: values, and the launch that they belong to. So who finds the launch's number has the
// values, and nobody needs a barrier. All of it lasts from launch to launch.
struct Told {
    Word launches, padding[15];

    // Of two sums: 8 channels of each CTA of each group. Of a convolution's weights: the same for each tap. Of the
    // largest values: one of each block.
    __device__ float4* sums() { return reinterpret_cast<float4*>(this + 1); }
    __device__ float4* weights(const Sizes& s, int tap) { return sums() + (1 + tap) * s.groups * s.ctas * 8; }
    __device__ Word64* largest(const Sizes& s) { return reinterpret_cast<Word64*>(weights(s, STEM ? TAPS : 0)); }
};

// ---- Sums ----

// Of a channel: forward, the mean and m2, the sum of squared differences from it; back, the sums of d and d (x - mean).
struct Sums {
    float first, second;
};

inline Sums operator+(const Sums& a, const Sums& b) { return {a.first + b.first, a.second + b.second}; }
inline Sums of_lane(const Sums& mine, int distance)
{
    return {__shfl_xor_sync(~0u, mine.first, distance), __shfl_xor_sync(~0u, mine.second, distance)};
}
// By value: of two arrays' places the compiler would choose an address, and keep the arrays in memory.
inline float chosen(bool first, float a, float b) { return first ? a : b; }
inline Sums chosen(bool first, Sums a, Sums b)
{
    return {chosen(first, a.first, b.first), chosen(first, a.second, b.second)};
}
inline float of_lane(float mine, int distance) { return __shfl_xor_sync(~0u, mine, distance); }
// What LANES neighbours have, for all of them.
template <int LANES, typename T>
inline T summed(T mine)
{
    #pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) mine = mine + of_lane(mine, distance);
    return mine;
}

// What a warp's lanes have for each of 8 channels. Lanes swap halves of what they have: lane 4 c ends with channel c.
template <typename T>
inline T summed_by_channel(const T (&all)[8])
{
    int lane = threadIdx.x % 32;
    bool upper = lane & 16, right = lane & 8, last = lane & 4;
    T four[4], two[2];
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        four[i] = chosen(upper, all[i + 4], all[i]) + of_lane(chosen(upper, all[i], all[i + 4]), 16);
    #pragma unroll
    for (int i = 0; i < 2; ++i)
        two[i] = chosen(right, four[i + 2], four[i]) + of_lane(chosen(right, four[i], four[i + 2]), 8);
    return summed<4>(chosen(last, two[1], two[0]) + of_lane(chosen(last, two[0], two[1]), 4));
}

// Two sums, and maybe a third value.
inline void tell(float4* to, const Sums& found, Word launch, float more = 0)
{
    st_relaxed_gpu(to, __float_as_uint(found.first) | (Word64)__float_as_uint(found.second) << 32,
                   launch | (Word64)__float_as_uint(more) << 32);
}
inline void tell(Word64* to, float number, Word launch)
{
    st_relaxed_gpu(to, __float_as_uint(number) | (Word64)launch << 32);
}
inline bool heard(const float4& message, Word launch) { return __float_as_uint(message.z) == launch; }
inline bool heard(Word64 message, Word launch) { return message >> 32 == launch; }
inline float content(Word64 message) { return __uint_as_float((Word)message); }

// What a group's CTAs tell of a channel, in messages [group][CTA][8 channels], or in several such arrays: a lane hears
// each 32nd, at most MOST_HEARD of them; zeros for those that there are not.
constexpr int MOST_HEARD = 3;

template <int MANY>
inline void hear(const Sizes& s, const float4* const (&messages)[MANY], int group, int channel, Word launch,
                 float4 (&found)[MANY][MOST_HEARD])
{
    int lane = threadIdx.x % 32, first = (group * s.ctas + lane) * 8 + channel;
    #pragma unroll
    for (int n = 0; n < MANY * MOST_HEARD; ++n) found[n / MOST_HEARD][n % MOST_HEARD] = {};
    bool all = false;
    #pragma unroll 1
    for (Word turns = 0; !all;) {
        all = true;
        #pragma unroll
        for (int n = 0; n < MANY * MOST_HEARD; ++n) {
            int i = n % MOST_HEARD;
            bool asked = lane + 32 * i < s.ctas;
            const float4* from = messages[n / MOST_HEARD] + first;
            ld_relaxed_gpu(found[n / MOST_HEARD][i], asked ? from + 32 * 8 * i : from, asked);
        }
        #pragma unroll
        for (int n = 0; n < MANY * MOST_HEARD; ++n)
            all = all && (lane + n % MOST_HEARD * 32 >= s.ctas || heard(found[n / MOST_HEARD][n % MOST_HEARD], launch));
        if (!all) give_up_after_a_while(turns);
    }
    __syncwarp();
}

// The sums of what was heard: for all lanes. By a warp.
inline Sums summed_messages(const float4 (&got)[MOST_HEARD])
{
    Sums sum = {};
    #pragma unroll
    for (int i = 0; i < MOST_HEARD; ++i) sum = sum + Sums{got[i].x, got[i].y};
    return summed<32>(sum);
}

// When all blocks have told, and so know the launch's number, it counts. By the first block.
inline void count_launch(Told* told, Word launch)
{
    #pragma unroll 1
    for (int block = threadIdx.x; block < gridDim.x; block += BLOCK_THREADS) {
        float4 got = {};
        for (Word turns = 0;; give_up_after_a_while(turns)) {
            ld_relaxed_gpu(got, told->sums() + block * 8);
            if (heard(got, launch)) break;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) told->launches = launch;
}

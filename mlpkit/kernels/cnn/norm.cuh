// What the kernels of batch normalization share: who has which part of the images, and sums over all of them.
//
// Eight channels of an image are a unit: they lie in one piece of memory. Units are numbered channels first, then
// images, and a block has some that follow each other: so it meets few groups of channels, and the sums of a group are
// in few blocks. It brings its units to shared memory and looks at them twice: once for the sums, and again, when all
// blocks have met and the sums are known. So an array is read from memory once. Units for which there is no room are
// read twice.
//
// Where one channel is read (STEM), what is normalized is not in memory at all: nine multiplications are less work than
// four bytes are. It is made again wherever it is needed, from the image.
//
// Sums go from threads to warps, blocks and groups in an order that is always the same. So they have the same bits each
// time.

#include "halves.cuh"

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 512
#endif
#ifndef POOL
#define POOL 1  // the side of the windows of which the largest number goes on; they lie side by side
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
constexpr int BARRIERS = 16, AT_ONCE = WARPS / 8;                // groups that all warps have a channel of
constexpr int NONE = 15;                                         // of a window: nobody's number went on

struct Sizes {
    int images, groups, channels, height, width;  // groups of 8 channels, and channels that are no padding
    int held;                                      // units of a block for which there is room in shared memory

    __device__ int area() const { return height * width; }
    __device__ int area_out() const { return (height / POOL) * (width / POOL); }
    __device__ int first_unit(int block) const { return (long long)block * images * groups / gridDim.x; }
    __device__ int block_of(int unit) const
    {
        return (((long long)unit + 1) * gridDim.x - 1) / ((long long)images * groups);
    }
    __device__ int first_block(int group) const { return block_of(group * images); }
    __device__ int last_block(int group) const { return block_of((group + 1) * images - 1); }
    // The number of a unit among those of memory, where an image's groups follow each other.
    __device__ size_t place(int unit) const { return (size_t)(unit % images) * groups + unit / images; }
};

// The units of a group that a block has.
struct Share {
    int group, begin, end;

    __device__ Share(const Sizes& s, int block, int group) : group(group)
    {
        begin = max(s.first_unit(block), group * s.images);
        end = min(s.first_unit(block + 1), (group + 1) * s.images);
    }
};

inline const int4& as_int4(const Piece& piece) { return reinterpret_cast<const int4&>(piece); }

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

// The 8 channels of pixel i of a unit: planes of `area` pixels.
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

// An operand of products: piece i of a unit, and its second half `parts` further on; times `unscale`.
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

// ---- Shared memory: units that the copy engine brings, and who waits for which ----

inline void wait(Word64* barrier)
{
    for (Word turns = 0; !mbarrier_try_wait(barrier, 0);) give_up_after_a_while(turns);
}

inline int barrier_of(int held) { return min(held, BARRIERS - 1); }  // of the block's unit number `held`

// An array that lies in units, `pieces` long, in `parts` parts: where in shared memory the block's first units are.
struct Units {
    const Piece* far;
    Piece* near;
    size_t step;  // from part to part, in memory
    int pieces, parts;

    __device__ const Piece* at(const Sizes& s, int unit, int first) const
    {
        int number = unit - first;
        return number < s.held && near ? near + number * pieces * parts : far + s.place(unit) * pieces;
    }
    __device__ size_t part(const Sizes& s, int unit, int first) const
    {
        return unit - first < s.held && near ? pieces : step;
    }
    __device__ Word bytes() const { return near ? pieces * parts * sizeof(Piece) : 0; }
    __device__ void ask(const Sizes& s, int unit, int first, Word64* barrier) const
    {
        for (int i = 0; near && i < parts; ++i)
            cp_async_bulk(near + ((unit - first) * parts + i) * pieces, far + i * step + s.place(unit) * pieces,
                          pieces * sizeof(Piece), barrier);
    }
};

constexpr int TAPS = STEM ? KERNEL * KERNEL : 1, HALO = STEM ? KERNEL - 1 : 0;  // pixels that an image is larger by

// What is normalized. Planes, or images (n, h, w) and filters (o, KERNEL, KERNEL); then `near` are such images with
// their padding, and `set` must be called for a group.
struct Numbers {
    Units units;
    const float* filters;
    float w[TAPS][8];

    __device__ static int room(const Sizes& s)  // pieces that a unit takes
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
    __device__ void window(const Sizes& s, int unit, int first, int i, float (&seen)[TAPS]) const
    {
        int y = i / s.width, x = i - y * s.width, wide = s.width + HALO;
        const float* images = reinterpret_cast<const float*>(units.near);
        const float* image = images + (unit - first) * units.pieces * 4 + y * wide + x;
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            seen[tap] = unit - first < s.held ? image[tap / KERNEL * wide + tap % KERNEL]
                                              : pixel(s, unit, y + tap / KERNEL, x + tap % KERNEL);
    }

    // Of the image with its padding, from memory.
    __device__ float pixel(const Sizes& s, int unit, int y, int x) const
    {
        int height = s.height + HALO - 2 * PADDING, width = s.width + HALO - 2 * PADDING;
        y -= PADDING, x -= PADDING;
        bool inside = y >= 0 && y < height && x >= 0 && x < width;
        const float* image = reinterpret_cast<const float*>(units.far) + (size_t)(unit % s.images) * height * width;
        return inside ? image[y * width + x] : 0;
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

    __device__ void at(const Sizes& s, int unit, int first, int i, float (&x)[8]) const
    {
        if constexpr (STEM) {
            float seen[TAPS];
            window(s, unit, first, i, seen);
            multiply(seen, x);
        } else {
            read(units.at(s, unit, first), s.area(), i, x);
        }
    }

    // Bring images with their padding to shared memory. By all threads.
    __device__ void fetch(const Sizes& s, int first, int last) const
    {
        int wide = s.width + HALO, size = (s.height + HALO) * wide;
        float* to = reinterpret_cast<float*>(units.near);
        for (int j = threadIdx.x; j < min(s.held, last - first) * size; j += BLOCK_THREADS) {
            int number = j / size, i = j % size;
            to[number * units.pieces * 4 + i] = pixel(s, first + number, i / wide, i % wide);
        }
    }
};

// Ask for the block's units of what is normalized, if it is planes, and of another array. By one thread.
inline void ask_for(const Sizes& s, int first, int last, const Units& a, const Units& b, Word64* barriers)
{
    int held = min(s.held, last - first);
    Word each = (STEM ? 0 : a.bytes()) + b.bytes();
    for (int i = 0; i < min(held, BARRIERS); ++i)
        mbarrier_arrive_expect_tx(&barriers[i], (i == BARRIERS - 1 ? held - i : 1) * each);
    for (int i = 0; i < held; ++i) {
        if (!STEM) a.ask(s, first + i, first, &barriers[barrier_of(i)]);
        b.ask(s, first + i, first, &barriers[barrier_of(i)]);
    }
}

inline void wait_for(const Sizes& s, int unit, int first, Word64* barriers)
{
    if (unit - first < s.held) wait(&barriers[barrier_of(unit - first)]);
}

// ---- Sums ----

// Mean, and the sum of squared differences from it, of so many numbers.
struct Moments {
    float count, mean, squares;
};

// Chan, Golub and LeVeque (1979): nothing large is subtracted from anything large.
inline Moments join(const Moments& a, const Moments& b)
{
    float all = a.count + b.count, share = all > 0 ? __fdividef(b.count, all) : 0, away = b.mean - a.mean;
    return {all, fmaf(away, share, a.mean), a.squares + b.squares + away * away * share * a.count};
}

inline Moments of_lane(const Moments& mine, int distance)
{
    return {__shfl_xor_sync(~0u, mine.count, distance), __shfl_xor_sync(~0u, mine.mean, distance),
            __shfl_xor_sync(~0u, mine.squares, distance)};
}

struct Pair {
    float one, two;
};

inline Pair join(const Pair& a, const Pair& b) { return {a.one + b.one, a.two + b.two}; }
inline Pair of_lane(const Pair& mine, int distance)
{
    return {__shfl_xor_sync(~0u, mine.one, distance), __shfl_xor_sync(~0u, mine.two, distance)};
}

// What LANES neighbours have: for the first of them.
template <int LANES, typename T>
inline T joined(T mine)
{
    #pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) mine = join(mine, of_lane(mine, distance));
    return mine;
}

// What a warp's lanes have for each of 8 channels. Lanes swap halves of what they have: lane 4 c ends with channel c.
template <typename T>
inline T joined_by_channel(const T (&all)[8])
{
    int lane = threadIdx.x % 32;
    T four[4], two[2];
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        four[i] = join(lane & 16 ? all[i + 4] : all[i], of_lane(lane & 16 ? all[i] : all[i + 4], 16));
    #pragma unroll
    for (int i = 0; i < 2; ++i)
        two[i] = join(lane & 8 ? four[i + 2] : four[i], of_lane(lane & 8 ? four[i] : four[i + 2], 8));
    return joined<4>(join(lane & 4 ? two[1] : two[0], of_lane(lane & 4 ? two[0] : two[1], 4)));
}

// What a block's threads have for each channel of a group goes to its place in memory: [block + group][channel].
// of_warps: shared memory. By all threads.
template <typename T>
inline void leave(const T (&mine)[8], T (*of_warps)[8], T* partial, int group)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T found = joined_by_channel(mine);
    if (lane % 4 == 0) of_warps[warp][lane / 4] = found;
    __syncthreads();
    if (threadIdx.x < 8 * WARPS) {
        T all = joined<WARPS>(of_warps[threadIdx.x % WARPS][threadIdx.x / WARPS]);
        if (threadIdx.x % WARPS == 0) partial[(blockIdx.x + group) * 8 + threadIdx.x / WARPS] = all;
    }
    __syncthreads();
}

inline Moments load(const Moments* from) { return {__ldcg(&from->count), __ldcg(&from->mean), __ldcg(&from->squares)}; }
inline Pair load(const Pair* from) { return {__ldcg(&from->one), __ldcg(&from->two)}; }

// What all blocks have left for a channel of a group: for lane 0. By a warp.
template <typename T>
inline T collected(const Sizes& s, const T* partial, int group, int channel)
{
    T all = {};
    for (int block = s.first_block(group) + threadIdx.x % 32; block <= s.last_block(group);
         block += 32)
        all = join(all, load(partial + (block + group) * 8 + channel));
    return joined<32>(all);
}

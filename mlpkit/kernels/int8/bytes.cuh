// Bytes on the GPU: how sums of 32 bits become bytes again, and where the values of a warp's products lie.
//
// Images lie in NC/16HW16: planes of pieces, the 16 bytes of sixteen channels of a pixel. A row of n values is an image
// of one pixel. A product is of weights, 16 output channels, times pixels, 8 windows: what a lane has of the weights
// comes in 16 bytes, as the host has put them in order. The channels of two such products are dealt out so that a lane
// has four neighbours: 4 (lane / 4) and those behind, of 32.

#include "ptx.cuh"

struct alignas(16) Piece {
    Word words[4];
};

// Ask for COUNT pieces that lie in a row, by THREADS threads.
template <int COUNT, int THREADS>
inline void ask_for(Piece* to, const void* from, int thread)
{
    #pragma unroll
    for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; ++i)
        if (i * THREADS + thread < COUNT)
            cp_async<16>(to + i * THREADS + thread, static_cast<const Piece*>(from) + i * THREADS + thread);
}

// The way back to bytes: `(sum * multiplier + more) >> shift`, not below `low`. more: `bias * multiplier`, half of what
// is shifted out, and the zero point. The bias alone is for sums that become float32.
struct Back {
    const int *bias, *multiplier;  // of each channel, of a number that is a multiple of 128
    const long long* more;
    int shift, low;
};

inline int requantized(const Back& to, int sum, int multiplier, long long more)
{
    return max((int)(((long long)sum * multiplier + more) >> to.shift), to.low);
}

// What leads COUNT channels back, a multiple of 32, resident: their multipliers, and what is added.
template <int COUNT>
struct Factors {
    Piece pieces[COUNT / 4 * 3];

    // Ask for those from channel `first` on.
    template <int THREADS>
    __device__ void ask(const Back& from, int first, int thread)
    {
        ask_for<COUNT / 4, THREADS>(pieces, from.multiplier + first, thread);
        ask_for<COUNT / 2, THREADS>(pieces + COUNT / 4, from.more + first, thread);
    }
};

// Those of four channels, in registers.
struct Four {
    int4 by;
    ulonglong2 one, two;

    template <int COUNT>
    __device__ Four(const Factors<COUNT>& of, int channel)
    {
        by = *reinterpret_cast<const int4*>(of.pieces + channel / 4);
        one = *reinterpret_cast<const ulonglong2*>(of.pieces + COUNT / 4 + channel / 2);
        two = *reinterpret_cast<const ulonglong2*>(of.pieces + COUNT / 4 + channel / 2 + 1);
    }

    // Sums become bytes, the four of a word.
    __device__ Word back_to_bytes(const Back& to, const int (&sums)[4]) const
    {
        return cvt_pack_sat_u8(requantized(to, sums[0], by.x, one.x), requantized(to, sums[1], by.y, one.y),
                               requantized(to, sums[2], by.z, two.x), requantized(to, sums[3], by.w, two.y));
    }
};

// What a pixel becomes: a byte by a table, a float as `Quantization.quantize` does it.
struct Entry {
    const unsigned char* table;
    float scale, zero;  // one over the scale

    __device__ int of(unsigned char pixel) const { return table[pixel]; }
    __device__ int of(float pixel) const { return (int)fminf(fmaxf(rintf(pixel * scale) + zero, 0), 255); }
};

// What a lane has of a row of products: its columns' sums, two of each of four channels, for two tiles of 8 columns.
struct Sums {
    int of[2][2][4];  // [16 channels][tile][c]

    // Add products: a of two times 16 channels, b of both tiles.
    __device__ void add(const Piece (&a)[2], const Word (&b)[4])
    {
        #pragma unroll
        for (int i = 0; i < 4; ++i) mma_m16n8k32_s8u8(of[i / 2][i % 2], a[i / 2].words, b[i % 2 * 2], b[i % 2 * 2 + 1]);
    }

    // Of a column, 0 or 1, of a tile: four channels.
    __device__ void column(int tile, int number, int (&sums)[4]) const
    {
        #pragma unroll
        for (int j = 0; j < 4; ++j) sums[j] = of[j / 2][tile][j % 2 * 2 + number];
    }

    // The largest of all four.
    __device__ void largest(int (&sums)[4]) const
    {
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int k = j % 2 * 2;
            sums[j] = max(max(of[j / 2][0][k], of[j / 2][0][k + 1]), max(of[j / 2][1][k], of[j / 2][1][k + 1]));
        }
    }
};

// The columns of 16 that a lane of ldmatrix names a row of: windows, COUNT of them, IN_A_ROW
// in a row; of a pool's window (SIDE is 2) the four are two columns of both tiles.
template <int SIDE, int IN_A_ROW, int COUNT>
struct Columns {
    int y, x;

    __device__ Columns(int pair, int tile, int column)
    {
        const int window = min(SIDE == 2 ? 4 * pair + column / 2 : 16 * pair + 8 * tile + column, COUNT - 1);
        y = window / IN_A_ROW * SIDE + (SIDE == 2 ? tile : 0);
        x = window % IN_A_ROW * SIDE + (SIDE == 2 ? column % 2 : 0);
    }
};

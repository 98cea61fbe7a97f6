// What the kernels in the channel-blocked layout (NC/8HW8) share: how images lie, in memory and in shared memory, and
// how they get from one to the other.
//
// An image is planes of pieces, and a piece is the 16 bytes of one pixel: 8 channels of 16 bits, or 4 of float32. In
// shared memory the pieces of a row follow each other, and rows do, PITCH pieces apart, with zeros where the padding
// is. So the pieces that a tap needs for neighbouring windows are neighbours, too, and those of the next tap lie 16
// bytes further on. That is what wgmma wants of a matrix without a swizzle: eight rows of 16 bytes, one after the
// other. To go on to the next tap is to add to an address.
//
// With a stride of 2 the pixels of even and odd rows and columns lie apart, in four phases; a tap belongs to one of
// them.

#include "fp16.cuh"
#include "wgmma.cuh"

constexpr Kind KIND = MODE == 0 ? BF16 : MODE == 1 ? TF32 : FP16;

#ifndef CHUNK
#define CHUNK 64
#endif
constexpr int GROUPS = CHUNK / CHANNELS;  // of channels that are in shared memory at a time: planes

#ifndef STRIDE
#define STRIDE 1
#endif
constexpr int PHASES = STRIDE * STRIDE;

#ifndef LACKS
#define LACKS 0  // whether the last eight of the images' channels are zeros that are not stored
#endif

// What a launch is about. The images that are read: channels are a multiple of CHUNK. Padding may be negative.
struct Problem {
    int images, channels, height, width;
    int pad_y, pad_x, taps_y, taps_x;
    int windows_y, windows_x;                                   // of an image
    int to_channels, to_height, to_width, to_step, to_y, to_x;  // window (i, j) is pixel (to_step i + to_y, ...)
    int pitch, rows, bands;                                     // of windows in a tile; of such tiles in an image
    int pieces, box;                                            // of a tile in a plane, in each phase, and those copied
    Word by_pitch;                                              // 2^32 / pitch, rounded up
};

inline int stored_channels(const Problem& p) { return p.channels - 8 * LACKS; }

inline int divided_by_pitch(const Problem& p, int n) { return p.pitch == 1 ? n : __umulhi(n, p.by_pitch); }

// The pieces by which a tap's pixels lie further on than the first tap's.
inline int shift(const Problem& p, int tap_y, int tap_x)
{
    return (tap_y % STRIDE * STRIDE + tap_x % STRIDE) * p.pieces + tap_y / STRIDE * p.pitch + tap_x / STRIDE;
}

// ---- From memory to shared memory: by the copy engine, which knows the images from a tensor map ----

// Ask for planes of a tile, from `first_plane` on, `plane` pieces each; and of their low fp16 parts, `all_planes`
// further on in memory. What lies outside of an image comes as zeros: the padding, and as rows below the last one all
// of a plane that is not stored. By the lanes of a warp, a plane each.
template <int PLANES>
inline void load_planes(const TensorMap* images, int all_planes, int first_plane, int planes, int stored, int below,
                        int x, int y, int plane, Piece* to, Word64* barrier)
{
    for (int i = threadIdx.x % 32; i < PARTS * planes; i += 32) {
        int part = i / planes, number = i % planes;
        cp_async_bulk_tensor_3d(to + (part * PLANES + number) * plane, images, 2 * x,
                                LACKS && number >= stored ? below : y, part * all_planes + first_plane + number,
                                barrier);
    }
}

// The tile of the images, number `tile`, CHUNK channels of it from `first_channel` on. The barrier counts its bytes.
inline void load_images(const Problem& p, const TensorMap* images, int tile, int first_channel, Piece* to,
                        Word64* barrier)
{
    int image = tile / p.bands, y = tile % p.bands * p.rows * STRIDE - p.pad_y, stored = stored_channels(p);
    int first = (image * stored + first_channel) / CHANNELS, all = p.images * stored / CHANNELS;
    int planes = (stored - first_channel) / CHANNELS;  // that are stored
    if constexpr (STRIDE == 1) {
        load_planes<GROUPS>(images, all, first, GROUPS, planes, p.height, -p.pad_x, y, p.pieces, to, barrier);
    } else {
        for (int i = threadIdx.x % 32; i < PARTS * GROUPS * PHASES; i += 32) {
            int phase = i % PHASES, group = i / PHASES % GROUPS, part = i / PHASES / GROUPS;
            int row = LACKS && group >= planes ? p.height : y + phase / STRIDE;
            cp_async_bulk_tensor_4d(to + i / PHASES * PHASES * p.pieces + phase * p.pieces, images, 0,
                                    phase % STRIDE - p.pad_x, row, part * all + first + group, barrier);
        }
    }
}

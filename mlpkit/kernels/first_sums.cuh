// The first convolution's weight gradient from sums in registers: the gradient of what it pooled is never written.
//
// The input gradient of the second convolution is what the first one's pool wants back. A warp lays eight channels of
// it in shared memory: only memory can be indexed, and so its text is short. A lane takes a channel and each fourth
// window, looks up which pixel of it was the largest, and adds d times the pixels that this one's sum saw, which lie in
// shared memory, too. Two warpgroups may share a tile, each with half of its windows: one warp of each of a
// multiprocessor's four parts would wait for itself most of the time. What they have of all tiles leaves once, in the
// end.

#ifndef FIRST_KERNEL
#define FIRST_KERNEL 3  // of the first convolution, of images of one channel with a stride of 1
#define FIRST_PADDING 0
#define FIRST_POOL 2  // at most
#define FIRST_KEEPS 1
#define FIRST_HEIGHT 28  // of its images
#define FIRST_WIDTH 28
#define FIRST_DOWN 13  // windows of its pool
#define FIRST_ACROSS 13
#define FIRST_ROWS 64  // its filters, in groups of eight
#endif

constexpr int FIRST_TAPS = FIRST_KERNEL * FIRST_KERNEL, FIRST_EACH = FIRST_TAPS + 1;  // sums of a filter: and the bias
constexpr int FIRST_TALL = FIRST_DOWN * FIRST_POOL + FIRST_KERNEL - 1;
constexpr int FIRST_SEEN = FIRST_ACROSS * FIRST_POOL + FIRST_KERNEL - 1;
constexpr int FIRST_WIDE = FIRST_SEEN + 1 + (40 - FIRST_SEEN % 32) % 32;  // 9 more than a multiple of the 32 banks:
// what lanes read of four windows is in different ones, whichever pixel of a window is meant, and where a row ends, too.
constexpr int FIRST_WINDOWS = FIRST_DOWN * FIRST_ACROSS;
constexpr int FIRST_WORDS = FIRST_TALL * FIRST_WIDE + 8 * FIRST_WINDOWS + 2 * 64 * FIRST_EACH;  // words of a tile

// x (images, FIRST_HEIGHT, FIRST_WIDTH). kept: as in between.cuh, 4 bits a channel. sums (slices, FIRST_ROWS, FIRST_EACH).
struct First {
    const float* x;
    const Word* kept;
    float* sums;
    int groups, padding;  // of eight channels
};

// Ask for an image with zeros around it, and for what was kept of it. By so many threads.
template <int THREADS>
inline void ask_for_first(const First& f, int image, int thread, float* buffer)
{
    const float* x = f.x + (size_t)image * (FIRST_HEIGHT * FIRST_WIDTH);
    for (int i = thread; i < FIRST_TALL * FIRST_WIDE; i += THREADS) {
        int row = i / FIRST_WIDE - FIRST_PADDING, column = i % FIRST_WIDE - FIRST_PADDING;
        bool inside = row >= 0 && row < FIRST_HEIGHT && column >= 0 && column < FIRST_WIDTH;
        cp_async<4>(buffer + i, inside ? x + row * FIRST_WIDTH + column : x, inside);
    }
    if (!FIRST_KEEPS) return;
    const Word* kept = f.kept + (size_t)image * f.groups * FIRST_WINDOWS;
    Word* to = reinterpret_cast<Word*>(buffer + FIRST_TALL * FIRST_WIDE);
    for (int i = thread; i < f.groups * FIRST_WINDOWS; i += THREADS) cp_async<4>(to + i, kept + i, true);
}

// Where a warp's totals are: 16 channels of 64, and those of a second warpgroup from channel 64 on.
inline float* first_totals(float* buffer, int channel)
{
    return buffer + FIRST_TALL * FIRST_WIDE + 8 * FIRST_WINDOWS + channel * FIRST_EACH;
}

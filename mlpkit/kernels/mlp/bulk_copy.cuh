// Rows of bytes that arrive in shared memory while all threads do other things. From sm_90 on a unit of their own copies
// them, each as a whole, and a barrier in shared memory counts the bytes. Older chips have none: there the threads ask
// for 16 bytes at a time, as often as it takes, and then each waits for its own, and all of them for each other.

#include "patience.cuh"

#ifndef BULK
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BULK 0
#else
#define BULK 1
#endif
#endif

#if BULK
// The barrier goes into its next phase when one thread has arrived, and all bytes that it expects.
struct BulkCopies {
    Word64 barrier;

    __device__ void start() {
        mbarrier_init<1>(&barrier);
        fence_proxy_async();
    }

    // Ask for rows of `to`, `count` of them: those that has(row) says; from(row) is where they are. By THREADS threads.
    template <int THREADS, int ROWS, int BYTES, typename Has, typename From>
    __device__ void ask(unsigned char (&to)[ROWS][BYTES], int count, Has has, From from) {
        const int EACH = THREADS / ROWS, row = threadIdx.x / EACH;
        const bool there = has(row);
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(&barrier, count * BYTES);
        if (threadIdx.x % EACH == 0 && there) cp_async_bulk(to[row], from(row), BYTES, &barrier);
    }

    // Wait until all is there. sync: a barrier of all threads that asked.
    template <typename Sync>
    __device__ void wait(Word phase, Word step, Sync sync) {
        Word turns = 0;
        while (!mbarrier_try_wait(&barrier, phase) && !give_up(turns, THE_IMAGES, step)) {
        }
    }
};
#else
#ifndef COPIERS
#define COPIERS 8  // threads that copy a row together, 128 bytes of it at a time
#endif

// The same for older chips. (A thread's copies come to an end by themselves: there is nobody to give up on.)
struct BulkCopies {
    __device__ void start() {}

    template <int THREADS, int ROWS, int BYTES, typename Has, typename From>
    __device__ void ask(unsigned char (&to)[ROWS][BYTES], int count, Has has, From from) {
        const int AT_ONCE = THREADS / COPIERS, first = threadIdx.x / COPIERS;
#pragma unroll 1
        for (int row = first; row < ROWS; row += AT_ONCE) {
            const unsigned char* bytes = has(row) ? from(row) : nullptr;
            for (int at = threadIdx.x % COPIERS * 16; bytes && at < BYTES; at += COPIERS * 16) {
                cp_async<16>(&to[row][at], bytes + at);
            }
        }
    }

    template <typename Sync>
    __device__ void wait(Word phase, Word step, Sync sync) {
        cp_async_wait_all();
        sync();
    }
};
#endif

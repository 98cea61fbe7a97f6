// Copies to shared memory that arrive while all threads do other things. From sm_90 on a unit of their own makes them,
// each of any length, and one barrier counts their bytes. Older chips have none: there the threads ask for 16 bytes at
// a time, as often as it takes, and then each waits for its own copies, and all of them for each other.

#include "patience.cuh"

#ifndef BULK
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BULK 0
#else
#define BULK 1
#endif
#endif

#if BULK
// A barrier in shared memory goes into its next phase when one thread has arrived, and all bytes that it expects.
struct BulkCopies {
    Word64 barrier;

    __device__ void start() {
        mbarrier_init<1>(&barrier);
        fence_proxy_async();
    }

    // Arrive, and expect so many bytes.
    __device__ void expect(Word bytes) { mbarrier_arrive_expect_tx(&barrier, bytes); }

    // Of the threads that could make a copy together, whether this one takes part in it.
    static __device__ bool takes_part(int thread) { return thread == 0; }

    template <int THREADS>
    __device__ void copy(void* to, const void* from, Word bytes, int thread) {
        cp_async_bulk(to, from, bytes, &barrier);
    }

    // Wait until all is there. sync: a barrier of all threads that copied.
    template <typename Sync>
    __device__ void wait(Word phase, Word step, Sync sync) {
        Word turns = 0;
        while (!mbarrier_try_wait(&barrier, phase) && !give_up(turns, THE_IMAGES, step)) {
        }
    }
};
#else
// The same for older chips. (A thread's copies come to an end by themselves: there is nobody to give up on.)
struct BulkCopies {
    __device__ void start() {}
    __device__ void expect(Word bytes) {}
    static __device__ bool takes_part(int thread) { return true; }

    template <int THREADS>
    __device__ void copy(void* to, const void* from, Word bytes, int thread) {
        for (Word at = 16 * thread; at < bytes; at += 16 * THREADS) {
            cp_async<16>((char*)to + at, (const char*)from + at);
        }
    }

    template <typename Sync>
    __device__ void wait(Word phase, Word step, Sync sync) {
        cp_async_wait_all();
        sync();
    }
};
#endif

// Copies to shared memory that a unit of their own makes: they arrive while all threads do other things.

#include "patience.cuh"

// A barrier in shared memory goes into its next phase when one thread has arrived, and all bytes that it expects.
struct BulkCopies {
    Word64 barrier;

    __device__ void start() {
        mbarrier_init<1>(&barrier);
        fence_proxy_async();
    }

    // Arrive, and expect so many bytes.
    __device__ void expect(Word bytes) { mbarrier_arrive_expect_tx(&barrier, bytes); }

    __device__ void copy(void* to, const void* from, Word bytes) { cp_async_bulk(to, from, bytes, &barrier); }

    __device__ void wait(Word phase, Word step) {
        Word turns = 0;
        while (!mbarrier_try_wait(&barrier, phase) && !give_up(turns, THE_IMAGES, step)) {
        }
    }
};

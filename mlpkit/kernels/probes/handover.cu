// What does it cost to wait for another block? Three ways, again and again, with nothing else to do.
//
// grid_barrier: everybody waits for everybody, at one counter. with_flag: one block writes a value, and then a flag
// which says that the value is there; two trips. with_message: the value and its sign of arrival are one word of eight
// bytes; one trip. A round of these two is there and back. The GPU must hold all blocks at once.

#include "ptx.cuh"

typedef Word64 Message;

// counter starts as 0.
extern "C" __global__ void grid_barrier(Word* counter, int rounds) {
    for (int round = 1; round <= rounds; round++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            red_release_gpu_add(counter, 1);
            while (ld_acquire_gpu(counter) < (Word)round * gridDim.x) {
            }
        }
        __syncthreads();
    }
}

// Two blocks of one thread give each other a value, in turns. values and flags: two each, 32 words apart; zeros.
extern "C" __global__ void with_flag(Word* values, Word* flags, int rounds) {
    const int me = blockIdx.x, other = 1 - me;
    for (Word round = 1; round <= rounds; round++) {
        if (me == 1 || round > 1) {
            const Word wanted = me == 1 ? round : round - 1;
            while (ld_acquire_gpu(&flags[32 * other]) < wanted) {
            }
            if (*(volatile Word*)&values[32 * other] != wanted) __trap();
        }
        *(volatile Word*)&values[32 * me] = round;
        st_release_gpu(&flags[32 * me], round);
    }
}

// The same, with messages: two of them, 16 apart; zeros. Of all blocks these are number `first` and number `second`,
// and the others are done at once. multiprocessors: becomes where the two are.
extern "C" __global__ void with_message(Message* messages, int first, int second, Word* multiprocessors, int rounds) {
    if (blockIdx.x != first && blockIdx.x != second) return;
    const int me = blockIdx.x == second, other = 1 - me;
    multiprocessors[me] = smid();
    for (Word round = 1; round <= rounds; round++) {
        if (me == 1 || round > 1) {
            const Word wanted = me == 1 ? round : round - 1;
            Message found;
            do {
                ld_relaxed_gpu(found, &messages[16 * other]);
            } while ((Word)(found >> 32) < wanted);
            if ((Word)found != wanted) __trap();
        }
        const Message message = (Message)round << 32 | round;
        st_relaxed_gpu(&messages[16 * me], message);
    }
}

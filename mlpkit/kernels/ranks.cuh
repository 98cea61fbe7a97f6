// Gradients of several GPUs are added up while their kernels run: each writes its own as flagged messages into the memory
// of all others, over NVLink, and looks into its own memory for theirs. NCCL calls such a way LL, for low latency. All
// add up in the order of the ranks, so all have the same bits.
//
// A GPU's memory for it has a place for each rank, each number that it sends, and two steps in turn. Nobody writes over
// what is still to be read: a thread sends step s + 2 after all others' step s + 1, which were sent after step s was read.
//
// Before it stand `Awaited`, which has OTHER_GPUS, and `watch.cuh`.

#include "message.cuh"

#ifndef RANKS
#define RANKS 1
#endif
#ifndef LATE
#define LATE 60000000000ll  // ns: others may still compile their kernels
#endif

struct Ranks {
    Message* boxes[RANKS];  // of each GPU: (2, RANKS, slots)
    long long slots;        // numbers that a GPU sends in a step, or has room for
    int rank;               // of this GPU
    Word before;            // steps of the launches before this one
    float weight;           // of this GPU's gradients: its share of the batch

    __device__ Message* place(int of, int by, long long at, Word tag) const {
        return boxes[of] + (tag % 2 * RANKS + by) * slots + at;
    }

    // Send a number of a step, counted from 1 on in this launch, to all others.
    __device__ void send(long long at, float g, Word step) const {
        const Word tag = before + step;
        const Message message = (Message)tag << 32 | __float_as_uint(__fmul_rn(weight, g));
        if constexpr (RANKS > 1) {
#pragma unroll
            for (int other = 0; other < RANKS; other++) {
                if (other != rank) st_relaxed_sys(place(other, rank, at, tag), message);
            }
        }
    }

    // Return the weighted sum of all ranks' numbers, of which this one's is g: with one rank, g.
    __device__ float sum(long long at, float g, Word step) const {
        if constexpr (RANKS == 1) return g;
        const Word tag = before + step;
        Message found[RANKS] = {};
        Word turns = 0;
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (int other = 0; other < RANKS; other++) {
                if (other == rank || is_of(found[other], tag)) continue;
                ld_relaxed_sys(found[other], place(rank, other, at, tag));
                all = all && is_of(found[other], tag);
            }
            if (!all && give_up(turns, OTHER_GPUS, step)) break;
        }
        float sum = 0;
#pragma unroll
        for (int other = 0; other < RANKS; other++) {
            sum = __fadd_rn(sum, other == rank ? __fmul_rn(weight, g) : value_of(found[other]));
        }
        return sum;
    }

    // Wait until all others have begun: by one thread of each block, and all blocks' `at` differ.
    __device__ void meet(long long at) const {
        if constexpr (RANKS > 1) {
            send(at, 0, 1);
            const long long since = globaltimer();
            for (int other = 0; other < RANKS; other++) {
                Message found = 0;
                Word turns = 0;
                while (other != rank && !is_of(found, before + 1)) {
                    ld_relaxed_sys(found, place(rank, other, at, before + 1));
                    if (time_to_look(turns) && look_up(globaltimer() - since > LATE ? ~0u : 0, OTHER_GPUS, 0)) return;
                }
            }
        }
    }
};

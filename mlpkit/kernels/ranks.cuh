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
#define LATE 120000000000ll  // ns: others may still compile their kernels
#endif

const int OTHERS = RANKS > 1 ? RANKS - 1 : 1;

struct Ranks {
    Message* boxes[RANKS];  // of each GPU: (2, RANKS, slots)
    long long slots;        // numbers that a GPU sends in a step, or has room for
    int rank;               // of this GPU
    Word before;            // steps of the launches before this one
    float weight;           // of this GPU's gradients: its share of the batch

    __device__ Message* place(int of, int by, long long at, Word tag) const {
        return boxes[of] + (tag % 2 * RANKS + by) * slots + at;
    }

    // Send N numbers of a step, counted from 1 on in this launch, to all others: the i-th from place at(i), if that is not
    // negative. Or to those only for which `takes` says so, by their number and the place.
    template <int N, typename At, typename Takes>
    __device__ void send(const float (&g)[N], At at, Word step, Takes takes) const {
        const Word tag = before + step;
#pragma unroll
        for (int i = 0; i < (RANKS > 1 ? N : 0); i++) {
            const Message message = (Message)tag << 32 | __float_as_uint(__fmul_rn(weight, g[i]));
#pragma unroll
            for (int k = 0; k < OTHERS; k++) {
                if (at(i) >= 0 && takes(other(k), at(i))) st_relaxed_sys(place(other(k), rank, at(i), tag), message);
            }
        }
    }

    template <int N, typename At>
    __device__ void send(const float (&g)[N], At at, Word step) const {
        send(g, at, step, [](int, int) { return true; });
    }

    // Replace N numbers by those that the rank by(place) has sent: the i-th from place at(i), if that is not negative.
    template <int N, typename At, typename By>
    __device__ void receive(float (&g)[N], At at, Word step, By by) const {
        const Word tag = before + step;
        Message found[N];
#pragma unroll
        for (int i = 0; i < N; i++) found[i] = of_none(tag);
        Word turns = 0;
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const bool asked = at(i) >= 0 && !is_of(found[i], tag);
                ld_relaxed_sys(found[i], place(rank, asked ? by(at(i)) : rank, asked ? at(i) : 0, tag), asked);
            }
#pragma unroll
            for (int i = 0; i < N; i++) all = all && (at(i) < 0 || is_of(found[i], tag));
            if (!all && give_up(turns, OTHER_GPUS, step)) break;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (at(i) >= 0) g[i] = value_of(found[i]);
        }
    }

    // Replace N numbers by the weighted sums of all ranks'. All are asked for at once, and again until all are there.
    template <int N, typename At>
    __device__ void sum(float (&g)[N], At at, Word step) const {
        if constexpr (RANKS > 1) {
            const Word tag = before + step;
            Message found[N][OTHERS];
#pragma unroll
            for (int i = 0; i < N; i++) {
#pragma unroll
                for (int k = 0; k < OTHERS; k++) found[i][k] = of_none(tag);
            }
            Word turns = 0;
            for (bool all = false; !all;) {
#pragma unroll
                for (int i = 0; i < N; i++) {
#pragma unroll
                    for (int k = 0; k < OTHERS; k++) {
                        const bool asked = at(i) >= 0 && !is_of(found[i][k], tag);
                        ld_relaxed_sys(found[i][k], place(rank, other(k), at(i), tag), asked);
                    }
                }
                all = true;
#pragma unroll
                for (int i = 0; i < N; i++) {
#pragma unroll
                    for (int k = 0; k < OTHERS; k++) all = all && (at(i) < 0 || is_of(found[i][k], tag));
                }
                if (!all && give_up(turns, OTHER_GPUS, step)) break;
            }
#pragma unroll
            for (int i = 0; i < N; i++) g[i] = in_order(__fmul_rn(weight, g[i]), found[i]);
        }
    }

    // The number of the k-th of the other ranks.
    __device__ int other(int k) const { return k + (k >= rank); }

    __device__ float in_order(float own, const Message (&others)[OTHERS]) const {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < OTHERS; k++) {
            if (k == rank) sum = __fadd_rn(sum, own);
            sum = __fadd_rn(sum, value_of(others[k]));
        }
        return rank == RANKS - 1 ? __fadd_rn(sum, own) : sum;
    }

    // Wait until all others have begun: by one thread of each block, and all blocks' places differ.
    __device__ void meet(long long at) const {
        if constexpr (RANKS > 1) {
            const float here[1] = {};
            send(here, [=](int) { return at; }, 1);
            const long long since = globaltimer();
            for (int k = 0; k < OTHERS; k++) {
                Message found = of_none(before + 1);
                Word turns = 0;
                while (!is_of(found, before + 1)) {
                    ld_relaxed_sys(found, place(rank, other(k), at, before + 1));
                    if (time_to_look(turns) && look_up(globaltimer() - since > LATE ? ~0u : 0, OTHER_GPUS, 0)) return;
                }
            }
        }
    }
};

// All-reduce over NVLink, by a kernel of each GPU, with no host and no library: for steps that are recorded.
//
// A long part of the vector goes early: a copy engine brings each GPU what it is to add up, all of it between two GPUs and
// a share of it among more, and behind it the number of the step. What is left goes at the end as flagged messages, see
// ranks.cuh: between two, all numbers to the other one; among more, each number to its owner, who adds up and sends the
// sum to all; an owner of a share sends its sums, too. All is added up in the order of the ranks, so all have the same
// bits.
//
// These sums have no flags: a place holds -0 until a sum is there, which is never -0. ("Lamport" all-reduces of NVIDIA's
// TensorRT-LLM do the same.)
//
// A sum becomes the gradient; or the optimizer's step is taken at once, see updates.cuh.
//
// The kernel does not depend on this GPU's copies, which would let it begin microseconds late: it looks at what has
// come. Others acknowledge theirs, and it ends when all have, so the next step may write over what was sent. What comes
// has two places, for steps in turn: who sends step s + 2 has had all acknowledgments of step s + 1, of kernels that began
// when all had been read that came in step s. So kernels and copies must go on side by side, as they do on GPUs that have
// both. No block waits for one that is not running: there are no more than multiprocessors, and what comes next begins
// when all have begun.

#include "updates.cuh"

extern __shared__ __align__(128) unsigned char shared_bytes[];

#define PATIENCE (1 << 28)  // minutes: others may still compile the kernels of their step
enum Awaited { OTHER_GPUS };

#include "watch.cuh"
#include "ranks.cuh"

#ifndef TWO_STEPS
#define TWO_STEPS (RANKS > 2)  // whether each float has an owner, who adds it up and tells all others
#endif

const int AT_ONCE = RANKS <= 4 ? 4 : 2;       // floats that a thread asks for before it waits
const int FOURS_AT_ONCE = TWO_STEPS ? 1 : 4;  // of what came early
const int SUMS_AT_ONCE = 3;                   // fours that others have added up

// What goes early: `size` floats from `first` on, whole fours both.
struct Early {
    float* sums[RANKS];   // of each GPU: (2, RANKS, row), what owners have added up
    Word* acked[RANKS];   // of each GPU: (RANKS,), the last step whose copies have come to each other one
    float* vector;        // of this GPU
    const float* came;    // (RANKS, row): what this GPU is to add up, of each other one, this step's place
    const Word* arrived;  // (RANKS,): the last step whose copies have come from each
    Word* number;         // of the step, which copies take with them
    int row, first, size;

    // Fours of each owner, or of all.
    __device__ int share() const { return TWO_STEPS ? (size / 4 + RANKS - 1) / RANKS : size / 4; }

    // The place in the vector of an owner's four, or -1 behind the last one.
    __device__ int place(int owner, int four) const {
        const int at = TWO_STEPS * owner * share() + four;
        return four < share() && at < size / 4 ? first + 4 * at : -1;
    }

    __device__ float4* sum_at(int gpu, int owner, int four, Word turn) const {
        return (float4*)(sums[gpu] + (turn % 2 * RANKS + owner) * (long long)row) + four;
    }
};

// Wait until a place has come to a number.
inline void await(const Word* place, Word number) {
    Word turns = 0;
    while ((int)(ld_acquire_sys(place) - number) < 0 && !give_up(turns, OTHER_GPUS, number)) {
    }
}

inline bool is_there(const float4& sum) {
    const Word NOT_YET = __float_as_uint(-0.f);
    return __float_as_uint(sum.x) != NOT_YET && __float_as_uint(sum.y) != NOT_YET && __float_as_uint(sum.z) != NOT_YET &&
           __float_as_uint(sum.w) != NOT_YET;
}

// A four of the vector, and where UPDATES say so the parameters whose gradients it is. UPDATES: 1 to take SGD's step, 2
// Adam's, 0 to keep the sums in the vector.
template <int UPDATES>
struct SummedFour {
    FourParameters<UPDATES == 2> parameters;

    __device__ void load(const Update& u, int at) {
        if constexpr (UPDATES > 0) parameters.load(u, at);
    }

    __device__ void keep(const Four& sum, float* vector, const Update& u, const Rates& rates, int at) {
        if constexpr (UPDATES > 0) parameters.g = sum, parameters.update(u, rates), parameters.store(u, at);
        else store_four(sum, vector + at, 0);
    }
};

// Add up what came early, or this GPU's share of it, which all others get.
template <int UPDATES>
inline void add_up(const Early& early, const float* weights, int here, Word turn, const Update& u, const Rates& rates) {
    const int stride = gridDim.x * blockDim.x;
    const bool waits = threadIdx.x < RANKS && threadIdx.x != here;
    for (int start = blockIdx.x * blockDim.x; start < early.share(); start += stride * FOURS_AT_ONCE) {
        Four found[FOURS_AT_ONCE][RANKS];
        SummedFour<UPDATES> four[FOURS_AT_ONCE];
        const auto number = [=](int i) { return start + i * stride + (int)threadIdx.x; };
        const auto place = [&](int i) { return early.place(here, number(i)); };
        #pragma unroll
        for (int i = 0; i < FOURS_AT_ONCE; i++) {
            if (place(i) < 0) break;
            four[i].load(u, place(i));
            #pragma unroll
            for (int k = 0; k < RANKS; k++)  // so that the compiler knows which registers
                if (k == here) found[i][k] = load_four(early.vector + place(i));
        }
        if (waits) {
            await(early.arrived + threadIdx.x, turn);
            if (blockIdx.x == 0) st_relaxed_sys(early.acked[threadIdx.x] + here, turn);
            if (!UPDATES && !TWO_STEPS) await(early.acked[here] + threadIdx.x, turn);  // or copies would read the sums
        }
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < FOURS_AT_ONCE; i++) {
            #pragma unroll
            for (int k = 0; k < RANKS; k++) {
                const float* theirs = early.came + (long long)k * early.row + 4 * number(i);
                if (k != here && place(i) >= 0) found[i][k] = load_four(theirs);
            }
        }
        #pragma unroll
        for (int i = 0; i < FOURS_AT_ONCE; i++) {
            const int at = place(i);
            if (at < 0) break;
            Four sum = {};
            #pragma unroll
            for (int k = 0; k < RANKS; k++) {
                const float w = weights[k];
                #pragma unroll
                for (int j = 0; j < 4; j++) sum.each[j] = __fadd_rn(sum.each[j], __fmul_rn(w, found[i][k].each[j]));
            }
            #pragma unroll
            for (int j = 0; j < 4 * TWO_STEPS; j++) sum.each[j] += 0.f;  // what was -0 is 0 now
            #pragma unroll
            for (int k = 0; k < RANKS * TWO_STEPS; k++) {
                const float4 told = {sum.each[0], sum.each[1], sum.each[2], sum.each[3]};
                if (k != here) st_relaxed_sys(early.sum_at(k, here, number(i), turn), told);
            }
            four[i].keep(sum, early.vector, u, rates, at);
        }
    }
}

// Take what other owners have added up, and leave their places empty.
template <int UPDATES>
inline void hear(const Early& early, int here, Word turn, const Update& u, const Rates& rates) {
    const int fours = OTHERS * early.share(), stride = gridDim.x * blockDim.x;
    for (int start = blockIdx.x * blockDim.x + threadIdx.x; start < fours; start += stride * SUMS_AT_ONCE) {
        float4 sum[SUMS_AT_ONCE];
        SummedFour<UPDATES> four[SUMS_AT_ONCE];
        const auto owner = [=](int i) {
            const int k = (start + i * stride) / early.share();
            return k + (k >= here);
        };
        const auto number = [=](int i) { return (start + i * stride) % early.share(); };
        const auto place = [=](int i) { return start + i * stride < fours ? early.place(owner(i), number(i)) : -1; };
        #pragma unroll
        for (int i = 0; i < SUMS_AT_ONCE; i++)
            if (place(i) >= 0) four[i].load(u, place(i));
        Word turns = 0;
        for (bool all = false; !all;) {
            all = true;
            #pragma unroll
            for (int i = 0; i < SUMS_AT_ONCE; i++) {
                if (place(i) < 0) continue;
                sum[i] = ld_relaxed_sys(early.sum_at(here, owner(i), number(i), turn));
                all = all && is_there(sum[i]);
            }
            if (!all && give_up(turns, OTHER_GPUS, turn)) break;
        }
        #pragma unroll
        for (int i = 0; i < SUMS_AT_ONCE; i++) {
            if (place(i) < 0) continue;
            *early.sum_at(here, owner(i), number(i), turn) = {-0.f, -0.f, -0.f, -0.f};
            four[i].keep({sum[i].x, sum[i].y, sum[i].z, sum[i].w}, early.vector, u, rates, place(i));
        }
    }
}

// Wait until this GPU's copies have come to all others, and count the step; by a block.
inline void count(const Early& early, int here, Word turn) {
    if (threadIdx.x < RANKS && threadIdx.x != here) await(early.acked[here] + threadIdx.x, turn);
    __syncthreads();
    if (threadIdx.x == 0) *early.number = turn + 1;
}

// A float of the vector, and where UPDATES say so the parameter whose gradient it is.
template <int UPDATES>
struct Summed {
    Parameter<UPDATES == 2> parameter;

    __device__ void load(const Update& u, int at) {
        if (UPDATES && at >= 0) parameter.load(u, at);
    }

    __device__ void keep(float sum, float* vector, const Update& u, const Rates& rates, int at) {
        if (at < 0) return;
        if constexpr (UPDATES) parameter.update(u, rates, sum), parameter.store(u, at);
        else vector[at] = sum;
    }
};

// Add up the n floats of each GPU's vector. weights: (RANKS,). times (2, gridDim.x): how often each block has been here,
// and how often something came early. ranks: without `before` and `weight`.
template <int UPDATES>
inline void reduce(float* vector, int n, const Early& early, const float* weights, Word* times, Word64* failure,
                   Ranks& ranks, const Update& u) {
    if (threadIdx.x == 0) watch().failure = failure;
    begin_in_turn();
    Word* const early_times = times + gridDim.x;
    const Word turn = early_times[blockIdx.x] + (early.size > 0);
    ranks.before = times[blockIdx.x], ranks.weight = weights[ranks.rank];
    __syncthreads();
    if (threadIdx.x == 0) times[blockIdx.x] = ranks.before + 1, early_times[blockIdx.x] = turn;

    const Rates rates = UPDATES ? rates_of<UPDATES == 2>(u) : Rates{};
    const int rest = n - early.size, stride = gridDim.x * blockDim.x, here = ranks.rank;
    const auto place = [=](int i) { return i < early.first ? i : i + early.size; };
    const auto owner = [](int i) { return i / 32 % RANKS; };  // a warp's numbers have one
    const auto owns = [=](int other, int i) { return !TWO_STEPS || owner(i) == other; };
    Ranks sums = ranks;  // they are weighted already
    sums.weight = 1;
    if (TWO_STEPS && early.size) add_up<UPDATES>(early, weights, here, turn, u, rates);  // first what takes longest to come
    for (int pass = 0; pass < 2 + TWO_STEPS; pass++) {
        for (int start = blockIdx.x * blockDim.x + threadIdx.x; start < rest; start += AT_ONCE * stride) {
            float x[AT_ONCE];
            Summed<UPDATES> found[AT_ONCE];
            const auto at = [=](int i) { return start + i * stride < rest ? start + i * stride : -1; };
            const auto mine = [=](int i) { return at(i) >= 0 && owns(here, at(i)) ? at(i) : -1; };
            const auto others = [=](int i) { return at(i) >= 0 && !owns(here, at(i)) ? at(i) : -1; };
            const auto kept = [=](int i) { return pass == 1 ? mine(i) : others(i); };
            const auto to = [=](int i) { return kept(i) < 0 ? -1 : place(kept(i)); };
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                x[i] = pass == 2 || at(i) < 0 ? 0 : vector[place(at(i))];
                if (pass) found[i].load(u, to(i));
            }
            if (pass == 0) {
                ranks.send(x, at, 1, owns);
                continue;
            }
            if (pass == 1) {
                ranks.sum(x, mine, 1);
                if (TWO_STEPS) sums.send(x, mine, 1);
            } else {
                ranks.receive(x, others, 1, owner);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) found[i].keep(x[i], vector, u, rates, to(i));
        }
        if (!TWO_STEPS && pass == 0 && early.size) add_up<UPDATES>(early, weights, here, turn, u, rates);
    }
    if (TWO_STEPS && early.size) hear<UPDATES>(early, here, turn, u, rates);
    if (early.size && blockIdx.x == 0) count(early, here, turn);
}

extern "C" __global__ __launch_bounds__(512) void all_reduce(float* vector, int n,
                                                             const __grid_constant__ Early early,
                                                             const float* weights, Word* times, Word64* failure,
                                                             Ranks ranks, const __grid_constant__ Update u) {
    reduce<0>(vector, n, early, weights, times, failure, ranks, u);
}

extern "C" __global__ __launch_bounds__(512) void all_reduce_sgd(float* vector, int n,
                                                                 const __grid_constant__ Early early,
                                                                 const float* weights, Word* times, Word64* failure,
                                                                 Ranks ranks, const __grid_constant__ Update u) {
    reduce<1>(vector, n, early, weights, times, failure, ranks, u);
}

extern "C" __global__ __launch_bounds__(512) void all_reduce_adam(float* vector, int n,
                                                                  const __grid_constant__ Early early,
                                                                  const float* weights, Word* times, Word64* failure,
                                                                  Ranks ranks, const __grid_constant__ Update u) {
    reduce<2>(vector, n, early, weights, times, failure, ranks, u);
}

// Waits that come to an end. Who has waited for seconds writes down for what. From then on nobody waits any more: the
// kernel runs through to its end, with values that mean nothing, and the host makes a sentence of what was written.
//
// Before it stand `shared_bytes`, and `Awaited`, which counts what is waited for.

#include "ptx.cuh"

#ifndef PATIENCE
#define PATIENCE (1 << 22)  // turns of a loop: a second or two
#endif

// Where it is written down: at the beginning of every block's shared memory.
struct Watch {
    alignas(128) Word64* failure;
};

__device__ Watch& watch() { return *(Watch*)shared_bytes; }

__device__ bool somebody_gave_up() {
    Word64 found;
    ld_relaxed_gpu(found, watch().failure);
    return found != 0;
}

// Whether nobody waits any more, after so many turns. Not inlined: it is hardly ever called.
__device__ __noinline__ bool look_up(Word turns, Awaited what, Word step) {
    if (turns > PATIENCE) atomicCAS(watch().failure, 0ull, (Word64)(what + 1) << 48 | (Word64)blockIdx.x << 32 | step);
    return somebody_gave_up();
}

// After a turn of a loop that waits: whether it was the last one. step: counted from 1.
__device__ bool give_up(Word& turns, Awaited what, Word step) {
    return time_to_look(turns) && look_up(turns, what, step);
}

// The same for a whole warp, whose lanes have made as many turns: they leave together.
__device__ bool give_up_together(Word& turns, Awaited what, Word step) {
    return time_to_look(turns) && __any_sync(~0u, look_up(turns, what, step));
}

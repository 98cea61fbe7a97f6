// An optimizer's update of one long vector of float32, four values a thread, with the rate read from memory.
//
// That is all that a step of a recorded graph needs, where no kernel of the way back does it: see updates.cuh.

#include "updates.cuh"

// The last thread has what is left of a whole four.
template <bool ADAM>
inline void update_four(const Update& u)
{
    const int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (first >= u.n) return;
    const Rates rates = rates_of<ADAM>(u);
    if (first + 4 <= u.n) {
        FourParameters<ADAM> four;
        four.load(u, first);
        four.update(u, rates);
        four.store(u, first);
    } else {
        for (int number = first; number < u.n; ++number) update_one<ADAM>(u, rates, number);
    }
}

extern "C" __global__ void sgd(const __grid_constant__ Update u)
{
    begin_in_turn();
    update_four<false>(u);
}

extern "C" __global__ void adam(const __grid_constant__ Update u)
{
    begin_in_turn();
    update_four<true>(u);
}

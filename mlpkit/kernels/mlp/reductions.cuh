// Sums and maxima across the lanes of a warp, by lanes that trade what they have; all of them get the result.

// Over `lanes` lanes (a power of two), each `stride` from the next; the farthest trade first.
template <int lanes, int stride = 1, typename T>
__device__ T warp_sum(T x) {
    for (int distance = lanes / 2 * stride; distance >= stride; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

template <int lanes, int stride = 1, typename T>
__device__ T warp_max(T x) {
    for (int distance = lanes / 2 * stride; distance >= stride; distance /= 2) {
        x = max(x, __shfl_xor_sync(~0u, x, distance));
    }
    return x;
}

// The nearest trade first: another order of the same sum, and so another rounding.
template <int lanes, typename T>
__device__ T warp_sum_from_nearest(T x) {
    for (int distance = 1; distance < lanes; distance *= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

// Each of `sums`, all of them at once: two lanes `distance` apart trade halves of what they have, until each lane is
// left with one sum, sums[0]: the first lanes with the first one. (Half is 0 where lanes have nothing left to part, and
// add up the same sum.) The last to trade are `last` lanes apart. In the first trades, so many of them as `ordered` says,
// the upper lane has its halves the other way round, so that nobody has to choose.
template <int half, int distance, int last = 1, int ordered = 0, typename T>
__device__ void warp_sums(T* sums) {
    const bool upper = ordered == 0 && threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < (half ? half : 1); i++) {
        const T mine = half && upper ? sums[i + half] : sums[i];
        const T other = half && !upper ? sums[i + half] : sums[i];
        sums[i] = mine + __shfl_xor_sync(~0u, other, distance);
    }
    if constexpr (distance > last) warp_sums<half / 2, distance / 2, last, (ordered > 0 ? ordered - 1 : 0)>(sums);
}

// Where a parameter of the convolutions lies.

#include "limit_shapes.cuh"

struct Place {
    int theta, packed;  // theta: -1 where there is no such parameter
};

// Of parameter number e: all weights are counted, and then all biases.
template <int block = 0>
__device__ Place conv_place_of(int e) {
    if constexpr (block < BLOCKS) {
        constexpr Shape s = shape(block);
        constexpr int WEIGHTS = conv_weights(block), BIASES = CONV_WEIGHTS + conv_biases(block) - conv_biases(0);
        if (e >= WEIGHTS && e < WEIGHTS + s.co * s.taps()) {
            const int channel = (e - WEIGHTS) / s.taps(), tap = (e - WEIGHTS) % s.taps();
            return {e, conv_packed(block) + (channel / s.each() * s.taps() + tap) * 4 + channel % s.each()};
        }
        const int own = e - BIASES;
        if (own >= 0 && own < s.co) return {conv_biases(block) + own, conv_bias_packed(block) + own};
        return conv_place_of<block + 1>(e);
    }
    return {-1, 0};
}

// Whether there is a parameter at a place as they are handed over, or whether it only fills up a four.
template <int block = 0>
__device__ bool is_parameter(int e) {
    if constexpr (block < BLOCKS) {
        constexpr Shape s = shape(block);
        constexpr int WEIGHTS = conv_packed(block), BIASES = conv_bias_packed(block);
        const int own = e - WEIGHTS, channel = e % 4 + (s.groups() > 1 ? own / (4 * s.taps()) * s.each() : 0);
        const bool fills = s.co < 4 * s.groups() && (e % 4 >= s.each() || channel >= s.co);
        const bool is_weight = (own >= 0) & (own < 4 * s.groups() * s.taps()) & !fills;
        return is_weight | ((e >= BIASES) & (e < BIASES + s.co)) | is_parameter<block + 1>(e);  // without branches
    }
    return false;
}

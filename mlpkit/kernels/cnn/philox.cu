// Philox's words as they come: what the tests compare with NumPy, with cuRAND and with the authors' own numbers.

#include "philox.cuh"

// out (n, 4): the words of the counters that follow each other from `counter` (4 words, the lowest first); no carry.
template <typename T>
__device__ void write_words(const T* counter, const T* key, T* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T words[4] = {counter[0] + i, counter[1], counter[2], counter[3]};
    philox(words, key[0], key[1]);
    for (int word = 0; word < 4; word++) out[4 * i + word] = words[word];
}

extern "C" __global__ void words_64(const unsigned long long* counter, const unsigned long long* key,
                                    unsigned long long* out, int n) {
    write_words(counter, key, out, n);
}

extern "C" __global__ void words_32(const unsigned* counter, const unsigned* key, unsigned* out, int n) {
    write_words(counter, key, out, n);
}

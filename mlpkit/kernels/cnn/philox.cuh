// Random numbers that keep no state: four words are mixed out of a counter's four words and a key's two. Who knows what
// to count, such as steps and places, draws any number at any time, in any thread, and draws it again later.
// Philox, in ten rounds: Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3". Of 64-bit
// words it is NumPy's (numpy.random.Philox), of 32-bit words cuRAND's (curandStatePhilox4_32_10).

__device__ unsigned high_half(unsigned x, unsigned y) { return __umulhi(x, y); }
__device__ unsigned long long high_half(unsigned long long x, unsigned long long y) { return __umul64hi(x, y); }

// Replace a counter's words, the lowest first, by random ones.
template <typename T>
__device__ void philox(T (&words)[4], T key0, T key1) {
    const bool wide = sizeof(T) == 8;
    const T factor0 = wide ? 0xD2E7470EE14C6C93 : 0xD2511F53, factor1 = wide ? 0xCA5A826395121157 : 0xCD9E8D57;
    const T more0 = wide ? 0x9E3779B97F4A7C15 : 0x9E3779B9, more1 = wide ? 0xBB67AE8584CAA73B : 0xBB67AE85;
    #pragma unroll
    for (int round = 0; round < 10; round++, key0 += more0, key1 += more1) {
        const T low0 = factor0 * words[0], high0 = high_half(factor0, words[0]);
        const T low1 = factor1 * words[2], high1 = high_half(factor1, words[2]);
        words[0] = high1 ^ words[1] ^ key0, words[1] = low1;
        words[2] = high0 ^ words[3] ^ key1, words[3] = low0;
    }
}

// From 0 to 1, without 1: the upper 24 of 32 bits, which float32 holds exactly.
__device__ float fraction(unsigned bits) { return (bits >> 8) * (1.0f / 16777216); }

// The numbers 8 * group to 8 * group + 7 of those that NumPy draws with dtype=float32 from
// Generator(Philox(key=(key0, key1), counter=(0, step, 0, 0))). It counts before it draws, and takes a word's low half first.
__device__ void draw_eight(float (&elements)[8], unsigned long long group, unsigned long long step,
                           unsigned long long key0, unsigned long long key1) {
    unsigned long long words[4] = {group + 1, step, 0, 0};
    philox(words, key0, key1);
    #pragma unroll
    for (int i = 0; i < 8; i++) elements[i] = fraction(words[i / 2] >> i % 2 * 32);
}

// Values as integers, and these as bytes, which the tensor cores multiply with pixels and add up without rounding.

#include "ptx.cuh"

// A value w becomes the integer w * 2^(29 - exponent), below 2^30 for values up to 2^(exponent + 1).
// `biased` is the exponent as float32 stores it, + 127; 255 stands for infinity and NaN.
__device__ int biased_exponent(Word largest) { return max((int)(largest >> 23), 30); }
__device__ float scale(int biased) { return __uint_as_float((Word)(283 - biased) << 23); }
__device__ float inverse_scale(int biased) { return __uint_as_float(biased == 255 ? 0x7fffffffu : (biased - 29) << 23); }

// Four bytes from -128 to 127: integer = d[0] + 256 d[1] + 65536 d[2] + 16777216 d[3].
__device__ Word splits(float w, float scale) { return (__float2int_rn(w * scale) + 0x00808080) ^ 0x00808080; }

__device__ Word magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }  // ordered as values are, NaN on top

// Four values' splits: byte i of word d is split d of value i.
struct Splits {
    Word of[4];

    __device__ Splits(const float4& x, float scale) {
        const float values[4] = {x.x, x.y, x.z, x.w};
        Word d[4];
        for (int i = 0; i < 4; i++) d[i] = splits(values[i], scale);
        const Word low[2] = {__byte_perm(d[0], d[1], 0x5140), __byte_perm(d[2], d[3], 0x5140)};
        const Word high[2] = {__byte_perm(d[0], d[1], 0x7362), __byte_perm(d[2], d[3], 0x7362)};
        of[0] = __byte_perm(low[0], low[1], 0x5410);
        of[1] = __byte_perm(low[0], low[1], 0x7632);
        of[2] = __byte_perm(high[0], high[1], 0x5410);
        of[3] = __byte_perm(high[0], high[1], 0x7632);
    }
};

// Numbers as the tensor cores take them, for the kernels that train whole epochs: as integers, and these as bytes; or
// as float32 with fewer bits.

typedef unsigned int Word;

// ---- Integers for floats ----

// A number w becomes the integer w * 2^(29 - exponent), below 2^30 for numbers up to 2^(exponent + 1).
// `biased` is the exponent as float32 stores it, + 127; 255 stands for infinity and NaN.
__device__ int biased_exponent(Word largest) { return max((int)(largest >> 23), 30); }
__device__ float scale(int biased) { return __uint_as_float((Word)(283 - biased) << 23); }
__device__ float inverse_scale(int biased) { return __uint_as_float(biased == 255 ? 0x7fffffffu : (biased - 29) << 23); }

// Four bytes from -128 to 127: integer = d[0] + 256 d[1] + 65536 d[2] + 16777216 d[3].
__device__ Word digits(float w, float scale) { return (__float2int_rn(w * scale) + 0x00808080) ^ 0x00808080; }

__device__ Word magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }  // ordered as numbers are, NaN on top

// ---- Tensor cores ----

// c += a b, a 16 x 32 bytes without a sign, b 32 x 8 bytes with one.
__device__ void multiply(int (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a b, a 16 x 8 and b 8 x 8 numbers of TF32, which have 11 bits.
__device__ void multiply_short(float (&c)[4], const Word (&a)[4], const Word (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ void load_matrices(Word (&a)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((Word)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ void load_transposed(Word (&a)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((Word)__cvta_generic_to_shared(row))
                 : "memory");
}

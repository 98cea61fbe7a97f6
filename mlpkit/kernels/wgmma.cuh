// Hopper's product of a warpgroup, m64nNk16 or m64nNk8, for the widths N that the kernels here use; see `ptx.cuh`.
//
// d (64, N) += a b, with a and b in shared memory, where descriptors say. kind: the values' type. TRANSPOSED: BOTH,
// or ONLY_B, lie with neighbours in m and in n, not in k, which only types of 16 bits may. The sums of a thread are N / 2 registers.
// FRESH: what was in d does not count.

#include "ptx.cuh"

enum Kind { BF16, TF32, FP16 };
enum { NEITHER, BOTH, ONLY_B };

#define TWO_OF(i) "+f"(d[i]), "+f"(d[i + 1])
#define FOUR_OF(i) TWO_OF(i), TWO_OF(i + 2)
#define EIGHT_OF(i) FOUR_OF(i), FOUR_OF(i + 4)
#define SIXTEEN_OF(i) EIGHT_OF(i), EIGHT_OF(i + 8)

#define WGMMA_N16(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n16" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7 " \
                 "}, %8, %9, " add ", 1, 1" transposed ";" \
                 : EIGHT_OF(0) \
                 : "l"(a), "l"(b))

#define WGMMA_N32(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15 " \
                 "}, %16, %17, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0) \
                 : "l"(a), "l"(b))

#define WGMMA_N64(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 " \
                 "}, %32, %33, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16) \
                 : "l"(a), "l"(b))

#define WGMMA_N88(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n88" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
                 "%40, %41, %42, %43 " \
                 "}, %44, %45, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16), EIGHT_OF(32), FOUR_OF(40) \
                 : "l"(a), "l"(b))

#define WGMMA_N96(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n96" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
                 "%40, %41, %42, %43, %44, %45, %46, %47 " \
                 "}, %48, %49, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16), SIXTEEN_OF(32) \
                 : "l"(a), "l"(b))

#define WGMMA_N104(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n104" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51 " \
                 "}, %52, %53, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16), SIXTEEN_OF(32), FOUR_OF(48) \
                 : "l"(a), "l"(b))

#define WGMMA_N128(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
                 "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
                 "%60, %61, %62, %63 " \
                 "}, %64, %65, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16), SIXTEEN_OF(32), SIXTEEN_OF(48) \
                 : "l"(a), "l"(b))

#define WGMMA_N144(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n144" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
                 "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71 " \
                 "}, %72, %73, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16), SIXTEEN_OF(32), SIXTEEN_OF(48), EIGHT_OF(64) \
                 : "l"(a), "l"(b))

#define WGMMA_N176(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n176" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
                 "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, " \
                 "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87 " \
                 "}, %88, %89, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16), SIXTEEN_OF(32), SIXTEEN_OF(48), SIXTEEN_OF(64), EIGHT_OF(80) \
                 : "l"(a), "l"(b))

#define WGMMA_N208(types, transposed, add) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n208" types " {" \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
                 "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, " \
                 "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, " \
                 "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103 " \
                 "}, %104, %105, " add ", 1, 1" transposed ";" \
                 : SIXTEEN_OF(0), SIXTEEN_OF(16), SIXTEEN_OF(32), SIXTEEN_OF(48), SIXTEEN_OF(64), SIXTEEN_OF(80), \
                   EIGHT_OF(96) \
                 : "l"(a), "l"(b))

#define WGMMA_OF(N_IS, add) \
    if constexpr (kind == FP16 && TRANSPOSED == ONLY_B) N_IS("k16.f32.f16.f16", ", 0, 1", add); \
    else if constexpr (kind == BF16 && TRANSPOSED) N_IS("k16.f32.bf16.bf16", ", 1, 1", add); \
    else if constexpr (kind == BF16) N_IS("k16.f32.bf16.bf16", ", 0, 0", add); \
    else if constexpr (kind == FP16 && TRANSPOSED) N_IS("k16.f32.f16.f16", ", 1, 1", add); \
    else if constexpr (kind == FP16) N_IS("k16.f32.f16.f16", ", 0, 0", add); \
    else N_IS("k8.f32.tf32.tf32", "", add)

#define WGMMA_FOR(N_IS) \
    if constexpr (FRESH) { WGMMA_OF(N_IS, "0"); } \
    else { WGMMA_OF(N_IS, "1"); }

template <Kind kind, int TRANSPOSED, int N, bool FRESH = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], Word64 a, Word64 b)
{
    if constexpr (N == 16) { WGMMA_FOR(WGMMA_N16); }
    else if constexpr (N == 32) { WGMMA_FOR(WGMMA_N32); }
    else if constexpr (N == 64) { WGMMA_FOR(WGMMA_N64); }
    else if constexpr (N == 88) { WGMMA_FOR(WGMMA_N88); }
    else if constexpr (N == 96) { WGMMA_FOR(WGMMA_N96); }
    else if constexpr (N == 104) { WGMMA_FOR(WGMMA_N104); }
    else if constexpr (N == 128) { WGMMA_FOR(WGMMA_N128); }
    else if constexpr (N == 144) { WGMMA_FOR(WGMMA_N144); }
    else if constexpr (N == 176) { WGMMA_FOR(WGMMA_N176); }
    else if constexpr (N == 208) { WGMMA_FOR(WGMMA_N208); }
    else static_assert(N == 0, "no such width here");
}

// The same with a, 64 x 16, in registers: of each thread four words, as an mma's fragment of its warp's 16 rows. b lies
// with neighbours in n.
#define WGMMA_REGISTERS(shape, sums, a0, a1, a2, a3, b0, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64" shape " {" sums "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b0 \
                 ", 1, 1, 1, 1;" \
                 : __VA_ARGS__ \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define SUMS_0_TO_7 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SUMS_0_TO_15 SUMS_0_TO_7 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_0_TO_31 SUMS_0_TO_15 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_N(types) \
    if constexpr (N == 16) WGMMA_REGISTERS("n16" types, SUMS_0_TO_7, "%8", "%9", "%10", "%11", "%12", EIGHT_OF(0)); \
    else if constexpr (N == 32) \
        WGMMA_REGISTERS("n32" types, SUMS_0_TO_15, "%16", "%17", "%18", "%19", "%20", SIXTEEN_OF(0)); \
    else WGMMA_REGISTERS("n64" types, SUMS_0_TO_31, "%32", "%33", "%34", "%35", "%36", SIXTEEN_OF(0), SIXTEEN_OF(16))

template <Kind kind, int N>
__device__ __forceinline__ void wgmma_registers(float (&d)[N / 2], const Word (&a)[4], Word64 b)
{
    static_assert(kind != TF32 && (N == 16 || N == 32 || N == 64), "no such product here");
    if constexpr (kind == BF16) { WGMMA_REGISTERS_N("k16.f32.bf16.bf16"); }
    else { WGMMA_REGISTERS_N("k16.f32.f16.f16"); }
}

// ---- What wgmma is told of a matrix: where it begins, and how far apart the groups of 8 are, in k and in m or n ----

inline Word64 descriptor(Word address, Word leading, Word stride)
{
    return (address & 0x3FFFF) / 16 | Word64(leading / 16) << 16 | Word64(stride / 16) << 32;
}

// The same of a matrix that begins so many bytes further on: where that number is known, one addition.
inline Word64 further(Word64 matrix, Word bytes) { return matrix & 0xFFFFFFFF00000000 | (Word)matrix + bytes / 16; }

// What wgmma adds to must be in registers before the first of a sequence begins: the compiler shall not put it off.
template <int COUNT>
inline void in_registers(float (&sums)[COUNT])
{
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

inline void wait(Word64* barrier, Word phase)
{
    for (Word turns = 0; !mbarrier_try_wait(barrier, phase);) give_up_after_a_while(turns);
}

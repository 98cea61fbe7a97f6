// Instructions of the chip that C has no words for, each as a function of its name ("Parallel Thread Execution ISA").
// All assembly of the kernels is here, but for the lines that a chapter shows where they stand.
//
// What only newer chips have, older ones do in another way (AMPERE): in the same order, with the same result, and later.

typedef unsigned int Word;
typedef unsigned long long Word64;

#define AMPERE (__CUDA_ARCH__ >= 800)  // whether it is a chip since 2020
#define HOPPER (__CUDA_ARCH__ >= 900)  // since 2022: it has a unit that copies by itself

// ---- Tensor cores: c += a b, each lane of a warp with its fragments ----

// a 16 x 32 bytes without a sign, b 32 x 8 bytes with one.
__device__ void mma_m16n8k32_u8s8(int (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ void mma_m16n8k16_u8s8(int (&c)[4], Word a0, Word a1, Word b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

// a 16 x 32 bytes with a sign, b 32 x 8 bytes without one. Turing takes 8 rows and 16 k at a time.
__device__ void mma_m16n8k32_s8u8(int (&c)[4], const Word (&a)[4], Word b0, Word b1) {
#if AMPERE
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
            : "r"(a[i]), "r"(i < 2 ? b0 : b1));
#endif
}

// Values of TF32, which have 11 bits. Turing has none: lanes hand each other their values, and all bits count.
#if AMPERE
__device__ void mma_m16n8k8_tf32(float (&c)[4], const Word (&a)[4], const Word (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3},"
        " {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
__device__ void mma_m16n8k8_tf32(float (&c)[4], const Word (&a)[4], const Word (&b)[2])
{
    #pragma unroll
    for (int k = 0; k < 8; ++k) {
        const int row = threadIdx.x % 32 / 4 * 4 + k % 4, column = threadIdx.x % 4 * 8 + k % 4;
        const float upper = __uint_as_float(__shfl_sync(~0u, a[k / 4 * 2], row));
        const float lower = __uint_as_float(__shfl_sync(~0u, a[k / 4 * 2 + 1], row));
        const float left = __uint_as_float(__shfl_sync(~0u, b[k / 4], column));
        const float right = __uint_as_float(__shfl_sync(~0u, b[k / 4], column + 4));
        c[0] += upper * left, c[1] += upper * right, c[2] += lower * left, c[3] += lower * right;
    }
}
#endif

__device__ void mma_m16n8k16_bf16(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Values of fp16. Turing takes eight k at a time.
__device__ void mma_m16n8k16_f16(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
#if AMPERE
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    #pragma unroll
    for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(half ? b1 : b0));
#endif
}

// By four warps together, in the background: a 64 x 16 values, b 16 x 256, both in shared memory, where descriptors
// say. A warp has 16 rows of c, in pieces of 8 columns as above. Only sm_90a has these.
#define FOUR(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define SIXTEEN(c, i) FOUR(c[i]), FOUR(c[i + 1]), FOUR(c[i + 2]), FOUR(c[i + 3])
__device__ void wgmma_m64n256k16_bf16(float (&c)[32][4], Word64 a, Word64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, 1, 1, 1, 0, 1;"  // add to c; neither minus a nor minus b; a by rows of k, b transposed
                 : SIXTEEN(c, 0), SIXTEEN(c, 4), SIXTEEN(c, 8), SIXTEEN(c, 12), SIXTEEN(c, 16), SIXTEEN(c, 20),
                   SIXTEEN(c, 24), SIXTEEN(c, 28)
                 : "l"(a), "l"(b));
}

// Before the first of a sequence, after the last, and until all but PENDING sequences are done.
__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ void wgmma_wait_group() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// The address that instructions want which know shared memory only.
__device__ Word shared_address(const void* at) { return __cvta_generic_to_shared(at); }

// Four matrices of 8 rows of 16 bytes: lanes 0 to 7 name the rows of the first one, lanes 8 to 15 of the second, ...
__device__ void ldmatrix_x4(Word (&a)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same where a row's address is known, as shared memory has it.
__device__ void ldmatrix_x4(Word (&a)[4], Word row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row)
                 : "memory");
}

__device__ void ldmatrix_x4_trans(Word (&a)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// ---- Arithmetic ----

__device__ Word cvt_rna_tf32(float x) {
#if AMPERE
    Word y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
#else
    const Word bits = __float_as_uint(x);
    return x != x ? bits : bits + 0x1000 & ~0x1fffu;
#endif
}

__device__ unsigned short cvt_rn_bf16(float x) {
#if AMPERE
    unsigned short y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    const Word bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

// Four integers as bytes, 0 to 255, the first in the lowest: what is below 0 or above 255 is cut off.
__device__ Word cvt_pack_sat_u8(int first, int second, int third, int fourth) {
    Word y;
    asm("{ .reg .b32 high; cvt.pack.sat.u8.s32.b32 high, %4, %3, 0; cvt.pack.sat.u8.s32.b32 %0, %2, %1, high; }"
        : "=r"(y)
        : "r"(first), "r"(second), "r"(third), "r"(fourth));
    return y;
}

// sum, and four products of bytes: x without a sign, w with one.
__device__ int dp4a_u8s8(Word x, Word w, int sum) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(w));
    return sum;
}

// Two values as bfloat16, the first in the low half.
__device__ Word cvt_rn_bf16x2(float first, float second) {
#if AMPERE
    Word y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
#else
    return cvt_rn_bf16(first) | (Word)cvt_rn_bf16(second) << 16;
#endif
}

// Two values as fp16, the first in the low half; and back.
__device__ Word cvt_rn_f16x2(float first, float second) {
    Word y;
#if AMPERE
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
#else
    asm("{ .reg .b16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
        : "=r"(y)
        : "f"(first), "f"(second));
#endif
    return y;
}

__device__ float2 cvt_f32_f16x2(Word x) {
    float2 y;
    asm("{ .reg .b16 first, second; mov.b32 {first, second}, %2; cvt.f32.f16 %0, first; cvt.f32.f16 %1, second; }"
        : "=f"(y.x), "=f"(y.y)
        : "r"(x));
    return y;
}

// The larger one, and NaN where there is a NaN.
__device__ float max_nan(float x, float y) {
#if AMPERE
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
#else
    return x != x || x > y ? x : y;
#endif
}

#if !AMPERE
// The largest of what a warp's lanes have, for all of them: a word that C has, but not for Turing.
__device__ Word __reduce_max_sync(Word mask, Word x) {
    for (int distance = 16; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(mask, x, distance));
    return x;
}
#endif

__device__ float sqrt_approx(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The same value, but the compiler does not know. So what it is made of is ready by `now`, and not put off until it is
// needed; and what is made of it is made from here on, and not kept in a register since long before.
template <typename T>
__device__ T now(T x) {
    static_assert(sizeof(T) == 4, "as a register has");
    asm volatile("" : "+r"(x));
    return x;
}

#if AMPERE
// ---- Copies to shared memory that a thread asks for, and goes on: 4, 8 or 16 bytes, or so many zeros ----

template <int BYTES>
__device__ void cp_async(void* to, const void* from, bool inside = true) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(inside ? 16 : 0)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                     "r"(inside ? BYTES : 0)
                     : "memory");
    }
}

// The same, through the cache of the multiprocessor, for what will be copied again soon.
template <int BYTES>
__device__ void cp_async_ca(void* to, const void* from, bool inside = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                 "r"(inside ? BYTES : 0)
                 : "memory");
}

__device__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the last PENDING groups of this thread's copies are there.
template <int PENDING>
__device__ void cp_async_wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Until this thread's copies are there.
__device__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
template <int BYTES>
struct Bytes {
    typedef int Type;
};
template <>
struct Bytes<8> {
    typedef int2 Type;
};
template <>
struct Bytes<16> {
    typedef int4 Type;
};

// Turing's threads copy as usual: what they ask for is there.
template <int BYTES>
__device__ void cp_async(void* to, const void* from, bool inside = true) {
    typedef typename Bytes<BYTES>::Type Type;
    *static_cast<Type*>(to) = inside ? *static_cast<const Type*>(from) : Type{};
}
template <int BYTES>
__device__ void cp_async_ca(void* to, const void* from, bool inside = true) { cp_async<BYTES>(to, from, inside); }
__device__ void cp_async_commit_group() {}
template <int PENDING>
__device__ void cp_async_wait_group() {}
__device__ void cp_async_wait_all() {}
#endif

// Nobody waits for what will be read soon: it comes to the cache that all multiprocessors share.
__device__ void prefetch_global_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// ---- Copies that a unit of their own makes, and the barriers in shared memory that count their bytes ----

template <int ARRIVALS>
__device__ void mbarrier_init(Word64* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "n"(ARRIVALS) : "memory");
}

__device__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for all memory: values that were written as usual will be read by copies, of this block or of others.
__device__ void fence_proxy_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ void mbarrier_arrive_expect_tx(Word64* barrier, Word bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ void mbarrier_arrive(Word64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// The same for each thread, once the copies are there that it has asked for by cp.async.
__device__ void cp_async_mbarrier_arrive(Word64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ bool mbarrier_try_wait(Word64* barrier, Word phase) {
    Word over;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
    return over;
}

__device__ void cp_async_bulk(void* to, const void* from, Word bytes, Word64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Let the unit fetch what it has to know of an array, before it is asked for a part of that.
__device__ void prefetch_tensormap(const void* map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The same to this place in each block of the cluster that has a bit in `blocks`, where its own barrier counts the bytes.
// Only sm_90a does this fast.
__device__ void cp_async_bulk_multicast(void* to, const void* from, Word bytes, Word64* barrier, Word blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"((unsigned short)blocks)
                 : "memory");
}

// What the copy engine has to know of a matrix: see tensor_map.py.
struct alignas(64) TensorMap {
    char bytes[128];
};

// Copy the box of a matrix that begins at column x, row y.
__device__ void cp_async_bulk_tensor_2d(void* to, const TensorMap* matrix, int x, int y, Word64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     shared_address(to)),
                 "l"(matrix), "r"(x), "r"(y), "r"(shared_address(barrier))
                 : "memory");
}

// The same of an array of three or four dimensions.
__device__ void cp_async_bulk_tensor_3d(void* to, const TensorMap* array, int x, int y, int z, Word64* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(array), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
                 : "memory");
}

__device__ void cp_async_bulk_tensor_4d(void* to, const TensorMap* array, int w, int x, int y, int z, Word64* barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
                 "l"(array), "r"(w), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
                 : "memory");
}

// ---- Memory that other blocks look at meanwhile: 8, 16 or twice 8 bytes are read and written as a whole ----

__device__ void st_relaxed_gpu(Word64* to, Word64 value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ void st_relaxed_gpu(float4* to, Word64 low, Word64 high) {
    asm volatile("{ .reg .b128 four; mov.b128 four, {%1, %2}; st.relaxed.gpu.global.b128 [%0], four; }" ::"l"(to), "l"(low),
                 "l"(high)
                 : "memory");
}

// The same where other GPUs look at it.
__device__ void st_relaxed_sys(Word64* to, Word64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ void ld_relaxed_sys(Word64& value, const Word64* at, bool asked = true) {
    asm volatile("{ .reg .pred asked; setp.ne.u32 asked, %2, 0; @asked ld.relaxed.sys.global.u64 %0, [%1]; }"
                 : "+l"(value)
                 : "l"(at), "r"((Word)asked)
                 : "memory");
}

__device__ void st_relaxed_sys(Word* to, Word value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Four floats, each of them as a whole.
__device__ void st_relaxed_sys(float4* to, float4 values) {
    asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values.x), "f"(values.y),
                 "f"(values.z), "f"(values.w)
                 : "memory");
}

__device__ float4 ld_relaxed_sys(const float4* at) {
    float4 found;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
                 : "l"(at)
                 : "memory");
    return found;
}

__device__ Word ld_acquire_sys(const Word* at) {
    Word found;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    return found;
}

// Order: who sees by an acquire what a release has written also sees what that thread wrote before.
__device__ void st_release_gpu(Word* to, Word value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ void red_release_gpu_add(Word* to, Word value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ Word ld_acquire_gpu(const Word* at) {
    Word found;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    return found;
}

// Loads happen if they are asked for. (A condition of the instruction, not a branch: lanes stay together.)
__device__ void ld_relaxed_gpu(Word64& value, const Word64* at, bool asked = true) {
    asm volatile("{ .reg .pred asked; setp.ne.u32 asked, %2, 0; @asked ld.relaxed.gpu.global.u64 %0, [%1]; }"
                 : "+l"(value)
                 : "l"(at), "r"((Word)asked)
                 : "memory");
}

__device__ void ld_relaxed_gpu(ulonglong2& values, const Word64* at, bool asked = true) {
    asm volatile("{ .reg .pred asked; setp.ne.u32 asked, %3, 0; @asked ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2]; }"
                 : "+l"(values.x), "+l"(values.y)
                 : "l"(at), "r"((Word)asked)
                 : "memory");
}

__device__ void ld_relaxed_gpu(float4& four, const float4* at, bool asked = true) {
    asm volatile("{ .reg .b64 low, high; .reg .b128 four; .reg .pred asked; setp.ne.u32 asked, %5, 0;"
                 " mov.b64 low, {%0, %1}; mov.b64 high, {%2, %3}; mov.b128 four, {low, high};"
                 " @asked ld.relaxed.gpu.global.b128 four, [%4];"
                 " mov.b128 {low, high}, four; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
                 : "+f"(four.x), "+f"(four.y), "+f"(four.z), "+f"(four.w)
                 : "l"(at), "r"((Word)asked)
                 : "memory");
}

// ---- Kernels that begin before the ones before them have ended; see overlap.py ----

// Let those behind this one begin, once all of its blocks have said so. Until those before are done, and seen.
__device__ void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#ifndef OVERLAPS
#define OVERLAPS 0  // whether this kernel begins so, and the one behind it may
#endif

__device__ void launch_dependents() {
#if OVERLAPS
    griddepcontrol_launch_dependents();
#endif
}

// At the head of a kernel, or behind what needs nobody's results. In a training step the kernel behind this one begins
// when those before it are done: until it waits itself, it may read what was there before this one began.
__device__ void begin_in_turn() {
    launch_dependents();
#if HOPPER
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
#endif
}

// ---- Barriers and clocks ----

// A barrier of some of a block's warps; number 0 is __syncthreads'.
template <int THREADS>
__device__ void bar_sync(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// A cluster's barrier: what a block wrote before it arrived is there for those who have waited. By whole warps.
__device__ void barrier_cluster_arrive() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The same where nothing but barriers were written before, by a thread that has made fence_mbarrier_init.
__device__ void barrier_cluster_arrive_relaxed() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Where the block of a rank in this cluster has what this one has at `address`.
__device__ Word mapa(Word address, Word rank) {
    Word there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Send a value, or four, to another block's shared memory, where a barrier counts the bytes: who has waited for that
// finds them, without a fence and without the cluster's barrier. Both addresses are of `mapa`.
__device__ void st_async(Word to, float value, Word barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(value),
                 "r"(barrier)
                 : "memory");
}

__device__ void st_async(Word to, float4 four, Word barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w), "r"(barrier)
                 : "memory");
}

// Nanoseconds; the same for all multiprocessors, whose clocks don't all run at one rate.
__device__ long long globaltimer() {
    long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

// The number of the multiprocessor that this block is on.
__device__ Word smid() {
    Word number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

// A turn of a loop that waits for another block or a copy: whether it is time to look at what became of them.
__device__ bool time_to_look(Word& turns) { return ++turns % 256 == 0; }

// The same, for those who don't look. After seconds of turns, something else must have failed.
__device__ void give_up_after_a_while(Word& turns) {
    if (++turns > (1u << 24)) __trap();
}

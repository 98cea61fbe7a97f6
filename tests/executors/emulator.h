// CUDA for one CPU thread, as far as the emulated kernels use it. A GPU thread is a fiber: a stack of its own, and a
// function that leaves one stack for another. A fiber runs until it must wait for others; then the scheduler picks, in
// emulator.cpp, which is compiled once for all kernels.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <vector>

#pragma GCC visibility push(hidden)  // each kernel has its own fibers

// ---- Fibers ----

enum State : char { READY, LOOKING, MEETING, AT_CLUSTER, DONE };
enum Arrival { NOT_YET, ARRIVED, OVER };  // at the cluster's barrier; it is over when all have arrived

struct Fiber {
    void* stack_pointer;
    char* stack;
    State* state;  // beside those of its warp: the scheduler looks at them again and again
    int thread, block;
    unsigned exchanges;  // that it took part in, with its warp
    Arrival arrival;
    int copies;  // that it asked for, and that are on their way
    unsigned group;  // of copies, that it is asking for
    int in_group[8];  // such copies of the last groups
};

// Some threads wait until all have come: a warp's, a block's, or those of a named barrier.
struct Meeting {
    std::vector<Fiber*> here;
};

struct Warp {
    Meeting meeting;
    alignas(16) char slots[2][32 * 24];  // what its lanes show each other; two, as a lane may be one exchange ahead
};

struct Block {
    std::vector<unsigned char> memory;
    std::vector<Warp> warps;
    Meeting barriers[16];
};

extern std::vector<Block> blocks;
extern int block_threads, cluster_blocks;
extern Fiber* current;
extern bool changed;  // something that a waiting thread could wait for
extern unsigned deliveries;  // of writes on their way, so far

// Let a fiber wait for others, or end with a failure.
void leave(State state);
void fail(const char* why);
void meet(Meeting& meeting, unsigned all);
void arrive_at_cluster();
void wait_for_cluster();

// What a loop does that looks for something again and again.
inline void look_again() { leave(LOOKING); }

// A write that nobody has waited for yet arrives later, and not in the order in which writes were made.
void later(std::function<void()> write);
void copy_later(void* to, const void* from, size_t bytes);
void wait_for_copies_of_mine();

// Run a kernel; return what went wrong, or "". The seed decides whose turn it is, and when writes arrive.
const char* run(std::function<void()> what, int grid, int cluster, int threads, size_t memory, unsigned seed);

// Launch a kernel as CUDA's driver does: `values` says where each argument is. And here `sizes`, of how many bytes.
template <typename... Arguments>
static const char* launch(void (*what)(Arguments...), void** values, const size_t* sizes, size_t given, int grid,
                          int cluster, int threads, size_t memory, unsigned seed) {
    const size_t wanted[] = {sizeof(Arguments)...};
    if (!std::equal(sizes, sizes + given, wanted, std::end(wanted))) return "these are not the kernel's arguments";
    const std::tuple<Arguments...> arguments{*(Arguments*)*values++...};
    return run([=] { std::apply(what, arguments); }, grid, cluster, threads, memory, seed);
}

// ---- CUDA's words ----

#define __device__
#define __global__
#define __grid_constant__
#define __noinline__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define threadIdx (Index{(unsigned)current->thread})
#define blockDim (Index{(unsigned)block_threads})
#define gridDim (Index{(unsigned)blocks.size()})
#define blockIdx (Index{(unsigned)current->block})
#define shared_bytes ((unsigned char*)(((uintptr_t)blocks[current->block].memory.data() + 127) & ~(uintptr_t)127))

struct Index { unsigned x; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };

#ifndef HOPPER
#define HOPPER 1  // whether it is as new a chip; 0 for what kernels do on older ones
#endif
#define AMPERE 1

typedef unsigned int Word;
typedef unsigned long long Word64;

static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static int2 make_int2(int x, int y) { return {x, y}; }

using std::max;
using std::min;
static float max(float x, float y) { return fmaxf(x, y); }

template <typename To, typename From>
static To same_bits(From from) {
    To to;
    static_assert(sizeof(to) == sizeof(from), "");
    memcpy(&to, &from, sizeof(to));
    return to;
}

static float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static float __fdividef(float x, float y) { return x / y; }
static float __fmul_rn(float x, float y) { return x * y; }
static float __fadd_rn(float x, float y) { return x + y; }
template <typename T> static T __ldg(const T* from) { return *from; }
template <typename T> static T __ldcg(const T* from) { return *from; }

template <typename T>
static T atomicCAS(T* at, T from, T to) {
    const T found = *at;
    if (found == from) *at = to;
    return found;
}

template <typename T> static T atomicMax(T* at, T value) {
    const T found = *at;
    *at = max(found, value), changed = true;
    return found;
}
template <typename T> static T atomicAdd(T* at, T value) {
    const T found = *at;
    *at = found + value, changed = true;
    return found;
}
static void __threadfence() {}

static int __float2int_rn(float x) {
    return x != x ? 0 : (int)std::clamp(std::nearbyint((double)x), -2147483648.0, 2147483647.0);
}

static unsigned __umulhi(unsigned x, unsigned y) { return (uint64_t)x * y >> 32; }
static unsigned long long __umul64hi(unsigned long long x, unsigned long long y) { return (unsigned __int128)x * y >> 64; }

static unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned found = 0;
    for (int i = 0; i < 4; i++) found |= (unsigned)(bytes >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
    return found;
}

static void named_barrier(int which, unsigned threads) {
    meet(blocks[current->block].barriers[which], threads);
    changed = true;
}

static void __syncthreads() { named_barrier(0, block_threads); }

// ---- Warps ----

static int lane_number() { return current->thread % 32; }

static void __syncwarp() { meet(blocks[current->block].warps[current->thread / 32].meeting, 32); }

// Show the other lanes something; return what each of the 32 shows.
template <typename T>
static const T* exchange_in_warp(T mine) {
    static_assert(sizeof(T) <= 24, "");
    Warp& warp = blocks[current->block].warps[current->thread / 32];
    T* slots = (T*)warp.slots[current->exchanges++ % 2];
    slots[lane_number()] = mine;
    meet(warp.meeting, 32);
    return slots;
}

template <typename T>
static T __shfl_sync(unsigned mask, T mine, int from) {
    if (mask != ~0u) fail("only whole warps are emulated");
    return exchange_in_warp(mine)[from & 31];
}

template <typename T>
static T __shfl_xor_sync(unsigned mask, T mine, int distance) {
    return __shfl_sync(mask, mine, lane_number() ^ distance);
}

static unsigned __reduce_max_sync(unsigned, unsigned mine) {
    const unsigned* all = exchange_in_warp(mine);
    return *std::max_element(all, all + 32);
}

static bool __any_sync(unsigned, bool mine) {
    const bool* all = exchange_in_warp(mine);
    return std::any_of(all, all + 32, [](bool one) { return one; });
}

static bool __all_sync(unsigned, bool mine) {
    const bool* all = exchange_in_warp(mine);
    return std::all_of(all, all + 32, [](bool one) { return one; });
}

// Four matrices of 8 x 8 numbers of 16 bits; lane i brings the address of row i % 8 of matrix i / 8.
static void load_four_matrices(Word (&to)[4], const void* row, bool transposed) {
    struct Row { uint16_t numbers[8]; };
    const Row* rows = exchange_in_warp(*(const Row*)row);
    const int i = lane_number() / 4, j = lane_number() % 4 * 2;
    for (int m = 0; m < 4; m++, rows += 8) {
        const uint16_t first = transposed ? rows[j].numbers[i] : rows[i].numbers[j];
        const uint16_t second = transposed ? rows[j + 1].numbers[i] : rows[i].numbers[j + 1];
        to[m] = first | (unsigned)second << 16;
    }
}

static void ldmatrix_x4(Word (&a)[4], const void* row) { load_four_matrices(a, row, false); }
static void ldmatrix_x4(Word (&a)[4], Word row) { load_four_matrices(a, shared_bytes + row, false); }
static void ldmatrix_x4_trans(Word (&a)[4], const void* row) { load_four_matrices(a, row, true); }

struct Operands { Word a[4], b[2]; };

// What makes products is compiled with vector instructions: without them a seventh of all time would go there.
#define FAST __attribute__((optimize("O3")))

// c += a b: a 16 x K bytes without a sign, b K x 8 bytes with one.
template <int K>
FAST static void multiply_bytes(int (&c)[4], Operands mine) {
    const Operands* all = exchange_in_warp(mine);
    for (int i = 0; i < 4; i++) {
        const Operands *row = all + lane_number() / 4 * 4, *column = all + (lane_number() % 4 * 2 + i % 2) * 4;
        for (int word = 0; word < K / 4; word++) {
            const unsigned a = row[word % 4].a[i / 2 + word / 4 * 2], b = column[word % 4].b[word / 4];
            for (int bits = 0; bits < 32; bits += 8) c[i] += (int)(a >> bits & 255) * (int8_t)(b >> bits);
        }
    }
}

static void mma_m16n8k32_u8s8(int (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    multiply_bytes<32>(c, {{a[0], a[1], a[2], a[3]}, {b0, b1}});
}

static void mma_m16n8k16_u8s8(int (&c)[4], Word a0, Word a1, Word b0) { multiply_bytes<16>(c, {{a0, a1}, {b0}}); }

// The other way round: a has a sign, and b has none.
FAST static void mma_m16n8k32_s8u8(int (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    const Operands* all = exchange_in_warp(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    for (int i = 0; i < 4; i++) {
        const Operands *row = all + lane_number() / 4 * 4, *column = all + (lane_number() % 4 * 2 + i % 2) * 4;
        for (int word = 0; word < 8; word++) {
            const unsigned a = row[word % 4].a[i / 2 + word / 4 * 2], b = column[word % 4].b[word / 4];
            for (int bits = 0; bits < 32; bits += 8) c[i] += (int8_t)(a >> bits) * (int)(b >> bits & 255);
        }
    }
}

static Word cvt_pack_sat_u8(int first, int second, int third, int fourth) {
    const auto byte = [](int x) { return (Word)std::clamp(x, 0, 255); };
    return byte(first) | byte(second) << 8 | byte(third) << 16 | byte(fourth) << 24;
}

static int dp4a_u8s8(Word x, Word w, int sum) {
    for (int bits = 0; bits < 32; bits += 8) sum += (int)(x >> bits & 255) * (int8_t)(w >> bits);
    return sum;
}

// c += a b: a 16 x 8 and b 8 x 8 floats, of which 11 bits count.
FAST static void mma_m16n8k8_tf32(float (&c)[4], const Word (&a)[4], const Word (&b)[2]) {
    Operands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    for (unsigned& bits : mine.a) bits &= ~0x1fffu;
    for (unsigned& bits : mine.b) bits &= ~0x1fffu;
    const Operands* all = exchange_in_warp(mine);
    for (int i = 0; i < 4; i++) {
        const Operands *row = all + lane_number() / 4 * 4, *column = all + (lane_number() % 4 * 2 + i % 2) * 4;
        double sum = c[i];
        for (int k = 0; k < 8; k++) {
            sum += (double)__uint_as_float(row[k % 4].a[i / 2 + k / 4 * 2]) * __uint_as_float(column[k % 4].b[k / 4]);
        }
        c[i] = sum;
    }
}

// c += a b: a 16 x 16 and b 16 x 8 numbers of 16 bits, the upper halves of floats.
FAST static void mma_m16n8k16_bf16(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    const Operands* all = exchange_in_warp(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    for (int i = 0; i < 4; i++) {
        const Operands *row = all + lane_number() / 4 * 4, *column = all + (lane_number() % 4 * 2 + i % 2) * 4;
        double sum = c[i];
        for (int k = 0; k < 16; k++) {
            const Word a = row[k / 2 % 4].a[i / 2 + k / 8 * 2], b = column[k / 2 % 4].b[k / 8];
            sum += (double)__uint_as_float(k % 2 ? a & 0xffff0000 : a << 16) *
                   __uint_as_float(k % 2 ? b & 0xffff0000 : b << 16);
        }
        c[i] = sum;
    }
}

// The same of fp16.
FAST static void mma_m16n8k16_f16(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
    const Operands* all = exchange_in_warp(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    for (int i = 0; i < 4; i++) {
        const Operands *row = all + lane_number() / 4 * 4, *column = all + (lane_number() % 4 * 2 + i % 2) * 4;
        double sum = c[i];
        for (int k = 0; k < 16; k++) {
            const Word a = row[k / 2 % 4].a[i / 2 + k / 8 * 2], b = column[k / 2 % 4].b[k / 8];
            sum += (double)same_bits<_Float16>((uint16_t)(a >> k % 2 * 16)) * same_bits<_Float16>((uint16_t)(b >> k % 2 * 16));
        }
        c[i] = sum;
    }
}

// d += a b: a 64 x 16 numbers of 16 bits in a warpgroup's registers, b 16 x N of them with neighbours in n, in shared
// memory, where a descriptor says. IS_FP16: else the upper halves of floats.
template <bool IS_FP16, int N>
FAST static void multiply_registers(float (&d)[N / 2], const Word (&a)[4], Word64 b) {
    const Operands* all = exchange_in_warp(Operands{{a[0], a[1], a[2], a[3]}});
    const auto value = [](uint16_t bits) {
        return IS_FP16 ? (float)same_bits<_Float16>(bits) : __uint_as_float((Word)bits << 16);
    };
    const unsigned char* first = shared_bytes + (b & 0x3fff) * 16;
    const size_t leading = (b >> 16 & 0x3fff) * 16, stride = (b >> 32 & 0x3fff) * 16;
    for (int i = 0; i < N / 2; i++) {
        const Operands* row = all + lane_number() / 4 * 4;
        const unsigned char* column = first + i / 4 * stride + (lane_number() % 4 * 2 + i % 2) * 2;
        double sum = d[i];
        for (int k = 0; k < 16; k++) {
            sum += (double)value(row[k / 2 % 4].a[i % 4 / 2 + k / 8 * 2] >> k % 2 * 16) *
                   value(*(const uint16_t*)(column + k / 8 * leading + k % 8 * 16));
        }
        d[i] = sum;
    }
}

static void wgmma_fence() {}
static void wgmma_commit_group() {}
template <int PENDING>
static void wgmma_wait_group() {}

// The nearest float of 8 bits, the even one where two are as near.
static unsigned short cvt_rn_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static Word cvt_rn_bf16x2(float first, float second) { return cvt_rn_bf16(first) | (Word)cvt_rn_bf16(second) << 16; }

static Word cvt_rn_f16x2(float first, float second) {
    return same_bits<uint16_t>((_Float16)first) | (Word)same_bits<uint16_t>((_Float16)second) << 16;
}

static float2 cvt_f32_f16x2(Word x) {
    return {(float)same_bits<_Float16>((uint16_t)x), (float)same_bits<_Float16>((uint16_t)(x >> 16))};
}

// The nearest float of 11 bits, away from 0 where two are as near.
static Word cvt_rna_tf32(float x) {
    const unsigned bits = __float_as_uint(x);
    return std::isfinite(x) ? (bits + 0x1000) & ~0x1fffu : bits;
}

template <typename T> static T now(T x) { return x; }
static float max_nan(float x, float y) { return x != x || x > y ? x : y; }
static float sqrt_approx(float x) { return sqrtf(x); }

// ---- Barriers that count bytes, in 8 bytes of shared memory ----

struct Counter {
    int bytes;  // that are expected and have not arrived
    uint16_t arrivals : 15, phase : 1;
    uint16_t all;  // arrivals, of each phase
};

static void count(void* barrier, int bytes, int arrivals) {
    Counter& counter = *(Counter*)barrier;
    counter.bytes += bytes, counter.arrivals -= arrivals, changed = true;
    if (counter.bytes == 0 && counter.arrivals == 0) counter.arrivals = counter.all, counter.phase ^= 1;
}

template <int ARRIVALS>
static void mbarrier_init(Word64* barrier) { *(Counter*)barrier = {0, ARRIVALS, 0, ARRIVALS}; }
static void fence_mbarrier_init() {}
static void mbarrier_arrive(Word64* barrier) { count(barrier, 0, 1); }
static void fence_proxy_async() {}
static void fence_proxy_async_all() {}
static void mbarrier_arrive_expect_tx(Word64* barrier, Word bytes) { count(barrier, bytes, 1); }
static bool mbarrier_try_wait(Word64* barrier, Word phase) { return ((Counter*)barrier)->phase != phase; }

// Where another block has what this one has at an address of its shared memory.
static void* in_block(void* at, int block) {
    const auto start = [](int which) { return ((uintptr_t)blocks[which].memory.data() + 127) & ~(uintptr_t)127; };
    return (void*)((uintptr_t)at - start(current->block) + start(block));
}

static void cp_async_bulk(void* to, const void* from, Word bytes, Word64* barrier) {
    later([=] { memcpy(to, from, bytes), count(barrier, -(int)bytes, 0); });
}

static void cp_async_bulk_multicast(void* to, const void* from, Word bytes, Word64* barrier, Word wanted) {
    const int first = current->block / cluster_blocks * cluster_blocks;
    for (int i = 0; i < cluster_blocks; i++) {
        if (wanted >> i & 1) cp_async_bulk(in_block(to, first + i), from, bytes, (Word64*)in_block(barrier, first + i));
    }
}

// ---- What a thread asks for, and what it looks at ----

template <int BYTES>
static void cp_async(void* to, const void* from, bool inside = true) {
    if ((uintptr_t)to % BYTES || (uintptr_t)from % BYTES) return fail("a misaligned address");
    copy_later(to, inside ? from : 0, BYTES);
}

template <int BYTES>
static void cp_async_ca(void* to, const void* from, bool inside = true) { cp_async<BYTES>(to, from, inside); }

// What is read early is read, and so must be there.
static void prefetch_global_l2(const void* at) { (void)*(volatile const char*)at; }

static void cp_async_wait_all() { wait_for_copies_of_mine(); }

// When the copies that this thread has asked for are there, it counts at a barrier.
static void cp_async_mbarrier_arrive(Word64* barrier) {
    wait_for_copies_of_mine();
    count(barrier, 0, 1);
}
static void launch_dependents() {}  // kernels run one after another
static void begin_in_turn() {}
static void cp_async_commit_group() {
    if (current->in_group[++current->group % 8]) fail("more than 8 groups of copies are on their way");
}

template <int PENDING>
static void cp_async_wait_group() {
    for (unsigned group = current->group - 7; group != current->group - PENDING; group++) {
        while (current->in_group[group % 8]) look_again();
    }
}

static void st_relaxed_gpu(Word64* to, Word64 value) {
    later([=] { *to = value; });
}

static void st_relaxed_gpu(float4* to, Word64 low, Word64 high) {
    later([=] { *(ulonglong2*)to = {low, high}; });
}

static void ld_relaxed_gpu(Word64& value, const Word64* at, bool asked = true) {
    if (asked) value = *at;
}

static void ld_relaxed_gpu(ulonglong2& values, const Word64* at, bool asked = true) {
    if (asked) values = *(const ulonglong2*)at;
}

static void ld_relaxed_gpu(float4& four, const float4* at, bool asked = true) {
    if (asked) four = *at;
}

static void st_relaxed_sys(Word64* to, Word64 value) { st_relaxed_gpu(to, value); }
static void st_relaxed_sys(Word* to, Word value) { *to = value, changed = true, deliveries++; }
static void st_relaxed_sys(float4* to, float4 values) { *to = values, changed = true, deliveries++; }
static float4 ld_relaxed_sys(const float4* at) { return *at; }
static Word ld_acquire_sys(const Word* at) { return *at; }
static void ld_relaxed_sys(Word64& value, const Word64* at, bool asked = true) { ld_relaxed_gpu(value, at, asked); }

static long long globaltimer() { return 0; }

static void red_release_gpu_add(Word* to, Word value) { *to += value, changed = true, deliveries++; }
static Word ld_acquire_gpu(const Word* at) { return *at; }
static void st_release_gpu(Word* to, Word value) { *to = value, changed = true, deliveries++; }

static bool time_to_look(Word&) { return look_again(), false; }
static void give_up_after_a_while(Word&) { look_again(); }

// ---- Barriers ----

template <int THREADS>
static void bar_sync(int number) { named_barrier(number, THREADS); }

static void barrier_cluster_arrive() {
    __syncwarp();
    arrive_at_cluster();
}

static void barrier_cluster_arrive_relaxed() { barrier_cluster_arrive(); }
static void barrier_cluster_wait() { wait_for_cluster(); }

// An address in shared memory, as a number; and a block's of this cluster.
static Word shared_address(const void* at) { return (const unsigned char*)at - shared_bytes; }
static Word mapa(Word address, Word rank) { return address | rank << 24; }
template <typename Value>
static void st_async(Word to, Value value, Word barrier) {
    if (to % sizeof value) return fail("a misaligned address");
    const int block = current->block / cluster_blocks * cluster_blocks + (to >> 24);
    void* place = in_block(shared_bytes + (to & 0xffffff), block);
    void* counter = in_block(shared_bytes + (barrier & 0xffffff), block);
    later([=] { memcpy(place, &value, sizeof value), count(counter, -(int)sizeof value, 0); });
}

#pragma GCC visibility pop

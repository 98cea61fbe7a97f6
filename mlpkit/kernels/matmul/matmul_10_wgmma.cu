// C = A B on Hopper's tensor cores with Hopper's own instruction, and a machine of its own that brings A and B.
//
// needs sm_90a
//
// wgmma is for a warpgroup, four warps: together they multiply 64 x 16 by 16 x 256 values of bfloat16, 262,144
// multiply-adds. It reads A and B from shared memory itself: no ldmatrix, no registers for them. And it goes on in the
// background, while the warps wait or do something else. Only the sums are in registers, 128 of each thread.
//
// The copy engine (NVIDIA: tensor memory accelerator, TMA) is asked by one thread for a whole box of a matrix. It knows
// the matrix from a tensor map, which the host has made: where it lies, how large it is, how large a box. What lies
// outside of the matrix is zeros. It counts the bytes that have come at a barrier in shared memory.
//
// So there are two roles. A warp of its own, the producer, asks for boxes. Two warpgroups, the consumers, multiply: each
// has 64 of the tile's 128 rows. They meet at two barriers for each slot of the ring: `full`, which the bytes complete,
// and `empty`, at which each warp of the consumers arrives when it has read the slot.
//
// Banks: a row of a box is 128 bytes, so the rows' pieces of 16 bytes would all begin in the same banks. The tensor map
// asks for a swizzle, and the descriptors say so: in row r of eight, piece p lies at place p ^ r. Nobody has to pad.
//
// B lies by rows, with neighbours in n, not in k. Of 16 bits wgmma can transpose it on the way; of TF32 it can't.

#ifndef STAGES
#define STAGES 4
#endif
#define TILE_M 128
#define TILE_N 256
#define WARP_M 16  // of a warpgroup's 64 rows of sums
#define WARP_N 256
#include "tiles.cuh"

using bf16 = unsigned short;  // its 16 bits; only the tensor cores calculate with it

constexpr int ROW = 64;  // values in 128 bytes, a row of a box

struct Tiles {
    bf16 A[TILE_M][ROW];             // one box: 64 k of each row
    bf16 B[TILE_N / ROW][ROW][ROW];  // four boxes side by side: 64 columns of each k
};

struct Memory {
    Tiles ring[STAGES];
    Word64 full[STAGES], empty[STAGES];
};

static_assert(STAGES >= 2 && sizeof(Memory) <= 227 << 10, "a block has at most 227 KiB of shared memory");

// What wgmma is told of a matrix in shared memory: where it begins, how far apart its boxes are, and that eight rows of
// a box follow the eight before them (1,024 bytes) and are swizzled as the tensor map says (1 in the highest bits).
inline Word64 descriptor(const void* begin, Word64 box_bytes)
{
    return (shared_address(begin) & 0x3FFFF) / 16 | box_bytes / 16 << 16 | Word64(1024 / 16) << 32 | Word64(1) << 62;
}

inline void wait(Word64* barrier, Word phase)
{
    for (Word turns = 0; !mbarrier_try_wait(barrier, phase);) give_up_after_a_while(turns);
}

extern "C" __global__ __launch_bounds__(THREADS + 32, 1)
void matmul(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(1024) char memory[];
    auto& [ring, full, empty] = *reinterpret_cast<Memory*>(memory);
    auto [first_row, first_column] = first_of_block(M, N);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < STAGES; ++slot) mbarrier_init<1>(&full[slot]), mbarrier_init<WARPS>(&empty[slot]);
        fence_proxy_async();  // the copy engine has to see them, too
    }
    __syncthreads();

    if (warp == WARPS && lane == 0) {  // the producer
        for (int k = 0, slot = 0, round = 0; k < K; k += ROW) {
            wait(&empty[slot], ~round & 1);  // in the first round nobody has to
            mbarrier_arrive_expect_tx(&full[slot], sizeof(Tiles));
            cp_async_bulk_tensor_2d(ring[slot].A, &A, k, first_row, &full[slot]);
            for (int x = 0; x < TILE_N; x += ROW)
                cp_async_bulk_tensor_2d(
                    ring[slot].B[x / ROW], &B, first_column + x, k, &full[slot]);
            if (++slot == STAGES) slot = 0, ++round;
        }
    }
    if (warp < WARPS) {  // the consumers
        float total[1][TILE_N / 8][4] = {};
        for (int k = 0, slot = 0, round = 0; k < K; k += ROW) {
            wait(&full[slot], round & 1);
            wgmma_fence();
            #pragma unroll
            for (int i = 0; i < ROW; i += 16)
                wgmma_m64n256k16_bf16(total[0], descriptor(&ring[slot].A[warp / 4 * 64][i], 0),
                                      descriptor(&ring[slot].B[0][i], sizeof(ring[slot].B[0])));
            wgmma_commit_group();
            wgmma_wait_group<1>();  // the step before is done: its slot may be filled again
            if (k > 0 && lane == 0) mbarrier_arrive(&empty[slot > 0 ? slot - 1 : STAGES - 1]);
            if (++slot == STAGES) slot = 0, ++round;
        }
        wgmma_wait_group<0>();
        store_pieces(total, C, first_row + 16 * warp, first_column, M, N);
    }
}

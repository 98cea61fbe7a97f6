"""The product in Triton: what a *block* does, in Python, and no word about threads, shared memory or copies.

Triton's compiler finds all of that: which thread has which numbers, when what is copied, which instruction multiplies.
It is told the tile, the warps and how many tiles are under way at a time, and tries what it is given (`autotune`).
"""

import triton
import triton.language as tl

TRIED = [(128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (64, 64, 64, 4, 4), (16, 16, 128, 2, 3)]
CONFIGS = [
    triton.Config({"ROWS": m, "COLUMNS": n, "DEPTH": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in TRIED
]


@triton.autotune(CONFIGS, key=["m", "n", "k", "LAYER"])
@triton.jit
def matmul(
    a, b, bias, c, m, n, k, a_stride, b_stride,
    LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """c = a b, or max(a b + bias, 0) if LAYER: a (m, k), b (k, n) and c (m, n) by rows, sums in float32."""
    down, across = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    tile_row, tile_column = tl.program_id(0) // across, tl.program_id(0) % across
    tile_row, tile_column = tl.swizzle2d(tile_row, tile_column, down, across, 8)
    rows = tile_row * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tile_column * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, k, DEPTH):
        ks = start + tl.arange(0, DEPTH)
        a_ks, b_ks = ks[None, :], ks[:, None]
        a_tile = tl.load(a + rows * a_stride + a_ks, (rows < m) & (a_ks < k), 0)
        b_tile = tl.load(b + b_ks * b_stride + columns, (b_ks < k) & (columns < n), 0)
        total = tl.dot(a_tile, b_tile, total)
    if LAYER:
        total = tl.maximum(total + tl.load(bias + columns, columns < n, 0), 0)
    tl.store(c + rows * n + columns, total, (rows < m) & (columns < n))


def launch(a, b, c, bias=None):
    """Write a product, or the layer where there is a bias, into c: torch tensors on the GPU, a and b in bfloat16."""
    (m, k), n = a.shape, b.shape[1]

    def grid(meta):
        return (triton.cdiv(m, meta["ROWS"]) * triton.cdiv(n, meta["COLUMNS"]),)

    matmul[grid](a, b, c if bias is None else bias, c, m, n, k, a.stride(0), b.stride(0), bias is not None)

"""The first three rungs in Python: what their CUDA C files do, for `numba.cuda`, to time, to read and to step through.

With no GPU, Numba can play the GPU's part: set NUMBA_ENABLE_CUDASIM=1 before numba is imported, and each thread is one
of Python's, which can print and be stopped by a debugger. That is slow: ten rows and columns are enough.
"""

import numpy as np
from numba import config, cuda, float32

TILE = 8 if config.ENABLE_CUDASIM else 32  # 64 threads a block: the simulator starts a thread of Python's for each


@cuda.jit
def naive(a, b, c):
    """c = a b, a thread for each number: neighbouring threads of a warp (x) stand one below the other."""
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


@cuda.jit
def coalesced(a, b, c):
    """c = a b, a thread for each number: neighbouring threads of a warp (x) stand side by side."""
    j, i = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


@cuda.jit
def shared(a, b, c):
    """c = a b, a block for each tile: its threads fetch the tiles of a and b together, and share them."""
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)  # on a line of its own: the simulator knows arrays by their lines
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    j, i = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        a_tile[y, x] = b_tile[y, x] = float32(0)
        if i < a.shape[0] and start + x < a.shape[1]:
            a_tile[y, x] = a[i, start + x]
        if start + y < b.shape[0] and j < b.shape[1]:
            b_tile[y, x] = b[start + y, j]
        cuda.syncthreads()  # the tiles are complete
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()  # nobody needs them any more
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


def matmul(kernel, a, b):
    """Return the product of two float32 NumPy arrays by one of the three kernels."""
    c = np.empty((a.shape[0], b.shape[1]), np.float32)
    prepare(kernel, *c.shape)(a, b, c)
    return c


def prepare(kernel, m, n):
    """Return one of the three kernels with as many blocks as a product (m, n) needs: call it with a, b and c."""
    down, across = -(-m // TILE), -(-n // TILE)
    return kernel[(down, across) if kernel is naive else (across, down), (TILE, TILE)]

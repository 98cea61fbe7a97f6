"""A matrix product in Numba, blocked for registers and cache.

The result is made in tiles of ROWS rows and as many columns as a vector register holds; a tile's totals stay in
registers. The tiles above each other are a panel: they use the same columns of b, which are copied to where they lie
together and stay in a near cache. Both are ideas of Goto and van de Geijn (2008), who also copy blocks of a, which this
product reads in place. With few rows above each other the copy does not pay: b is read in place too, if it can be.
"""

import numpy as np
from numba import prange

from .compiler import compiled
from .simd import BYTES, ROWS, tile

DEPTH = 1024  # rows of b that are copied at a time
HEIGHT = 1024  # rows of a panel; with fewer, b is read in place


@compiled(__name__, parallel=True, nogil=True)
def matmul(a, b, out):
    """Write the product of a (n, k) and b (k, m) into out (n, m), on all cores; k is at least 1.

    The arrays, all float32 or all float64, may have any strides; out must not overlap with a or b.
    """
    a, b, out = a[::1, ::1], b[::1, ::1], out[::1, ::1]  # arrays of any strides: compiled once for all of them
    width = BYTES // out.itemsize
    above = (len(a) + HEIGHT - 1) // HEIGHT
    for panel in prange(above * ((out.shape[1] + width - 1) // width)):
        left, top = panel // above * width, panel % above * HEIGHT
        multiply_panel(a[top : top + HEIGHT], b, left, out[top : top + HEIGHT])


@compiled(__name__, nogil=True)
def multiply(a, b, out):
    """Do what `matmul` does, on one core."""
    a, b, out = a[::1, ::1], b[::1, ::1], out[::1, ::1]
    width = BYTES // out.itemsize
    for left in range(0, out.shape[1], width):
        for top in range(0, len(a), HEIGHT):
            multiply_panel(a[top : top + HEIGHT], b, left, out[top : top + HEIGHT])


@compiled(__name__, nogil=True)
def multiply_panel(a, b, left, out):
    """Write those columns of the product that a register holds, from `left` on, into out."""
    n, size, width = len(a), out.itemsize, BYTES // out.itemsize
    whole = left + width <= out.shape[1] and out.strides[1] == size
    in_place = n < HEIGHT and whole and b.strides[1] == size
    columns = np.empty((0 if in_place else min(len(b), DEPTH), width), out.dtype)
    rest = np.zeros((ROWS if n % ROWS else 0, min(len(b), DEPTH)), out.dtype)  # rows of a that do not fill a tile
    corner = np.empty((ROWS, width), out.dtype)  # a tile for which out has no room, or not in one place
    for k in range(0, len(b), DEPTH):
        depth = min(DEPTH, len(b) - k)
        for i in range(n % ROWS):
            for j in range(depth):
                rest[i, j] = a[n - n % ROWS + i, k + j]
        b_at, b_row = b.ctypes.data + k * b.strides[0] + left * size, b.strides[0]
        if not in_place:
            copy_columns(b[k : k + depth], left, columns)
            b_at, b_row = columns.ctypes.data, columns.strides[0]
        for i in range(0, n, ROWS):
            a_at, a_row, a_column = a.ctypes.data + i * a.strides[0] + k * a.strides[1], a.strides[0], a.strides[1]
            if i + ROWS > n:
                a_at, a_row, a_column = rest.ctypes.data, rest.strides[0], size
            if whole and i + ROWS <= n:
                out_at = out.ctypes.data + i * out.strides[0] + left * size
                tile(out.dtype, a_at, a_row, a_column, b_at, b_row, out_at, out.strides[0], depth, k > 0)
            else:
                tile(out.dtype, a_at, a_row, a_column, b_at, b_row, corner.ctypes.data, width * size, depth, False)
                place(corner, out[i : i + ROWS, left : left + width], k > 0)


@compiled(__name__, nogil=True)
def copy_columns(b, left, columns):
    """Copy b (k, m), from column `left` on, into the first k rows of `columns`; zeros where b has no more columns."""
    width = min(columns.shape[1], b.shape[1] - left)
    if b.strides[1] == b.itemsize:
        for k in range(len(b)):
            for j in range(width):
                columns[k, j] = b[k, left + j]
    else:
        for j in range(width):
            for k in range(len(b)):
                columns[k, j] = b[k, left + j]
    for k in range(len(b)):
        for j in range(width, columns.shape[1]):
            columns[k, j] = 0


@compiled(__name__, nogil=True)
def place(corner, out, add):
    """Copy as much of a tile as out has room for, or add it."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = corner[i, j] + (out[i, j] if add else 0)

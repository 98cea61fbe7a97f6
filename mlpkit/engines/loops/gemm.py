"""A matrix product in Numba, blocked for registers and cache.

The result is made in tiles of ROWS rows and as many columns as a vector register holds; a tile's totals stay in
registers. Where there are 32, a wide tile has twice as many columns, and two multiply-adds for each number of a that is
loaded. The tiles above each other are a panel: they use the same columns of b, which are copied to where they lie
together and stay in a near cache. Both are ideas of Goto and van de Geijn (2008), who also copy blocks of a, which this
product reads in place. With few rows above each other the copy does not pay: b is read in place too, if it can be.
"""

import numpy as np
from numba import prange

from .compiler import compiled
from .simd import BYTES, ROWS, WIDE, fetch, tile, transpose, wide_tile

DEPTH = 1024  # rows of b that are copied at a time
HEIGHT = 1024  # rows of a panel; with fewer, b is read in place


@compiled(__name__, nogil=True)
def matmul(a, b, out):
    """Write the product of a (n, k) and b (k, m) into out (n, m), on all cores; n and k are at least 1.

    The arrays, all float32 or all float64, may have any strides; out must not overlap with a or b.
    """
    matmul_any(a[::1, ::1], b[::1, ::1], out[::1, ::1])


@compiled(__name__, parallel=True, nogil=True)
def matmul_any(a, b, out):
    """Do what `matmul` does. It is compiled once: by their type, all arrays have strides of their own."""
    width, height = WIDE * BYTES // out.itemsize, HEIGHT
    if len(a) < HEIGHT:  # tiles share more columns, so fewer rows: as many turns as with narrow ones
        height = (len(a) + WIDE * ROWS - 1) // (WIDE * ROWS) * ROWS
    above = (len(a) + height - 1) // height
    for panel in prange(above * ((out.shape[1] + width - 1) // width)):
        left, top = panel // above * width, panel % above * height
        columns = slice(left, left + width)
        multiply_any(a[top : top + height], b[:, columns], out[top : top + height, columns])


@compiled(__name__, nogil=True)
def multiply(a, b, out):
    """Do what `matmul` does, on one core."""
    multiply_any(a[::1, ::1], b[::1, ::1], out[::1, ::1])


@compiled(__name__, nogil=True)
def multiply_any(a, b, out):
    """Do what `multiply` does; see `matmul_any`."""
    lanes, depth = BYTES // out.itemsize, min(len(b), DEPTH)
    columns = np.empty(depth * WIDE * lanes, out.dtype)  # a panel's part of b
    rest = np.zeros((ROWS if len(a) % ROWS else 0, depth), out.dtype)  # rows of a that do not fill a tile
    corner = np.empty((ROWS, lanes), out.dtype)  # a tile for which out has no room, or not in one place
    left = 0
    while left < out.shape[1]:
        wide = left + WIDE * lanes <= out.shape[1] and out.strides[1] == out.itemsize
        width = WIDE * lanes if wide else lanes
        for top in range(0, len(a), HEIGHT):
            multiply_panel(a[top : top + HEIGHT], b, left, width, out[top : top + HEIGHT], columns, rest, corner)
        left += width


@compiled(__name__, nogil=True)
def multiply_panel(a, b, left, width, out, columns, rest, corner):
    """Write `width` columns of the product, from `left` on, into out: as many as one tile or a wide one has."""
    n, size, lanes = len(a), out.itemsize, corner.shape[1]
    whole = left + width <= out.shape[1] and out.strides[1] == size
    in_place = n < HEIGHT and whole and b.strides[1] == size
    columns = columns[: len(columns) // width * width].reshape(-1, width)
    for k in range(0, len(b), DEPTH):
        depth = min(DEPTH, len(b) - k)
        for i in range(n % ROWS):
            for j in range(depth):
                rest[i, j] = a[n - n % ROWS + i, k + j]
        b_at, b_row = b.ctypes.data + k * b.strides[0] + left * size, b.strides[0]
        if not in_place:
            copy_columns(b[k : k + depth, left : left + width], columns)
            b_at, b_row = columns.ctypes.data, columns.strides[0]
        for i in range(0, n, ROWS):
            a_at, a_row, a_column = a.ctypes.data + i * a.strides[0] + k * a.strides[1], a.strides[0], a.strides[1]
            if i + ROWS > n:
                a_at, a_row, a_column = rest.ctypes.data, rest.strides[0], size
            out_at, out_row = out.ctypes.data + i * out.strides[0] + left * size, out.strides[0]
            if whole and i + ROWS <= n and width > lanes:
                wide_tile(out.dtype, a_at, a_row, a_column, b_at, b_row, out_at, out_row, depth, k > 0)
            elif whole and i + ROWS <= n:
                tile(out.dtype, a_at, a_row, a_column, b_at, b_row, out_at, out_row, depth, k > 0)
            else:
                for j in range(left, left + width, lanes):
                    part, at = out[i : i + ROWS, j : j + lanes], b_at + (j - left) * size
                    if k > 0:
                        place(part, corner)
                    tile(out.dtype, a_at, a_row, a_column, at, b_row, corner.ctypes.data, lanes * size, depth, k > 0)
                    place(corner, part)


@compiled(__name__, nogil=True)
def prefetch(array):
    """Ask for a contiguous array to be brought to this core's cache, and do not wait for it."""
    fetch(array.ctypes.data, array.size * array.itemsize)


@compiled(__name__, nogil=True)
def copy_columns(b, columns):
    """Copy b (k, m) into the first k rows of `columns`; zeros where b has no more columns."""
    size, lanes, k = b.itemsize, BYTES // b.itemsize, 0
    if b.strides[0] == size and b.shape[1] == columns.shape[1]:  # each column lies in one place
        while k + lanes <= len(b):
            for j in range(0, b.shape[1], lanes):
                a_at, out_at = b.ctypes.data + j * b.strides[1] + k * size, columns[k:].ctypes.data + j * size
                transpose(b.dtype, a_at, b.strides[1], out_at, columns.strides[0])
            k += lanes
    for i in range(k, len(b)):
        for j in range(columns.shape[1]):
            columns[i, j] = b[i, j] if j < b.shape[1] else 0


@compiled(__name__, nogil=True)
def place(tile, out):
    """Copy as much of one array as the other has room for."""
    for i in range(min(len(tile), len(out))):
        for j in range(min(tile.shape[1], out.shape[1])):
            out[i, j] = tile[i, j]

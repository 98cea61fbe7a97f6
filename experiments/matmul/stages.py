"""The eight ways to multiply, from three plain loops to tiles in registers, each compiled for one core and for all.

Each is a function of a (n, k), b (k, m) and out (n, m), all float32 or all float64, and writes the product into out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numba import prange

from mlpkit.engines import numba_fastmath, numba_parallel, numba_serial
from mlpkit.engines.loops import gemm
from mlpkit.engines.loops.compiler import FASTMATH, compile_loops, compiled

from .read import LABELS

CONTRACT = {"contract"}  # permission to make one instruction of a product and a sum; rounds once instead of twice


def order_ikj(a, b, out):
    """Add `a[i, k]` times row k of b to row i of out: the inner loop walks along rows, which lie in one piece."""
    for i in prange(a.shape[0]):
        out[i] = 0
        for k in range(b.shape[0]):
            factor = a[i, k]
            for j in range(b.shape[1]):
                out[i, j] += factor * b[k, j]


def outer_1x8(a, b, out):
    """Do as `order_ikj` does, but take eight rows of b at a time: out is read and written an eighth as often."""
    whole = b.shape[0] // 8 * 8
    for i in prange(a.shape[0]):
        out[i] = 0
        for k in range(0, whole, 8):
            factors = eight(a[i], k)
            for j in range(b.shape[1]):
                out[i, j] = out[i, j] + dot8(factors, column8(b, k, j))
        add_product(a[i : i + 1, whole:], b[whole:], out[i : i + 1])


def outer_4x8(a, b, out):
    """Do as `outer_1x8` does, but for four rows of out at a time: b is read a quarter as often."""
    whole = b.shape[0] // 8 * 8
    for block in prange((a.shape[0] + 3) // 4):
        i = 4 * block
        out[i : i + 4] = 0
        if i + 4 <= a.shape[0]:
            for k in range(0, whole, 8):
                p, q, r, s = eight(a[i], k), eight(a[i + 1], k), eight(a[i + 2], k), eight(a[i + 3], k)
                for j in range(b.shape[1]):
                    c = column8(b, k, j)
                    w, x = out[i, j] + dot8(p, c), out[i + 1, j] + dot8(q, c)
                    y, z = out[i + 2, j] + dot8(r, c), out[i + 3, j] + dot8(s, c)
                    out[i, j], out[i + 1, j], out[i + 2, j], out[i + 3, j] = w, x, y, z
            add_product(a[i : i + 4, whole:], b[whole:], out[i : i + 4])
        else:
            add_product(a[i:], b, out[i:])


@compiled(__name__)
def eight(row, k):
    """Return eight numbers of a row, from the k-th on."""
    return row[k], row[k + 1], row[k + 2], row[k + 3], row[k + 4], row[k + 5], row[k + 6], row[k + 7]


@compiled(__name__)
def column8(b, k, j):
    """Return eight numbers of column j, from row k on."""
    return b[k, j], b[k + 1, j], b[k + 2, j], b[k + 3, j], b[k + 4, j], b[k + 5, j], b[k + 6, j], b[k + 7, j]


@compiled(__name__, fastmath=CONTRACT)
def dot8(p, c):
    """Return the sum of the products of two tuples of eight."""
    first = p[0] * c[0] + p[1] * c[1] + p[2] * c[2] + p[3] * c[3]
    return first + p[4] * c[4] + p[5] * c[5] + p[6] * c[6] + p[7] * c[7]


@compiled(__name__)
def add_product(a, b, out):
    """Add the product of a and b to out."""
    for i in range(a.shape[0]):
        for k in range(b.shape[0]):
            for j in range(b.shape[1]):
                out[i, j] += a[i, k] * b[k, j]


def four_sums(a, b, out):
    """Do as `python_loops.matmul` does, but with four sums for each number of out, none of which waits for another."""
    whole = b.shape[0] // 4 * 4
    for i in prange(a.shape[0]):
        for j in range(b.shape[1]):
            p = q = r = s = out.dtype.type(0)
            for k in range(0, whole, 4):
                p += a[i, k] * b[k, j]
                q += a[i, k + 1] * b[k + 1, j]
                r += a[i, k + 2] * b[k + 2, j]
                s += a[i, k + 3] * b[k + 3, j]
            for k in range(whole, b.shape[0]):
                p += a[i, k] * b[k, j]
            out[i, j] = (p + q) + (r + s)


def blas(a, b, out):
    """Leave it to NumPy, and that to the BLAS it was built with."""
    np.matmul(a, b, out=out)


@dataclass(frozen=True)
class Stage:
    """A way to multiply. one, all: the function, compiled for one core and for all. slow: not for large matrices."""

    label: str
    one: Callable
    all: Callable
    slow: bool = False


def both(function, **options):
    """Return a function compiled for one core and for all, under names that keep the two apart on disk."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__doc__ = function.__doc__
    one = compiled(f"{__name__}_one", **options)(function)
    return one, compiled(f"{__name__}_all", parallel=True, **options)(copy)


reordered = compile_loops(f"{__name__}_reordered", fastmath=FASTMATH)  # on one core

_MADE: dict[str, tuple[Any, ...]] = {
    "ijk": (numba_serial.matmul, numba_parallel.matmul, True),
    "ijk_reordered": (reordered.matmul, numba_fastmath.matmul, True),
    "four_sums": (*both(four_sums), True),
    "ikj": both(order_ikj),
    "outer_1x8": both(outer_1x8, fastmath=CONTRACT),
    "outer_4x8": both(outer_4x8, fastmath=CONTRACT),
    "tiles": (gemm.multiply, gemm.matmul),
    "blas": (blas, blas),
}
STAGES = {name: Stage(LABELS[name], *made) for name, made in _MADE.items()}

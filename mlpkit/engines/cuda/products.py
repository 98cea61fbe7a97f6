"""Matrix products as a function: cuBLASLt's, planned once for matrices that lie alike, and free to be recorded.

A plan needs no matrix, only how each one lies in memory. So it can be looked up, for arrays that are made anew in each
step.
"""

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import cupy as cp
import numpy as np

from mlpkit.kernels import cublaslt


@dataclass(frozen=True)
class MatrixLayout:
    """How a matrix lies: all that cuBLAS wants to know of it before the product. alignment: bytes, of its address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    alignment: int

    @classmethod
    def of(cls, matrix):
        address = matrix.data.ptr | 256
        return cls(matrix.shape, matrix.strides, matrix.dtype, address & -address)

    @classmethod
    def of_rows(cls, n, features, dtype):
        """Return how a new array (n, features) lies."""
        size = np.dtype(dtype).itemsize
        return cls((n, features), (features * size, size), np.dtype(dtype), 256)

    @property
    def T(self):
        return MatrixLayout(self.shape[::-1], self.strides[::-1], self.dtype, self.alignment)

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def itemsize(self):
        return self.dtype.itemsize

    @property
    def data(self):
        return SimpleNamespace(ptr=self.alignment)


def product(a, b, out=None, precision=None):
    """Return a b, in `out` where it is given: a matrix whose rows are contiguous. precision: as of `cublaslt.Product`.

    a (n, k), b (k, m): arrays of one type, float32 or float64, however they lie.
    """
    a, b = _usable(a), _usable(b)
    out = cp.empty((len(a), b.shape[1]), a.dtype) if out is None else out
    if not b.size or not a.size:
        out.fill(0)
    else:
        _plan(MatrixLayout.of(a), MatrixLayout.of(b), MatrixLayout.of(out), precision)(a, b, out)
    return out


def _usable(matrix):
    return matrix if matrix.flags.c_contiguous or matrix.flags.f_contiguous else cp.ascontiguousarray(matrix)


@cache
def _plan(a, b, out, precision):
    return cublaslt.Product(a, b, out, precision)

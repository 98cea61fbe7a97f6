"""What layers of images are made of, an operation a kernel: any shape, float32 and float64, images (n, c, h, w).

Arguments are CuPy arrays that are contiguous, and all of one type. Each function asks for its kernel and returns; none
looks at a value. See `windows.cu`, `pools.cu` and `norms.cu`, and `engines.numpy_baseline` for the formulas.
"""

import math
from functools import cache

import numpy as np

from mlpkit import kernels

THREADS = 256  # a block, for kernels in which each thread has one value
MANY_THREADS = 1024  # a block, for those in which a block adds up
SHARED = 512  # bytes, for two sums a warp in float64
REALS = {np.dtype("f4"): "float", np.dtype("f8"): "double"}


def windows(shape, k, stride, padding):
    """Return how many windows images of this shape have, down and across."""
    return [(length + 2 * padding - k) // stride + 1 for length in shape[2:]]


def columns(x, k, stride, padding):
    """Return the windows of x (n, c, h, w) as columns (c k k, n h' w')."""
    cp = _cupy()
    out = windows(x.shape, k, stride, padding)
    found = cp.empty((x.shape[1] * k * k, len(x) * math.prod(out)), x.dtype)
    _each("windows", "columns", found, x, found, _struct(*x.shape, *out, k, stride, padding))
    return found


def add_windows(columns, dx, out, k, stride, padding):
    """Write dx (n, c, h, w), the sums of the windows' gradients, columns (c k k, n h' w'). out: (h', w')."""
    _each("windows", "images", dx, columns, dx, _struct(*dx.shape, *out, k, stride, padding))


def transpose(x, to, b=None):
    """Write x (a, b, h, w) with a value of b (a,) added into `to` (b, a, h, w)."""
    sizes = (*x.shape[:2], math.prod(x.shape[2:]))
    _each("windows", "transpose", to, x, np.uintp(0) if b is None else b, to, *map(np.int32, sizes))


def channel_sums(dz, sums):
    """Write the sums of dz (n, c, h, w) over all but the channels into sums (c,)."""
    _channels("channel_sums", dz, dz, sums)


def max_pool(x, size, stride):
    """Return y and index, uint8 where that is enough, else int32."""
    cp = _cupy()
    y = cp.empty((*x.shape[:2], *windows(x.shape, size, stride, 0)), x.dtype)
    index = cp.empty(y.shape, np.uint8 if size <= 16 else np.int32)
    _pool("max_pool", y, (x, y, index), x.shape, y.shape, size, stride, index.dtype)
    return y, index


def max_pool_backward(dy, index, shape, size, stride):
    """Return dx. index: as `max_pool` returned it."""
    dx = _cupy().empty(shape, dy.dtype)
    _pool("max_pool_backward", dx, (dy, index, dx), shape, dy.shape, size, stride, index.dtype)
    return dx


def avg_pool(x, size, stride):
    """Return y."""
    y = _cupy().empty((*x.shape[:2], *windows(x.shape, size, stride, 0)), x.dtype)
    _pool("avg_pool", y, (x, y), x.shape, y.shape, size, stride)
    return y


def avg_pool_backward(dy, shape, size, stride):
    """Return dx."""
    dx = _cupy().empty(shape, dy.dtype)
    _pool("avg_pool_backward", dx, (dy, dx), shape, dy.shape, size, stride)
    return dx


def batch_norm(x, gamma, beta, mean, variance, momentum, eps):
    """Return y, normalized and inverse_deviation (c,), and move mean and variance, in place. x: rows or images."""
    cp, number = _cupy(), x.dtype.type
    y, normalized, inverse = cp.empty(x.shape, x.dtype), cp.empty(x.shape, x.dtype), cp.empty(len(gamma), x.dtype)
    arrays = x, gamma, beta, mean, variance, y, normalized, inverse
    _channels("batch_norm", x, *arrays, after=(number(momentum), number(eps)))
    return y, normalized, inverse


def batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    """Return dx, and write dgamma and dbeta (c,)."""
    dx = _cupy().empty(dy.shape, dy.dtype)
    _channels("batch_norm_backward", dy, dy, normalized, inverse_deviation, gamma, dgamma, dbeta, dx)
    return dx


def batch_norm_evaluate(x, gamma, beta, mean, variance, eps):
    """Return y, with the running statistics."""
    y = _cupy().empty(x.shape, x.dtype)
    arrays = x, gamma, beta, mean, variance, y
    _each("norms", "batch_norm_evaluate", y, *arrays, _struct(*_as_channels(x)), x.dtype.type(eps))
    return y


def hinge(z, labels):
    """Return the loss (1,) and dz. labels (n,): int64."""
    cp = _cupy()
    dz, loss, sizes = cp.empty(z.shape, z.dtype), cp.empty(1, z.dtype), map(np.int32, z.shape)
    threads = min(MANY_THREADS, -(-len(z) // 32) * 32)
    _kernel("steps", "hinge", z.dtype)((1,), (threads,), (z, labels, dz, loss, *sizes), shared_mem=SHARED)
    return loss, dz


def _cupy():
    import cupy  # here, because a machine with no GPU can still read and check the sources

    return cupy


@cache
def _kernel(file, name, dtype, **macros):
    return kernels.load(file, REAL=REALS[np.dtype(dtype)], **macros).get_function(name)


def _struct(*values):
    """Return integers as a struct, by value."""
    return np.array(values, np.int32).view(f"V{4 * len(values)}")


def _each(file, name, written, *arguments, **macros):
    """Launch a kernel that has a thread for each value of the array `written`."""
    if written.size:
        _kernel(file, name, written.dtype, **macros)((-(-written.size // THREADS),), (THREADS,), arguments)


def _pool(name, written, arrays, shape, pooled, size, stride, index=None):
    sizes = _struct(shape[0] * shape[1], *shape[2:], *pooled[2:], size, stride)
    macros = {"INDEX": "int"} if index == np.int32 else {}
    _each("pools", name, written, *arrays, sizes, **macros)


def _as_channels(x):
    """Return the sizes of x (n, c) or (n, c, h, w) as (n, c, area)."""
    return (*x.shape[:2], math.prod(x.shape[2:]))


def _channels(name, x, *arrays, after=()):
    """Launch a kernel that has a block for each channel of x."""
    n, c, area = _as_channels(x)
    threads = min(MANY_THREADS, max(32, -(-n * area // 32) * 32))
    _kernel("norms", name, x.dtype)((c,), (threads,), (*arrays, _struct(n, c, area), *after), shared_mem=SHARED)

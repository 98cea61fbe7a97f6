"""Numba loops, bundles of images: convolutions in which a vector register holds a number of each of several images.

Dense layers and updates are those of `numba_step`, and what is neither comes from NumPy. Arrays are (n, c, h, w) for
everybody who calls; a convolution turns SIMD batches into another layout, one after another, and its results back.
"""

import numpy as np

from .images.bands import Bands
from .loops import convolve as _convolve
from .loops import images as _images
from .loops.compiler import FASTMATH, Threads, compile_loops
from .loops.simd import BYTES as _BYTES
from .numpy_baseline import *
from .numpy_baseline import _along

# isort: split
from .numba_step import *  # of what both have, these are the ones
from .numba_step import relu as _relu
from .numba_step import relu_backward as _relu_backward

OWN = (
    "conv", "conv_backward_weights", "conv_backward_input",
    "max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward",
    "batch_norm", "batch_norm_backward", "batch_norm_evaluate", "upsample_nearest", "upsample_nearest_backward",
)  # fmt: skip
images = compile_loops(f"{__name__}_images", _images, parallel=True, fastmath=FASTMATH, error_model="numpy")
max_pool = images.max_pool
max_pool_backward = images.max_pool_backward
avg_pool = images.avg_pool
avg_pool_backward = images.avg_pool_backward
upsample_nearest = images.upsample_nearest
upsample_nearest_backward = images.upsample_nearest_backward


def relu(z):
    return _relu(rows_of(z)).reshape(z.shape)


def relu_backward(a, da):
    return _relu_backward(rows_of(a), rows_of(da)).reshape(a.shape)


def conv(x, W, b, stride, padding):
    size = W.shape[-1]
    rows = (x.shape[2] + 2 * padding - size) // stride + 1
    if bands := _bands_of(x, rows, size, stride, padding):
        return bands.merge_results(conv(bands.cut(x), W, b, stride, 0))
    plan, tables = _convolve.plan(*x.shape[1:], len(W), size, stride, padding)
    b = np.zeros(len(W), x.dtype) if b is None else np.ascontiguousarray(b)
    z = np.empty((len(x), len(W), plan.rows, plan.columns), x.dtype)
    _convolve.forward(plan, tables, rows_of(x), np.ascontiguousarray(W), b, rows_of(z), _shares(x))
    return z


def conv_backward_weights(x, dz, dW, db, stride, padding):
    size, rows = dW.shape[-1], dz.shape[2]
    if bands := _bands_of(x, rows, size, stride, padding):
        conv_backward_weights(bands.cut(x), bands.cut_results(dz), dW, None, stride, 0)
    else:
        plan, tables = _convolve.plan(*x.shape[1:], len(dW), size, stride, padding)
        _convolve.backward_weights(plan, tables, rows_of(x), rows_of(dz), dW.reshape(len(dW), -1), _shares(x))
    if db is not None:
        images.sum_planes(_planes(dz), db)


def conv_backward_input(dz, W, shape, stride, padding):
    size, rows = W.shape[-1], dz.shape[2]
    if bands := _bands_of(dz, rows, size, stride, padding):
        parts = bands.cut_results(dz)
        of = len(parts), shape[1], *((edge - 1) * stride + size for edge in parts.shape[2:])
        return bands.add_up(conv_backward_input(parts, W, of, stride, 0), shape)
    plan, tables = _convolve.plan(*shape[1:], len(W), size, stride, padding)
    dx = np.empty(shape, dz.dtype)
    _convolve.backward_input(plan, tables, rows_of(dz), np.ascontiguousarray(W), rows_of(dx), _shares(dz))
    return dx


def _bands_of(x, *window):
    """Return the `Bands` of images, so many that there is one for each lane of each core, None where images suffice."""
    return Bands.of(images, len(x), Threads.most * _BYTES // x.itemsize, *window)


def normalize(x, gamma, beta, mean, variance, momentum, eps, least=-np.inf):
    """Return `max(least, gamma * normalized + beta)`, and what `normalize_backward` wants of the statistics.

    mean, variance: running averages, which move as `batch_norm`'s do. Where they are None, each image is normalized by
    itself, as by `instance_norm`.
    """
    if mean is None:  # then images are channels of one image
        of = [np.tile(each, len(x)) for each in (gamma, beta)]
        a, found = images.normalize(_flat(x, (1, x.shape[0] * x.shape[1])), *of, eps, least)
    else:
        a, found = images.normalize(_planes(x), gamma, beta, eps, least)
        mean += momentum * (found[0] - mean)
        variance += momentum * (found[2] - variance)
    return a.reshape(x.shape), found


def normalize_backward(da, x, found, gamma, beta, dgamma, dbeta, least=-np.inf):
    times = found.shape[1] // len(gamma)  # an image's, or all images'
    of, slopes = [np.tile(each, times) for each in (gamma, beta)], np.empty((2, found.shape[1]), x.dtype)
    planes = [_planes(each) if times == 1 else _flat(each, (1, found.shape[1])) for each in (da, x)]
    dx = images.normalize_backward(*planes, found, *of, *slopes, least)
    for total, each in zip((dgamma, dbeta), slopes, strict=True):
        total[:] = each.reshape(times, -1).sum(axis=0)
    return dx.reshape(x.shape)


def batch_norm(x, gamma, beta, mean, variance, momentum, eps):
    y, found = normalize(x, gamma, beta, mean, variance, momentum, eps)
    return y, (x - _along(found[0], x)) * _along(found[1], x), found[1]


def batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    known = np.stack([0 * gamma, 1 + 0 * gamma, gamma])
    dx = normalize_backward(dy, normalized, known, gamma, 0 * gamma, dgamma, dbeta)
    return dx * _along(inverse_deviation, dx)


def batch_norm_evaluate(x, gamma, beta, mean, variance, eps):
    return images.batch_norm_evaluate(_planes(x), gamma, beta, mean, variance, eps).reshape(x.shape)


def _shares(x):
    """Return in how many parts a batch is done: as many as there may be threads, each with a SIMD batch or more."""
    lanes = _BYTES // x.itemsize
    return min(Threads.most, (len(x) + lanes - 1) // lanes)


def rows_of(array):
    """Return an array as a contiguous matrix: an image, or a channel's weights, in each row."""
    return _flat(array, array.shape[:1])


def _planes(x):
    """Return x (n, c) or (n, c, h, w) as contiguous (n, c, elements of a plane)."""
    return _flat(x, x.shape[:2])


def _flat(array, kept):
    if not array.size:
        raise ValueError(f"a batch must have shape (n, ...) with n at least 1, not {array.shape}.")
    return np.ascontiguousarray(array).reshape(*kept, -1)

"""Numba loops, bundles of images: convolutions in which a vector register holds a number of each of several images.

Dense layers and updates are those of `numba_step`, and what is neither comes from NumPy. Arrays are (n, c, h, w) for
everybody who calls; a convolution turns bundles of images into another layout, one after another, and its results back.
"""

import numpy as np
from numba import config as _config

from .loops import convolve as _convolve
from .loops import images as _images
from .loops.compiler import FASTMATH, compile_loops
from .loops.simd import BYTES as _BYTES
from .numba_step import *
from .numba_step import relu as _relu
from .numba_step import relu_backward as _relu_backward
from .numpy_baseline import (
    add,
    binary_cross_entropy,
    hinge,
    leaky_relu,
    leaky_relu_backward,
    mean_squared_error,
    multiply,
    sigmoid,
    sigmoid_backward,
    tanh,
    tanh_backward,
)
from .stepping import StepByStep


def why_not(model, optimizer, batch_size):
    """Return None: whatever the operations can do, an operation at a time. See `protocol`."""


Trainer = StepByStep
images = compile_loops(f"{__name__}_images", _images, parallel=True, fastmath=FASTMATH, error_model="numpy")
max_pool = images.max_pool
max_pool_backward = images.max_pool_backward
avg_pool = images.avg_pool
avg_pool_backward = images.avg_pool_backward


def relu(z):
    return _relu(_rows(z)).reshape(z.shape)


def relu_backward(a, da):
    return _relu_backward(_rows(a), _rows(da)).reshape(a.shape)


def conv(x, W, b, stride, padding):
    plan, tables = _convolve.plan(*x.shape[1:], len(W), W.shape[-1], stride, padding)
    b = np.zeros(len(W), x.dtype) if b is None else b
    z = np.empty((len(x), len(W), plan.rows, plan.columns), x.dtype)
    _convolve.forward(plan, tables, _rows(x), _rows(W), b, _rows(z), _shares(x))
    return z


def conv_backward_weights(x, dz, dW, db, stride, padding):
    plan, tables = _convolve.plan(*x.shape[1:], len(dW), dW.shape[-1], stride, padding)
    _convolve.backward_weights(plan, tables, _rows(x), _rows(dz), dW.reshape(len(dW), -1), _shares(x))
    if db is not None:
        images.sum_planes(_planes(dz), db)


def conv_backward_input(dz, W, shape, stride, padding):
    plan, tables = _convolve.plan(*shape[1:], len(W), W.shape[-1], stride, padding)
    dx = np.empty(shape, dz.dtype)
    _convolve.backward_input(plan, tables, _rows(dz), np.ascontiguousarray(W), _rows(dx), _shares(dz))
    return dx


def batch_norm(x, gamma, beta, mean, variance, momentum, eps):
    y, normalized, inverse_deviation = images.batch_norm(_planes(x), gamma, beta, mean, variance, momentum, eps)
    return y.reshape(x.shape), normalized.reshape(x.shape), inverse_deviation


def batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    dx = images.batch_norm_backward(_planes(dy), _planes(normalized), inverse_deviation, gamma, dgamma, dbeta)
    return dx.reshape(dy.shape)


def batch_norm_evaluate(x, gamma, beta, mean, variance, eps):
    return images.batch_norm_evaluate(_planes(x), gamma, beta, mean, variance, eps).reshape(x.shape)


def _shares(x):
    """Return in how many parts a batch is done: as many as there may be threads, each with a bundle or more."""
    lanes = _BYTES // x.itemsize
    return min(_config.NUMBA_NUM_THREADS, (len(x) + lanes - 1) // lanes)


def _rows(array):
    """Return an array as a contiguous matrix: an image, or a channel's weights, in each row."""
    return np.ascontiguousarray(array).reshape(len(array), -1)


def _planes(x):
    """Return x (n, c) or (n, c, h, w) as contiguous (n, c, numbers of a plane)."""
    return np.ascontiguousarray(x).reshape(*x.shape[:2], -1)

"""CuPy, cuBLAS with epilogues: bias, ReLU and sums come with the product that they belong to.

So a step takes as few calls as cuBLAS's products allow: the executor of this name makes them ready ahead. The updates
are element-wise, which CuPy makes a kernel of from one line of C. The loss needs sums over rows, and is in
`kernels/mlp/layers.cu`.
"""

import math
from functools import cache

import cupy as cp
import numpy as np

from .cuda.kernel import C_TYPES, kernel
from .cupy_naive import *

THREADS = 256  # a block, for kernels in which each thread has one element
MANY = 512  # rows for which one block, which adds up their losses itself, takes longer than a thread for each row


def gather(X, index):
    if not (X.flags.c_contiguous and X.dtype in C_TYPES and index.dtype == np.int64):
        return X[index]  # what the kernel does not know: slower, and as right
    rows = cp.empty((len(index), *X.shape[1:]), X.dtype)
    _launch(*gather_call(X, index, rows))
    return rows


def all_finite(array):
    return _all_finite(array, True)


def all_labels(labels, classes):
    return _all_labels(labels, classes)


def count(mask):
    return _count(mask, 1)


def relu_backward(a, da):
    return relu_backward_into(a, da)


def softmax_cross_entropy(z, labels):
    if len(z) > MANY:
        losses, dz = cp.empty(len(z), z.dtype), cp.empty(z.shape, z.dtype)
        _cross_entropy_of_many(labels, cp.ascontiguousarray(z), *z.shape, losses, dz)
        return mean_in_float64(losses, losses.size), dz
    dz, loss = z.copy(order="C"), cp.empty((), z.dtype)
    cross_entropy(dz, None, cp.ascontiguousarray(labels, np.int64), loss)
    return loss, dz


def axpy(alpha, x, y):
    _axpy(x, alpha, y)


def sgd_update(theta, grad, lr):
    _sgd(grad, lr, theta)


def momentum_update(theta, grad, velocity, lr, momentum):
    _momentum(grad, lr, momentum, theta, velocity)


def nesterov_update(theta, grad, velocity, lr, momentum):
    _nesterov(grad, lr, momentum, theta, velocity)


def rmsprop_update(theta, grad, s, lr, rho, eps):
    _rmsprop(grad, lr, rho, 1 - rho, eps, theta, s)


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    _adam(grad, t, lr, beta1, 1 - beta1, _log(beta1), beta2, 1 - beta2, _log(beta2), eps, theta, m, v)


def add_bias_relu(z, b):
    """Replace z by relu(z + b)."""
    arguments = z, b, np.int32(len(z)), np.int32(len(b))
    _launch(_layers("add_bias_relu", z.dtype), -(-z.size // THREADS), THREADS, arguments)


def cross_entropy(z, b, labels, losses, step=None):
    """Replace z by the gradient of the loss of the logits z + b, and write the mean loss into losses[step]."""
    _launch(*cross_entropy_call(z, b, labels, losses, step))


# Kernels as `ready` takes them: with blocks, threads and arguments


def cross_entropy_call(z, b, labels, losses, step):
    n, classes = z.shape
    arrays = (0 if array is None else array for array in (z, b, labels, losses, step))
    threads = 32 * min(-(-n // 2), 32)  # 16 a row
    return _layers("cross_entropy", z.dtype), 1, threads, (*arrays, np.int32(n), np.int32(classes))


def gather_call(X, index, rows, y=0, labels=0):
    arguments = X, index, rows, np.int32(len(rows)), np.int32(math.prod(X.shape[1:])), y, labels
    return _layers("gather", np.float32, PIXEL=C_TYPES[X.dtype]), -(-rows.size // THREADS), THREADS, arguments


def _launch(kernel, blocks, threads, arguments):
    kernel((blocks,), (threads,), arguments)


@cache
def _layers(name, dtype, **macros):
    return kernel("layers", name, dtype, **macros)


def _log(beta):
    return math.log(beta) if beta else -math.inf


mean_in_float64 = cp.ReductionKernel(
    "T x, int64 n", "T mean", "double(x) / n", "a + b", "mean = a", "0", "mean", "double"
)
# With a scalar beside the array CuPy writes these sums itself. Without one it takes CUB's, which compile for 5 seconds.
_all_finite = cp.ReductionKernel(
    "T x, bool first", "bool all", "isfinite(x)", "a && b", "all = first && a", "true", "all_finite"
)
_count = cp.ReductionKernel("bool x, int64 each", "int64 total", "x ? each : 0", "a + b", "total = a", "0", "count")
_all_labels = cp.ReductionKernel(
    "T label, int64 classes", "bool all", "label >= T(0) && label < classes", "a && b", "all = a", "true", "all_labels"
)
_cross_entropy_of_many = cp.ElementwiseKernel(
    "I label, raw T z, int64 n, int64 classes",
    "T loss, raw T dz",
    """
    const long long row = i * classes;
    T largest = z[row], total = 0;
    for (int j = 1; j < classes; j++) largest = max(largest, z[row + j]);
    for (int j = 0; j < classes; j++) total += dz[row + j] = exp(z[row + j] - largest);  // a NaN, which max passes over
    loss = log(total) - (z[row + label] - largest);
    for (int j = 0; j < classes; j++) dz[row + j] = (dz[row + j] / total - (j == label)) / n;
    """,
    "cross_entropy_of_many",
)
relu_backward_into = cp.ElementwiseKernel("T a, T da", "T dz", "dz = a > 0 ? da : T(0)", "relu_backward")
_axpy = cp.ElementwiseKernel("T x, T alpha", "T y", "y += alpha * x", "axpy")
_sgd = cp.ElementwiseKernel("T g, T lr", "T theta", "theta -= lr * g", "sgd")
_momentum = cp.ElementwiseKernel(
    "T g, T lr, T momentum",
    "T theta, T velocity",
    "velocity = momentum * velocity + g; theta -= lr * velocity",
    "momentum",
)
_nesterov = cp.ElementwiseKernel(
    "T g, T lr, T momentum",
    "T theta, T velocity",
    "velocity = momentum * velocity + g; theta -= lr * (g + momentum * velocity)",
    "nesterov",
)
_rmsprop = cp.ElementwiseKernel(
    "T g, T lr, T rho, T rest, T eps",
    "T theta, T s",
    "s = rho * s + rest * g * g; theta -= lr * g / (sqrt(s) + eps)",
    "rmsprop",
)
# 1 - beta^t, in float32 as exactly as in float64: -expm1(t log beta).
_adam = cp.ElementwiseKernel(
    "T g, T t, T lr, T beta1, T rest1, T log1, T beta2, T rest2, T log2, T eps",
    "T theta, T m, T v",
    """
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
    theta -= lr * (m / -expm1(t * log1)) / (sqrt(v / -expm1(t * log2)) + eps);
    """,
    "adam",
)

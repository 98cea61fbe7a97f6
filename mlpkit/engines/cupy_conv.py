"""CuPy, a kernel an operation: a convolution is a product of windows, and all can be recorded into a graph.

CuPy's own cuBLAS can't be: so products are cuBLASLt's, planned once for matrices that lie alike. What is left of a
convolution, of pooling and of a norm is in `kernels/cnn`. No two threads add to one number, so the same arrays give the
same bits each time. Nothing looks at a number on the host, and no number that a kernel is given changes from step to
step.
"""

import cupy as cp
import numpy as np

from mlpkit.kernels.cnn import operations, updates

from . import cupy_fused
from .cuda.products import product
from .cupy_naive import *

# What needs no product is as it is there: one kernel each
gather = cupy_fused.gather
all_finite = cupy_fused.all_finite
all_labels = cupy_fused.all_labels
count = cupy_fused.count
relu_backward = cupy_fused.relu_backward
softmax_cross_entropy = cupy_fused.softmax_cross_entropy
axpy = cupy_fused.axpy
momentum_update = cupy_fused.momentum_update
nesterov_update = cupy_fused.nesterov_update
rmsprop_update = cupy_fused.rmsprop_update
mean_in_float64 = cupy_fused.mean_in_float64

WINDOW_BYTES = 64 << 20  # bytes that the windows of a convolution may take at a time

_add = cp.ElementwiseKernel("T x, T y", "T sum", "sum = x + y", "add_arrays")
add = _add
multiply = cp.ElementwiseKernel("T x, T y", "T product", "product = x * y", "multiply_arrays")


# Updates, as a graph records them: the rate is an array


def sgd_update(theta, grad, lr):
    if updates.fits(lr, theta, grad):
        updates.sgd(theta, grad, lr)
    else:
        cupy_fused.sgd_update(theta, grad, lr)


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    if updates.fits(lr, theta, grad, m, v) and t.dtype == lr.dtype:
        updates.adam(theta, grad, m, v, t, lr, beta1, beta2, eps)
    else:
        cupy_fused.adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps)


# Dense layers


def linear(x, W, b):
    z = product(x, W)
    return _add(z, b, z)


def linear_backward_weights(x, dz, dW, db):
    with _written(dW) as (found,):
        product(x.T, dz, found)
    cp.sum(dz, axis=0, out=db)


def linear_backward_input(dz, W):
    return product(dz, W.T)


# Activations


def relu(z):
    return _relu(z)


_relu = cp.ElementwiseKernel("T z", "T a", "a = z < 0 ? T(0) : z", "relu")  # in this order a NaN stays a NaN
leaky_relu = cp.ElementwiseKernel("T z, T slope", "T a", "a = z > 0 ? z : slope * z", "leaky_relu")
leaky_relu_backward = cp.ElementwiseKernel(
    "T a, T da, T slope", "T dz", "dz = a > 0 ? da : slope * da", "leaky_relu_backward"
)
sigmoid = cp.ElementwiseKernel("T z", "T a", "a = exp(min(z, T(0))) / (1 + exp(-abs(z)))", "sigmoid")
sigmoid_backward = cp.ElementwiseKernel("T a, T da", "T dz", "dz = da * a * (1 - a)", "sigmoid_backward")
tanh = cp.ElementwiseKernel("T z", "T a", "a = tanh(z)", "tanh_of")
tanh_backward = cp.ElementwiseKernel("T a, T da", "T dz", "dz = da * (1 - a * a)", "tanh_backward")


# Convolution, some images at a time


def conv(x, W, b, stride, padding):
    x, k = cp.ascontiguousarray(x), W.shape[-1]
    filters, b = cp.ascontiguousarray(W).reshape(len(W), -1), b if b is None else cp.ascontiguousarray(b)
    z = cp.empty((len(x), len(W), *operations.windows(x.shape, k, stride, padding)), x.dtype)
    for images in _pieces(z, filters):
        found = product(filters, operations.columns(x[images], k, stride, padding))
        operations.transpose(found.reshape(len(W), -1, *z.shape[2:]), z[images], b)
    return z


def conv_backward_weights(x, dz, dW, db, stride, padding):
    x, dz = cp.ascontiguousarray(x), cp.ascontiguousarray(dz)
    with _written(dW) as (found,):
        found = found.reshape(len(dW), -1)
        for images in _pieces(dz, found):
            columns = operations.columns(x[images], dW.shape[-1], stride, padding)
            if images.start:
                _add(found, product(_transposed(dz[images]), columns.T), found)
            else:
                product(_transposed(dz[images]), columns.T, found)
            del columns  # before the next ones are made
    if db is not None:
        with _written(db) as (found,):
            operations.channel_sums(dz, found)


def conv_backward_input(dz, W, shape, stride, padding):
    dz, dx, filters = cp.ascontiguousarray(dz), cp.empty(shape, dz.dtype), cp.ascontiguousarray(W).reshape(len(W), -1)
    for images in _pieces(dz, filters):
        columns = product(filters.T, _transposed(dz[images]))
        operations.add_windows(columns, dx[images], dz.shape[2:], W.shape[-1], stride, padding)
        del columns
    return dx


def _pieces(z, filters):
    """Return slices of a batch, of so many images each that their windows have room."""
    n, (rows, columns) = len(z), z.shape[2:]
    most = max(1, WINDOW_BYTES // (filters.shape[1] * rows * columns * z.itemsize))
    return [slice(start, min(start + most, n)) for start in range(0, n, most)]


def _transposed(dz):
    """Return dz (n, o, h, w) as (o, n h w)."""
    transposed = cp.empty((dz.shape[1], len(dz), *dz.shape[2:]), dz.dtype)
    operations.transpose(dz, transposed)
    return transposed.reshape(len(transposed), -1)


class _written:
    """Arrays to be written in a `with` block, for those that may not be contiguous: they are copied at its end."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __enter__(self):
        self.found = [cp.ascontiguousarray(array) for array in self.arrays]
        return self.found

    def __exit__(self, *_):
        for array, found in zip(self.arrays, self.found, strict=True):
            if not array.flags.c_contiguous:
                array[...] = found


# Pooling


def max_pool(x, size, stride):
    return operations.max_pool(cp.ascontiguousarray(x), size, stride)


def max_pool_backward(dy, index, shape, size, stride):
    return operations.max_pool_backward(cp.ascontiguousarray(dy), cp.ascontiguousarray(index), shape, size, stride)


def avg_pool(x, size, stride):
    return operations.avg_pool(cp.ascontiguousarray(x), size, stride)


def avg_pool_backward(dy, shape, size, stride):
    return operations.avg_pool_backward(cp.ascontiguousarray(dy), shape, size, stride)


# Normalization


def batch_norm(x, gamma, beta, mean, variance, momentum, eps):
    x, gamma, beta = map(cp.ascontiguousarray, (x, gamma, beta))
    with _written(mean, variance) as (moved_mean, moved_variance):
        return operations.batch_norm(x, gamma, beta, moved_mean, moved_variance, momentum, eps)


def batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    arrays = map(cp.ascontiguousarray, (dy, normalized, inverse_deviation, gamma))
    with _written(dgamma, dbeta) as found:
        return operations.batch_norm_backward(*arrays, *found)


def batch_norm_evaluate(x, gamma, beta, mean, variance, eps):
    x, gamma, beta, mean, variance = map(cp.ascontiguousarray, (x, gamma, beta, mean, variance))
    return operations.batch_norm_evaluate(x, gamma, beta, mean, variance, eps)


def channel_sums(x, sums):
    with _written(sums) as (found,):
        operations.channel_sums(cp.ascontiguousarray(x), found)


# Losses


def mean_squared_error(z, targets):
    terms, dz = _squared_error(z, targets.astype(z.dtype, copy=False), 2 / z.size)
    return mean_in_float64(terms, terms.size), dz


def binary_cross_entropy(z, targets):
    terms, dz = _cross_entropy_of_two(z, targets.astype(z.dtype, copy=False), 1 / z.size)
    return mean_in_float64(terms, terms.size), dz


def hinge(z, labels):
    loss, dz = operations.hinge(cp.ascontiguousarray(z), cp.ascontiguousarray(labels, np.int64))
    return loss[0], dz


def focal(z, labels, share, gamma, alpha):
    classes = cp.arange(z.shape[1], dtype=labels.dtype)[:, None]
    terms, dz = _focal(z, labels[:, None], classes, share, gamma, alpha)
    return mean_in_float64(terms, 1), dz


def giou(z, boxes, counts, share):
    dz, terms = cp.empty(z.shape, z.dtype), cp.empty(counts.shape, z.dtype)
    sides = (array[:, side] for array in (z, boxes, dz) for side in range(4))
    *given, d0, d1, d2, d3 = sides
    _giou(*given, counts, share, terms, d0, d1, d2, d3)
    return mean_in_float64(terms, 1), dz


_squared_error = cp.ElementwiseKernel(
    "T z, T target, T factor",
    "T term, T dz",
    "term = (z - target) * (z - target); dz = factor * (z - target)",
    "squares",
)
_cross_entropy_of_two = cp.ElementwiseKernel(
    "T z, T target, T factor",
    "T term, T dz",
    """
    const T rest = exp(-abs(z));
    term = max(z, T(0)) - z * target + log1p(rest);
    dz = ((z < 0 ? rest : T(1)) / (1 + rest) - target) * factor;
    """,
    "cross_entropy_of_two",
)
_focal = cp.ElementwiseKernel(
    "T z, L label, L class_of_z, float64 share, T gamma, T alpha",
    "T term, T dz",
    """
    const bool right = label == class_of_z;
    const T signed_z = right ? z : -z, rest = exp(-abs(z));
    const T surprise = max(-signed_z, T(0)) + log1p(rest);
    const T missing = (signed_z < 0 ? T(1) : rest) / (1 + rest), p = (signed_z < 0 ? rest : T(1)) / (1 + rest);
    const T weight = label > L(-2) ? T(share) * (right ? alpha : 1 - alpha) : T(0);
    const T scaled = weight * pow(missing, gamma);
    term = scaled * surprise;
    dz = (right ? -scaled : scaled) * (missing + gamma * p * surprise);
    """,
    "focal",
)
_giou = cp.ElementwiseKernel(
    "T x, T y, T log_w, T log_h, T x1, T y1, T x2, T y2, bool counted, float64 share",
    "T term, T dx, T dy, T dw, T dh",
    """
    const T factor = counted ? T(share) : T(0), w = exp(log_w), h = exp(log_h);
    const T l = x - w / 2, r = x + w / 2, t = y - h / 2, b = y + h / 2;
    const T across = max(min(r, x2) - max(l, x1), T(0)), down = max(min(b, y2) - max(t, y1), T(0));
    const T wide = max(r, x2) - min(l, x1), high = max(b, y2) - min(t, y1);
    const T I = across * down, C = wide * high, U = w * h + (x2 - x1) * (y2 - y1) - I;
    const T d_both = I > 0 ? 1 / C - 1 / U - I / (U * U) : T(0), d_around = U / (C * C), d_area = I / (U * U) - 1 / C;
    const T dl = -(l > x1) * d_both * down - (l < x1) * d_around * high;
    const T dr = (r < x2) * d_both * down + (r > x2) * d_around * high;
    const T dt = -(t > y1) * d_both * across - (t < y1) * d_around * wide;
    const T db = (b < y2) * d_both * across + (b > y2) * d_around * wide;
    term = counted ? factor * (2 - I / U - U / C) : T(0);
    dx = factor * (dl + dr);
    dy = factor * (dt + db);
    dw = factor * (w / 2 * (dr - dl) + d_area * w * h);
    dh = factor * (h / 2 * (db - dt) + d_area * w * h);
    """,
    "giou",
)

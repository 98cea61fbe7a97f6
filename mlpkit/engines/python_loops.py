"""Python loops over arrays: element by element, what NumPy does, spelled out, and much slower.

Each function computes what its namesake in `numpy_baseline` or in NumPy does, where it has one. Only ideas are used
that a compiler for numerical Python understands (scalars, indexing, `range`), so that they can be compiled as they
stand: this gives the engines `numba_serial`, `numba_parallel`, `numba_fastmath` and `numba_blocked`.
"""

import math

import numpy as np

from .numpy_baseline import (
    all_finite,
    all_labels,
    asarray,
    count,
    elapsed,
    fetch,
    gather,
    now,
    scale,
    synchronize,
    to_numpy,
)

prange = range  # marks a loop whose turns do not depend on each other: a compiler may share them out among threads


def zeros(n, dtype):
    """Return a new vector of n zeros."""
    values = np.empty(n, dtype)
    for i in range(n):
        values[i] = 0
    return values


def sum(values):
    """Return the sum of a vector, added up in its own dtype from first to last; NumPy adds in pairs, more exactly."""
    total = values.dtype.type(0)
    for i in range(len(values)):
        total += values[i]
    return total


def mean(values):
    """Return the mean of a vector."""
    return sum(values) / len(values)


def dot(u, v):
    """Return the sum of the products of two vectors of equal length."""
    total = u.dtype.type(0)
    for k in range(len(u)):
        total += u[k] * v[k]
    return total


def matmul(a, b, out):
    """Write the product of the matrices a (n, k) and b (k, m) into out (n, m)."""
    for i in prange(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = dot(a[i], b[:, j])


def linear(x, W, b):
    z = np.empty((x.shape[0], W.shape[1]), x.dtype)
    matmul(x, W, z)
    for i in prange(z.shape[0]):
        for j in range(z.shape[1]):
            z[i, j] += b[j]
    return z


def linear_backward_weights(x, dz, dW, db):
    matmul(x.T, dz, dW)
    for j in prange(len(db)):
        db[j] = sum(dz[:, j])


def linear_backward_input(dz, W):
    dx = np.empty((dz.shape[0], W.shape[0]), dz.dtype)
    matmul(dz, W.T, dx)
    return dx


def relu(z):
    a = np.empty_like(z)
    for i in prange(z.shape[0]):
        for j in range(z.shape[1]):
            a[i, j] = 0 if z[i, j] < 0 else z[i, j]  # in this order a NaN stays a NaN
    return a


def relu_backward(a, da):
    dz = np.empty_like(da)
    for i in prange(a.shape[0]):
        for j in range(a.shape[1]):
            dz[i, j] = da[i, j] if a[i, j] > 0 else 0
    return dz


def shift(z):
    """Return z (n, classes) less the largest value of each row: the softmax stays, and no exponential overflows."""
    shifted = np.empty_like(z)
    for i in prange(z.shape[0]):
        largest = z[i, 0]
        for j in range(1, z.shape[1]):
            largest = max(largest, z[i, j])
        for j in range(z.shape[1]):
            shifted[i, j] = z[i, j] - largest
    return shifted


def log_sum_exp(values):
    """Return the logarithm of the sum of the exponentials of a vector, which must not be too large for them."""
    total = 0.0
    for j in range(len(values)):
        total += math.exp(values[j])
    return math.log(total)


def softmax(z):
    """Return `exp(z) / sum(exp(z))` of each row of z (n, classes)."""
    p = shift(z)
    for i in prange(z.shape[0]):
        logarithm = log_sum_exp(p[i])
        for j in range(z.shape[1]):
            p[i, j] = math.exp(p[i, j] - logarithm)
    return p


def check_labels(labels, n, classes):
    """Raise unless there are n labels from 0 to classes - 1: a compiled loop would read and write beyond its arrays."""
    if len(labels) != n:
        raise ValueError("there must be one label for each row.")
    for i in range(n):
        if not 0 <= labels[i] < classes:
            raise IndexError("labels must be from 0 to the number of classes less 1.")


def softmax_cross_entropy(z, labels):
    n, classes = z.shape
    check_labels(labels, n, classes)
    z, dz, losses = shift(z), softmax(z), zeros(n, np.float64)
    for i in prange(n):
        losses[i] = log_sum_exp(z[i]) - z[i, labels[i]]
        dz[i, labels[i]] -= 1
        for j in range(classes):
            dz[i, j] /= n
    return mean(losses), dz


def argmax(z):
    best = zeros(z.shape[0], np.int64)
    for i in prange(z.shape[0]):
        for j in range(1, z.shape[1]):
            if z[i, j] > z[i, best[i]]:
                best[i] = j
    return best


def axpy(alpha, x, y):
    for i in prange(len(y)):
        y[i] += alpha * x[i]


def sgd_update(theta, grad, lr):
    for i in prange(len(theta)):
        theta[i] -= lr * grad[i]


def momentum_update(theta, grad, velocity, lr, momentum):
    for i in prange(len(theta)):
        velocity[i] = momentum * velocity[i] + grad[i]
        theta[i] -= lr * velocity[i]


def nesterov_update(theta, grad, velocity, lr, momentum):
    for i in prange(len(theta)):
        velocity[i] = momentum * velocity[i] + grad[i]
        theta[i] -= lr * (grad[i] + momentum * velocity[i])


def rmsprop_update(theta, grad, s, lr, rho, eps):
    for i in prange(len(theta)):
        s[i] = rho * s[i] + (1 - rho) * grad[i] ** 2
        theta[i] -= lr * grad[i] / (math.sqrt(s[i]) + eps)


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    for i in prange(len(theta)):
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i]
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] ** 2
        m_hat = m[i] / (1 - beta1**t)
        v_hat = v[i] / (1 - beta2**t)
        theta[i] -= lr * m_hat / (math.sqrt(v_hat) + eps)

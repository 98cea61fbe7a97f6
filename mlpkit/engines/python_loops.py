"""Loops over single array elements, run by the Python interpreter: what NumPy does, spelled out, and much slower.

Each function computes what its namesake in `numpy_baseline` does. Only ideas that a compiler for numerical Python
understands are used (scalars, indexing, `range`), so the same functions can be compiled as they stand.
"""

import math

import numpy as np

from .numpy_baseline import asarray as asarray
from .numpy_baseline import gather as gather
from .numpy_baseline import synchronize as synchronize
from .numpy_baseline import to_numpy as to_numpy


def linear(x, W, b):
    z = np.empty((x.shape[0], W.shape[1]), x.dtype)
    for i in range(x.shape[0]):
        for j in range(W.shape[1]):
            total = b[j]
            for k in range(x.shape[1]):
                total += x[i, k] * W[k, j]
            z[i, j] = total
    return z


def linear_backward_weights(x, dz, dW, db):
    for j in range(dz.shape[1]):
        total = dz[0, j]
        for i in range(1, dz.shape[0]):
            total += dz[i, j]
        db[j] = total
    for k in range(x.shape[1]):
        for j in range(dz.shape[1]):
            total = x[0, k] * dz[0, j]
            for i in range(1, dz.shape[0]):
                total += x[i, k] * dz[i, j]
            dW[k, j] = total


def linear_backward_input(dz, W):
    dx = np.empty((dz.shape[0], W.shape[0]), dz.dtype)
    for i in range(dz.shape[0]):
        for k in range(W.shape[0]):
            total = dz[i, 0] * W[k, 0]
            for j in range(1, W.shape[1]):
                total += dz[i, j] * W[k, j]
            dx[i, k] = total
    return dx


def relu(z):
    a = np.empty_like(z)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            a[i, j] = 0 if z[i, j] < 0 else z[i, j]  # in this order a NaN stays a NaN
    return a


def relu_backward(a, da):
    dz = np.empty_like(da)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            dz[i, j] = da[i, j] if a[i, j] > 0 else 0
    return dz


def softmax_cross_entropy(z, labels):
    n, classes = z.shape
    dz = np.empty_like(z)
    loss = 0.0
    for i in range(n):
        largest = z[i, 0]
        for j in range(1, classes):
            largest = max(largest, z[i, j])
        total = 0.0
        for j in range(classes):
            dz[i, j] = math.exp(z[i, j] - largest)
            total += dz[i, j]
        loss += math.log(total) - (z[i, labels[i]] - largest)
        for j in range(classes):
            dz[i, j] /= total * n
        dz[i, labels[i]] -= 1 / n
    return loss / n, dz


def argmax(z):
    best = np.zeros(z.shape[0], np.int64)
    for i in range(z.shape[0]):
        for j in range(1, z.shape[1]):
            if z[i, j] > z[i, best[i]]:
                best[i] = j
    return best


def axpy(alpha, x, y):
    for i in range(len(y)):
        y[i] += alpha * x[i]


def sgd_update(theta, grad, lr):
    for i in range(len(theta)):
        theta[i] -= lr * grad[i]


def momentum_update(theta, grad, velocity, lr, momentum):
    for i in range(len(theta)):
        velocity[i] = momentum * velocity[i] + grad[i]
        theta[i] -= lr * velocity[i]


def nesterov_update(theta, grad, velocity, lr, momentum):
    for i in range(len(theta)):
        velocity[i] = momentum * velocity[i] + grad[i]
        theta[i] -= lr * (grad[i] + momentum * velocity[i])


def rmsprop_update(theta, grad, s, lr, rho, eps):
    for i in range(len(theta)):
        s[i] = rho * s[i] + (1 - rho) * grad[i] ** 2
        theta[i] -= lr * grad[i] / (math.sqrt(s[i]) + eps)


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    for i in range(len(theta)):
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i]
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] ** 2
        m_hat = m[i] / (1 - beta1**t)
        v_hat = v[i] / (1 - beta2**t)
        theta[i] -= lr * m_hat / (math.sqrt(v_hat) + eps)

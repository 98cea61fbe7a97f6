"""Python lists: floats and no library at all, which is how the arithmetic looks before there are arrays.

Parameters must stay arrays, because a layer's `W` is a view of one long vector and a list has no views. So every
function turns its arrays into lists, computes on the lists, and copies the answer back. A Python float has 64 bits:
sums come out a little more exact than in float32.
"""

from math import exp, log, sqrt
from operator import mul

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


def dot(u, v):
    """Return the sum of the products of two equally long lists."""
    return sum(map(mul, u, v))


def matmul(rows, columns):
    """Return the product of two matrices as a list of rows; the second is given as a list of its columns."""
    return [[dot(row, column) for column in columns] for row in rows]


def linear(x, W, b):
    product = matmul(x.tolist(), W.T.tolist())
    bias = b.tolist()
    return np.array([[p + c for p, c in zip(row, bias, strict=True)] for row in product], x.dtype)


def linear_backward_weights(x, dz, dW, db):
    columns = dz.T.tolist()
    dW[:] = matmul(x.T.tolist(), columns)
    db[:] = [sum(column) for column in columns]


def linear_backward_input(dz, W):
    return np.array(matmul(dz.tolist(), W.tolist()), dz.dtype)


def relu(z):
    return np.array([[0.0 if v < 0 else v for v in row] for row in z.tolist()], z.dtype)


def relu_backward(a, da):
    rows = zip(a.tolist(), da.tolist(), strict=True)
    dz = [[d if v > 0 else 0.0 for v, d in zip(*pair, strict=True)] for pair in rows]
    return np.array(dz, da.dtype)


def softmax_cross_entropy(z, labels):
    loss, dz = 0.0, []
    for row, label in zip(z.tolist(), labels.tolist(), strict=True):
        largest = max(row)
        exps = [exp(v - largest) for v in row]
        total = sum(exps)
        loss += log(total) - (row[label] - largest)
        dz.append([e / total for e in exps])
        dz[-1][label] -= 1
    return loss / len(z), np.array([[d / len(z) for d in row] for row in dz], z.dtype)


def argmax(z):
    return np.array([row.index(max(row)) for row in z.tolist()], np.int64)


def axpy(alpha, x, y):
    y[:] = [b + alpha * a for a, b in zip(x.tolist(), y.tolist(), strict=True)]


def sgd_update(theta, grad, lr):
    axpy(-lr, grad, theta)


def momentum_update(theta, grad, velocity, lr, momentum):
    _accumulate(velocity, momentum, grad.tolist(), 1)
    axpy(-lr, velocity, theta)


def nesterov_update(theta, grad, velocity, lr, momentum):
    _accumulate(velocity, momentum, grad.tolist(), 1)
    axpy(-lr, grad, theta)
    axpy(-lr * momentum, velocity, theta)


def rmsprop_update(theta, grad, s, lr, rho, eps):
    _accumulate(s, rho, _square(grad), 1 - rho)
    updates = zip(theta.tolist(), grad.tolist(), s.tolist(), strict=True)
    theta[:] = [p - lr * g / (sqrt(q) + eps) for p, g, q in updates]


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    _accumulate(m, beta1, grad.tolist(), 1 - beta1)
    _accumulate(v, beta2, _square(grad), 1 - beta2)
    c1, c2 = 1 - beta1**t, 1 - beta2**t
    updates = zip(theta.tolist(), m.tolist(), v.tolist(), strict=True)
    theta[:] = [p - lr * a / c1 / (sqrt(b / c2) + eps) for p, a, b in updates]


def _square(array):
    return [a * a for a in array.tolist()]


def _accumulate(state, decay, values, weight):
    """Replace the running mean in the array `state` by `decay * state + weight * values`, a list."""
    state[:] = [decay * s + weight * a for s, a in zip(state.tolist(), values, strict=True)]

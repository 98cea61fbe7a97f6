"""Loops that do in one pass over memory what NumPy does in several: each number comes from memory and goes back once.

Settings are converted to the arrays' dtype first: one float64 among float32 values would make all of the arithmetic
float64, with half as many elements in a vector register. What is written to one array and needed after another has been
written is kept in a local name: for all that the compiler knows the arrays overlap, and it would read it again.

A running mean of gradients that have become zero shrinks step by step, and soon is a subnormal number, smaller than
1.2e-38 in float32, with which many processors compute a hundred times more slowly. So the optimizers' state is kept
without them: no parameter is small enough to notice.
"""

import math

import numpy as np

prange = range  # see python_loops


def gather(X, index):
    rows = np.empty((len(index), *X.shape[1:]), X.dtype)
    for i in prange(len(index)):
        if X.ndim == 1:
            rows[i] = X[index[i]]
        elif X.ndim == 2:
            row = X[index[i]]
            for j in range(len(row)):
                rows[i, j] = row[j]
        else:  # an array assigned to another would be compiled with all that makes an error's message
            row = rows[i].reshape(-1)
            for j, value in enumerate(X[index[i]].flat):
                row[j] = value
    return rows


def add_bias_relu(z, b):
    """Replace z by relu(z + b)."""
    for i in prange(z.shape[0]):
        for j in range(z.shape[1]):
            shifted = z[i, j] + b[j]
            z[i, j] = 0 if shifted < 0 else shifted  # in this order a NaN stays a NaN


def cross_entropy(z, b, labels, n):
    """Replace z by the gradient of the loss of z + b, and return the sum of the losses of the rows, over n.

    n: the size of the batch, of which z may be a part.
    """
    loss = 0.0
    for i in range(z.shape[0]):
        largest = z[i, 0] + b[0]
        for j in range(z.shape[1]):
            z[i, j] += b[j]
            largest = max(largest, z[i, j])
        right = z[i, labels[i]]
        total = z.dtype.type(0)
        for j in range(z.shape[1]):
            z[i, j] = math.exp(z[i, j] - largest)
            total += z[i, j]
        # `min` changes nothing, but the compiler does not know: where it may reorder, it would add `largest` to the
        # logarithm, which is lost beside a float64 beyond 1e15.
        loss += math.log(total) - min(right - largest, z.dtype.type(0))
        scale = z.dtype.type(1 / (total * n))
        for j in range(z.shape[1]):
            z[i, j] *= scale
        z[i, labels[i]] -= z.dtype.type(1 / n)
    return loss / n


def sum_rows(dz, db):
    """Write the sum of the rows of dz into db."""
    db[:] = 0
    for i in range(dz.shape[0]):
        for j in range(dz.shape[1]):
            db[j] += dz[i, j]


def relu_backward_in_place(a, da):
    """Replace da by the gradient before the ReLU that returned a."""
    for i in prange(a.shape[0]):
        for j in range(a.shape[1]):
            da[i, j] = da[i, j] if a[i, j] > 0 else 0


def normal(x, tiny):
    """Return x, or 0 where it is smaller than `tiny`; NaN stays NaN."""
    return 0 if abs(x) < tiny else x


def axpy(alpha, x, y):
    alpha = y.dtype.type(alpha)
    for i in prange(len(y)):
        y[i] += alpha * x[i]


def sgd_update(theta, grad, lr):
    lr = theta.dtype.type(lr)
    for i in prange(len(theta)):
        theta[i] -= lr * grad[i]


def momentum_update(theta, grad, velocity, lr, momentum):
    lr, momentum, tiny = theta.dtype.type(lr), theta.dtype.type(momentum), np.finfo(theta.dtype).tiny
    for i in prange(len(theta)):
        faster = momentum * velocity[i] + grad[i]
        velocity[i] = normal(faster, tiny)
        theta[i] -= lr * faster


def nesterov_update(theta, grad, velocity, lr, momentum):
    lr, momentum, tiny = theta.dtype.type(lr), theta.dtype.type(momentum), np.finfo(theta.dtype).tiny
    for i in prange(len(theta)):
        g = grad[i]
        faster = momentum * velocity[i] + g
        velocity[i] = normal(faster, tiny)
        theta[i] -= lr * (g + momentum * faster)


def rmsprop_update(theta, grad, s, lr, rho, eps):
    number, tiny = theta.dtype.type, np.finfo(theta.dtype).tiny
    lr, rest, rho, eps = number(lr), number(1 - rho), number(rho), number(eps)
    for i in prange(len(theta)):
        g = grad[i]
        mean_square = rho * s[i] + rest * g * g
        s[i] = normal(mean_square, tiny)
        theta[i] -= lr * g / (math.sqrt(mean_square) + eps)


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    number, tiny = theta.dtype.type, np.finfo(theta.dtype).tiny
    m_scale, v_scale = number(lr / (1 - beta1**t)), number(1 / (1 - beta2**t))
    rest1, rest2 = number(1 - beta1), number(1 - beta2)
    beta1, beta2, eps = number(beta1), number(beta2), number(eps)
    for i in prange(len(theta)):
        mean = beta1 * m[i] + rest1 * grad[i]
        mean_square = beta2 * v[i] + rest2 * grad[i] ** 2
        m[i], v[i] = normal(mean, tiny), normal(mean_square, tiny)
        theta[i] -= m_scale * mean / (math.sqrt(v_scale * mean_square) + eps)

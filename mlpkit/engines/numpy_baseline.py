"""NumPy, written as the mathematics reads. This module defines what every other engine must compute.

`x` (n, inputs), `W` (inputs, outputs), `b` (outputs,), `z` and `a` (n, outputs), `labels` (n,) integers.
A name that begins with `d` is the gradient of the loss with respect to the rest of the name. The parameters, their
gradient and the optimizer's state are flat vectors of equal length.
"""

import numpy as np


def asarray(array, dtype=None):
    return np.ascontiguousarray(array, dtype)


def to_numpy(array):
    return np.asarray(array)


def synchronize():
    """NumPy returns when its work is done: there is nothing to wait for."""


def gather(X, index):
    return X[index]


def scale(pixels, dtype):
    return pixels.astype(dtype) / dtype.type(255)


def linear(x, W, b):
    return x @ W + b


def linear_backward_weights(x, dz, dW, db):
    np.matmul(x.T, dz, out=dW)
    np.sum(dz, axis=0, out=db)


def linear_backward_input(dz, W):
    return dz @ W.T


def relu(z):
    return np.maximum(z, 0)


def relu_backward(a, da):
    return da * (a > 0)


def softmax_cross_entropy(z, labels):
    """Loss `mean(log(sum(exp z)) - z[label])`, gradient `(softmax(z) - onehot(labels)) / n`.

    Each row's maximum is subtracted first: the softmax does not change, and no exponential can overflow.
    """
    rows = np.arange(len(z))
    z = z - z.max(axis=1, keepdims=True)
    dz = np.exp(z)
    total = dz.sum(axis=1, keepdims=True)
    loss = np.mean(np.log(total[:, 0]) - z[rows, labels])
    dz /= total
    dz[rows, labels] -= 1
    dz /= len(z)
    return loss, dz


def argmax(z):
    return z.argmax(axis=1)


def axpy(alpha, x, y):
    y += alpha * x


def sgd_update(theta, grad, lr):
    theta -= lr * grad


def momentum_update(theta, grad, velocity, lr, momentum):
    velocity *= momentum
    velocity += grad
    theta -= lr * velocity


def nesterov_update(theta, grad, velocity, lr, momentum):
    """Look ahead along the velocity: Sutskever et al. (2013), in the form that needs the gradient only at theta."""
    velocity *= momentum
    velocity += grad
    theta -= lr * (grad + momentum * velocity)


def rmsprop_update(theta, grad, s, lr, rho, eps):
    """Divide by a running root mean square of the gradient: Tieleman and Hinton (2012)."""
    s *= rho
    s += (1 - rho) * grad**2
    theta -= lr * grad / (np.sqrt(s) + eps)


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    """Momentum and RMSprop together, each corrected for starting at zero: Kingma and Ba (2015), algorithm 1."""
    m *= beta1
    m += (1 - beta1) * grad
    v *= beta2
    v += (1 - beta2) * grad**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    theta -= lr * m_hat / (np.sqrt(v_hat) + eps)

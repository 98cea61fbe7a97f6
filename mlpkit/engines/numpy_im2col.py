"""NumPy, im2col in pieces: the baseline's copy of all windows and one product, for as many images as fit into a cache.

The baseline copies every window of the whole batch before it multiplies: k * k times the input, which for a large batch
is gigabytes that go to memory and come back. Here each piece of the batch has its copy and its product before the next
one begins. The name is MATLAB's, for "image to column"; as a way to convolve it is in Chellapilla, Puri and Simard
(2006).

Workspace: 6 MiB, or k * k + 3 images where that is more, and 2 copies of the kernels.
"""

import numpy as np

from .images.pieces import join, pieces_of_windows, places, put_bias_gradient, split, taps, with_bias
from .numpy_baseline import *

OWN = ("conv", "conv_backward_weights", "conv_backward_input")


def conv(x, W, b, stride, padding):
    (c_out, _, k, _), (h, w) = W.shape, places(x.shape, W.shape[-1], stride, padding)
    z = np.empty((len(x), c_out, h, w), x.dtype)
    for at in pieces_of_windows(len(x), W, h, w):
        found = W.reshape(c_out, -1) @ _columns(x[at], k, stride, padding, h, w)
        z[at] = found.reshape(c_out, -1, h, w).swapaxes(0, 1)
    return with_bias(z, b)


def conv_backward_weights(x, dz, dW, db, stride, padding):
    (c_out, _, k, _), (h, w) = dW.shape, dz.shape[2:]
    dW[...] = 0
    for at in pieces_of_windows(len(x), dW, h, w):
        rows = dz[at].swapaxes(0, 1).reshape(c_out, -1)
        dW += (rows @ _columns(x[at], k, stride, padding, h, w).T).reshape(dW.shape)
    put_bias_gradient(dz, db)


def conv_backward_input(dz, W, shape, stride, padding):
    """Each number of `dx` is the sum over the windows that it was in: what was copied is added up."""
    (c_out, c, k, _), (h, w) = W.shape, dz.shape[2:]
    dx = np.empty(shape, dz.dtype)
    for at in pieces_of_windows(len(dz), W, h, w):
        rows = dz[at].swapaxes(0, 1).reshape(c_out, -1)
        dcolumns = (W.reshape(c_out, -1).T @ rows).reshape(c, k * k, -1, h, w)
        n = dcolumns.shape[2]
        reach = -(-k // stride) - 1
        phases = np.zeros((stride, stride, c, n, h + reach, w + reach), dz.dtype)
        for t, tap in enumerate(taps(phases, k, h, w)):
            tap += dcolumns[:, t]
        dx[at] = join(phases, (n, *shape[1:]), padding)
    return dx


def _columns(x, k, stride, padding, h, w):
    """Return a copy (c * k * k, n * h * w) of all windows of x (n, c, ., .)."""
    reach = -(-k // stride) - 1
    phases = split(x, h + reach, w + reach, stride, padding)
    columns = np.empty((x.shape[1], k * k, len(x), h, w), x.dtype)
    for t, tap in enumerate(taps(phases, k, h, w)):
        columns[:, t] = tap
    return columns.reshape(-1, len(x) * h * w)

"""NumPy, windows as a view: no copy is written down, for `tensordot` takes a view in which windows overlap.

`sliding_window_view` costs nothing: it gives the same memory six axes, (n, c, h', w', k, k), by repeating strides. A
convolution is then the sum over three of them, and so is the gradient of the weights. The gradient of the input is a
convolution again: of `dz`, with its stride - 1 zeros between elements and k - 1 - padding around them, and with each
kernel turned by half a turn. These are the formulas as one would write them on paper.

But a view is a promise that somebody else keeps. BLAS knows matrices with one stride between rows, not windows, so
`tensordot` copies them all the same: forward as `numpy_im2col` does, in runs of w', but for the gradient of the weights
in runs of k elements. And the zeros in between in `dz` are multiplied: stride * stride times the arithmetic of
the gradient of the input.

Workspace: 6 MiB, or k * k + 3 images where that is more, and 2 copies of the kernels.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .images.pieces import overlap, pieces_of_windows, places, put_bias_gradient, with_bias
from .numpy_baseline import *

OWN = ("conv", "conv_backward_weights", "conv_backward_input")


def conv(x, W, b, stride, padding):
    (c_out, _, k, _), (h, w) = W.shape, places(x.shape, W.shape[-1], stride, padding)
    z = np.empty((len(x), c_out, h, w), x.dtype)
    for at in pieces_of_windows(len(x), W, h, w):
        windows = _windows(x[at], k, stride, padding)
        z[at] = np.tensordot(W, windows, ((1, 2, 3), (1, 4, 5))).swapaxes(0, 1)
    return with_bias(z, b)


def conv_backward_weights(x, dz, dW, db, stride, padding):
    k, (h, w) = dW.shape[-1], dz.shape[2:]
    dW[...] = 0
    for at in pieces_of_windows(len(x), dW, h, w):
        dW += np.tensordot(dz[at], _windows(x[at], k, stride, padding), ((0, 2, 3), (0, 2, 3)))
    put_bias_gradient(dz, db)


def conv_backward_input(dz, W, shape, stride, padding):
    (c_out, _, k, _), (n, _, h, w) = W.shape, shape
    flipped = W[:, :, ::-1, ::-1]
    dx = np.empty(shape, dz.dtype)
    for at in pieces_of_windows(n, W.swapaxes(0, 1), h, w):
        spread = np.zeros((len(dz[at]), c_out, h + k - 1, w + k - 1), dz.dtype)
        rows, to_rows = overlap(dz.shape[2], k - 1 - padding, stride, h + k - 1)
        columns, to_columns = overlap(dz.shape[3], k - 1 - padding, stride, w + k - 1)
        spread[:, :, to_rows, to_columns] = dz[at, :, rows, columns]
        windows = sliding_window_view(spread, (k, k), (2, 3))
        dx[at] = np.tensordot(flipped, windows, ((0, 2, 3), (1, 4, 5))).swapaxes(0, 1)
    return dx


def _windows(x, size, stride, padding):
    """Return a view (n, c, h', w', size, size) of all windows of the padded images."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    return sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]

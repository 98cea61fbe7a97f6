"""NumPy, kernel to row: one product for each tap of the kernel, and no copy of windows.

Im2col takes the pixels to the kernel. Here the kernel goes to the pixels, a tap at a time: tap (p, q) is a matrix
(c_out, c), and the whole image times this matrix is the tap's share of every output, p rows and q columns away. In
memory, where the rows follow each other, so far away is one offset, `p * width + q`. Let the images lie end to end,
channels first, and every share is one product with a slice of them:

    z[:, t] = sum(W[:, :, p, q] @ x[:, t + p * width + q])         for all t at once
    dW[:, :, p, q] = dz[:, t] @ x[:, t + p * width + q].T
    dx[:, t + p * width + q] += W[:, :, p, q].T @ dz[:, t]

At the end of a row a tap reads on into the next one; what it computes there is dropped (where it is `dz`, it is zero).
So the arithmetic grows by (h' + k - 1) (w' + k - 1) / (h' w'), and the sum is read and written k * k times: with few
channels in, that is most of the work. Vasudevan, Anderson and Gregg (2017) call this family kn2row.

Workspace: 6 MiB, or 4 images where that is more, and 2 copies of the kernels.
"""

import numpy as np

from .images.pieces import join, pieces, places, product, put_bias_gradient, split, with_bias
from .numpy_baseline import *

OWN = ("conv", "conv_backward_weights", "conv_backward_input")


def conv(x, W, b, stride, padding):
    (n, c), (c_out, _, k, _), (h, w) = x.shape[:2], W.shape, places(x.shape, W.shape[-1], stride, padding)
    taps, (rows, columns) = _matrices(W), _wide(h, w, k, stride)
    z = np.empty((n, c_out, h, w), x.dtype)
    for at in pieces(n, (stride * stride * c + 3 * c_out) * rows * columns * x.itemsize):
        phases = split(x[at], rows, columns, stride, padding)
        total, share = np.empty((2, c_out, phases[0, 0, 0].size), x.dtype)
        for p, q, values in _slices(phases, k):
            here = slice(values.shape[1])
            product(taps[p, q], values, out=share[:, here] if p or q else total[:, here])
            if p or q:
                total[:, here] += share[:, here]
        z[at] = total.reshape(c_out, -1, rows, columns)[:, :, :h, :w].swapaxes(0, 1)
    return with_bias(z, b)


def conv_backward_weights(x, dz, dW, db, stride, padding):
    (c_out, c, k, _), (h, w) = dW.shape, dz.shape[2:]
    rows, columns = _wide(h, w, k, stride)
    dW[...] = 0
    for at in pieces(len(x), (stride * stride * c + c_out) * rows * columns * x.itemsize):
        phases = split(x[at], rows, columns, stride, padding)
        wide = split(dz[at], rows, columns).reshape(c_out, -1)
        for p, q, values in _slices(phases, k):
            dW[:, :, p, q] += wide[:, : values.shape[1]] @ values.T
    put_bias_gradient(dz, db)


def conv_backward_input(dz, W, shape, stride, padding):
    (c_out, c, k, _), (h, w) = W.shape, dz.shape[2:]
    taps, (rows, columns) = _matrices(W), _wide(h, w, k, stride)
    dx = np.empty(shape, dz.dtype)
    for at in pieces(len(dz), ((stride * stride + 1) * c + c_out) * rows * columns * dz.itemsize):
        wide = split(dz[at], rows, columns).reshape(c_out, -1)
        n = len(dz[at])
        phases = np.zeros((stride, stride, c, n, rows, columns), dz.dtype)
        for p, q, values in _slices(phases, k):
            values += taps[p, q].T @ wide[:, : values.shape[1]]
        dx[at] = join(phases, (n, *shape[1:]), padding)
    return dx


def _matrices(W):
    """Return a copy (k, k, c_out, c) of W: each tap a matrix whose elements lie side by side, as BLAS wants them."""
    return np.ascontiguousarray(W.transpose(2, 3, 0, 1))


def _wide(h, w, k, stride):
    """Return how many rows and columns of a phase h * w windows read: one each, and the last one's reach."""
    reach = -(-k // stride) - 1
    return h + reach, w + reach


def _slices(phases, k):
    """Yield p, q, and the view (c, length) of the values that tap (p, q) meets, the first window's first."""
    stride, columns = len(phases), phases.shape[-1]
    flat = phases.reshape(stride, stride, phases.shape[2], -1)
    reach = -(-k // stride) - 1
    length = flat.shape[-1] - reach * columns - reach
    for p in range(k):
        for q in range(k):
            start = p // stride * columns + q // stride
            yield p, q, flat[p % stride, q % stride, :, start : start + length]

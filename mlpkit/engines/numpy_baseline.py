"""NumPy, this workbook: written as the mathematics reads. This module defines what every other engine must compute.

`x` (n, inputs), `W` (inputs, outputs), `b` (outputs,), `z` and `a` (n, outputs), `labels` (n,) integers. Of images:
`x` (n, c, h, w), `W` (c_out, c, k, k), `b` (c_out,), `z` (n, c_out, h', w').
A name that begins with `d` is the gradient of the loss with respect to the rest of the name. The parameters, their
gradient and the optimizer's state are flat vectors of equal length.
"""

import time

import numpy as np

from .threads import Blas

# Tensors


def asarray(array, dtype=None):
    return np.ascontiguousarray(array, dtype)


def to_numpy(array):
    return np.asarray(array)


def fetch(*arrays):
    found = [np.array(array) for array in arrays]
    return lambda: found


def synchronize():
    """NumPy returns when its work is done: there is nothing to wait for."""


def now():
    return time.perf_counter()


def elapsed(begin, end):
    return end - begin


def threads():
    return Blas()


def gather(X, index):
    return X[index]


def scale(pixels, dtype):
    return pixels.astype(dtype) / dtype.type(255)


def all_finite(array):
    return np.isfinite(array).all()


def all_labels(labels, classes):
    return (labels >= 0).all() & (labels < classes).all()


def count(mask):
    return mask.sum()


def add(x, y):
    return x + y


def multiply(x, y):
    return x * y


# Dense layers


def linear(x, W, b):
    return x @ W + b


def linear_backward_weights(x, dz, dW, db):
    np.matmul(x.T, dz, out=dW)
    np.sum(dz, axis=0, out=db)


def linear_backward_input(dz, W):
    return dz @ W.T


# Activations; the gradients need only what the activation returned


def relu(z):
    return np.maximum(z, 0)


def relu_backward(a, da):
    return da * (a > 0)


def leaky_relu(z, slope):
    return np.where(z > 0, z, slope * z)


def leaky_relu_backward(a, da, slope):
    return np.where(a > 0, da, slope * da)


def sigmoid(z):
    """`1 / (1 + exp(-z))`, with no exponential of a positive number: none can overflow."""
    return np.exp(np.minimum(z, 0)) / (1 + np.exp(-np.abs(z)))


def sigmoid_backward(a, da):
    return da * a * (1 - a)


def tanh(z):
    return np.tanh(z)


def tanh_backward(a, da):
    return da * (1 - a * a)


# Convolution


def conv(x, W, b, stride, padding):
    """`z[n, o, i, j] = sum(W[o, c, p, q] * x[n, c, stride * i + p - padding, stride * j + q - padding]) + b[o]`.

    The sum is over c, p and q; outside of the image x is zero, and `h' = (h + 2 padding - k) // stride + 1`.
    b: None where there is no bias.
    """
    z = np.tensordot(W, _windows(x, W.shape[-1], stride, padding), 3)  # (c_out, n, h', w')
    z = np.ascontiguousarray(z.swapaxes(0, 1))
    if b is not None:
        z += b[:, None, None]
    return z


def conv_backward_weights(x, dz, dW, db, stride, padding):
    """Write `dW`, and `db` unless it is None."""
    windows = _windows(x, dW.shape[-1], stride, padding)
    dW[...] = np.tensordot(dz, windows, ((0, 2, 3), (3, 4, 5)))
    if db is not None:
        np.sum(dz, axis=(0, 2, 3), out=db)


def conv_backward_input(dz, W, shape, stride, padding):
    """Return `dx` of `shape` (n, c, h, w): each number is the sum over the windows that it was in."""
    (n, c, h, w), k = shape, W.shape[-1]
    dwindows = np.tensordot(W, dz, ((0,), (1,))).reshape(c, k * k, n, *dz.shape[2:])
    dx = np.zeros((n, c, h + 2 * padding, w + 2 * padding), dz.dtype)
    for t, tap in enumerate(_taps(dx, k, stride)):
        tap += dwindows[:, t].swapaxes(0, 1)
    return np.ascontiguousarray(dx[:, :, padding : padding + h, padding : padding + w])


def _windows(x, size, stride, padding):
    """Return a copy (c, size, size, n, h', w') of all windows: of a convolution is left one product ("im2col")."""
    if padding:
        x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.stack(_taps(x.swapaxes(0, 1), size, stride), axis=1)
    return windows.reshape(len(windows), size, size, *windows.shape[2:])


def _taps(x, size, stride):
    """Return `size * size` views (n, c, h', w') of x (n, c, h, w): number `size * p + q` has (p, q) of each window."""
    rows, columns = (length - size + 1 for length in x.shape[2:])
    return [x[:, :, p : p + rows : stride, q : q + columns : stride] for p in range(size) for q in range(size)]


# Pooling: windows of `size` by `size`, one every `stride`; what they don't reach is not read


def max_pool(x, size, stride):
    """Return `y` and `index` (n, c, h', w'): `size * p + q` where the first largest is at (p, q); 0 where it is NaN."""
    taps = np.stack(_taps(x, size, stride))
    y = taps.max(axis=0)
    return y, (taps == y).argmax(axis=0)


def max_pool_backward(dy, index, shape, size, stride):
    dx = np.zeros(shape, dy.dtype)
    for t, tap in enumerate(_taps(dx, size, stride)):
        tap += np.where(index == t, dy, 0)
    return dx


def avg_pool(x, size, stride):
    return np.stack(_taps(x, size, stride)).mean(axis=0)


def avg_pool_backward(dy, shape, size, stride):
    dx = np.zeros(shape, dy.dtype)
    share = dy / size**2
    for tap in _taps(dx, size, stride):
        tap += share
    return dx


def global_avg_pool(x):
    """Return the means (n, c) over all pixels."""
    return x.mean(axis=(2, 3))


def global_avg_pool_backward(dy, shape):
    dx = np.empty(shape, dy.dtype)
    dx[...] = (dy / (shape[2] * shape[3]))[:, :, None, None]
    return dx


# Images side by side, larger, and with borders


def concat(arrays):
    """Return arrays (n, c_i, ...) side by side along axis 1."""
    first, widths = arrays[0], [array.shape[1] for array in arrays]
    y = np.empty((len(first), sum(widths), *first.shape[2:]), first.dtype)
    for at, array in zip(_side_by_side(widths), arrays, strict=True):
        y[:, at] = array
    return y


def concat_backward(dy, widths):
    """Return the parts of dy, as wide along axis 1 as `widths` say: a list."""
    return [np.ascontiguousarray(dy[:, at]) for at in _side_by_side(widths)]


def _side_by_side(widths):
    """Return a slice for each width, one after another."""
    return [slice(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]


def upsample_nearest(x, scale):
    """`y[n, c, i, j] = x[n, c, i // scale, j // scale]`."""
    n, c, h, w = x.shape
    y = np.empty((n, c, h, scale, w, scale), x.dtype)
    y[...] = x[:, :, :, None, :, None]
    return y.reshape(n, c, h * scale, w * scale)


def upsample_nearest_backward(dy, scale):
    n, c, h, w = dy.shape
    return dy.reshape(n, c, h // scale, scale, w // scale, scale).sum(axis=(3, 5))


def upsample_bilinear(x, scale):
    """Linear between the centres of pixels, down and across: row i of y reads x at `(i + 1/2) / scale - 1/2`.

    Beyond the outermost centres is what is at them.
    """
    wide = _stretch(pad(x, 1, "replicate"), scale)
    return np.ascontiguousarray(_stretch(wide.swapaxes(2, 3), scale).swapaxes(2, 3))


def upsample_bilinear_backward(dy, scale):
    narrow = _stretch_backward(dy, scale).swapaxes(2, 3)
    return pad_backward(_stretch_backward(narrow, scale).swapaxes(2, 3), 1, "replicate")


def _stretch(x, scale):
    """Return x (..., w + 2) as (..., w * scale): of the numbers at both ends only a part is reached."""
    here, y = x[..., 1:-1], np.empty((*x.shape[:-1], (x.shape[-1] - 2) * scale), x.dtype)
    for phase, (share, neighbours) in enumerate(_phases(scale)):
        y[..., phase::scale] = (1 - share) * here + share * x[..., neighbours]
    return y


def _stretch_backward(dy, scale):
    dx = np.zeros((*dy.shape[:-1], dy.shape[-1] // scale + 2), dy.dtype)
    here = dx[..., 1:-1]
    for phase, (share, neighbours) in enumerate(_phases(scale)):
        part, there = dy[..., phase::scale], dx[..., neighbours]
        here += (1 - share) * part
        there += share * part
    return dx


def _phases(scale):
    """Return for each of `scale` numbers in a pixel the share of the pixel next to it, and which that is."""
    offsets = [(phase + 0.5) / scale - 0.5 for phase in range(scale)]
    return [(abs(offset), slice(None, -2) if offset < 0 else slice(2, None)) for offset in offsets]


def pixel_shuffle(x, scale):
    """`y[n, c, scale * i + p, scale * j + q] = x[n, scale^2 * c + scale * p + q, i, j]`: Shi et al. (2016)."""
    n, c, h, w = x.shape
    parts = x.reshape(n, c // scale**2, scale, scale, h, w).transpose(0, 1, 4, 2, 5, 3)
    return np.ascontiguousarray(parts).reshape(n, c // scale**2, h * scale, w * scale)


def pixel_unshuffle(y, scale):
    """Return what `pixel_shuffle` makes y of."""
    n, c, h, w = y.shape
    parts = y.reshape(n, c, h // scale, scale, w // scale, scale).transpose(0, 1, 3, 5, 2, 4)
    return np.ascontiguousarray(parts).reshape(n, c * scale**2, h // scale, w // scale)


def pad(x, size, mode):
    """Return x (n, c, h, w) with `size` rows and columns more at each edge. mode: "zero", "replicate" or "reflect"."""
    n, c, h, w = x.shape
    y = np.zeros((n, c, h + 2 * size, w + 2 * size), x.dtype)
    y[:, :, size : size + h, size : size + w] = x
    for border, source in _borders(size, h, mode):
        y[:, :, border] = y[:, :, source]
    for border, source in _borders(size, w, mode):
        y[..., border] = y[..., source]
    return y


def pad_backward(dy, size, mode):
    """Return dx: what the border has goes to where it came from."""
    dy, (h, w) = dy.copy(), (length - 2 * size for length in dy.shape[2:])
    for border, source in _borders(size, w, mode):
        into = dy[..., source]
        into += dy[..., border] if mode == "reflect" else dy[..., border].sum(axis=3, keepdims=True)
    for border, source in _borders(size, h, mode):
        into = dy[:, :, source]
        into += dy[:, :, border] if mode == "reflect" else dy[:, :, border].sum(axis=2, keepdims=True)
    return np.ascontiguousarray(dy[:, :, size : size + h, size : size + w])


def _borders(size, length, mode):
    """Return pairs of slices of an axis of so many elements with a border: a part of the border, and what is there."""
    before, after, last = slice(0, size), slice(size + length, None), size + length - 1
    return {
        "zero": [],
        "replicate": [(before, slice(size, size + 1)), (after, slice(last, last + 1))],
        "reflect": [(before, slice(2 * size, size, -1)), (after, slice(last - 1, last - 1 - size, -1))],
    }[mode]


# Normalization of x (n, c) or (n, c, h, w); `gamma`, `beta` and the statistics are (c,)


def batch_norm(x, gamma, beta, mean, variance, momentum, eps):
    """`y = gamma * normalized + beta`, `normalized = (x - E[x]) / sqrt(Var[x] + eps)`: Ioffe and Szegedy (2015).

    Return y, normalized and inverse_deviation (c,); move the running `mean` and `variance` by `momentum` towards the
    batch's, the variance times m / (m - 1) for m elements a channel.
    """
    axes, m = _all_but_channels(x)
    batch_mean, batch_variance = x.mean(axis=axes), x.var(axis=axes)
    mean += momentum * (batch_mean - mean)
    variance += momentum * (batch_variance * (m / max(m - 1, 1)) - variance)
    inverse_deviation = 1 / np.sqrt(batch_variance + eps)
    normalized = (x - _along(batch_mean, x)) * _along(inverse_deviation, x)
    return _along(gamma, x) * normalized + _along(beta, x), normalized, inverse_deviation


def batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    """Return `dx = gamma * inverse_deviation * (dy - mean(dy) - normalized * mean(dy * normalized))`."""
    axes, m = _all_but_channels(dy)
    np.sum(dy * normalized, axis=axes, out=dgamma)
    np.sum(dy, axis=axes, out=dbeta)
    dx = dy - _along(dbeta / m, dy) - normalized * _along(dgamma / m, dy)
    return _along(gamma * inverse_deviation, dy) * dx


def batch_norm_evaluate(x, gamma, beta, mean, variance, eps):
    scale = gamma / np.sqrt(variance + eps)
    return _along(scale, x) * (x - _along(mean, x)) + _along(beta, x)


def _all_but_channels(x):
    """Return the axes but axis 1, and how many elements of each channel they hold."""
    return (0, *range(2, x.ndim)), x.size // x.shape[1]


def _along(vector, x):
    """Return a vector (c,) as a view that broadcasts along axis 1 of x."""
    return vector.reshape(-1, *(1,) * (x.ndim - 2))


def instance_norm(x, eps):
    """`normalized = (x - E[x]) / sqrt(Var[x] + eps)` over each image's pixels: Ulyanov et al. (2016).

    Return normalized and inverse_deviation (n, c, 1, 1).
    """
    centred = x - x.mean(axis=(2, 3), keepdims=True)
    inverse_deviation = 1 / np.sqrt((centred * centred).mean(axis=(2, 3), keepdims=True) + eps)
    return centred * inverse_deviation, inverse_deviation


def instance_norm_backward(dy, normalized, inverse_deviation):
    """Return dx: without the parts of dy that would move the mean, and the deviation."""
    along = (dy * normalized).mean(axis=(2, 3), keepdims=True)
    return inverse_deviation * (dy - dy.mean(axis=(2, 3), keepdims=True) - normalized * along)


def instance_norm_evaluate(x, gamma, beta, eps):
    """`gamma * normalized + beta`, with nothing kept, so that most of it is done in place."""
    y = x - x.mean(axis=(2, 3), keepdims=True)
    y *= gamma[:, None, None] / np.sqrt((y * y).mean(axis=(2, 3), keepdims=True) + eps)
    y += beta[:, None, None]
    return y


def channel_sums(x, sums):
    """Write the sums of x (n, c, ...) over all but the channels into `sums` (c,)."""
    np.sum(x, axis=_all_but_channels(x)[0], out=sums)


# Chance: numbers that a counter and a key decide, so that each can be drawn anywhere, and again


def dropout(x, rate, key, step):
    """`y = x * mask`: a factor is 0 where a number from 0 to 1 is below `rate`, else `1 / (1 - rate)`. Of dy it is dx.

    The numbers are those that NumPy's Philox draws in float32, row by row, with `key`, two integers of 64 bits, and the
    counter `(0, step, 0, 0)`: Salmon et al. (2011).
    """
    philox = np.random.Philox(key=np.array(key, np.uint64), counter=int(step) << 64)
    kept = np.random.Generator(philox).random(x.shape, np.float32) >= np.float32(rate)
    return x * (kept * x.dtype.type(1 / (1 - rate)))


# Losses: the mean, and the gradient `dz`


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


def mean_squared_error(z, targets):
    """Loss `mean((z - targets)^2)` over all elements, gradient `2 (z - targets) / count`."""
    difference = z - targets.astype(z.dtype)
    return np.mean(difference * difference), 2 * difference / z.size


def binary_cross_entropy(z, targets):
    """Loss `mean(log(1 + exp z) - z * targets)` over all elements, gradient `(sigmoid(z) - targets) / count`.

    z: logits. No exponential can overflow: `log(1 + exp z) = max(z, 0) + log(1 + exp(-|z|))`.
    """
    targets = targets.astype(z.dtype)
    loss = np.mean(np.maximum(z, 0) - z * targets + np.log1p(np.exp(-np.abs(z))))
    return loss, (sigmoid(z) - targets) / z.size


def hinge(z, labels):
    """Loss `mean(sum(max(0, z[j] - z[label] + 1)))`, the sum over all wrong j: Weston and Watkins (1999).

    In the gradient each wrong class within the margin has 1 / n, and takes as much from the label.
    """
    rows = np.arange(len(z))
    margins = z - z[rows, labels][:, None] + 1
    margins[rows, labels] -= 1
    margins = np.maximum(margins, 0)
    dz = np.sign(margins)
    dz[rows, labels] -= dz.sum(axis=1)
    return np.mean(margins.sum(axis=1)), dz / len(z)


def focal(z, labels, share, gamma, alpha):
    """Focal loss `share * sum(-a (1 - p)^gamma log p)`, p being what each logit gives to what is right; and dz.

    z (n, classes, cells), labels (n, cells): -1 where no class is right, -2 where nobody asks. `a` is alpha where a
    class is right, else 1 - alpha. Lin, Goyal, Girshick, He and Dollar (2017), equation 5: what is easy weighs little.
    """
    is_right = labels[:, None] == np.arange(z.shape[1])[:, None]
    sign = np.where(is_right, 1, -1).astype(z.dtype)
    weight = np.where(is_right, alpha, 1 - alpha) * (labels[:, None] > -2) * share
    surprise = np.maximum(-sign * z, 0) + np.log1p(np.exp(-np.abs(z)))  # -log p
    p, missing = sigmoid(sign * z), sigmoid(-sign * z)
    terms = weight * missing**gamma
    slope = -sign * terms * (missing + gamma * p * surprise)
    return np.sum(terms * surprise).astype(z.dtype), slope.astype(z.dtype)


def giou(z, boxes, counts, share):
    """Loss `share * sum(1 - GIoU)` over the cells that count, a mask (n, cells); and dz.

    z, boxes (n, 4, cells): z is a box's middle (across, down) and the logarithms of its width and height; boxes are
    left, top, right, bottom. With B the area of both, U of either, C of the smallest box around them, GIoU is
    `B / U - (C - U) / C`: Rezatofighi et al. (2019), algorithm 1. It has a slope where boxes are apart, too.
    """
    size, other, factor = np.exp(z[:, 2:]), boxes[:, 2:] - boxes[:, :2], counts * share
    low, high = z[:, :2] - size / 2, z[:, :2] + size / 2
    both = np.maximum(np.minimum(high, boxes[:, 2:]) - np.maximum(low, boxes[:, :2]), 0)
    around = np.maximum(high, boxes[:, 2:]) - np.minimum(low, boxes[:, :2])
    B, C, area = both.prod(axis=1), around.prod(axis=1), size.prod(axis=1)
    U = area + other.prod(axis=1) - B
    dI, dC, d_area = (each[:, None] for each in (1 / C - 1 / U - B / U**2, U / C**2, B / U**2 - 1 / C))
    met = dI * both[:, ::-1] * (both.min(axis=1, keepdims=True) > 0)  # of an edge that bounds what is in both
    wide = dC * around[:, ::-1]
    d_low = -met * (low > boxes[:, :2]) - wide * (low < boxes[:, :2])
    d_high = met * (high < boxes[:, 2:]) + wide * (high > boxes[:, 2:])
    d_size = size / 2 * (d_high - d_low) + d_area * area[:, None]
    dz = np.concatenate([d_low + d_high, d_size], axis=1) * factor[:, None]
    return np.sum((2 - B / U - U / C) * factor).astype(z.dtype), dz.astype(z.dtype)


def argmax(z):
    return z.argmax(axis=1)


# Updates, in place


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
    """Momentum and RMSprop, corrected for starting at zero (Kingma and Ba 2015)."""
    m *= beta1
    m += (1 - beta1) * grad
    v *= beta2
    v += (1 - beta2) * grad**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    theta -= lr * m_hat / (np.sqrt(v_hat) + eps)

"""A batch in pieces that fit into a cache, and images laid out so that every stride is a stride of one.

A convolution with stride s reads rows p, p + s, p + 2s, ... for row p of its kernel. So the padded image is dealt out
into s * s smaller ones, its *phases*, as cards are: [a, b] gets each s-th row from a on, and each s-th column from b
on. Row p of the kernel then meets phase p % s, p // s rows down, and moves by one row at a time. No number is copied
twice.

Workspaces are counted in images: one image with its border, and with as many channels as go in or come out, whichever
are more.
"""

import numpy as np

PIECE_BYTES = 2**21  # bytes: a piece, with all that is made of it, should stay in a core's second level of cache


def pieces(n, each, most=PIECE_BYTES):
    """Yield slices of a batch of n images: as many as fit into `most` at `each` bytes an image, and at least one."""
    step = int(max(1, most // max(1, each)))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def pieces_of_windows(n, W, h, w):
    """Yield slices of n images: PIECE_BYTES with a copy of their h * w windows, and what W makes of it, at most."""
    c_out, c, k, _ = W.shape
    return pieces(n, (c * k * k + c_out) * h * w * W.itemsize)


def places(shape, size, stride, padding):
    """Return how many windows there are, down and across, in images of `shape` (..., h, w)."""
    return tuple((length + 2 * padding - size) // stride + 1 for length in shape[-2:])


def split(x, rows, columns, stride=1, padding=0):
    """Return x (n, c, h, w) as its phases (stride, stride, c, n, rows, columns), with zeros around the image.

    [a, b, :, :, i, j] is x[:, :, stride * i + a - padding, stride * j + b - padding], channels first. With a
    negative padding so many rows and columns on each side are left out.
    """
    n, c, h, w = x.shape
    phases = np.zeros((stride, stride, c, n, rows, columns), x.dtype)
    for a in range(stride):
        to_rows, from_rows = overlap(rows, a - padding, stride, h)
        for b in range(stride):
            to_columns, from_columns = overlap(columns, b - padding, stride, w)
            phases[a, b, :, :, to_rows, to_columns] = x[:, :, from_rows, from_columns].swapaxes(0, 1)
    return phases


def join(phases, shape, padding):
    """Return the images of `shape` (n, c, h, w) whose phases these are, as `split` makes them; zero beyond these."""
    stride, _, _, _, rows, columns = phases.shape
    x = np.zeros(shape, phases.dtype)
    for a in range(stride):
        from_rows, to_rows = overlap(rows, a - padding, stride, shape[2])
        for b in range(stride):
            from_columns, to_columns = overlap(columns, b - padding, stride, shape[3])
            x[:, :, to_rows, to_columns] = phases[a, b, :, :, from_rows, from_columns].swapaxes(0, 1)
    return x


def taps(phases, k, h, w):
    """Yield a view (c, n, h, w) for each place (p, q) in windows of k * k: the number there, of h * w windows."""
    stride = len(phases)
    for p in range(k):
        for q in range(k):
            i, j = p // stride, q // stride
            yield phases[p % stride, q % stride, :, :, i : i + h, j : j + w]


def overlap(n, first, stride, length):
    """Return which of n numbers, one every `stride` from place `first` on, fall into `length` places, and into which.

    As two slices of equal length, of the numbers and of the places.
    """
    begin = max(0, -(first // stride))
    end = max(begin, min(n, -((first - length) // stride)))
    return slice(begin, end), slice(first + stride * begin, first + stride * end, stride)


def clear(z, x, k, stride, padding):
    """Write 0 into z (n, c_out, h, w) wherever a window of x (n, c, ., .) holds nothing but zeros.

    There a transform leaves a rounding error instead, and its sign decides ReLU's slope while a bias is 0: in the empty
    border of a digit, where that happens to every window at once, the gradient of the bias would be another.
    """
    (n, _, h, w), reach = z.shape, -(-k // stride) - 1
    for at in pieces(n, 4 * x[0].size):
        phases = split(x[at].any(axis=1, keepdims=True), h + reach, w + reach, stride, padding)
        empty = ~np.logical_or.reduce([*taps(phases, k, h, w)])[0]
        if empty.any():
            np.copyto(z[at], 0, where=empty[:, None])


def product(left, right, out=None):
    """Return `left @ right`. Of columns and rows, which is every number times every other, `matmul` has no fast way."""
    return (np.multiply if left.shape[-1] == 1 else np.matmul)(left, right, out=out)


def with_bias(z, b):
    """Return z (n, c_out, h, w), to which the bias is added, unless there is none."""
    if b is not None:
        z += b[:, None, None]
    return z


def put_bias_gradient(dz, db):
    """Write the gradient of the bias, unless there is none."""
    if db is not None:
        np.sum(dz, axis=(0, 2, 3), out=db)

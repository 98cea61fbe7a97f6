"""im2col: the windows are written to memory by a kernel, and cuBLAS does the rest as one product of two matrices.

A convolution by a library: nine tenths of it are somebody else's, and it is hard to beat where arithmetic
is what takes the time. Its price is `Prepared.workspace`: the windows are k k times as large as the images.
"""

import math
from functools import partial

import numpy as np

from mlpkit import kernels

from . import Prepared, Rung

FILE, THREADS = "conv_4_im2col", 256
EACH = 4  # numbers or fours of them, that a thread moves
CANDIDATES = 8  # of cuBLAS's kernels that are tried
# Of the struct `Sizes`, in its order.
SIZES = ("batch", "height", "width", "channels", "out_height", "out_width", "kernel", "stride", "padding", "pitch")
MOST = 2**31 - 1


def row(shape):
    """Return the numbers of a row of the windows: k k c, and zeros up to a multiple of four."""
    return -(-shape.channels * shape.kernel**2 // 4) * 4


def why_not(shape, which):
    """Return None, or why the kernels' 32-bit numbers can't count this shape's pixels."""
    if shape.batch * max(shape.height * shape.width, shape.out_height * shape.out_width) <= MOST - 2**16:
        return None
    return f"im2col counts pixels in 32 bits, and {shape.batch} images have too many: take fewer at a time."


def prepare(precision, shape, which, a, b):
    """Return the pass of a shape for float32 operands, by products of this precision. See `Rung`.

    Raises ValueError for what `why_not` says no to.
    """
    if reason := why_not(shape, which):
        raise ValueError(reason)
    passes = {"forward": _forward, "input_gradient": _input_gradient, "weight_gradient": _weight_gradient}
    return passes[which](precision, shape, a, b)


def _forward(precision, shape, x, w):
    import cupy

    x, filters, windows = pixels(x), _rows_of(w, shape), _empty_windows(shape)
    y = cupy.empty((len(windows), shape.channels_out), np.float32)
    call = InOrder(_windows(shape, x, windows), product(windows, filters.T, y, precision))
    return Prepared(call, partial(_images, y, shape.y), windows.nbytes, (x, filters))


def _input_gradient(precision, shape, dy, w):
    import cupy

    dy, filters, windows = _matrix(dy), _rows_of(w, shape), _empty_windows(shape)
    dx = cupy.empty((shape.batch * shape.height * shape.width, shape.channels), np.float32)
    call = InOrder(product(dy, filters, windows, precision), _gather(shape, windows, dx))
    return Prepared(call, partial(_images, dx, shape.x), windows.nbytes, (dy, filters))


def _weight_gradient(precision, shape, x, dy):
    import cupy

    x, dy, windows = pixels(x), _matrix(dy), _empty_windows(shape)
    dw = cupy.empty((shape.channels_out, row(shape)), np.float32)
    call = InOrder(_windows(shape, x, windows), product(dy.T, windows, dw, precision))

    def result():
        o, c, k, _ = shape.w
        return cupy.ascontiguousarray(dw[:, : k * k * c].reshape(o, k, k, c).transpose(0, 3, 1, 2))

    return Prepared(call, result, windows.nbytes, (x, dy))


# What others need, too


class InOrder:
    """A function that calls all of `calls`, one after the other."""

    def __init__(self, *calls):
        self.calls = calls

    def __call__(self):
        for call in self.calls:
            call()


def product(a, b, out, precision=None):
    """Return a call of cuBLAS: out = a b, matrices or batches of them, by the fastest of some of its kernels."""
    from mlpkit.kernels.cublaslt import Product

    return partial(Product(a, b, out, precision, candidates=CANDIDATES), a, b, out)


def by_value(*values):
    """Return a struct of 32-bit integers, as an array of one item that a launch passes by value."""
    found = np.array(values, np.int32)
    return found.view(f"V{found.nbytes}")


def pixels(images):
    """Return images (n, c, h, w) as (n, h, w, c)."""
    import cupy

    return cupy.ascontiguousarray(images.transpose(0, 2, 3, 1))


# What lies how


def _matrix(images):
    """Return images (n, c, h, w) as a matrix of pixels and channels."""
    return pixels(images).reshape(-1, images.shape[1])


def _images(matrix, shape):
    """Return a matrix of pixels and channels as images (n, c, h, w)."""
    import cupy

    n, c, h, w = shape
    return cupy.ascontiguousarray(matrix.reshape(n, h, w, c).transpose(0, 3, 1, 2))


def _rows_of(w, shape):
    """Return filters (o, c, k, k) as rows of k k c numbers, filled up with zeros."""
    import cupy

    rows = cupy.zeros((len(w), row(shape)), np.float32)
    rows[:, : w[0].size] = w.transpose(0, 2, 3, 1).reshape(len(w), -1)
    return rows


def _empty_windows(shape):
    import cupy

    return cupy.empty((shape.batch * shape.out_height * shape.out_width, row(shape)), np.float32)


# What is launched


def sizes_of(shape, vector):
    """Return the struct `Sizes` of the kernels, as an array of one item that a launch passes by value."""
    values = {"channels": shape.channels // vector, "pitch": row(shape) // vector}
    return by_value(*(values[name] if name in values else getattr(shape, name) for name in SIZES))


def plan(shape, rows, width):
    """Return (vector, rows of a block, blocks) for `rows` rows of `width` numbers, a multiple of the vector."""
    vector = 4 if shape.channels % 4 == 0 else 1
    each = max(1, EACH * THREADS // (width // vector))
    return vector, each, math.ceil(rows / each)


def _launch(name, shape, written, a, b):
    vector, each, blocks = plan(shape, *written.shape)
    kernel = kernels.load(FILE, VECTOR=vector).get_function(name)
    arguments = (a, b, sizes_of(shape, vector), np.int32(each))
    return partial(kernel, (blocks,), (THREADS,), arguments)


def _windows(shape, x, windows):
    return _launch("windows", shape, windows, x, windows)


def _gather(shape, windows, dx):
    return _launch("gather", shape, dx, windows, dx)


def _rung(label, precision):
    return Rung(label, (FILE,), precision, "nhwc", partial(prepare, precision), why_not)


RUNGS = {
    "im2col": _rung("windows in memory, and a product", "float32"),
    "im2col_tf32": _rung("the same, on tensor cores", "tf32"),
}

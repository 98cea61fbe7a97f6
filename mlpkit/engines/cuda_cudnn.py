"""cuDNN, NVIDIA's convolutions: CuPy's lines, in which a convolution is a call of the library that everybody uses.

In full float32, not in the TF32 that cuDNN takes by itself; directly, without a transform. Of cuDNN's plans it is the
first: nothing is timed, so that the same run has the same bits again. See `kernels.conv.cudnn`. In float64, which is
for gradient checks, it is CuPy's lines again: there, version 1.25 of cuDNN's package gives wrong results.
"""

from functools import cache
from typing import NamedTuple

import cupy as cp

from mlpkit.kernels import gpu
from mlpkit.kernels.conv import cudnn

from .cupy_naive import *
from .cupy_naive import conv as _conv
from .cupy_naive import conv_backward_input as _conv_backward_input
from .cupy_naive import conv_backward_weights as _conv_backward_weights

if _reason := cudnn.why_not():
    raise ImportError(_reason.removesuffix("."))

OWN = ("conv", "conv_backward_weights", "conv_backward_input")


class _Sizes(NamedTuple):
    """The shapes of a convolution's arrays."""

    x: tuple
    w: tuple
    y: tuple
    stride: int
    padding: int

    def operands(self, which):
        shapes = {"forward": "xwy", "input_gradient": "ywx", "weight_gradient": "xyw"}[which]
        return tuple(getattr(self, name) for name in shapes)


@cache
def _pass(sizes, which):
    """Return a function of a, b and out that does one of a convolution's passes, by the first plan that can be built.

    Raises ValueError where cuDNN has none.
    """
    problem = cudnn.Problem(sizes, which, "float32", "nchw", repeats=True, direct=True)
    index, size = problem.first()

    def run(a, b, out):
        workspace = cp.cuda.alloc(max(1, size))  # from CuPy's pool, which knows the stream
        problem.call(index, (a, b, out), workspace)()

    return run


def _aligned(array):
    """Return an array that is contiguous and begins at a multiple of 16 bytes, as cuDNN takes for granted."""
    array = cp.ascontiguousarray(array)
    return array if array.data.ptr % 16 == 0 else array.copy()


def conv(x, W, b, stride, padding):
    if x.dtype != cp.float32:
        return _conv(x, W, b, stride, padding)
    rows, columns = ((size + 2 * padding - W.shape[-1]) // stride + 1 for size in x.shape[2:])
    z = cp.empty((len(x), len(W), rows, columns), x.dtype)
    sizes = _Sizes(x.shape, W.shape, z.shape, stride, padding)
    _pass(sizes, "forward")(_aligned(x), _aligned(W), z)
    if b is not None:
        z += b[:, None, None]
    return z


def conv_backward_weights(x, dz, dW, db, stride, padding):
    if x.dtype != cp.float32:
        _conv_backward_weights(x, dz, dW, db, stride, padding)
        return
    found = cp.empty(dW.shape, dW.dtype)
    sizes = _Sizes(x.shape, dW.shape, dz.shape, stride, padding)
    _pass(sizes, "weight_gradient")(_aligned(x), _aligned(dz), found)
    dW[...] = found
    if db is not None:
        cp.sum(dz, axis=(0, 2, 3), out=db)


def conv_backward_input(dz, W, shape, stride, padding):
    if dz.dtype != cp.float32:
        return _conv_backward_input(dz, W, shape, stride, padding)
    dx = cp.empty(shape, dz.dtype)
    sizes = _Sizes(tuple(shape), W.shape, dz.shape, stride, padding)
    _pass(sizes, "input_gradient")(_aligned(dz), _aligned(W), dx)
    return dx

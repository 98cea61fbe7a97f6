"""What the tests of the convolution rungs share: odd shapes, operands, and the results in float64."""

import numpy as np
import pytest

from experiments.conv_ladder.ladder import fits
from experiments.conv_ladder.rungs import ERRORS
from mlpkit.engines import numpy_baseline
from mlpkit.kernels import gpu
from mlpkit.kernels.conv import PASSES, Shape

SHAPES = (
    Shape(1, 1, 1, 1, 1, 1),
    Shape(2, 3, 5, 7, 9, 3),
    Shape(3, 1, 7, 12, 10, 3, padding=1),
    Shape(2, 6, 16, 14, 14, 5),
    Shape(5, 8, 4, 9, 6, 5, padding=2),
    Shape(2, 17, 33, 8, 11, 3, stride=2, padding=1),
    Shape(1, 64, 72, 13, 13, 3),
    Shape(4, 32, 32, 6, 5, 1, stride=2),
    Shape(2, 5, 9, 15, 16, 7, stride=2, padding=2),
    Shape(3, 40, 24, 10, 10, 2, stride=2),
    Shape(2, 130, 66, 5, 5, 3, padding=2),
    Shape(33, 16, 16, 4, 4, 3, padding=1),
)


def random_shape(rng):
    """Return a shape that nobody has thought of."""
    while True:
        kernel, stride, padding = rng.integers(1, 8), rng.integers(1, 3), rng.integers(0, 3)
        numbers = [
            rng.integers(1, 6),
            *rng.integers(1, 80, size=2),
            *rng.integers(1, 20, size=2),
            kernel,
            stride,
            padding,
        ]
        try:
            return Shape(*map(int, numbers))
        except ValueError:
            continue


def operands(shape, which, seed=0):
    """Return the two operands of a pass, float32 NumPy arrays of both signs, some of them zero as after a ReLU."""
    rng = np.random.default_rng(seed)
    a, b, _ = shape.operands(which)
    first = rng.standard_normal(a, np.float32)
    if which != "input_gradient":
        first *= rng.random(a) < 0.7
    return first, rng.standard_normal(b, np.float32) / np.float32(8)


def wanted(shape, which, a, b):
    """Return the result of a pass in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if which == "forward":
        return numpy_baseline.conv(a, b, None, shape.stride, shape.padding)
    if which == "input_gradient":
        return numpy_baseline.conv_backward_input(a, b, shape.x, shape.stride, shape.padding)
    dw = np.empty(shape.w)
    numpy_baseline.conv_backward_weights(a, b, dw, None, shape.stride, shape.padding)
    return dw


def error(found, right):
    """Return how far off a result is, as a part of its norm; an array of zeros has the norm 1."""
    assert found.shape == right.shape
    return np.linalg.norm(found - right) / (np.linalg.norm(right) or 1)


def check_on_gpu(rung, shape, which, seed=0):
    """Run a pass of a rung on the GPU twice and hold it to float64, and the second result to the first, bit for bit."""
    import cupy

    if not fits(rung, gpu.capability()):
        pytest.skip(f"{rung.label} is for newer GPUs")
    a, b = operands(shape, which, seed)
    prepared = rung.prepare(shape, which, cupy.asarray(a), cupy.asarray(b))
    prepared.call()
    first = cupy.asnumpy(prepared.result())
    prepared.call()
    again = cupy.asnumpy(prepared.result())
    assert first.dtype == np.float32
    assert error(first, wanted(shape, which, a, b)) < ERRORS[rung.precision], (shape, which)
    np.testing.assert_array_equal(first, again, str((shape, which)))


__all__ = ["PASSES", "SHAPES", "check_on_gpu", "error", "operands", "random_shape", "wanted"]

"""Convolution and pooling of the NumPy baseline are their sums, number by number, and the gradients are the slopes."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_numpy_gradients import assert_gradient

from mlpkit.engines import numpy_baseline as engine

# n, c, c_out, (h, w), k, stride, padding
CONVOLUTIONS = {
    "odd sizes": (3, 2, 5, (7, 5), 3, 1, 0),
    "batch of one": (1, 3, 2, (5, 6), 3, 1, 1),
    "one number": (1, 1, 1, (1, 1), 1, 1, 0),
    "one channel": (2, 1, 1, (6, 5), 2, 1, 2),
    "stride 2": (2, 2, 3, (7, 9), 3, 2, 1),
    "stride 2 with a rest": (2, 2, 3, (6, 8), 3, 2, 0),
    "stride 3 with a rest": (2, 1, 2, (9, 8), 2, 3, 2),
    "stride beyond the kernel": (2, 2, 2, (7, 7), 1, 3, 0),
    "kernel = image": (2, 3, 4, (5, 5), 5, 1, 0),
    "only padding fits the kernel": (2, 2, 2, (2, 3), 5, 2, 2),
}
# n, c, (h, w), size, stride
POOLINGS = {
    "halves": (2, 3, (4, 6), 2, 2),
    "a rest": (2, 2, (7, 5), 2, 2),
    "overlapping": (2, 2, (7, 7), 3, 2),
    "overlapping by all but one, a batch of one": (1, 1, (5, 6), 3, 1),
    "gaps": (2, 1, (8, 7), 2, 3),
    "window = image": (2, 3, (3, 3), 3, 1),
    "one number": (3, 2, (3, 5), 1, 1),
}


def windows(x, k, stride):
    """Yield the place (i, j) and the numbers (n, c, k, k) of each window."""
    for i in range((x.shape[2] - k) // stride + 1):
        for j in range((x.shape[3] - k) // stride + 1):
            yield i, j, x[:, :, stride * i : stride * i + k, stride * j : stride * j + k]


def conv(x, W, b, stride, padding):
    n, c, h, w = x.shape
    padded = np.zeros((n, c, h + 2 * padding, w + 2 * padding))
    padded[:, :, padding : padding + h, padding : padding + w] = x
    found = {(m, o, i, j): np.sum(at[m] * W[o]) + b[o]
             for i, j, at in windows(padded, W.shape[2], stride) for m in range(n) for o in range(len(W))}  # fmt: skip
    z = np.empty(np.add(max(found), 1))
    for place, value in found.items():
        z[place] = value
    return z


def parts(n, c, c_out, shape, k, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, c, *shape)), rng.normal(size=(c_out, c, k, k)), rng.normal(size=c_out)


def check_convolution(n, c, c_out, shape, k, stride, padding):
    x, W, b = parts(n, c, c_out, shape, k)
    z = engine.conv(x, W, b, stride, padding)
    wanted = conv(x, W, b, stride, padding)
    assert z.flags.c_contiguous
    assert z.shape == wanted.shape
    assert_allclose(z, wanted, rtol=1e-11, atol=1e-11)
    assert_allclose(engine.conv(x, W, None, stride, padding), z - b[:, None, None], rtol=1e-11, atol=1e-11)


def check_gradients(n, c, c_out, shape, k, stride, padding):
    x, W, b = parts(n, c, c_out, shape, k)
    dz = np.random.default_rng(1).normal(size=engine.conv(x, W, b, stride, padding).shape)
    dW, db, without = np.full_like(W, np.nan), np.full_like(b, np.nan), np.full_like(W, np.nan)
    engine.conv_backward_weights(x, dz, dW, db, stride, padding)
    engine.conv_backward_weights(x, dz, without, None, stride, padding)
    assert_array_equal(without, dW)
    assert_gradient(dW, lambda W: engine.conv(x, W, b, stride, padding), W, dz)
    assert_gradient(db, lambda b: engine.conv(x, W, b, stride, padding), b, dz)
    dx = engine.conv_backward_input(dz, W, x.shape, stride, padding)
    assert_gradient(dx, lambda x: engine.conv(x, W, b, stride, padding), x, dz)


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_is_the_formula(case):
    check_convolution(*case)


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_gradients_of_a_convolution_are_the_slopes(case):
    check_gradients(*case)


@given(n=st.integers(1, 3), c=st.integers(1, 3), c_out=st.integers(1, 3), h=st.integers(1, 6), w=st.integers(1, 6),
       k=st.integers(1, 5), stride=st.integers(1, 3), padding=st.integers(0, 2))  # fmt: skip
def test_a_convolution_of_any_shape(n, c, c_out, h, w, k, stride, padding):
    assume(k <= min(h, w) + 2 * padding)
    check_convolution(n, c, c_out, (h, w), k, stride, padding)
    check_gradients(n, c, c_out, (h, w), k, stride, padding)


def test_what_no_window_reads_has_no_gradient():
    dx = engine.conv_backward_input(np.ones((1, 1, 2, 2)), np.ones((1, 1, 3, 3)), (1, 1, 6, 6), 2, 0)
    assert (dx[:, :, :5, :5] > 0).all()
    assert not dx[:, :, 5:].any()
    assert not dx[:, :, :, 5:].any()


@pytest.mark.parametrize("case", POOLINGS.values(), ids=POOLINGS)
def test_pooling_is_the_formula_and_its_gradient_the_slope(case):
    n, c, shape, size, stride = case
    x = np.random.default_rng(2).permutation(n * c * np.prod(shape)).reshape(n, c, *shape) / 10
    (y, index), mean = engine.max_pool(x, size, stride), engine.avg_pool(x, size, stride)
    places = 0
    for i, j, at in windows(x, size, stride):
        for m, channel in np.ndindex(n, c):
            numbers = at[m, channel].ravel().tolist()
            assert y[m, channel, i, j] == max(numbers) == numbers[index[m, channel, i, j]]
            assert mean[m, channel, i, j] == pytest.approx(sum(numbers) / len(numbers), rel=1e-13)
            places += 1
    assert places == y.size == index.size == mean.size
    dy = np.random.default_rng(3).normal(size=y.shape)
    dx = engine.max_pool_backward(dy, index, x.shape, size, stride)
    assert_gradient(dx, lambda x: engine.max_pool(x, size, stride)[0], x, dy)
    dx = engine.avg_pool_backward(dy, x.shape, size, stride)
    assert_gradient(dx, lambda x: engine.avg_pool(x, size, stride), x, dy)


def test_the_first_of_equals_is_the_largest_of_a_window():
    rng = np.random.default_rng(4)
    x = rng.integers(2, size=(5, 3, 9, 9)).astype(np.float32)
    y, index = engine.max_pool(x, 3, 2)
    for i, j, at in windows(x, 3, 2):
        flat = at.reshape(5, 3, 9)
        assert_array_equal(index[:, :, i, j], [[list(one).index(max(one)) for one in image] for image in flat])
        assert_array_equal(y[:, :, i, j], flat.max(axis=2))

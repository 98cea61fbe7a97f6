"""The kernels of images do what the baseline does, for any shape: here by the emulator, with no GPU."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

sys.path.append(str(Path(__file__).parents[1] / "engines"))

import emulator

from mlpkit import kernels
from mlpkit.engines import numpy_baseline
from mlpkit.kernels.cnn import operations, updates

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
DTYPES = (np.float32, np.float64)
CLOSE = {np.float32: dict(rtol=1e-5, atol=1e-5), np.float64: dict(rtol=1e-12, atol=1e-12)}
SHAPES = [(2, 3, 7, 5), (1, 1, 4, 4), (3, 2, 9, 9)]


@pytest.fixture(scope="module", autouse=True)
def on_host(folder):
    operations._kernel.cache_clear()
    updates._kernel.cache_clear()
    with emulator.with_cupy(folder):
        yield
    operations._kernel.cache_clear()
    updates._kernel.cache_clear()


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype).view(emulator.Array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "stride", "padding"), [(3, 1, 0), (3, 2, 1), (1, 1, 0), (4, 3, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_convolution_is_a_product_of_windows(shape, k, stride, padding, dtype):
    x, W, b = draw(*shape, dtype=dtype), draw(4, shape[1], k, k, dtype=dtype, seed=1), draw(4, dtype=dtype, seed=2)
    wanted = numpy_baseline.conv(x, W, b, stride, padding)
    columns, z = operations.columns(x, k, stride, padding), draw(*wanted.shape, dtype=dtype)
    out, filters = wanted.shape[2:], W.reshape(4, -1)
    operations.transpose((filters @ columns).reshape(4, len(x), *out).view(emulator.Array), z, b)
    assert_allclose(z, wanted, **CLOSE[dtype])

    dz, dx, sums = draw(*wanted.shape, dtype=dtype, seed=3), draw(*shape, dtype=dtype), draw(4, dtype=dtype)
    transposed = draw(4, len(x), *out, dtype=dtype)
    operations.transpose(dz, transposed)
    assert_array_equal(transposed, dz.swapaxes(0, 1))
    operations.add_windows((filters.T @ transposed.reshape(4, -1)).view(emulator.Array), dx, out, k, stride, padding)
    assert_allclose(dx, numpy_baseline.conv_backward_input(dz, W, shape, stride, padding), **CLOSE[dtype])
    operations.channel_sums(dz, sums)
    assert_allclose(sums, dz.sum(axis=(0, 2, 3)), **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (2, 3), (1, 1), (4, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_pools_are_the_baselines(shape, size, stride, dtype):
    x = draw(*shape, dtype=dtype).round(1).view(emulator.Array)  # some are equal: the first counts
    y, index = operations.max_pool(x, size, stride)
    wanted, wanted_index = numpy_baseline.max_pool(x, size, stride)
    assert_array_equal(y, wanted)
    assert_array_equal(index, wanted_index)
    dy = draw(*y.shape, dtype=dtype, seed=1)
    found = operations.max_pool_backward(dy, index, shape, size, stride)
    assert_allclose(found, numpy_baseline.max_pool_backward(dy, index, shape, size, stride), **CLOSE[dtype])
    assert_allclose(operations.avg_pool(x, size, stride), numpy_baseline.avg_pool(x, size, stride), **CLOSE[dtype])
    found = operations.avg_pool_backward(dy, shape, size, stride)
    assert_allclose(found, numpy_baseline.avg_pool_backward(dy, shape, size, stride), **CLOSE[dtype])


def test_a_nan_is_the_largest_of_its_window():
    x = draw(1, 1, 4, 4)
    x[0, 0, 1, 1] = np.nan
    y, index = operations.max_pool(x, 2, 2)
    wanted, wanted_index = numpy_baseline.max_pool(x, 2, 2)
    assert_array_equal(y, wanted)
    assert_array_equal(index, wanted_index)


def test_places_in_large_windows_have_room():
    x = draw(1, 1, 40, 20)
    y, index = operations.max_pool(x, 20, 20)
    assert_array_equal(index, numpy_baseline.max_pool(x, 20, 20)[1])
    assert_array_equal(y, numpy_baseline.max_pool(x, 20, 20)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (40, 3), (2, 70)])
def test_norms_are_the_baselines(shape, dtype):
    c, x = shape[1], draw(*shape, dtype=dtype) + 5
    gamma, beta, mean, variance = (draw(c, dtype=dtype, seed=seed) for seed in range(4))
    running = mean.copy(), variance.copy()
    found = operations.batch_norm(x, gamma, beta, *running, 0.1, 1e-5)
    wanted = numpy_baseline.batch_norm(x, gamma, beta, mean, variance, dtype(0.1), dtype(1e-5))
    for one, other in zip((*found, *running), (*wanted, mean, variance), strict=True):
        assert_allclose(one, other, rtol=1e-4 if dtype == np.float32 else 1e-9, atol=CLOSE[dtype]["atol"])
    dy, dgamma, dbeta, *others = (draw(*size, dtype=dtype) for size in (shape, (c,), (c,), (c,), (c,)))
    dx = operations.batch_norm_backward(dy, *wanted[1:], gamma, dgamma, dbeta)
    also = numpy_baseline.batch_norm_backward(dy, *wanted[1:], gamma, *others)
    for one, other in zip((dx, dgamma, dbeta), (also, *others), strict=True):
        assert_allclose(one, other, rtol=1e-4 if dtype == np.float32 else 1e-9, atol=2 * CLOSE[dtype]["atol"])
    variance = abs(variance)
    found = operations.batch_norm_evaluate(x, gamma, beta, mean, variance, 1e-5)
    wanted = numpy_baseline.batch_norm_evaluate(x, gamma, beta, mean, variance, 1e-5)
    assert_allclose(found, wanted, rtol=1e-4 if dtype == np.float32 else 1e-9, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 50])
def test_hinge_is_the_baselines(n, dtype):
    z, labels = draw(n, 5, dtype=dtype), (np.arange(n) % 5).view(emulator.Array)
    loss, dz = operations.hinge(z, labels)
    wanted, wanted_dz = numpy_baseline.hinge(z, labels)
    assert_allclose(loss[0], wanted, **CLOSE[dtype])
    assert_allclose(dz, wanted_dz, **CLOSE[dtype])


# what a target is, for each of so many examples: its values, and the integer that it is copied in
TARGETS = {
    "labels": (lambda rng, n: rng.integers(0, 9, n), "unsigned long long"),
    "an odd number of bytes": (lambda rng, n: rng.integers(0, 256, (n, 3, 5)).astype("u1"), "unsigned char"),
    "more than a block has threads": (lambda rng, n: rng.random((n, 2, 70)).astype("f4"), "unsigned long long"),
    "numbers of four bytes": (lambda rng, n: rng.random((n, 3)).astype("f4"), "unsigned int"),
    "numbers of two bytes": (lambda rng, n: rng.integers(0, 999, (n, 3)).astype("i2"), "unsigned short"),
}


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("pixels", [False, True])
def test_the_next_batch_is_the_one_that_order_names(pixels, targets):
    n, inputs, parts, steps, (drawn, piece) = 3, 20, 2, 4, TARGETS[targets]
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (12, inputs)).astype("u1" if pixels else "f4"), drawn(rng, 12)
    order, rates = rng.permutation(12), rng.random(steps)
    arrays = [each.view(emulator.Array) for each in (X, y, order.astype("i4"))]
    rates, size = rates.astype("f4"), y[0].nbytes // {"l": 8, "i": 4, "s": 2, "c": 1}[piece.split()[1][0]]
    step, t = np.zeros(1, "i4").view(emulator.Array), np.full(1, 7)
    found = [np.empty((n, inputs), "f4"), np.empty((n, *y.shape[1:]), y.dtype)]
    found += [np.empty(1, "i4"), np.empty(1, "f4"), np.empty(1, "f4"), np.empty(1, "i8")]
    x, copied, of_step, rate, number, taken = (each.view(emulator.Array) for each in found)
    macros = {"PIXEL": "unsigned char" if pixels else "float", "TARGET": piece}
    kernel = operations._kernel("steps", "next_batch", "f4", **macros)
    for here, further in ((1, 0), (2, 1), (3, 3)):
        step[:] = here - further
        numbers = map(np.int32, (further, len(order), n, inputs, size, parts))
        looked_up = rates.view(emulator.Array), t.view(emulator.Array)
        kernel((n * parts,), (32,), (*arrays, step, *numbers, x, copied, *looked_up, of_step, rate, number, taken))
        rows = order[here * n :][:n]
        assert_array_equal(x, (X[rows] / np.float32(255)).astype("f4") if pixels else X[rows])
        assert_array_equal(copied, y[rows])
        assert (of_step[0], rate[0], number[0], taken[0]) == (here, rates[here], 7 + here, 6 + here)


def test_the_batch_after_the_next_is_asked_for_and_none_after_the_last(folder):
    asks = "prefetch_global_l2(X + next * inputs + i);"
    assert asks in kernels.source("steps")
    marks = kernels.source("steps").replace(asks, "const_cast<PIXEL*>(X)[next * inputs + i] += 100;")
    kernel = emulator.File(folder, 0, "steps", marks, REAL="float", PIXEL="float").get_function("next_batch")
    n, inputs, parts, examples = 3, 20, 2, 11
    order = np.random.default_rng(0).permutation(examples).astype("i4")
    beyond = np.append(order, np.full(n, 1 << 30, "i4")).view(emulator.Array)  # what nobody may read
    for step in range(3):
        X, x = (np.zeros((rows, inputs), "f4").view(emulator.Array) for rows in (examples, n))
        y, labels, first_t, taken = (np.ones(size, "i8").view(emulator.Array) for size in (examples, n, 1, 1))
        number = np.full(1, step, "i4").view(emulator.Array)
        rates, rate, t = (np.ones(size, "f4").view(emulator.Array) for size in (4, 1, 1))
        sizes, of_step = map(np.int32, (0, examples, n, inputs, 1, parts)), np.zeros(1, "i4").view(emulator.Array)
        kernel((n * parts,), (32,), (X, y, beyond, number, *sizes, x, labels, rates, first_t, of_step, rate, t, taken))
        asked = np.flatnonzero((X == 100).all(1))
        after = order[(step + 1) * n :][:n]
        own = order[step * n :][len(after) : n]  # where there is none after it
        assert_array_equal(asked, np.sort(np.append(after, own)))
        assert not np.delete(X, asked, 0).any()


@pytest.mark.parametrize("n", [1, 4, 1030, 2047])
def test_updates_are_the_baselines(n):
    theta, grad, m, v = (draw(n, seed=seed) for seed in range(4))
    lr, t = (np.array([number], "f4").view(emulator.Array) for number in (0.01, 3))
    v = abs(v)
    assert updates.fits(lr, theta, grad, m, v)
    assert not updates.fits(0.01, theta)
    assert not updates.fits(lr, draw(n + 1)[1:])
    exact = [each.astype("f8") for each in (theta, grad, m, v)]
    updates.sgd(theta, grad, lr)
    numpy_baseline.sgd_update(*exact[:2], float(lr[0]))
    assert_allclose(theta, exact[0], **CLOSE[np.float32])
    updates.adam(theta, grad, m, v, t, lr, 0.9, 0.999, 1e-8)
    numpy_baseline.adam_update(*exact, 3, float(lr[0]), 0.9, 0.999, 1e-8)
    for one, other in zip((theta, grad, m, v), exact, strict=True):
        assert_allclose(one, other, **CLOSE[np.float32])

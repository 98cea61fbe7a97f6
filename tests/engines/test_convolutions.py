"""Every way to convolve gives what the baseline does, for any shape, and takes the memory that its docstring says."""

import re
import tracemalloc
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import LAYOUTS, REASONS
from test_numpy_convolution import CONVOLUTIONS
from test_numpy_gradients import assert_gradient

from experiments.lab.bench import gate
from mlpkit import data, engines
from mlpkit.engines import numpy_baseline, numpy_im2col
from mlpkit.engines.images.winograd import cook_toom
from mlpkit.executors import trainer_of
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN
from mlpkit.nn.network import Network
from mlpkit.optim import SGD
from mlpkit.training.recipe import Recipe

OURS = [name for name in engines.names() if set(Conv.operations) <= (engines.own_operations(name) or set())]
HERE = [pytest.param(name, marks=pytest.mark.skip(reason=why) if (why := REASONS[name]) else ()) for name in OURS]
NUMPY = [name for name in OURS if engines.library(name) == "numpy"]
WINOGRADS = [name for name in NUMPY if "winograd" in name]
DTYPES = (np.float32, np.float64)
# How many roundings of the largest sum of absolute values a result may be off: transforms mix large numbers with small.
ROUNDINGS = {"numpy_fft": 16, "numpy_winograd2": 16, "numpy_winograd4": 128}


def load(name):
    """Return an engine; one on a GPU as an engine of NumPy's arrays."""
    engine = engines.load(name)
    return on_host(engine) if engines.on_gpu(name) else engine


def on_host(engine):
    def there(*arrays):
        return [None if array is None else engine.asarray(array) for array in arrays]

    def conv(x, W, b, stride, padding):
        return engine.to_numpy(engine.conv(*there(x, W, b), stride, padding))

    def conv_backward_weights(x, dz, dW, db, stride, padding):
        found = there(dW, db)
        engine.conv_backward_weights(*there(x, dz), *found, stride, padding)
        for array, each in zip((dW, db), found, strict=True):
            if array is not None:
                array[...] = engine.to_numpy(each)

    def conv_backward_input(dz, W, shape, stride, padding):
        return engine.to_numpy(engine.conv_backward_input(*there(dz, W), shape, stride, padding))

    functions = (conv, conv_backward_weights, conv_backward_input)
    return SimpleNamespace(**{function.__name__: function for function in functions})


def arrays(n, c, c_out, shape, k, stride, padding, dtype=np.float64, seed=0):
    """Return x, W, b and dz."""
    rng = np.random.default_rng(seed)
    out = [(length + 2 * padding - k) // stride + 1 for length in shape]
    shapes = (n, c, *shape), (c_out, c, k, k), (c_out,), (n, c_out, *out)
    return [rng.normal(size=each).astype(dtype) for each in shapes]


def results(engine, x, W, b, dz, stride, padding):
    """Return z, z without a bias, dW, db, dW without a bias, and dx."""
    dW, db, alone = (np.full(array.shape, np.nan, array.dtype) for array in (W, b, W))
    engine.conv_backward_weights(x, dz, dW, db, stride, padding)
    engine.conv_backward_weights(x, dz, alone, None, stride, padding)
    z, without = (engine.conv(x, W, bias, stride, padding) for bias in (b, None))
    return z, without, dW, db, alone, engine.conv_backward_input(dz, W, x.shape, stride, padding)


def check(name, x, W, b, dz, stride, padding):
    given, before = (x, W, b, dz), [each.copy() for each in (x, W, b, dz)]
    found = results(load(name), *given, stride, padding)
    for array, copy in zip(given, before, strict=True):
        assert_array_equal(array, copy)
    exact = results(numpy_baseline, *(each.astype(np.float64) for each in given), stride, padding)
    sizes = results(numpy_baseline, *(abs(each).astype(np.float64) for each in given), stride, padding)
    rounding = ROUNDINGS.get(name, 8) * np.finfo(x.dtype).eps
    for one, wanted, size in zip(found, exact, sizes, strict=True):
        assert one.shape == wanted.shape
        assert one.dtype == x.dtype
        assert one.flags.c_contiguous
        assert not any(np.shares_memory(one, array) for array in given)
        assert_allclose(one, wanted, rtol=0, atol=rounding * size.max(initial=0))


@pytest.mark.parametrize("name", HERE)
@given(n=st.integers(1, 4), c=st.integers(1, 4), c_out=st.integers(1, 4), h=st.integers(1, 12), w=st.integers(1, 12),
       k=st.integers(1, 6), stride=st.integers(1, 3), padding=st.integers(0, 4), dtype=st.sampled_from([*DTYPES]),
       layouts=st.tuples(*[st.sampled_from([*LAYOUTS])] * 4))  # fmt: skip
@example(1, 1, 1, 1, 1, 1, 1, 0, np.float32, ["contiguous"] * 4)
@example(1, 3, 2, 5, 5, 5, 1, 0, np.float64, ["strided"] * 4)
@example(2, 3, 4, 9, 6, 1, 1, 0, np.float32, ["reversed"] * 4)
@example(2, 2, 2, 4, 5, 3, 1, 4, np.float64, ["contiguous"] * 4)
@example(2, 2, 3, 11, 10, 3, 1, 1, np.float32, ["transposed"] * 4)
def test_a_convolution_and_its_gradients_are_the_baselines(name, n, c, c_out, h, w, k, stride, padding, dtype, layouts):
    assume(k <= min(h, w) + 2 * padding)
    views = []
    for array, layout in zip(arrays(n, c, c_out, (h, w), k, stride, padding, dtype), layouts, strict=True):
        store, look = LAYOUTS[layout]
        views.append(look(store(array)))
    check(name, *views, stride, padding)


@pytest.mark.parametrize("name", HERE)
def test_a_piece_of_a_batch_is_not_mistaken_for_another(name):
    """So many images, of several channels, that no engine takes them at once; and the last piece is shorter."""
    for k, stride, padding in ((3, 1, 1), (5, 2, 0)):
        check(name, *arrays(43, 6, 5, (24, 23), k, stride, padding, np.float32), stride, padding)


SLOPES = {**CONVOLUTIONS, "several tiles, with a rest": (2, 2, 2, (7, 9), 3, 1, 1), "wide": (1, 1, 2, (6, 5), 3, 1, 4)}


@pytest.mark.parametrize("case", SLOPES.values(), ids=SLOPES)
@pytest.mark.parametrize("name", HERE)
def test_the_gradients_are_the_slopes(name, case):
    *_, stride, padding = case
    engine, (x, W, b, dz) = load(name), arrays(*case)
    _, _, dW, db, _, dx = results(engine, x, W, b, dz, stride, padding)
    assert_gradient(dW, lambda W: engine.conv(x, W, b, stride, padding), W, dz)
    assert_gradient(db, lambda b: engine.conv(x, W, b, stride, padding), b, dz)
    assert_gradient(dx, lambda x: engine.conv(x, W, b, stride, padding), x, dz)


@pytest.mark.parametrize("where", range(4))
@pytest.mark.parametrize("name", HERE)
def test_a_nan_is_never_hidden(name, where):
    """Where it reaches the baseline's numbers it reaches an engine's; a transform may spread it further."""
    given = arrays(2, 2, 3, (6, 5), 3, 1, 1)
    given[where][(1,) * given[where].ndim] = np.nan
    for found, wanted in zip(*(results(e, *given, 1, 1) for e in (load(name), numpy_baseline)), strict=True):
        assert np.isnan(found[np.isnan(wanted)]).all()


@pytest.mark.parametrize("name", HERE)
def test_a_window_of_zeros_gives_zero(name):
    """Not a rounding error, whose sign would decide ReLU's slope."""
    for c, k, stride, padding in ((3, 3, 1, 1), (17, 3, 1, 1), (3, 3, 2, 0), (3, 5, 1, 2), (3, 2, 3, 1)):
        x, W, _, _ = arrays(5, c, c + 1, (17, 19), k, stride, padding, np.float32)
        x[:, :, 4:12, 3:12] = x[1] = x[:, :, :, 16:] = 0
        sizes = numpy_baseline.conv(abs(x), abs(W), None, stride, padding)
        z = load(name).conv(x, W, None, stride, padding)
        assert (sizes == 0).mean() > 0.25
        assert_array_equal(z == 0, sizes == 0)


SEES = Model((1, 28, 28), (
    Conv(16, 3), MaxPool(2), ReLU(), Conv(17, 3, padding=1), ReLU(), Flatten(), Linear(10),
))  # fmt: skip


@pytest.mark.parametrize("name", HERE)
def test_a_training_on_digits_with_empty_borders_is_the_baselines(name):
    gate(name, Recipe(model=SEES, batch_size=16), data.load().train)


@pytest.mark.parametrize("name", HERE)
def test_a_stride_beyond_the_image_costs_nothing(name):
    X, y = np.random.default_rng(0).random((8, 1, 12, 12)).astype(np.float32), np.arange(8) % 3
    found = []
    for engine, stride in ((name, 10**9), ("numpy_baseline", 14)):
        layers = Conv(4, 3, stride=stride, padding=1), ReLU(), Flatten(), Linear(3)
        network = Network(engine, Model((1, 12, 12), layers))
        X_there, y_there = network.engine.asarray(X), network.engine.asarray(y)
        trainer = trainer_of(network, SGD(network, 0.1), X_there, y_there, 8)
        found.append([float(loss) for _ in range(2) for loss in trainer.epoch(np.arange(8))])
        trainer.close()
    assert_allclose(*found, rtol=1e-4)


@pytest.mark.parametrize("name", [each for each in HERE if engines.on_gpu(each.values[0])])
def test_arrays_on_a_gpu_may_lie_anywhere(name):
    """Parameters are pieces of one vector, and begin at any multiple of four bytes."""
    engine, (x, W, b, dz) = engines.load(name), arrays(2, 3, 5, (9, 8), 3, 1, 1, np.float32)
    exact = results(numpy_baseline, *(each.astype(np.float64) for each in (x, W, b, dz)), 1, 1)

    def moved(array):
        room = engine.asarray(np.zeros(array.size + 1, np.float32))[1:].reshape(array.shape)
        room[...] = engine.asarray(array)
        return room

    x, W, b, dz, dW, db = map(moved, (x, W, b, dz, W, b))
    engine.conv_backward_weights(x, dz, dW, db, 1, 1)
    found = engine.conv(x, W, b, 1, 1), None, dW, db, None, engine.conv_backward_input(dz, W, x.shape, 1, 1)
    for one, wanted in zip(found, exact, strict=True):
        if one is not None:
            assert_allclose(engine.to_numpy(one), wanted, rtol=0, atol=1e-5)


# Workspaces


def peak(call):
    """Return the bytes that a call holds at its height, beside what it returns."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        returned = call()
        return tracemalloc.get_traced_memory()[1] - before - getattr(returned, "nbytes", 0)
    finally:
        tracemalloc.stop()


def workspace(name, c, c_out, shape, k, padding, itemsize):
    """Return the bytes that an engine's docstring allows it."""
    name = name if k == 3 or name not in WINOGRADS else "numpy_im2col"
    text = " ".join(engines.load(name).__doc__.split())
    MiB, images, kernels = re.search(
        r"Workspace: (\d+) MiB, or ([k\d *+]+) images .* (\d+) copies of the k", text
    ).groups()
    image = max(c, c_out) * np.prod(np.add(shape, 2 * padding)) * itemsize
    return max(int(MiB) * 2**20, eval(images, {"k": k}) * image) + int(kernels) * c_out * c * k * k * itemsize


# n, c, c_out, (h, w), k, stride, padding
MEMORIES = {
    "a large batch": (1024, 16, 16, (13, 13), 3, 1, 0),
    "a large batch, one channel in, stride 2": (512, 1, 8, (28, 28), 5, 2, 2),
    "one large image": (1, 3, 4, (365, 500), 3, 1, 1),
    "one large image, stride 2": (1, 6, 4, (301, 300), 5, 2, 2),
    "many channels": (4, 256, 256, (7, 7), 3, 1, 1),
    "large kernels": (16, 4, 8, (40, 40), 13, 1, 6),
}


@pytest.mark.parametrize("case", MEMORIES.values(), ids=MEMORIES)
@pytest.mark.parametrize("name", NUMPY)
def test_a_workspace_is_what_the_docstring_says(name, case):
    _, c, c_out, shape, k, stride, padding = case
    engine, (x, W, b, dz) = engines.load(name), arrays(*case, np.float32)
    limit, dW = workspace(name, c, c_out, shape, k, padding, 4), np.empty_like(W)
    found = [
        peak(partial(engine.conv, x, W, b, stride, padding)),
        peak(partial(engine.conv_backward_weights, x, dz, dW, b, stride, padding)),
        peak(partial(engine.conv_backward_input, dz, W, x.shape, stride, padding)),
    ]
    assert max(found) <= limit


def test_a_batch_of_4096_fits_into_8_gib():
    """A step of the Fashion-MNIST network: all that it keeps for the backward pass, which grows with the batch."""
    network = Network("numpy_im2col", FASHION_CNN)
    rng = np.random.default_rng(0)
    X, y = rng.integers(256, size=(256, 1, 28, 28), dtype=np.uint8), rng.integers(10, size=256)
    assert peak(partial(network.loss_and_grad, X, y)) < 8 * 2**30 * 256 / 4096


# What is particular to one of them


@pytest.mark.parametrize("name", WINOGRADS)
def test_winograds_way_is_for_kernels_of_three_and_a_stride_of_one(name):
    """All others are im2col's, bit for bit; these are not."""
    for k, stride, own in ((3, 1, True), (3, 2, False), (1, 1, False), (5, 1, False), (4, 2, False)):
        given = arrays(3, 4, 5, (9, 8), k, stride, 1, np.float32)
        both = [results(engine, *given, stride, 1) for engine in (engines.load(name), numpy_im2col)]
        same = [np.array_equal(one, other) for one, other in zip(*both, strict=True)]
        assert [same[0], same[2], same[5]] == [not own] * 3, (k, stride)


@pytest.mark.parametrize(("m", "r"), [(2, 2), (2, 3), (3, 2), (3, 3), (4, 3), (2, 5)])
def test_cook_tooms_transforms_are_a_filter(m, r):
    """m outputs with m + r - 1 products, of integers: to the last bits."""
    A, G, B = cook_toom(m, r)
    assert len(A) == len(G) == len(B) == m + r - 1
    assert_array_equal(B, np.rint(B))
    d, g = np.random.default_rng(0).integers(-9, 10, size=(2, m + r - 1))
    assert_allclose(A.T @ ((G @ g[:r]) * (B.T @ d)), np.correlate(d, g[:r], "valid"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["numpy_im2col", *WINOGRADS])
def test_the_errors_are_those_that_the_docstring_gives(name):
    x, W = arrays(4, 64, 64, (28, 28), 3, 1, 1, np.float32)[:2]
    z, exact = engines.load(name).conv(x, W, None, 1, 1), numpy_baseline.conv(*map(np.float64, (x, W)), None, 1, 1)
    error = np.sqrt(np.mean((z - exact) ** 2) / np.mean(exact**2))
    assert error < {"numpy_winograd4": 4e-6}.get(name, 8e-7)  # FMA, or none; sums in one order, or another
    assert name != "numpy_winograd4" or error > 1e-6

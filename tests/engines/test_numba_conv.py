"""Convolution in bundles of images: the baseline's numbers, for any shape, in a bounded workspace."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence, sweep

from mlpkit import engines
from mlpkit.engines import numpy_baseline
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual

engine = engines.load("numba_conv")
FLOATS = (np.float32, np.float64)
EPS = {np.float32: 2**-23, np.float64: 2**-52}
RESIDUAL = Model((1, 8, 8), (
    Conv(6, 3, padding=1, bias=False), BatchNorm(), ReLU(),
    Residual((Conv(6, 3, padding=1, bias=False), BatchNorm(), ReLU(), Conv(6, 3, padding=1, bias=False), BatchNorm())),
    ReLU(), AvgPool(4), Flatten(), Linear(5),
))  # fmt: skip
# All that this engine does itself. Dense layers, which are another engine's, would be compiled in float64, too.
SEEN = Model((2, 9, 8), (
    Conv(6, 3, padding=1, bias=False), BatchNorm(), ReLU(), MaxPool(2),
    Residual((Conv(6, 3, padding=1), BatchNorm(), ReLU(), Conv(6, 1))), ReLU(), AvgPool(2), Conv(4, 2),
), MeanSquaredError())  # fmt: skip
MODELS = {"seen": SEEN, "LeNet-5": LENET5, "Fashion": FASHION_CNN, "residual": RESIDUAL}


def targets_of(model, n, rng):
    """Return targets at random: images, or labels."""
    return rng.normal(size=(n, *model.output)) if model is SEEN else rng.integers(model.output[0], size=n)


def close(found, wanted, dtype, terms=1, loose=20):
    """Assert that sums of so many terms, of numbers about 1 in size, are equal but for rounding."""
    assert found.dtype == dtype
    assert found.shape == wanted.shape
    assert_allclose(found, wanted, rtol=loose * EPS[dtype], atol=loose * EPS[dtype] * max(terms, 1) ** 0.75)


def check_convolution(n, c, c_out, shape, k, stride, padding, dtype, seed=0):
    """Compare each of the three products with the baseline's, in float64; nothing but what is written may change."""
    rng = np.random.default_rng(seed)
    x, W, b = (rng.normal(size=s).astype(dtype) for s in ((n, c, *shape), (c_out, c, k, k), (c_out,)))
    exact = [array.astype(np.float64) for array in (x, W, b)]
    kept = [array.copy() for array in (x, W, b)]
    wanted = numpy_baseline.conv(*exact, stride, padding)
    z = engine.conv(x, W, b, stride, padding)
    assert z.flags.c_contiguous
    loose = 200 if min(c, c_out) >= 16 and k == 3 and stride == 1 else 20  # Winograd's rounds ten times as much
    close(z, wanted, dtype, c * k * k, loose)
    close(engine.conv(x, W, None, stride, padding), wanted - exact[2][:, None, None], dtype, c * k * k, loose)
    dz = rng.normal(size=z.shape).astype(dtype)
    dW, db, alone = np.full_like(W, np.nan), np.full_like(b, np.nan), np.full_like(W, np.nan)
    wanted_dW, wanted_db = np.empty(W.shape), np.empty(b.shape)
    numpy_baseline.conv_backward_weights(exact[0], dz.astype(np.float64), wanted_dW, wanted_db, stride, padding)
    engine.conv_backward_weights(x, dz, dW, db, stride, padding)
    engine.conv_backward_weights(x, dz, alone, None, stride, padding)
    close(dW, wanted_dW, dtype, dz[:, 0].size, loose)
    close(db, wanted_db, dtype, dz[:, 0].size)
    assert_array_equal(alone, dW)
    dx = engine.conv_backward_input(dz, W, x.shape, stride, padding)
    assert dx.flags.c_contiguous
    wanted_dx = numpy_baseline.conv_backward_input(dz.astype(np.float64), exact[1], x.shape, stride, padding)
    close(dx, wanted_dx, dtype, c_out * k * k, loose)
    for array, before in zip((x, W, b), kept, strict=True):
        assert_array_equal(array, before)


# Batches below, at and above a bundle; channels below, at and above a block of each width; every stride and padding.
@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
@settings(deadline=None, max_examples=30)
@given(n=st.sampled_from([1, 2, 8, 15, 16, 17, 40]), c=st.integers(1, 18), c_out=st.integers(1, 18),
       h=st.integers(1, 9), w=st.integers(1, 9), k=st.integers(1, 5), stride=st.integers(1, 4),
       padding=st.integers(0, 3), seed=st.integers(0, 99))  # fmt: skip
@example(n=16, c=1, c_out=6, h=28, w=28, k=5, stride=1, padding=2, seed=0)
@example(n=33, c=6, c_out=16, h=14, w=14, k=5, stride=1, padding=0, seed=0)
@example(n=17, c=32, c_out=24, h=13, w=13, k=3, stride=1, padding=0, seed=0)
@example(n=18, c=64, c_out=128, h=9, w=9, k=3, stride=1, padding=0, seed=0)
@example(n=20, c=16, c_out=32, h=7, w=10, k=3, stride=1, padding=1, seed=0)
@example(n=2, c=2, c_out=2, h=2, w=3, k=5, stride=2, padding=2, seed=0)
@example(n=2, c=2, c_out=2, h=7, w=7, k=1, stride=3, padding=0, seed=0)
def test_a_convolution_and_its_gradients_are_the_baselines(n, c, c_out, h, w, k, stride, padding, seed, dtype):
    assume(k <= min(h, w) + 2 * padding)
    check_convolution(n, c, c_out, (h, w), k, stride, padding, dtype, seed)


def test_arrays_may_lie_in_memory_in_any_way():
    rng = np.random.default_rng(0)
    images, kernels = rng.normal(size=(7, 7, 3, 18)).transpose(3, 2, 0, 1), rng.normal(size=(3, 3, 3, 8)).T
    for x, W in ((images, kernels), (images[::2], kernels[:, ::-1])):
        z = engine.conv(x, W, None, 1, 1)
        assert_allclose(z, numpy_baseline.conv(x, W, None, 1, 1), rtol=1e-10, atol=1e-10)
        dx = engine.conv_backward_input(z[:, :, ::-1], W, x.shape, 1, 1)
        assert_allclose(dx, numpy_baseline.conv_backward_input(z[:, :, ::-1], W, x.shape, 1, 1), rtol=1e-9, atol=1e-9)
        dW, wanted = np.empty(W.shape), np.empty(W.shape)
        engine.conv_backward_weights(x, z[:, :, ::-1], dW, None, 1, 1)
        numpy_baseline.conv_backward_weights(x, z[:, :, ::-1], wanted, None, 1, 1)
        assert_allclose(dW, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_image(value):
    x, W = np.ones((18, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    x[4, 1, 2, 2] = value
    z = engine.conv(x, W, None, 1, 1)
    assert_array_equal(np.isfinite(z).all(axis=(1, 2, 3)), np.arange(18) != 4)


# Pooling, normalization and the rest


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 4), c=st.integers(1, 4), h=st.integers(1, 9), w=st.integers(1, 9), size=st.integers(1, 4),
       stride=st.integers(1, 4), few=st.booleans(), seed=st.integers(0, 99))  # fmt: skip
def test_pooling_is_the_baselines(n, c, h, w, size, stride, few, seed, dtype):
    assume(size <= min(h, w))
    rng = np.random.default_rng(seed)
    x = (rng.integers(3, size=(n, c, h, w)) if few else rng.normal(size=(n, c, h, w))).astype(dtype)  # few: ties
    (y, index), (wanted, wanted_index) = (one.max_pool(x, size, stride) for one in (engine, numpy_baseline))
    assert_array_equal(y, wanted)
    assert_array_equal(index, wanted_index)
    dy = rng.normal(size=y.shape).astype(dtype)
    dx = engine.max_pool_backward(dy, index, x.shape, size, stride)
    close(dx, numpy_baseline.max_pool_backward(dy, index, x.shape, size, stride), dtype)
    close(engine.avg_pool(x, size, stride), numpy_baseline.avg_pool(x, size, stride), dtype)
    dx = engine.avg_pool_backward(dy, x.shape, size, stride)
    close(dx, numpy_baseline.avg_pool_backward(dy, x.shape, size, stride), dtype)


def test_a_nan_in_a_window_is_its_largest_number():
    x = np.zeros((1, 1, 2, 6), np.float32)
    x[0, 0, 0, 1] = x[0, 0, 1, 2] = np.nan
    x[0, 0, 1, 3] = 5
    (y, index), (wanted, wanted_index) = (one.max_pool(x, 2, 2) for one in (engine, numpy_baseline))
    assert_array_equal(y, wanted)
    assert_array_equal(index, wanted_index)


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 9), c=st.integers(1, 5), plane=st.sampled_from([(), (1, 1), (4, 3), (8, 8)]),
       seed=st.integers(0, 99))  # fmt: skip
def test_batch_normalization_is_the_baselines(n, c, plane, seed, dtype):
    rng = np.random.default_rng(seed)
    x, dy = (3 * rng.normal(size=(2, n, c, *plane)) + 1).astype(dtype)
    gamma, beta, mean, variance = rng.uniform(0.5, 2, (4, c)).astype(dtype)
    results = []
    for one, kind in ((engine, dtype), (numpy_baseline, np.float64)):
        numbers = [array.astype(kind) for array in (x, gamma, beta, mean, variance)]
        returned = one.batch_norm(*numbers, 0.1, 1e-2)
        dgamma, dbeta = np.empty((2, c), kind)
        dx = one.batch_norm_backward(dy.astype(kind), *returned[1:], numbers[1], dgamma, dbeta)
        results.append((*returned, *numbers[3:], dgamma, dbeta, dx, one.batch_norm_evaluate(*numbers, 1e-2)))
    for found, wanted in zip(*results, strict=True):
        close(found, wanted, dtype, 100 * dy[:, 0].size)


# Networks


@pytest.mark.parametrize("name", sweep(["seen", "LeNet-5", "residual"], "seen"))
def test_gradients_of_networks_are_the_slopes(name):
    model, rng = MODELS[name], np.random.default_rng(0)
    network = Network(engine, model, dtype=np.float64)
    x = rng.normal(size=(3, *model.input))
    assert gradient_error(network, x, targets_of(model, 3, rng), samples=150) < 1e-6


@pytest.mark.parametrize("name", sweep(MODELS, "seen"))
def test_a_network_has_the_baselines_loss_and_gradient(name):
    model, rng = MODELS[name], np.random.default_rng(0)
    x, labels = rng.random((21, *model.input)), targets_of(model, 21, rng)
    networks = [Network(one, model, dtype=np.float64) for one in (engine, numpy_baseline)]  # float32: a ReLU may flip
    losses = [network.loss_and_grad(x, labels) for network in networks]
    assert_allclose(*losses, rtol=1e-12)
    found, wanted = (network.grad for network in networks)
    assert np.linalg.norm(found - wanted) < 1e-11 * np.linalg.norm(wanted)


EMPTY, FILTERS = np.zeros((0, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32)
NORM = [np.ones(4, np.float32)] * 4
WITHOUT_IMAGES = {
    "conv": (EMPTY, FILTERS, None, 1, 1),
    "conv_backward_weights": (EMPTY, EMPTY, FILTERS.copy(), None, 1, 1),
    "conv_backward_input": (EMPTY, FILTERS, EMPTY.shape, 1, 1),
    "relu": (EMPTY,),
    "relu_backward": (EMPTY, EMPTY),
    "batch_norm": (EMPTY, *NORM, 0.1, 1e-5),
    "batch_norm_backward": (EMPTY, EMPTY, *NORM),
    "batch_norm_evaluate": (EMPTY, *NORM, 1e-5),
}


@pytest.mark.parametrize("name", WITHOUT_IMAGES)
def test_a_batch_without_images_is_refused_in_a_sentence(name):
    with pytest.raises(ValueError, match="n at least 1") as caught:
        getattr(engine, name)(*WITHOUT_IMAGES[name])
    one_sentence(caught.value, "(0, 4, 6, 6)")


WORKSPACE = """
    import numpy as np
    from mlpkit.engines import numba_conv as engine
    def most():
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    def work(n):
        x, W = np.ones((n, 16, 12, 12), np.float32), np.ones((24, 16, 3, 3), np.float32)
        z = engine.conv(x, W, None, 1, 1)
        dW, dx = np.empty_like(W), engine.conv_backward_input(z, W, x.shape, 1, 1)
        engine.conv_backward_weights(x, z, dW, None, 1, 1)
        return x.nbytes + z.nbytes + dx.nbytes
    work(64)
    before = most()
    arrays = work(4096)
    print(most() - before - arrays, work(1))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells the most memory that a process had")
def test_a_batch_of_4096_takes_no_more_room_than_one_of_64():
    """Beside the arrays that come and go: a bundle at a time, whatever the batch. An array more would be 38 MB."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORKSPACE)], text=True, capture_output=True, check=True
    )
    assert int(done.stdout.split()[0]) < 8 * 2**20

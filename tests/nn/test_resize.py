"""What becomes of an image: its size, each of its pixels; and networks that need it train."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mlpkit import engines
from mlpkit.engines import numpy_baseline as baseline
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Linear, ReLU, Tanh
from mlpkit.nn.losses import BinaryCrossEntropy, MeanSquaredError, SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Crop, Padding, PixelShuffle, Upsample
from mlpkit.optim import SGD

SMALL = st.integers(1, 4)
LAYERS = st.one_of(
    st.builds(Upsample, SMALL, st.sampled_from(["nearest", "bilinear"])),
    st.builds(PixelShuffle, SMALL),
    st.builds(Padding, SMALL, st.sampled_from(["reflect", "replicate", "zero"])),
    st.builds(Crop, SMALL),
    st.builds(InstanceNorm, affine=st.booleans()),
    st.just(GlobalAvgPool()),
    st.tuples(SMALL, SMALL, SMALL, st.integers(0, 4), st.integers(0, 3), st.booleans())
    .filter(lambda settings: settings[4] < settings[2])
    .map(lambda settings: ConvTranspose(*settings)),
)


@given(one=LAYERS, shape=st.tuples(st.sampled_from([1, 2, 4, 9, 16]), *[st.integers(1, 6)] * 2), n=st.integers(1, 3))
def test_what_comes_out_has_the_shape_that_was_said_or_is_refused(one, shape, n):
    try:
        model = Model(shape, (Conv(shape[0], 1), one), MeanSquaredError())
    except ValueError as error:
        assert "does not fit" in str(error)  # noqa: PT017 (either is right)
        assume(False)
    network, x = Network(model=model), np.random.default_rng(0).normal(size=(n, *shape)).astype(np.float32)
    y = network.forward(x, training=True)
    assert y.shape == (n, *model.output)
    assert y.dtype == np.float32
    assert y.flags.c_contiguous
    at = network.layers[1]
    dx = one.backward(at, np.ones_like(y))
    assert dx.shape == x.shape
    assert dx.dtype == np.float32
    assert dx.flags.c_contiguous


IMAGE = np.array([[[[1.0, 2, 3], [4, 5, 6]]]])


def test_a_crop_is_the_inside_and_its_gradient_has_zeros_around():
    x = np.random.default_rng(0).normal(size=(2, 3, 7, 6))
    network = Network(model=Model((3, 7, 6), (Conv(3, 1), Crop(2)), MeanSquaredError()), dtype=np.float64)
    at = network.layers[1]
    assert_array_equal(at.layer.forward(at, x), x[:, :, 2:-2, 2:-2])
    dx = at.layer.backward(at, np.ones((2, 3, 3, 2)))
    assert dx.sum() == 36
    assert_array_equal(dx[:, :, 2:-2, 2:-2], 1)


def test_the_nearest_pixel_is_repeated():
    assert_array_equal(baseline.upsample_nearest(IMAGE, 2)[0, 0], np.kron(IMAGE[0, 0], np.ones((2, 2))))


@pytest.mark.parametrize("scale", [1, 2, 3, 4, 5])
def test_between_centres_an_image_is_a_line(scale):
    """Also where numbers are read: `(i + 1/2) / scale - 1/2`, but not beyond the outermost centres."""
    found = baseline.upsample_bilinear(IMAGE, scale)[0, 0]
    rows, columns = (np.clip((np.arange(n * scale) + 0.5) / scale - 0.5, 0, n - 1) for n in IMAGE.shape[2:])
    assert_allclose(found, 1 + 3 * rows[:, None] + columns, rtol=1e-12)


def test_channels_become_pixels_row_by_row():
    x = np.arange(8.0).reshape(1, 8, 1, 1)
    assert baseline.pixel_shuffle(x, 2)[0].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert_array_equal(baseline.pixel_unshuffle(baseline.pixel_shuffle(x, 2), 2), x)


@pytest.mark.parametrize(("mode", "theirs"), [("reflect", "reflect"), ("replicate", "edge"), ("zero", "constant")])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_borders_are_numpys(mode, theirs, size):
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    assert_array_equal(baseline.pad(x, size, mode), np.pad(x, ((0, 0), (0, 0), (size, size), (size, size)), theirs))


def test_what_lies_side_by_side_comes_apart_again():
    arrays = [np.random.default_rng(0).normal(size=(3, width, 2, 2)) for width in (1, 4, 2)]
    found = baseline.concat_backward(baseline.concat(arrays), [1, 4, 2])
    for one, other in zip(found, arrays, strict=True):
        assert_array_equal(one, other)
        assert one.flags.c_contiguous


@given(settings=st.tuples(SMALL, SMALL, SMALL, st.integers(0, 2), st.integers(0, 3)), shape=st.tuples(SMALL, SMALL))
def test_a_transposed_convolution_is_a_convolution_transposed(settings, shape):
    """The product of what it makes of x with any y is the product of x with what the convolution makes of y."""
    channels, size, stride, padding, output_padding = settings
    assume(output_padding < stride)
    assume(min(shape) * stride + size > 2 * padding + stride)
    layer = ConvTranspose(channels, size, stride, padding, output_padding, bias=False)
    network = Network(model=Model((2, *shape), (layer,), MeanSquaredError()), dtype=np.float64)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2, *shape))
    z = network.forward(x)
    y = rng.normal(size=z.shape)
    back = baseline.conv(y, network.layers[0].W, None, stride, padding)
    assert back.shape == x.shape
    assert (z * y).sum() == pytest.approx((x * back).sum(), rel=1e-9, abs=1e-9)


# Networks that need them

ENGINES = ("numpy_baseline", "numba_conv")


def _block(channels, stride):
    layers = (
        Conv(channels, 3, stride, 1, bias=False),
        BatchNorm(),
        ReLU(),
        Conv(channels, 3, 1, 1, bias=False),
        BatchNorm(),
    )
    return Residual(layers, (Conv(channels, 1, stride, bias=False), BatchNorm()) if stride > 1 else ()), ReLU()


def _level(channels, deeper):
    """Return a level of a U-Net: what is deeper sees half the pixels, and comes back beside what was here."""
    down = Conv(channels, 3, padding=1), ReLU()
    up = Conv(channels, 3, padding=1), ReLU()
    return *down, Concat((), (MaxPool(2), *deeper, Upsample(2, "bilinear"))), *up


NETWORKS = {
    "a small ResNet": Model((3, 8, 8), (
        Conv(8, 3, padding=1), BatchNorm(), ReLU(), *_block(8, 1), *_block(16, 2), GlobalAvgPool(), Linear(3),
    )),
    "a small U-Net": Model(
        (3, 8, 8), (*_level(4, _level(6, (Conv(8, 3, padding=1), ReLU()))), Conv(1, 1)), BinaryCrossEntropy()
    ),
    "ESPCN": Model((3, 8, 8), (
        Conv(8, 5, padding=2), Tanh(), Conv(4, 3, padding=1), Tanh(), Conv(12, 3, padding=1), PixelShuffle(2),
    ), MeanSquaredError()),
    "a network for styles": Model((3, 8, 8), (
        Padding(2), Conv(6, 5, bias=False), InstanceNorm(affine=True), ReLU(),
        Conv(8, 3, 2, 1), InstanceNorm(affine=True), ReLU(),
        ConvTranspose(6, 3, 2, 1, 1), InstanceNorm(affine=True), ReLU(), Padding(1), Conv(3, 3),
    ), MeanSquaredError()),
}  # fmt: skip


def problem(model, n=12):
    """Return images, and what can be learned of them: how bright they are, where, or how they look when larger."""
    rng = np.random.default_rng(0)
    large = rng.normal(size=(n, 3, 4, 4)).repeat(4, axis=2).repeat(4, axis=3) + 0.1 * rng.normal(size=(n, 3, 16, 16))
    x = large.reshape(n, 3, 8, 2, 8, 2).mean(axis=(3, 5)).astype(np.float32)
    if model.loss == SoftmaxCrossEntropy():
        return x, x.mean(axis=(2, 3)).argmax(axis=1)
    if model.loss == BinaryCrossEntropy():
        return x, (x.sum(axis=1, keepdims=True) > 0).astype(np.float32)
    return x, (large if model.output[1] == 16 else -x).astype(np.float32)


def losses(engine, model, steps=10):
    network = Network(engine, model, seed=1)
    optimizer, (x, targets) = SGD(network, 0.1), problem(model)
    found = []
    for step in range(steps):
        found.append(float(network.loss_and_grad(x, targets, step)))
        optimizer.step()
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_and_on_each_engine_alike(name):
    wanted = losses("numpy_baseline", NETWORKS[name])
    assert all(after < before for before, after in pairwise(wanted))
    assert wanted[-1] < 0.95 * wanted[0]
    for engine in ENGINES[1:]:
        assert_allclose(losses(engine, NETWORKS[name]), wanted, rtol=1e-4)


def test_engines_that_convolve_have_all_that_these_layers_need():
    kinds = Concat, Upsample, PixelShuffle, ConvTranspose, Padding, InstanceNorm, GlobalAvgPool
    wanted = {operation for kind in kinds for operation in kind.operations}
    for name, why_not in engines.available().items():
        if not why_not and hasattr(engines.load(name), "conv"):
            assert [each for each in wanted if not hasattr(engines.load(name), each)] == [], name

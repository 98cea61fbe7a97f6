"""An image and its half in one: what is put together comes apart, and gradients are slopes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mlpkit.nn.conv import Conv
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.layers import ReLU
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.pyramid import Levels, Pyramid
from mlpkit.nn.reading import read, text_of

RNG = np.random.default_rng(0)


def of(shape, *layers, engine="numpy_baseline", dtype=np.float64):
    return Network(engine, Model(shape, layers, MeanSquaredError()), dtype=dtype)


def test_below_an_image_are_zeros_and_the_means_of_its_pixels():
    x = RNG.normal(size=(3, 2, 8, 6))
    y = of((2, 8, 6), Pyramid(2)).forward(x)
    assert y.shape == (3, 2, 14, 6)
    assert_array_equal(y[:, :, :8], x)
    assert_allclose(y[:, :, 10:, :3], x.reshape(3, 2, 4, 2, 3, 2).mean(axis=(3, 5)))
    assert not y[:, :, 8:10].any()
    assert not y[:, :, 10:, 3:].any()


@pytest.mark.parametrize("gap", [0, 1, 3])
def test_levels_come_apart_as_rows(gap):
    x = RNG.normal(size=(2, 3, 4, 6))
    y = of((3, 4, 6), Pyramid(gap), Levels(gap)).forward(x)
    assert_array_equal(y[:, : 3 * 4 * 6], x.reshape(2, -1))
    assert_allclose(y[:, 3 * 4 * 6 :], x.reshape(2, 3, 2, 2, 3, 2).mean(axis=(3, 5)).reshape(2, -1))


@pytest.mark.parametrize("engine", ["numpy_baseline", "numpy_k2row"])
def test_their_gradients_are_slopes(engine):
    network = of((2, 4, 6), Conv(3, 1), Pyramid(2), Conv(2, 3, padding=1), ReLU(), Levels(2), engine=engine)
    x = RNG.normal(size=(3, 2, 4, 6))
    assert gradient_error(network, x, RNG.normal(size=(3, *network.model.output))) < 1e-6


def test_they_are_read_as_they_are_written():
    for layer in (Pyramid(), Pyramid(4), Levels(1)):
        assert repr(read(text_of(layer))) == repr(layer)


@pytest.mark.parametrize(("shape", "layer"), [((1, 5, 4), Pyramid()), ((1, 4, 4), Pyramid(5)), ((1, 4, 4), Levels(2))])
def test_what_has_no_half_is_refused(shape, layer):
    with pytest.raises(ValueError, match="does not fit"):
        Model(shape, (layer,), MeanSquaredError())

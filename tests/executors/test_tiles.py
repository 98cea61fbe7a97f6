"""A picture in tiles is the whole picture, on every engine that computes here."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from mlpkit.data.patches import with_halo
from mlpkit.engines.loops import rows
from mlpkit.executors.numba_conv import steps_of
from mlpkit.executors.tiles import Tiles
from mlpkit.nn.conv import Conv
from mlpkit.nn.enlarging import enlarger, espcn, geometry, srcnn
from mlpkit.nn.layers import ReLU
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5
from mlpkit.nn.network import Network

RNG = np.random.default_rng(0)
ENGINES = "numpy_baseline", "numba_conv"
MODELS = {
    "own, x2": enlarger(24, 2, channels=5, depth=2),
    "own, x3": enlarger(24, 3, channels=4, depth=1),
    "ESPCN": espcn(16, 2),
    "SRCNN": srcnn(24),
}


def made(model, engine, dtype=np.float64):
    network = Network(engine, model, dtype=dtype)
    network.set_theta(0.2 * np.random.default_rng(1).standard_normal(network.layout.size).astype(dtype))
    return network


def whole(network, picture):
    halo, _ = geometry(network.model)
    x = with_halo(picture, halo)[None]
    other = Network("numpy_baseline", Model(x.shape[1:], network.model.layers, network.model.loss), dtype=network.dtype)
    other.set_theta(network.engine.to_numpy(network.theta))
    return other.forward(x)[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("tile", "n"), [(16, 4), ((7, 30), 3), (64, 1)])
def test_tiles_make_what_the_whole_makes(name, engine, tile, n):
    network, picture = made(MODELS[name], engine), RNG.random((1, 33, 30))
    found = Tiles(network, tile, n)(picture)
    assert found.shape == (1, *(length * geometry(network.model)[1] for length in (33, 30)))
    assert_allclose(found, whole(network, picture), atol=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (3, 3), (17, 2)])
def test_a_picture_smaller_than_its_halo_is_enlarged_too(size):
    network, picture = made(MODELS["own, x2"], "numba_conv"), RNG.random((1, *size))
    assert_allclose(Tiles(network, 8, 2)(picture), whole(network, picture), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["own, x2", "own, x3", "SRCNN"])
def test_a_chain_without_padding_is_one_call_of_compiled_code(name, dtype):
    network = made(MODELS[name], "numba_conv", dtype)
    compiled = network.compiled(3)
    assert compiled.chain
    x = RNG.random((3, *network.model.input)).astype(dtype)
    assert_allclose(compiled(x), network.forward(x), rtol=1e-3 if dtype == np.float32 else 1e-12, atol=1e-6)
    assert_array_equal(compiled(x)[:1], compiled(x[:1]))
    pixels = RNG.integers(256, size=x.shape, dtype=np.uint8)
    batch = compiled.batch(np.uint8)
    batch.fill(pixels)
    batch.replay()
    assert_allclose(batch.z, network.forward(pixels), rtol=1e-3 if dtype == np.float32 else 1e-12, atol=1e-6)


@pytest.mark.parametrize("band", [1, 3_000, 10_000])
@pytest.mark.parametrize("name", ["own, x2", "own, x3", "SRCNN"])
def test_some_rows_at_a_time_are_the_picture_to_the_last_bit(name, band, monkeypatch):
    network = made(MODELS[name], "numba_conv", np.float32)
    x, at_once = RNG.random((2, *network.model.input), np.float32), network.compiled(2)
    monkeypatch.setattr(rows, "BAND", band)
    several = network.compiled(2)
    assert several.chain.ends.shape[1] > at_once.chain.ends.shape[1] == 2
    assert several.chain.size < at_once.chain.size
    assert_array_equal(several(x), at_once(x))


@pytest.mark.parametrize(
    "layers", [(Conv(3, 3, padding=1),), (Conv(3, 3, stride=2),), (ReLU(), Conv(3, 3)), (Conv(3, 1), ReLU(), ReLU())]
)
def test_other_networks_are_computed_an_operation_at_a_time(layers):
    network = made(Model((2, 9, 8), layers, MeanSquaredError()), "numba_conv")
    assert steps_of(network.layers) is None
    x = RNG.random((2, 2, 9, 8))
    assert_allclose(network.compiled(2)(x), network.forward(x), atol=1e-12)


def test_what_is_no_picture_for_the_network_is_told():
    tiles = Tiles(made(MODELS["own, x2"], "numpy_baseline", np.float32), 16, 4)
    good = np.zeros((1, 9, 9), np.float32)
    for picture in (good.astype(np.float64), good[0], np.zeros((3, 9, 9), np.float32), good[:, :0]):
        with pytest.raises(ValueError, match="picture") as caught:
            tiles(picture)
        one_sentence(caught.value)
    with pytest.raises(TypeError):
        tiles([[0.0]])
    with pytest.raises(ValueError, match="finite"):
        tiles(good + np.nan)


def test_a_classifier_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="from images to images") as caught:
        Tiles(Network("numpy_baseline", LENET5), 16, 4)
    one_sentence(caught.value, (10,))

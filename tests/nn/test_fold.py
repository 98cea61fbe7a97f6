"""A folded network computes what the network does, in evaluation, and has no batch norm behind a Conv or Linear."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mlpkit.engines import numpy_baseline
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.fold import fold
from mlpkit.nn.layers import Dropout, Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import MODELS
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual

BRANCHED = Model((2, 8, 6), (
    Conv(4, 3, padding=1), BatchNorm(), Residual((Conv(4, 1, bias=False), BatchNorm(), ReLU()), (Dropout(0.5),)),
    Concat((Conv(3, 1), BatchNorm(), Dropout(0.1)), (), (MaxPool(1), BatchNorm())), Flatten(), Dropout(0.2),
    Linear(5), BatchNorm(), ReLU(), BatchNorm(), Linear(3),
))  # fmt: skip


def a_network(model, dtype=np.float64, seed=0):
    """Return a network whose normalizations have something to do."""
    network, rng = Network(numpy_baseline, model, seed=seed, dtype=dtype), np.random.default_rng(seed)
    network.theta[:] += rng.normal(0, 0.02, network.theta.shape).astype(dtype)
    network.statistics[:] += rng.uniform(0.1, 1, network.statistics.shape).astype(dtype)
    return network


@pytest.mark.parametrize("model", [*MODELS.values(), BRANCHED], ids=[*MODELS, "branched"])
def test_outputs_are_the_networks_and_stay_so(model):
    network = a_network(model)
    x = np.random.default_rng(1).normal(size=(4, *model.input))
    wanted, folded = network.forward(x), fold(network)
    network.theta[:], network.statistics[:] = np.nan, np.nan  # the folded one has values of its own
    assert_allclose(folded.forward(x), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_takes_over_its_normalization(bias):
    """And one behind it, too, but none behind ReLU."""
    model = Model((2, 5, 6), (Conv(3, 3, bias=bias), BatchNorm(eps=0.1), BatchNorm(), ReLU(), BatchNorm()))
    network = a_network(model)
    x = np.random.default_rng(1).normal(size=(4, 2, 5, 6))
    folded = fold(network)
    assert [type(layer) for layer in folded.model.layers] == [Conv, ReLU, BatchNorm]
    assert_allclose(folded.forward(x), network.forward(x), rtol=1e-12, atol=1e-14)
    assert not model.layers[0].bias or bias


def test_branches_are_folded_and_dropout_is_left_out():
    layers = fold(a_network(BRANCHED)).model.layers
    assert layers[1].layers == (Conv(4, 1), ReLU())
    assert layers[1].shortcut == ()
    assert layers[2].chains == ((Conv(3, 1),), (), (MaxPool(1), BatchNorm()))
    assert [type(layer) for layer in layers[3:]] == [Flatten, Linear, ReLU, BatchNorm, Linear]


def test_sums_of_folding_are_float64s():
    network, exact = (a_network(MODELS["residual"], dtype) for dtype in (np.float32, np.float64))
    exact.theta[:], exact.statistics[:] = network.theta, network.statistics
    one, other = (fold(each).layers[0] for each in (network, exact))
    assert one.W.dtype == one.b.dtype == np.float32
    assert_array_equal(one.W, other.W.astype("f4"))
    assert_array_equal(one.b, other.b.astype("f4"))

"""Layers made of chains: where their arrays are and what they are called, and that any layer may be in them."""

import copy
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_layers import noisy

from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.models import RESIDUAL
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Padding, PixelShuffle, Upsample

NESTED = Model((4, 6, 6), (
    Conv(4, 1), Residual((Conv(8, 2, 2), BatchNorm()), (Conv(8, 1, 2), BatchNorm(), Dropout(0.3))),
    Concat((Conv(2, 1), ReLU()), (), (Residual((Conv(8, 1),)), Upsample(1))), Flatten(), Linear(3),
))  # fmt: skip


def test_each_layer_inside_has_a_path_of_two_numbers():
    paths = [".".join(map(str, path)) for path, *_ in NESTED.walk]
    assert paths == ["0", "1", "1.0", "1.1", "1.2", "1.3", "1.4", "2", "2.0", "2.1", "2.2", "2.2.0", "2.3", "3", "4"]
    assert {"1.0.W", "1.2.W", "1.3.gamma", "2.0.b", "2.2.0.W"} < set(NESTED.layout.shapes)
    assert set(NESTED.statistics.shapes) == {"1.1.mean", "1.1.variance", "1.3.mean", "1.3.variance"}


def test_arrays_of_a_residual_are_called_what_they_were():
    names = [name for name in RESIDUAL.layout.shapes if name.startswith("3.")]
    assert names == ["3.0.W", "3.1.gamma", "3.1.beta", "3.3.W", "3.4.gamma", "3.4.beta"]


def test_bound_layers_stand_in_branches_as_layers_do():
    network = Network(model=NESTED)

    def check(bound, layers):
        assert [at.layer for at in bound] == list(layers)
        for at in bound:
            assert len(at.branches) == len(at.layer.branches())
            for branch, inner in zip(at.branches, at.layer.branches(), strict=True):
                check(branch, inner)

    check(network.layers, NESTED.layers)
    for path, layer, shape, wants_dx in NESTED.walk:
        at = bound_at(network, path)
        assert (at.layer, at.path, at.wants_dx) == (layer, path, wants_dx)
        for name, wanted in layer.parameters(shape).items():
            assert getattr(at, name).shape == wanted
            assert np.shares_memory(getattr(at, name), network.theta)


def bound_at(network, path):
    bound = network.layers
    for number in path:
        at = bound[number]
        bound = [inner for branch in at.branches for inner in branch]
    return at


def test_one_branch_does_not_make_another_ask_for_its_inputs_gradient():
    model = Model((6,), (Concat((Linear(4), Tanh()), (Sigmoid(), Linear(2))), Linear(3)))
    wants = {path: wants_dx for path, *_, wants_dx in model.walk}
    assert wants == {(0,): False, (0, 0): False, (0, 1): True, (0, 2): False, (0, 3): False, (1,): True}


def test_a_sum_and_a_row_are_what_their_branches_make():
    x = np.random.default_rng(0).normal(size=(3, 4))
    chains = (Linear(5), Tanh()), (Linear(5),)
    for layer, join in ((Residual(*chains), np.add), (Concat(*chains), lambda *parts: np.concatenate(parts, axis=1))):
        network = noisy("numpy_baseline", Model((4,), (layer,), MeanSquaredError()))
        arrays = network.views(network.theta)
        one = np.tanh(x @ arrays["0.0.W"] + arrays["0.0.b"])
        other = x @ arrays["0.2.W"] + arrays["0.2.b"]
        assert_allclose(network.forward(x), join(one, other), rtol=1e-12)


def test_in_evaluation_nothing_drops_in_a_branch():
    x = np.random.default_rng(0).normal(size=(3, *NESTED.input)).astype("f4")
    network = Network(model=NESTED)
    assert_array_equal(network.forward(x), network.forward(x))
    assert not np.array_equal(network.forward(x, training=True), network.forward(x, training=True, step=1))


# Any layer may be in them

KEPT = (4, 6, 5)
EACH = [
    Conv(3, 3, padding=1), MaxPool(2), AvgPool(3, stride=1), BatchNorm(), LeakyReLU(0.2), Dropout(0.4), Flatten(),
    Residual((Conv(4, 1),)), Residual((Conv(2, 1),), (Conv(2, 1),)), Concat((Tanh(),), (Conv(1, 1),)), Upsample(2),
    Upsample(3, "bilinear"), PixelShuffle(2), ConvTranspose(3, 3, 2, 1, 1), Padding(3), Padding(2, "replicate"),
    Padding(1, "zero"), InstanceNorm(), InstanceNorm(affine=True), GlobalAvgPool(),
]  # fmt: skip
WITH = {
    "alone": lambda one: (Conv(4, 1), one, Tanh()),
    "first": lambda one: (one, Tanh()),
    "in a sum": lambda one: (Conv(4, 1), Residual((Conv(4, 1), one), (Tanh(), one))),
    "side by side": lambda one: (Conv(4, 1), Concat((one,), (Conv(4, 1), Sigmoid(), one), (one, Tanh()))),
    "in both": lambda one: (Residual((Concat((one,), (Tanh(), one)),), (Concat((Conv(4, 1), one), (one,)),)), Tanh()),
}


@pytest.mark.parametrize("how", WITH)
@pytest.mark.parametrize("one", EACH, ids=repr)
def test_every_derivative_is_right(one, how):
    network = noisy("numpy_baseline", Model(KEPT, (*WITH[how](one), Flatten(), Linear(3))))
    rng = np.random.default_rng(0)
    error = gradient_error(network, rng.normal(size=(3, *KEPT)), rng.integers(3, size=3), samples=80)
    assert error < 1e-6


# Text, files and copies


@pytest.mark.parametrize("model", [*(Model(KEPT, (one,)) for one in EACH), NESTED], ids=str)
def test_a_layer_comes_back_from_json_and_from_a_copy(model):
    for found in (Model.from_dict(json.loads(json.dumps(model.to_dict()))), copy.deepcopy(model)):
        assert found == model
        assert hash(found) == hash(model)
        assert found.walk == model.walk


def test_a_network_comes_back_from_a_file_and_from_a_copy(tmp_path):
    network, rng = Network(model=NESTED, seed=3), np.random.default_rng(0)
    x, y = rng.normal(size=(5, *NESTED.input)).astype("f4"), rng.integers(3, size=5)
    network.loss_and_grad(x, y)
    network.save(tmp_path / "n.npz")
    for found in (Network.load(tmp_path / "n.npz"), copy.deepcopy(network)):
        assert found.model == NESTED
        assert_array_equal(found.statistics, network.statistics)
        assert_array_equal(found.forward(x), network.forward(x))
        found.theta[:] += 1
        assert not np.array_equal(found.forward(x), network.forward(x))

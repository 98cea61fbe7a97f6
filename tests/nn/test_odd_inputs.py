"""Inputs and targets as readers have them: advice that helps, and a word where a network would learn nothing."""

import warnings
from contextlib import suppress

import numpy as np
import pytest
from shared import one_sentence

from mlpkit import data, engines
from mlpkit.executors.tiles import Tiles
from mlpkit.nn.conv import Conv
from mlpkit.nn.enlarging import enlarger, espcn
from mlpkit.nn.explain import grad_cam, saliency
from mlpkit.nn.fold import fold
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.layers import Linear, ReLU
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.models import mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.painting import painter
from mlpkit.nn.quantize import quantize
from mlpkit.optim import Adam
from mlpkit.training.fit import fit

RNG = np.random.default_rng(0)
X = RNG.integers(256, size=(40, 6), dtype=np.uint8)
Y = np.arange(40) % 3


def refused(error, X, y, *words, model=None):
    """Return the sentence with which a training refuses X and y; an evaluation says the same."""
    network, said = Network(model=model or mlp(6, 5, 3)), []
    for ask in (lambda: fit(network, Adam(network), (X, y), epochs=1), lambda: network.evaluate(X, y)):
        with pytest.raises(error) as caught:
            ask()
        one_sentence(caught.value, *words)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


def fits(X, y, model=None):
    network = Network(model=model or mlp(6, 5, 3))
    return fit(network, Adam(network), (X, y), epochs=1)


# Targets


@pytest.mark.parametrize("shape", [(40, 1), (1, 40), (40, 1, 1)])
def test_labels_in_another_shape_are_reshaped_and_argmax_is_not_said(shape):
    assert "argmax" not in refused(ValueError, X, Y.reshape(shape), "(40,)", "np.reshape")
    fits(X, np.reshape(Y.reshape(shape), (40,)))


def test_maps_with_a_channel_are_reshaped():
    model = Model((1, 4, 4), (Conv(3, 3, padding=1),))
    images, maps = RNG.random((5, 1, 4, 4), np.float32), RNG.integers(3, size=(5, 1, 4, 4))
    refused(ValueError, images, maps, "np.reshape", "(5, 4, 4)", model=model)
    fits(images, np.reshape(maps, (5, 4, 4)), model)
    refused(ValueError, images, np.eye(3, dtype=int)[maps[:, 0]].transpose(0, 3, 1, 2), "argmax(axis=1)", model=model)


@pytest.mark.parametrize("y", [Y[:30], Y[:30, None], np.eye(3)[Y[:30]]])
def test_of_other_lengths_it_is_said_that_they_differ(y):
    assert "argmax" not in refused(ValueError, X, y, "as many as inputs")


@pytest.mark.parametrize("dtype", [int, float])
def test_argmax_is_for_rows_with_a_column_for_each_class(dtype):
    refused(ValueError, X, np.eye(3, dtype=dtype)[Y], "argmax(axis=1)")
    assert "argmax" not in refused(ValueError, X, np.eye(4, dtype=dtype)[Y])


def test_targets_of_a_regression_are_reshaped():
    model = Model((6,), (Linear(1),), MeanSquaredError())
    refused(ValueError, X, np.ones(40, np.float32), "np.reshape", "(40, 1)", model=model)
    refused(TypeError, X, np.ones((40, 1)), "astype(np.float32)", model=model)


# Inputs


@pytest.mark.parametrize(
    ("wrong", "way", "right"),
    [
        (X.astype(int), "astype(np.uint8)", X),
        (X / 255, "astype(np.float32)", X),
        (X > 99, "np.uint8(255)", X),
        ((X / 255).astype(object), "none missing", X),
        (X.astype(str), "none missing", X),
    ],
)
def test_the_way_to_the_networks_type_keeps_pixels_pixels(wrong, way, right):
    refused(TypeError, wrong, Y, way)
    fits(right, Y)


ODD = {
    "floats to 255": (X.astype(np.float32), "from 0 to 255", "divide all that it gets by 255"),
    "black and almost black": (X & 1, "from 0 to 1", "multiply all that it gets by 255"),
    "four bits": (X >> 4, "from 0 to 15", "multiply all that it gets by 17"),
    "divided twice": ((X / 255 / 255).astype(np.float32), "0.0039", "divide all that it gets by 0.0039"),
    "measurements": ((X * 1e6 - 3e7).astype(np.float32), "-3e+07", "divide all that it gets by 2.25e+08"),
    "beyond float32's squares": (np.full((40, 6), 3e38, np.float32), "3e+38", "divide"),
}


@pytest.mark.parametrize("kind", ODD)
def test_inputs_in_another_range_get_one_warning_that_says_what_to_do(kind):
    inputs, *words = ODD[kind]
    network = Network(model=mlp(6, 5, 3))
    for ask in (lambda: fits(inputs, Y), lambda: network.predict(inputs), lambda: network.evaluate(inputs, Y)):
        allowed = (
            (ArithmeticError, ValueError) if kind.startswith("beyond") else ()
        )  # that is what the warning is about
        with warnings.catch_warnings(record=True) as caught, suppress(*allowed):
            warnings.simplefilter("always")
            ask()
        assert [each.category for each in caught] == [UserWarning]
        one_sentence(caught[0].message, *words)
        assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "usual",
    [
        X,
        (X / 255).astype(np.float32),
        RNG.normal(size=(40, 6)).astype(np.float32),
        np.zeros((40, 6), np.uint8),
        np.zeros((40, 6), np.float32),
        np.eye(6, dtype=np.float32)[np.arange(40) % 6],
    ],
)
def test_usual_inputs_need_no_word(usual):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits(usual, Y)
        Network(model=mlp(6, 5, 3)).predict(usual)


def test_a_norm_takes_inputs_of_any_range():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits(X.astype(np.float32), Y, Model((6,), (BatchNorm(), Linear(4), ReLU(), Linear(3))))


# Other libraries' arrays


class Dtype:
    """As those of pandas' nullable columns and of PyTorch, which are none of NumPy's."""

    kind, name = "i", "Int64"


class Column:
    """As columns of pandas and tensors of PyTorch: not NumPy's, and NumPy can make an array of it, or not."""

    dtype = Dtype()

    def __init__(self, values, error=None):
        self.values, self.error, self.shape, self.ndim = values, error, values.shape, values.ndim

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        if self.error:
            raise self.error
        return np.asarray(self.values, dtype)


WANTS_GRADIENT = RuntimeError("Can't call numpy() on Tensor that requires grad.\nUse tensor.detach().numpy() instead.")


def test_a_column_is_what_its_array_is_or_is_refused_in_a_sentence():
    wanted = fits(X, Y).loss
    assert fits(Column(X), Column(Y)).loss == wanted
    assert data.one_hot(Column(Y), 3).shape == (40, 3)
    network = Network(model=mlp(6, 5, 3))
    for ask in (network.evaluate, network.loss_and_grad, network.loss):
        with pytest.raises(TypeError, match="must be an array, not Column") as caught:
            ask(X, Column(Y))
        one_sentence(caught.value, "np.asarray")


@pytest.mark.parametrize(
    "of",
    [
        *(lambda odd: fits(odd, Y), lambda odd: fits(X, odd), data.one_hot),
        *(lambda odd: data.from_arrays(odd, Y), lambda odd: data.from_arrays(X, odd)),
    ],
)
def test_what_numpy_can_make_no_array_of_is_refused_in_a_sentence(of):
    for odd in (Column(Y, WANTS_GRADIENT), [[1.0], [1.0, 2.0]]):
        with pytest.raises(TypeError, match="NumPy can't make one of it") as caught:
            of(odd)
        one_sentence(caught.value)


def test_missing_labels_are_not_to_be_made_numbers():
    labels = np.where(Y == 2, np.nan, Y)
    with pytest.raises(TypeError, match="leave out what is missing") as caught:
        data.from_arrays(X, labels)
    assert "astype" not in str(caught.value)


def test_rows_that_are_not_one_hot_are_not_to_be_made_labels():
    with pytest.raises(ValueError, match=r"astype\(np.float32\)") as caught:
        data.from_arrays(X, np.stack([Y, Y], axis=1))
    assert "argmax" not in str(caught.value)


# What a reader has set


@pytest.mark.parametrize("name", [name for name, why in engines.available().items() if why is None])
def test_where_numpy_raises_a_network_learns_and_predicts_all_the_same(name):
    x = (np.eye(6)[np.arange(40) % 6] * 3).astype(np.float32)
    try:
        before = np.seterr(all="raise")
        network = Network(name, mlp(6, 5, 3))
        network.theta[:] *= 400  # so softmax underflows
        network.loss_and_grad(x, Y)
        network.gradients(x, Y)
        network.loss(x, Y)
        network.forward(x)
        network.predict(x)
        network.evaluate(x, Y)
        network.compiled(40, **({"calibration": x} if name.endswith("_int8") else {}))(x)
        optimizer = Adam(network)
        network.forward_backward(x, Y)
        optimizer.step()
        network = Network(name, mlp(6, 5, 3))
        assert len(fit(network, Adam(network), (x, Y), (x, Y), epochs=1, batch_size=8).loss) == 5
    finally:
        np.seterr(**before)


TAKERS = {
    "fold": fold,
    "quantize": lambda odd: quantize(odd, np.zeros((4, 6), np.float32)),
    "saliency": lambda odd: saliency(odd, np.zeros((4, 6), np.float32)),
    "grad_cam": lambda odd: grad_cam(odd, np.zeros((4, 6), np.float32)),
    "gradient_error": lambda odd: gradient_error(odd, np.zeros((4, 6)), np.zeros(4, int)),
    "Tiles": Tiles,
}


@pytest.mark.parametrize(
    "odd", [mlp(6, 5, 3), None, "network.npz", np.zeros(3), Linear(3)], ids=lambda odd: type(odd).__name__
)
@pytest.mark.parametrize("name", TAKERS)
def test_what_is_no_network_is_told_by_its_kind(name, odd):
    with pytest.raises(TypeError, match="network must be a Network") as caught:
        TAKERS[name](odd)
    one_sentence(caught.value, type(odd).__name__)


@pytest.mark.parametrize("scale", [0, -1, 2.5, "2", None])
def test_a_scale_that_is_none_makes_no_enlarger(scale):
    for make in (lambda: espcn(20, scale), lambda: enlarger(20, scale)):
        with pytest.raises((TypeError, ValueError), match="scale must be") as caught:
            make()
        one_sentence(caught.value)


@pytest.mark.parametrize("shape", [5, None, (3, 5, 8), (3, 8), "ab", (3, 0, 8)])
def test_a_painter_says_of_which_edges_pictures_must_be(shape):
    with pytest.raises((TypeError, ValueError)) as caught:
        painter(shape)
    one_sentence(caught.value, "must be" if shape not in ((3, 5, 8), (3, 8)) else "multiples of 4")

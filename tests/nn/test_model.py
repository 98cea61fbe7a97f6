"""A model is data: it knows its shapes, refuses what does not fit in a sentence, and comes back from its text."""

import copy
import json
import pickle
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import SMALL, one_sentence

from mlpkit.nn import layers
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, Layer, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.losses import BinaryCrossEntropy, Hinge, MeanSquaredError, SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP, MODELS, RESIDUAL, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Padding, PixelShuffle, Upsample
from mlpkit.npz import save_npz
from mlpkit.training.recipe import Recipe

# Shapes


@pytest.mark.parametrize(
    ("model", "parameters", "statistics"),
    [(MLP, 134_794, 0), (LENET5, 61_706, 0), (FASHION_CNN, 896_522, 0), (RESIDUAL, 142_826, 6 * 2 * 48)],
    ids=["MLP", "LeNet-5", "Fashion-MNIST", "residual"],
)
def test_the_workbooks_models_have_their_sizes(model, parameters, statistics):
    assert model.layout.size == parameters
    assert model.output == (10,)
    assert model.statistics.size == statistics
    assert model in MODELS.values()


def test_every_layer_makes_its_shape():
    shapes = [shape for *_, shape, _ in LENET5.walk]
    assert shapes == [
        *[(1, 28, 28), (6, 28, 28), (6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 10, 10)],
        *[(16, 5, 5), (400,), (120,), (120,), (84,), (84,)],
    ]


@pytest.mark.parametrize(
    ("layer", "shape", "output", "parameters"),
    [
        (Linear(3), (7,), (3,), {"W": (7, 3), "b": (3,)}),
        (Flatten(), (2, 3, 4), (24,), {}),
        (Flatten(), (5,), (5,), {}),
        (Conv(4, 3), (2, 7, 5), (4, 5, 3), {"W": (4, 2, 3, 3), "b": (4,)}),
        (Conv(4, 3, bias=False), (2, 7, 5), (4, 5, 3), {"W": (4, 2, 3, 3)}),
        (Conv(1, 2, stride=3), (1, 8, 9), (1, 3, 3), {"W": (1, 1, 2, 2), "b": (1,)}),
        (Conv(2, 5, stride=2, padding=2), (1, 28, 27), (2, 14, 14), {"W": (2, 1, 5, 5), "b": (2,)}),
        (Conv(2, 7), (1, 7, 7), (2, 1, 1), {"W": (2, 1, 7, 7), "b": (2,)}),
        (MaxPool(2), (3, 5, 4), (3, 2, 2), {}),
        (MaxPool(3, stride=2), (3, 7, 8), (3, 3, 3), {}),
        (AvgPool(2, stride=1), (3, 5, 4), (3, 4, 3), {}),
        (BatchNorm(), (7,), (7,), {"gamma": (7,), "beta": (7,)}),
        (BatchNorm(), (3, 5, 4), (3, 5, 4), {"gamma": (3,), "beta": (3,)}),
        (Residual((Conv(3, 3, padding=1), ReLU())), (3, 5, 4), (3, 5, 4), {}),
        (Residual(()), (3,), (3,), {}),
        (Residual((Conv(4, 3, padding=1),), (Conv(4, 1),)), (3, 5, 4), (4, 5, 4), {}),
        (Concat((Conv(4, 3, padding=1),), (), (Conv(2, 1),)), (3, 5, 4), (9, 5, 4), {}),
        (Concat((Linear(3),), ()), (5,), (8,), {}),
        (Upsample(3), (2, 5, 4), (2, 15, 12), {}),
        (PixelShuffle(2), (8, 5, 4), (2, 10, 8), {}),
        (Padding(2), (3, 5, 4), (3, 9, 8), {}),
        (ConvTranspose(4, 3), (2, 7, 5), (4, 9, 7), {"W": (2, 4, 3, 3), "b": (4,)}),
        (ConvTranspose(1, 4, 3, 1, 2, bias=False), (3, 5, 1), (1, 16, 4), {"W": (3, 1, 4, 4)}),
        (InstanceNorm(), (3, 5, 4), (3, 5, 4), {}),
        (InstanceNorm(affine=True), (3, 5, 4), (3, 5, 4), {"gamma": (3,), "beta": (3,)}),
        (GlobalAvgPool(), (3, 5, 4), (3,), {}),
        (Dropout(0.3), (3, 5, 4), (3, 5, 4), {}),
        *[(layer, (3, 2), (3, 2), {}) for layer in (ReLU(), LeakyReLU(), Sigmoid(), Tanh())],
    ],
    ids=repr,
)
def test_a_layer_declares_its_output_and_its_parameters(layer, shape, output, parameters):
    assert layer.output(shape) == output
    assert layer.parameters(shape) == parameters
    statistics = {"mean": shape[:1], "variance": shape[:1]} if isinstance(layer, BatchNorm) else {}
    assert layer.statistics(shape) == statistics


@pytest.mark.parametrize("sizes", [(6, 3), (6, 5, 3), (784, 128, 128, 128, 10)], ids=str)
def test_a_multilayer_perceptron_has_its_sizes(sizes):
    assert mlp(*sizes).sizes() == sizes
    assert str(mlp(*sizes)) == "-".join(map(str, sizes))


@pytest.mark.parametrize(
    "model",
    [
        LENET5,
        Model((6,), (Linear(3), ReLU())),
        Model((6,), (Linear(5), Tanh(), Linear(3))),
        Model((6,), (Linear(5), Linear(3), Linear(3))),
        Model((6,), (Linear(3),), loss=Hinge()),
        Model((6,), (Residual((Linear(6),)), ReLU(), Linear(3))),
        Model((6,), ()),
        Model((1, 2, 3), (Flatten(), Linear(3))),
        Model((6,), (Dropout(), ReLU(), Linear(3))),
    ],
    ids=str,
)
def test_another_model_is_no_multilayer_perceptron(model):
    assert model.sizes() is None


def test_a_model_in_short():
    assert str(Model((1, 6, 6), (Conv(2, 3), Flatten(), Linear(3)))) == "1x6x6, Conv(2, 3), Flatten(), Linear(3)"


def test_a_model_needs_each_operation_once():
    model = Model((1, 6, 6), (Conv(2, 3), ReLU(), Residual((ReLU(), Conv(2, 1))), Flatten(), Linear(3)), Hinge())
    assert model.operations == (
        *("conv", "conv_backward_weights", "conv_backward_input", "relu", "relu_backward", "add"),
        *("linear", "linear_backward_weights", "linear_backward_input", "hinge", "argmax"),
    )


def test_equal_models_are_equal():
    assert mlp(6, 5, 3) == SMALL
    assert hash(mlp(6, 5, 3)) == hash(SMALL)
    assert Model([6], [Linear(5), ReLU(), Linear(3)]) == SMALL
    assert mlp(6, 4, 3) != SMALL


# Refusals

IMAGE = (3, 8, 6)
MISFITS = {
    "rows wanted": (IMAGE, (Linear(3),), "layer 0, Linear(3), does not fit: it takes rows", "put Flatten() before it."),
    "images wanted": ((6,), (ReLU(), Conv(2, 3)), "layer 1, Conv(2, 3), ", "it takes images", "(6,)."),
    "images to pool wanted": (
        (6,),
        (MaxPool(2),),
        "layer 0, MaxPool(2), ",
        "it takes images (channels, height, width)",
    ),
    "flat for the mean": (IMAGE, (Flatten(), AvgPool(2)), "layer 1, AvgPool(2), ", "(144,)."),
    "too large a window": (IMAGE, (Conv(2, 7),), "layer 0, Conv(2, 7), ", "7 x 7 does not fit into an image of 8 x 6."),
    "shrunk": (IMAGE, (MaxPool(2), ReLU(), MaxPool(4)), "layer 2, MaxPool(4), ", "4 x 4", "an image of 4 x 3."),
    "a norm of something else": ((3, 4), (BatchNorm(),), "layer 0, BatchNorm(), ", "rows or images", "(3, 4)."),
    "a sum": (IMAGE, (Residual((Conv(3, 3),)),), "layer 0, Residual((Conv(3, 3),)), ", "(3, 6, 4) of (3, 8, 6)"),
    "inside": ((6,), (Linear(5), Residual((Conv(5, 3),))), "layer 1, Residual((Conv(5, 3),)), ", "it takes images"),
    "a sum with a shortcut": (
        IMAGE,
        (Residual((Conv(4, 3),), (Conv(4, 1, stride=2),)),),
        "(4, 6, 4) of (3, 8, 6), and its shortcut (4, 4, 3): a sum needs equal shapes",
    ),
    "in a shortcut": (
        IMAGE,
        (Residual((ReLU(),), (ReLU(), Linear(3))),),
        "its layer 2, Linear(3), does not fit: it takes",
    ),
    "side by side": (IMAGE, (Concat((Conv(2, 3),), ()),), "(2, 6, 4), (3, 8, 6) of (3, 8, 6): only the first size may"),
    "rows and images": (IMAGE, (Concat((Flatten(),), ()),), "its chains make (144,), (3, 8, 6) of (3, 8, 6)"),
    "rows to enlarge": ((6,), (Upsample(2),), "layer 0, Upsample(2), ", "it takes images"),
    "rows to pad": ((6,), (Padding(2),), "it takes images (channels, height, width), and gets arrays of shape (6,)."),
    "nothing behind the edge": (IMAGE, (Padding(6),), "an image of 8 x 6 has no 6 pixels to reflect behind an edge."),
    "channels to shuffle": (IMAGE, (PixelShuffle(2),), "PixelShuffle(2), ", "a multiple of 4 channels, and gets 3."),
    "nothing left": (IMAGE, (ConvTranspose(2, 3, padding=4),), "a padding of 4 leaves nothing of an image of 8 x 6."),
    "a pixel's deviation": (
        (3, 1, 1),
        (InstanceNorm(),),
        "InstanceNorm(), ",
        "an image of one pixel has no deviation.",
    ),
    "the mean of rows": ((6,), (GlobalAvgPool(),), "GlobalAvgPool(), ", "it takes images"),
}


@pytest.mark.parametrize("case", MISFITS.values(), ids=MISFITS)
def test_a_layer_that_does_not_fit_is_named(case):
    shape, layers, *words = case
    with pytest.raises(ValueError, match="does not fit") as caught:
        Model(shape, layers)
    one_sentence(caught.value, *words)
    assert str(caught.value).endswith(".")
    assert not str(caught.value).endswith("..")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Linear(0), ValueError, "the units of Linear must be at least 1"),
        (lambda: Linear(2.5), TypeError, "the units of Linear must be a whole number"),
        (lambda: Conv(0, 3), ValueError, "the channels of Conv must be at least 1"),
        (lambda: Conv(2, 0), ValueError, "the size of Conv must be at least 1"),
        (lambda: Conv(2, 3, stride=0), ValueError, "the stride of Conv must be at least 1"),
        (lambda: Conv(2, 3, padding=-1), ValueError, "the padding of Conv must be at least 0"),
        (lambda: Conv(2, (3, 3)), TypeError, "the size of Conv must be a whole number"),
        (lambda: Conv(2, 3, padding="same"), TypeError, "not 'same'"),
        (lambda: MaxPool(0), ValueError, "the size of MaxPool must be at least 1"),
        (lambda: AvgPool(2, stride=0), ValueError, "the stride of AvgPool must be at least 1"),
        (lambda: LeakyReLU(-0.1), ValueError, "the slope of LeakyReLU must be at least 0 and below 1"),
        (lambda: Dropout(1), ValueError, "the rate of Dropout must be at least 0 and below 1"),
        (lambda: Dropout("half"), ValueError, "not 'half'"),
        (lambda: BatchNorm(momentum=1), ValueError, "the momentum of BatchNorm must be"),
        (lambda: BatchNorm(eps=0), ValueError, "the eps of BatchNorm must be a finite number above 0"),
        (lambda: Residual((), ReLU()), TypeError, "a tuple of layers, such as (Linear(10),), not ReLU()"),
        (lambda: Concat(), ValueError, "a Concat needs at least one chain of layers"),
        (lambda: Concat(ReLU()), TypeError, "a tuple of layers, such as (Linear(10),), not ReLU()"),
        (lambda: Upsample(0), ValueError, "the scale of Upsample must be at least 1"),
        (lambda: Upsample(1.5), TypeError, "the scale of Upsample must be a whole number"),
        (lambda: Upsample(2, "cubic"), ValueError, "no mode of an Upsample 'cubic'; choose from nearest, bilinear"),
        (lambda: PixelShuffle(0), ValueError, "the scale of PixelShuffle must be at least 1"),
        (lambda: Padding(0), ValueError, "the size of Padding must be at least 1"),
        (lambda: Padding(2, "same"), ValueError, "no mode of a Padding 'same'; choose from reflect, replicate, zero"),
        (lambda: ConvTranspose(0, 3), ValueError, "the channels of ConvTranspose must be at least 1"),
        (lambda: ConvTranspose(2, 3, 2, -1), ValueError, "the padding of ConvTranspose must be at least 0"),
        (lambda: ConvTranspose(2, 3, 2, 1, 2), ValueError, "must be below its stride, 2, not 2"),
        (lambda: ConvTranspose(2, 3, bias=0), TypeError, "the bias of ConvTranspose must be True or False"),
        (lambda: InstanceNorm(eps=0), ValueError, "the eps of InstanceNorm must be a finite number above 0"),
        (lambda: InstanceNorm(affine="no"), TypeError, "the affine of InstanceNorm must be True or False"),
        (lambda: Residual((ReLU,)), TypeError, "made of layers, such as Linear(10), not of <class"),
        (lambda: Residual(Linear(3)), TypeError, "a tuple of layers, such as (Linear(10),), not Linear(3)"),
        (lambda: Model((), (Linear(3),)), ValueError, "at least 1 size"),
        (lambda: Model(784, (Linear(3),)), TypeError, "list of whole numbers, inputs first, not 784"),
        (lambda: Model((6, 0), (Flatten(),)), ValueError, "each size must be at least 1"),
        (lambda: Model((6.0,), (Linear(3),)), TypeError, "each size must be a whole number, not 6.0"),
        (
            lambda: Model((6,), (Linear(3),), loss="l1"),
            TypeError,
            "an object, such as SoftmaxCrossEntropy() of mlpkit.nn.losses, not 'l1'",
        ),
        (lambda: Model((6,), (Linear,)), TypeError, "a model is made of layers, such as Linear(10), not of <class"),
        (lambda: Model((6,), (5, 3)), TypeError, "not of 5"),
        (lambda: Model((6,), Linear(3)), TypeError, "a tuple of layers, such as (Linear(10),), not Linear(3)"),
        (lambda: mlp(4), ValueError, "at least two sizes"),
        (lambda: mlp(), ValueError, "at least two sizes"),
        (lambda: mlp(4, 0, 3), ValueError, "each size must be at least 1"),
        (lambda: mlp(4, -2), ValueError, "each size must be at least 1"),
        (lambda: mlp(4, 2.5), TypeError, "2.5"),
        (lambda: mlp((4, 3)), TypeError, "(4, 3)"),
    ],
)
def test_what_makes_no_model_is_refused(make, error, words):
    with pytest.raises(error) as caught:
        make()
    one_sentence(caught.value, words)


def test_an_engine_without_an_operation_is_refused_by_name():
    model = Model((6,), (Linear(5), Tanh(), Linear(3)), loss=Hinge())
    with pytest.raises(ValueError, match="python_lists") as caught:
        Network("python_lists", model)
    one_sentence(
        caught.value, "engine python_lists has no tanh, tanh_backward, hinge, which this model needs: take another"
    )


# Text


@dataclass(frozen=True, repr=False)
class Gain(Layer):
    """A reader's own layer: each feature times a number of its own."""

    by: float = 1.0

    operations = ("multiply",)
    ones = ("g",)

    def parameters(self, shape):
        return {"g": shape}

    def forward(self, at, x):
        at.x = x
        return at.engine.multiply(x, self.by * at.g)

    def backward(self, at, dy):
        at.dg[...] = self.by * (dy * at.x).sum(axis=0)
        return at.engine.multiply(dy, self.by * at.g)


@pytest.mark.parametrize("name", ["layer", "wants_dx", "a.b", "dg"])
def test_an_array_with_a_name_that_is_taken_is_refused(name):
    class Odd(Gain):
        def parameters(self, shape):
            return {"g": shape, name: shape}

    with pytest.raises(ValueError, match="a name that is taken: choose another") as caught:
        Model((4,), (Odd(), Linear(3))).layout  # noqa: B018
    assert repr(name) in str(caught.value)


REPR = {
    "Linear(3)": Linear(3),
    "ReLU()": ReLU(),
    "LeakyReLU()": LeakyReLU(0.01),
    "LeakyReLU(slope=0.2)": LeakyReLU(0.2),
    "Sigmoid()": Sigmoid(),
    "Tanh()": Tanh(),
    "Flatten()": Flatten(),
    "Dropout(rate=0.1)": Dropout(0.1),
    "Conv(6, 5, padding=2)": Conv(6, 5, 1, 2),
    "Conv(6, 5, stride=3, bias=False)": Conv(6, 5, stride=3, bias=False),
    "MaxPool(2)": MaxPool(2),
    "MaxPool(2, stride=2)": MaxPool(2, 2),
    "AvgPool(3)": AvgPool(3),
    "BatchNorm()": BatchNorm(),
    "BatchNorm(momentum=0.3, eps=0.001)": BatchNorm(0.3, 1e-3),
    "Residual((Linear(3), Residual((ReLU(),))))": Residual([Linear(3), Residual([ReLU()])]),
    "Residual(())": Residual(()),
    "Residual((Linear(3),), shortcut=(Linear(3), ReLU()))": Residual([Linear(3)], [Linear(3), ReLU()]),
    "Concat((Linear(3), ReLU()), (), (Concat(()),))": Concat([Linear(3), ReLU()], (), [Concat(())]),
    "Upsample(2)": Upsample(np.int64(2), "nearest"),
    "Upsample(2, mode='bilinear')": Upsample(2, "bilinear"),
    "PixelShuffle(3)": PixelShuffle(3),
    "ConvTranspose(4, 3, stride=2, padding=1, output_padding=1)": ConvTranspose(4, 3, 2, 1, 1),
    "ConvTranspose(4, 3, bias=False)": ConvTranspose(4, 3, bias=False),
    "Padding(2)": Padding(2),
    "Padding(1, mode='zero')": Padding(1, "zero"),
    "InstanceNorm(affine=True)": InstanceNorm(affine=True),
    "GlobalAvgPool()": GlobalAvgPool(),
    "Gain(by=2.5)": Gain(2.5),
    "Linear(7)": Linear(np.int64(7)),
    "Dropout(rate=0.25)": Dropout(np.float32(0.25)),
}


@pytest.mark.parametrize(("text", "layer"), REPR.items(), ids=REPR)
def test_a_layer_is_written_as_it_is_made(text, layer):
    assert repr(layer) == text
    assert eval(text) == layer


KINDS = {
    "whole": [np.int8, np.uint64, np.array, bool],
    "real": [np.float16, np.longdouble, Fraction],
    "flag": [np.bool_],
}
LAYERS = {
    "whole": lambda kind: (
        Linear(kind(1)),
        Conv(*map(kind, (1, 1, 1, 1))),
        MaxPool(kind(1), kind(1)),
        AvgPool(kind(1)),
    ),
    "real": lambda kind: (LeakyReLU(kind(0.5)), Dropout(kind(0.5)), BatchNorm(kind(0.5), kind(0.5))),
    "flag": lambda kind: (Conv(1, 1, bias=kind(False)), Conv(1, 1, bias=kind(True))),
}


@pytest.mark.parametrize(("what", "kind"), [(what, kind) for what, kinds in KINDS.items() for kind in kinds])
def test_a_layer_keeps_pythons_own_numbers(what, kind):
    """Else a network is saved whose file can't be read."""
    plain = {"whole": int, "real": float, "flag": bool}
    for layer, wanted in zip(LAYERS[what](kind), LAYERS[what](plain[what]), strict=True):
        assert layer == wanted
        assert {type(value) for value in vars(layer).values()} <= {int, float, bool, type(None)}
        assert repr(layer) == repr(wanted)


EVERY = Model(
    (2, 9, 8),
    (
        *(Conv(3, 3, stride=2, padding=1, bias=False), BatchNorm(eps=1e-3), ReLU(), MaxPool(2, stride=1)),
        *(Residual((Conv(3, 1), Residual((Dropout(0.25), LeakyReLU(0.1))), Tanh())), AvgPool(2), Flatten()),
        *(Linear(4), Sigmoid(), Gain(0.5), Linear(np.int64(3))),
    ),
    loss=MeanSquaredError(),
)


@pytest.mark.parametrize("model", [EVERY, *MODELS.values()], ids=["every layer", *MODELS])
def test_a_model_comes_back_from_json(model):
    assert Model.from_dict(json.loads(json.dumps(model.to_dict()))) == model


@pytest.mark.parametrize(
    "loss", [Hinge(), SoftmaxCrossEntropy(top=(3, 5)), MeanSquaredError(peak=1.0), BinaryCrossEntropy()], ids=repr
)
def test_a_loss_comes_back_too(loss):
    model = Model((6,), (Linear(3),), loss)
    assert Model.from_dict(json.loads(json.dumps(model.to_dict()))).loss == loss


HOSTILE = {
    "a call of something else": "__import__('os').mkdir('trace')",
    "a function": "open('trace', 'w')",
    "in an argument": "Linear(__import__('os').mkdir('trace'))",
    "in a name": "Linear(units=open('trace', 'w'))",
    "an attribute": "Linear(3).__class__",
    "an attribute that is called": "Linear.__init__(3)",
    "a lambda": "(lambda: 3)()",
    "a comprehension": "[open('trace', 'w') for _ in 'a']",
    "an assignment": "(a := Linear(3))",
    "a format": "Linear(f'{open(1)}')",
    "stars": "Linear(*open('trace', 'w'))",
    "two stars": "Linear(**open('trace', 'w'))",
    "a statement": "import os",
    "two": "Linear(3); Linear(4)",
    "no layer": "Layer()",
    "no loss": "Loss()",
    "a builtin": "print(3)",
    "a number": "3",
    "a word": "'Linear(3)'",
    "a tuple": "(Linear(3),)",
    "nothing": "",
    "a power that takes all memory": "Linear(9**9**9)",
    "nested too deep": "(" * 100_000,
    "called too deep": "Residual((" * 3000 + "))" * 3000,
    "negated too deep": "Linear(" + "-" * 50_000 + "3)",
    "a nul": "Linear(\0)",
    "a number beyond reason": f"Linear({'9' * 5000})",
    "no text": 3,
    "bytes": b"Linear(3)" * 0,
    "null": None,
    "half": "Linear(",
    "another type": "Linear('3')",
    "too many": "ReLU(1, 2, 3)",
    "a list": ["Linear(3)"],
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_nothing_in_a_text_can_run_code(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r".") as caught:
        Model.from_dict({"input": [6], "layers": [text], "loss": "hinge"})
    one_sentence(caught.value)
    assert list(tmp_path.iterdir()) == []


NONE = {
    "nothing": {},
    "null": None,
    "a list": [],
    "a number": 3,
    "no layers": {"input": [6], "loss": "hinge"},
    "layers that are one text": {"input": [6], "layers": "Linear(3)", "loss": "hinge"},
    "layers that are none": {"input": [6], "layers": None, "loss": "hinge"},
    "an input that is none": {"input": 6, "layers": [], "loss": "hinge"},
    "an input of text": {"input": ["6"], "layers": [], "loss": "hinge"},
    "an infinite input": {"input": [float("inf")], "layers": [], "loss": "hinge"},
    "another loss": {"input": [6], "layers": [], "loss": "__import__"},
    "a loss for a layer": {"input": [6], "layers": ["Hinge()"], "loss": "Hinge()"},
    "a layer for a loss": {"input": [6], "layers": [], "loss": "Linear(3)"},
    "a loss that is none": {"input": [6], "layers": [], "loss": ["hinge"]},
    "what does not fit": {"input": [6], "layers": ["Conv(2, 3)"], "loss": "hinge"},
}


@pytest.mark.parametrize("found", NONE.values(), ids=NONE)
def test_what_is_no_model_is_refused(found):
    with pytest.raises(ValueError, match=r".") as caught:
        Model.from_dict(found)
    one_sentence(caught.value)


@given(text=st.text(alphabet="LinearRUCov()[],=*'123. \n", max_size=30))
def test_any_text_is_a_layer_or_is_refused(text):
    try:
        model = Model.from_dict({"input": [6], "layers": [text], "loss": "hinge"})
    except ValueError as error:
        assert not re.search(r"[\n]", str(error))  # noqa: PT017 (either is right)
    else:
        assert len(model.layers) == 1


@pytest.mark.parametrize("bias", ["no", None, 0, {}], ids=str)
def test_a_bias_is_there_or_not(bias):
    with pytest.raises(TypeError) as caught:
        Conv(3, 3, bias=bias)
    one_sentence(caught.value, "must be True or False")


@pytest.mark.parametrize("text", ["Linear", "os.system(1)", "Linear(*[3])", "Linear(3)(4)", "LeakyReLU(1 / 3)"])
def test_text_that_is_no_layer_is_quoted(text):
    with pytest.raises(ValueError, match="is no layer") as caught:
        Model.from_dict({"input": [6], "layers": [text], "loss": "hinge"})
    one_sentence(caught.value, "Linear(10)")


def test_no_word_of_a_layer_is_passed_over():
    with pytest.raises(ValueError, match="no model") as caught:
        Model.from_dict({"input": [6], "layers": ["Linear(3, **{'units': 4})"], "loss": "hinge"})
    one_sentence(caught.value)


def test_a_new_process_reads_every_kind_of_layer():
    """Whoever loads a network has imported the network's module, and perhaps nothing else."""
    layers = ["Residual((Conv(1, 3, padding=1), BatchNorm()))", "AvgPool(2)", "Flatten()", "Dropout()", "Linear(3)"]
    layers[1:1] = ["Concat((Padding(1), ConvTranspose(2, 3, padding=2), InstanceNorm()), (Upsample(1),))"]
    found = {"input": [1, 8, 8], "layers": layers, "loss": "hinge"}
    code = f"from mlpkit.nn.network import Model; print(Model.from_dict({found}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("1x8x8, Residual("), done.stderr


# What can't be written


def test_a_layer_that_has_another_ones_name_is_not_taken_for_it():
    @dataclass(frozen=True, repr=False)
    class ReLU(Layer):
        pass

    for layer in (ReLU(), Residual((ReLU(),))):
        with pytest.raises(ValueError, match="can't be written") as caught:
            Model((3,), (Linear(3), layer)).to_dict()
        one_sentence(caught.value, "another layer's name")
    ours = Model((3,), (Linear(3), layers.ReLU(), Linear(2)))
    assert Model.from_dict(ours.to_dict()) == ours
    kinds = {type(one) for one in Model.from_dict(ours.to_dict()).layers}
    assert kinds == {Linear, layers.ReLU}


def test_of_two_that_a_reader_has_made_the_later_one_is_read():
    """As where a notebook's cell runs twice."""
    made = []
    for _ in range(2):

        @dataclass(frozen=True, repr=False)
        class Twice(Layer):
            pass

        made.append(Twice)
    for kind in made:
        assert type(Model.from_dict(Model((3,), (kind(),)).to_dict()).layers[0]) is made[1]


def test_a_layer_whose_settings_would_be_lost_is_refused():
    class Scale(Layer):
        def __init__(self, k):
            self.__dict__["k"] = k

    with pytest.raises(TypeError, match="would lose k") as caught:
        Model((3,), (Scale(2.0),))
    one_sentence(caught.value, "@dataclass")


@pytest.mark.parametrize("setting", [np.tanh, [1, 2], object()], ids=["function", "list", "object"])
def test_a_layer_with_a_setting_that_is_no_number_is_not_written(setting, tmp_path):
    @dataclass(frozen=True, repr=False)
    class Odd(Layer):
        setting: object

    model = Model((3,), (Linear(3), Odd(setting)))
    if isinstance(setting, list):
        assert Model.from_dict(model.to_dict()) == model
        return
    with pytest.raises(ValueError, match="can't be written"):
        Network(model=model).save(tmp_path / "net.npz")
    assert not list(tmp_path.iterdir())


def test_layers_in_layers_have_a_limit_that_is_said_early():
    def nested(depth):
        layers = (Linear(6),)
        for _ in range(depth):
            layers = (Residual(layers),)
        return Model((6,), (*layers, Linear(3)))

    network = Network(model=nested(49))
    x, labels = np.eye(6, dtype=np.float32), np.arange(6) % 3
    assert np.isfinite(network.loss_and_grad(x, labels))
    assert Model.from_dict(nested(49).to_dict()) == network.model
    copy.deepcopy(pickle.loads(pickle.dumps(network))).compiled(6)(x)
    for depth in (50, 400, 3000):
        with pytest.raises(ValueError, match="up to 50 deep") as caught:
            nested(depth)
        one_sentence(caught.value)
    twice = (Linear(6),)
    for _ in range(49):  # each of them is there once, and in 2 ** 49 chains
        twice = (Residual(twice, twice),)


@dataclass(frozen=True, repr=False)
class Sized(Layer):
    """A layer with an array of some shape."""

    shape: tuple

    def parameters(self, shape):
        return {"W": self.shape}

    statistics = parameters


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0,), (-1, 2), (2.0, 2), ("a",), (None, 2)])
@pytest.mark.parametrize("make", [Network, lambda model: Network("numba_conv", model, init="xavier")])
def test_an_array_without_elements_is_refused_by_its_name(shape, make):
    with pytest.raises(ValueError, match="sizes are whole numbers above 0") as caught:
        make(model=Model((6,), (Sized(shape), Linear(3))))
    one_sentence(caught.value, "W", shape)


LONG = "A\nB" * 2000
WRITTEN = Model((6,), (Linear(3),)).to_dict()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"layers": [text]} for text in (LONG, f"{'L' * 5000}(3)", f"Linear({'u' * 5000}=3)", f"Linear({LONG!r})")),
        *({"loss": text} for text in (LONG, "l" * 5000)),
        *({"input": [size]} for size in (LONG, "a" * 5000)),
        {"input": [1] * 5000},
        {"layers": ["Linear(5)"] * 9 + [f"Upsample(2, {LONG!r})"]},
    ],
)
def test_a_file_with_a_long_name_or_newlines_makes_one_short_sentence(wrong, tmp_path):
    arrays = {"theta": np.zeros(3, np.float32), "statistics": np.zeros(0, np.float32)}
    save_npz(tmp_path / "a.npz", model=json.dumps(WRITTEN | wrong), **arrays)
    for read in (lambda: Model.from_dict(WRITTEN | wrong), lambda: Network.load(tmp_path / "a.npz")):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            read()
        one_sentence(caught.value)
        assert len(str(caught.value)) <= 600
    for name in Recipe().to_dict():
        with suppress(ValueError, TypeError) as _:
            Recipe.from_dict(Recipe().to_dict() | {name: LONG})
            pytest.fail("it was read")

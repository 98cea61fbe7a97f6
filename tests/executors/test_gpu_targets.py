"""Targets of any dtype and shape reach the loss as they are, in steps that are planned and in steps that are recorded.

And what stands between gradient and update is recorded, too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mlpkit.executors import trainer_of
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.detection import Detection
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.losses import BinaryCrossEntropy, Hinge, MeanSquaredError, SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5
from mlpkit.nn.network import Network
from mlpkit.optim import SGD

pytestmark = pytest.mark.gpu
NAMES = ("cupy_conv", "cuda_conv", "cuda_conv_graph")
N = 20  # examples: two batches of 8, and one of 4; and two more of 8 in the second epoch: five steps
SEEN = (Conv(8, 3), ReLU(), MaxPool(2), Flatten(), Linear(12), ReLU(), Linear(10))


@dataclass
class Case:
    """What a model is compared with. targets: a function of a generator and the network's dtype."""

    model: Model
    targets: Any
    dtype: type = np.float32


def labels(dtype, most=10, shape=()):
    return lambda rng, _: rng.integers(most, size=(N, *shape)).astype(dtype)


def pixels(*shape):
    return lambda rng, _: rng.integers(256, size=(N, *shape)).astype(np.uint8)


def values(*shape):
    return lambda rng, dtype: rng.random((N, *shape)).astype(dtype)


def bits(*shape):
    return lambda rng, dtype: rng.integers(2, size=(N, *shape)).astype(dtype)


def seen(loss=None):
    return Model((1, 12, 12), SEEN, loss or SoftmaxCrossEntropy())


ROWS = (Flatten(), Linear(7), ReLU(), Linear(3))
IMAGES = (Conv(4, 3, padding=1), ReLU(), Conv(1, 3))  # (1, 3, 5) of (1, 5, 7)
MAPS = (Conv(8, 3, padding=1), ReLU(), Conv(4, 1))
BOXES = Detection(3, (32, 32), strides=(8, 16))
FINDS = (
    *(Conv(8, 3, stride=2, padding=1), ReLU(), Conv(8, 3, stride=2, padding=1), ReLU(), Conv(8, 3, 2, 1), ReLU()),
    Concat((Conv(7, 1), Flatten()), (Conv(7, 3, 2, 1), Flatten())),
)


def boxes(rng, _):
    corner, size = rng.integers(0, 20, (N, 2, 2)), rng.integers(4, 12, (N, 2, 2))
    return BOXES.match(np.concatenate([rng.integers(-1, 3, (N, 2, 1)), corner, corner + size], axis=2))


CASES = {
    "boxes": Case(Model((1, 32, 32), FINDS, BOXES), boxes),
    "uint8 labels": Case(seen(), labels(np.uint8)),
    "int8 labels": Case(seen(), labels(np.int8)),
    "int32 labels": Case(seen(), labels(np.int32)),
    "int64 labels": Case(seen(), labels(np.int64)),
    "uint8 labels in float64": Case(seen(), labels(np.uint8), np.float64),
    "uint8 labels of hinge": Case(seen(Hinge()), labels(np.uint8)),
    "int32 labels of hinge in float64": Case(seen(Hinge()), labels(np.int32), np.float64),
    "rows": Case(Model((1, 5, 7), ROWS, MeanSquaredError()), values(3)),
    "rows of 3 bytes": Case(Model((1, 5, 7), ROWS, MeanSquaredError()), pixels(3)),
    "bits": Case(Model((1, 5, 7), ROWS, BinaryCrossEntropy()), bits(3)),
    "images": Case(Model((1, 5, 7), IMAGES, MeanSquaredError()), values(1, 3, 5)),
    "images in float64": Case(Model((1, 5, 7), IMAGES, MeanSquaredError()), values(1, 3, 5), np.float64),
    "images of 15 bytes": Case(Model((1, 5, 7), IMAGES, MeanSquaredError(peak=1.0)), pixels(1, 3, 5)),
    "images of 15 bytes in float64": Case(Model((1, 5, 7), IMAGES, MeanSquaredError()), pixels(1, 3, 5), np.float64),
    "maps of labels": Case(Model((1, 6, 7), MAPS), labels(np.int64, 4, (6, 7))),
    "maps of labels of 42 bytes": Case(Model((1, 6, 7), MAPS), labels(np.uint8, 4, (6, 7))),
    "maps of labels in float64": Case(Model((1, 6, 7), MAPS), labels(np.int32, 4, (6, 7)), np.float64),
    "maps of labels of hinge": Case(Model((1, 6, 7), MAPS, Hinge()), labels(np.uint8, 4, (6, 7))),
}


def steps(engine, case, dtype, put=None, rate=0.02, reduce=None):
    """Return the losses of five steps, and theta and the evaluation after them. put: how targets come to the engine."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(256, size=(N, *case.model.input)).astype(np.uint8), case.targets(rng, dtype)
    network = Network(engine, case.model, dtype=dtype)
    network.check_targets(y, N)
    asarray, to_numpy = network.engine.asarray, network.engine.to_numpy
    takes = SGD(network, rate, reduce=reduce)
    trainer = trainer_of(network, takes, asarray(X), (put or asarray)(y), 8)
    losses = [to_numpy(trainer.epoch(np.arange(N)[::-1])).copy(), to_numpy(trainer.epoch(np.arange(16))).copy()]
    trainer.close()
    assert takes.steps == 5
    return np.concatenate(losses), to_numpy(network.theta).copy(), [*network.evaluate(X, y).values()]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("name", NAMES)
def test_five_steps_are_the_baselines(name, case):
    found, wanted = steps(name, case, case.dtype), steps("numpy_baseline", case, np.float64)
    tolerance = 1e-9 if case.dtype == np.float64 else 5e-4
    assert found[0].dtype == case.dtype
    assert_allclose(found[0], wanted[0], rtol=tolerance, atol=tolerance)
    assert_allclose(found[1], wanted[1], rtol=0, atol=tolerance)
    assert_allclose(found[2][0], wanted[2][0], rtol=tolerance, atol=tolerance)  # an accuracy may be one label off


@pytest.mark.parametrize("case", ["uint8 labels", "images of 15 bytes", "maps of labels"])
@pytest.mark.parametrize("name", NAMES)
def test_targets_may_lie_as_they_like(name, case):
    import cupy

    def apart(y):
        room = cupy.asarray(np.repeat(y, 3, axis=0))
        return room[::3]

    for one, other in zip(
        steps(name, CASES[case], np.float32, apart), steps(name, CASES[case], np.float32), strict=True
    ):
        assert_array_equal(one, other)


def halved(grad):
    grad *= 0.5


@pytest.mark.parametrize("name", NAMES)
def test_a_reduce_is_recorded(name):
    """Half of the gradient is half of the rate, to the last bit: both are powers of two."""
    case = Case(LENET5, labels(np.int64))
    usual, twice = (steps(name, case, np.float32, rate=rate) for rate in (0.0625, 0.125))
    for one, other in zip(steps(name, case, np.float32, rate=0.125, reduce=halved), usual, strict=True):
        assert_array_equal(one, other)
    assert not np.array_equal(usual[1], twice[1])


@pytest.mark.parametrize("name", NAMES)
def test_what_a_reduce_adds_reaches_the_update(name):
    """It may make arrays, too, as one does that sums the gradients of several GPUs."""
    case = Case(LENET5, labels(np.int64))

    def with_another(grad):
        grad += 0.25 * grad  # a new array
        grad *= 0.8

    found, wanted = steps(name, case, np.float32, reduce=with_another), steps(name, case, np.float32)
    assert_allclose(found[1], wanted[1], rtol=0, atol=1e-5)

"""A network compiled for n rows puts out what the network does, on every engine, whoever asks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import ENGINES, REASONS, one_sentence

from mlpkit import engines
from mlpkit.executors import direct
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, Linear, ReLU
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.models import RESIDUAL, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool
from mlpkit.nn.residual import Residual

ROWS = mlp(20, 7, 5, 3)
IMAGES = Model((1, 5, 4), (
    Conv(3, 2, bias=False), BatchNorm(), ReLU(), MaxPool(2), Dropout(0.5), Flatten(), Linear(3),
))  # fmt: skip
HERE = [name for name in engines.names(IMAGES.operations) if not REASONS[name]]
CONVOLVING = [name for name in HERE if hasattr(engines.load(name), "conv")]
CASES = [
    *(pytest.param(ROWS, *each.values, marks=each.marks, id=f"rows-{each.values[0]}") if not isinstance(each, str)
      else pytest.param(ROWS, each, id=f"rows-{each}") for each in ENGINES),
    *(pytest.param(IMAGES, name, id=f"images-{name}") for name in CONVOLVING),
]  # fmt: skip


def new(engine, model):
    network = Network(engine, model, seed=1)
    rng = np.random.default_rng(0)
    network.set_statistics(rng.uniform(0.5, 2, len(network.statistics)))
    network.set_theta(network.engine.to_numpy(network.theta) + rng.normal(0, 0.1, len(network.theta)))
    return network


def rows(model, n, dtype=np.float32):
    pixels = np.random.default_rng(1).integers(256, size=(n, *model.input), dtype=np.uint8)
    return pixels if dtype == np.uint8 else pixels / np.float32(255)


@pytest.mark.parametrize(("model", "engine"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_it_puts_out_what_the_network_does(model, engine, dtype):
    network = new(engine, model)
    predict = network.compiled(8)
    for n in (8, 3, 1):
        x = rows(model, n, dtype)
        wanted = network.engine.to_numpy(network.forward(network.engine.asarray(x)))
        found = predict(x)
        assert isinstance(found, np.ndarray)
        assert (found.shape, found.dtype) == ((n, 3), np.float32)
        assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        theirs = predict(network.engine.asarray(x))
        assert_allclose(network.engine.to_numpy(theirs), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model", "engine"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_batch_stays_where_it_is(model, engine, dtype):
    network = new(engine, model)
    predict = network.compiled(8)
    batch, to_numpy = predict.batch(dtype), network.engine.to_numpy
    x, z = batch.x, batch.z
    assert (tuple(x.shape), x.dtype) == ((8, *model.input), dtype)
    assert (tuple(z.shape), z.dtype) == ((8, 3), np.float32)
    for n in (8, 3):
        given = rows(model, n, dtype)
        batch.fill(given)
        batch.replay()
        assert batch.x is x
        assert batch.z is z
        assert_allclose(to_numpy(z)[:n], predict(given), rtol=1e-4, atol=1e-5)
        assert_array_equal(to_numpy(x)[n:], 0)


@pytest.mark.parametrize(("model", "engine"), CASES)
def test_what_does_not_fit_is_refused(model, engine):
    network = new(engine, model)
    predict = network.compiled(8)
    batch, x = predict.batch(np.float32), rows(model, 9)
    for call in (predict, batch.fill):
        with pytest.raises(ValueError, match="at most 8 rows") as caught:
            call(x)
        one_sentence(caught.value, "not 9", "compile it for more")
        with pytest.raises(ValueError, match="must have shape"):
            call(x[:4, ..., :-1])
    with pytest.raises(ValueError, match="inputs must be finite"):
        predict(x[:3] * np.float32(np.nan))
    with pytest.raises(TypeError, match="float64"):
        predict(x[:3].astype(float))
    with pytest.raises(TypeError, match="convert"):
        batch.fill(rows(model, 3, np.uint8))
    with pytest.raises(TypeError, match="float64"):
        predict.batch(np.float64)
    for wrong, error in ((0, ValueError), (-1, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="must be"):
            network.compiled(wrong)


def test_it_has_the_parameters_of_its_moment_and_leaves_the_network_alone():
    network = new("numpy_baseline", IMAGES)
    predict, x = network.compiled(4), rows(IMAGES, 4)
    wanted = predict(x)
    network.theta[:] = 0
    assert_array_equal(predict(x), wanted)
    assert not np.array_equal(network.forward(x), wanted)


@pytest.mark.parametrize("engine", [name for name in CONVOLVING if not engines.on_gpu(name)])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_a_model_without_layers_puts_out_what_comes_in(engine, shape):
    options = {"precision": "float32"} if engine == "numba_int8" else {}
    model = Model(shape, ())
    assert_array_equal(new(engine, model).compiled(3, **options)(rows(model, 2)), rows(model, 2))


SAME = Conv(4, 3, padding=1, bias=False), BatchNorm(), ReLU(), Conv(4, 3, padding=1, bias=False), BatchNorm()
SMALLER = Conv(6, 3, stride=2, padding=1), ReLU(), Conv(6, 3, padding=1)
IN_ONE_CALL = {
    "residual": RESIDUAL,
    "with shortcuts": Model((3, 9, 7), (
        Conv(4, 3, padding=1), ReLU(), MaxPool(3, 2), Residual(SAME), ReLU(), Residual(SMALLER, (Conv(6, 1, 2),)),
        GlobalAvgPool(), Linear(5),
    )),
    "means": Model((2, 12, 11), (Conv(5, 3), AvgPool(2), ReLU(), MaxPool(3, 1), Flatten(), Linear(3))),
    "a ReLU behind means": Model((2, 6, 6), (AvgPool(3, 2), ReLU(), Conv(3, 2), GlobalAvgPool(), ReLU())),
    "pools first": Model((3, 9, 9), (MaxPool(2), ReLU(), Conv(3, 3, padding=1), MaxPool(2, 1), Flatten(), Linear(2))),
    "a picture": Model((3, 8, 8), (Residual((Conv(3, 3, padding=1),)), ReLU(), MaxPool(3, 2)), MeanSquaredError()),
}  # fmt: skip


@pytest.mark.parametrize("model", IN_ONE_CALL.values(), ids=IN_ONE_CALL)
@pytest.mark.parametrize("n", [1, 5])
def test_sums_and_pools_are_steps_of_the_one_call(model, n):
    network = new("numba_conv", model)
    predict = network.compiled(6)
    assert isinstance(predict, direct.Prediction)
    x = np.random.default_rng(2).normal(size=(n, *model.input)).astype(np.float32)
    exact = Network("numpy_baseline", model, dtype=np.float64)
    exact.set_theta(network.theta.astype(np.float64))
    exact.set_statistics(network.statistics.astype(np.float64))
    wanted = exact.forward(x.astype(np.float64))
    assert_allclose(predict(x), wanted, rtol=1e-5, atol=2e-5 * abs(wanted).max())


def test_examples_whose_tensors_are_large_are_done_a_few_at_a_time(monkeypatch):
    network, x = new("numba_conv", RESIDUAL), rows(RESIDUAL, 7)
    wanted = network.compiled(7)(x)
    monkeypatch.setattr(direct, "MOST_BYTES", 3 << 20)
    predict = network.compiled(7)
    assert predict.plan.n < 7
    assert_allclose(predict(x), wanted, rtol=1e-5, atol=1e-5)

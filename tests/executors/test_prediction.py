"""Predictions that are compiled: whoever computes them, by which blocks, they are the network's outputs."""

import gc
import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("cupy")

import emulator
from shared import one_sentence
from test_conv_graph import ODD

from mlpkit.engines import numpy_baseline
from mlpkit.executors.cuda import prediction_blocks
from mlpkit.executors.cuda.blocks import MODES, Value, pipeline
from mlpkit.kernels import gpu
from mlpkit.kernels.cnn import between
from mlpkit.nn.bound import OWN
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5, MODELS, RESIDUAL
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual

DEEPER = Model((3, 12, 11), (
    Conv(8, 3, padding=1), ReLU(), Conv(24, 3, padding=1), BatchNorm(), Residual((Conv(24, 3, padding=1), BatchNorm())),
    MaxPool(2), Residual((Conv(24, 3, padding=1, bias=False), ReLU(), Conv(24, 1))), ReLU(), MaxPool(2),
    Residual((ReLU(), Conv(24, 3, padding=1))), Conv(20, 2),
))  # fmt: skip
SEEN = {**MODELS, **ODD, "deeper": DEEPER}
ENGINES = {"cuda_conv_graph": 1e-5, "cuda_conv_graph_tf32": 4e-3, "cuda_conv_graph_bf16": 4e-2}


def a_network(engine, model, dtype=np.float32, seed=0):
    """Return a network whose normalizations have something to do."""
    network, rng = Network(engine, model, seed=seed, dtype=dtype), np.random.default_rng(seed)
    theta, statistics = rng.normal(0, 0.02, network.theta.shape), network.engine.to_numpy(network.statistics)
    network.set_theta((network.engine.to_numpy(network.theta) + theta).astype(dtype))
    network.set_statistics((statistics + rng.uniform(0.1, 1, statistics.shape)).astype(dtype))
    return network


def pixels(model, n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *model.input)).astype(np.uint8)


def predictions_of(network, n, match, mode=MODES["float32"]):
    """Return a function of x that computes by blocks, and the blocks."""
    blocks = pipeline(prediction_blocks.layers_of(network), network.model.input, n, mode, (match,))
    return (lambda x: blocks.forward(Value(x, "nchw", x.shape[1])).array), blocks


@pytest.mark.parametrize("model", SEEN.values(), ids=SEEN)
def test_layers_one_by_one_predict_what_the_network_does(model):
    network = a_network(numpy_baseline, model, np.float64)
    x = network.as_input(pixels(model, 3))
    wanted = network.forward(x)
    predict, _ = predictions_of(network, 3, prediction_blocks.layer)
    assert_allclose(predict(x), wanted, rtol=1e-10, atol=1e-12)
    network.theta[:], network.statistics[:] = np.nan, np.nan  # what was compiled has numbers of its own
    assert_allclose(predict(x), wanted, rtol=1e-10, atol=1e-12)


def test_nothing_is_kept():
    network = a_network(numpy_baseline, DEEPER, np.float64)
    network.forward(network.as_input(pixels(DEEPER, 2)), training=True)  # which keeps what its way back would need
    bound = prediction_blocks.layers_of(network)
    for at in (*bound, *bound[3].branches[0]):
        assert vars(at).keys() - OWN == at.lasting <= {"W", "b", "gamma", "beta", "mean", "variance"}
        assert not at.wants_dx
        assert not at.mode.training
    predict, _ = predictions_of(network, 2, prediction_blocks.layer)
    predict(network.as_input(pixels(DEEPER, 2)))
    assert network.mode.training


def kinds(blocks):
    return [type(block).__name__ for block in blocks.blocks]


BLOCKS = {
    "fashion_cnn": ["FirstConvolution", "Convolution", "End"],
    "lenet5": ["FirstConvolution", "Convolution", "End"],
    "residual": ["FirstConvolution", "Sum", "Convolution", "Sum", "End"],
    "mlp": ["End"],
    "strides": ["Convolution", *["LayerBlock"] * 2, "Convolution", *["LayerBlock"] * 6, "End"],
    "chance": ["FirstConvolution", "LayerBlock", "BranchesBlock", "Convolution", "End"],
    "wide": ["Convolution"] * 3 + ["End"],
    "deeper": ["FirstConvolution", "Convolution", *["Sum", "LayerBlock"] * 2, "BranchesBlock", "Convolution"],
}


@pytest.mark.parametrize("name", BLOCKS)
def test_which_blocks_there_are(name, tmp_path):
    with emulator.with_blocked(tmp_path, between):
        _, blocks = predictions_of(a_network(numpy_baseline, SEEN[name]), 5, prediction_blocks.match)
    assert kinds(blocks) == BLOCKS[name]
    if name == "residual":
        last = blocks.blocks[1].blocks[-1]
        assert (last.about.pool, last.about.relu, last.gives) == (2, True, "stored")
        assert [block.gives for block in blocks.blocks[:-1]] == ["stored", "stored", "stored", "nchw"]


@pytest.mark.parametrize(
    ("name", "first"), [("fashion_cnn", True), ("lenet5", True), ("residual", False), ("wide", False)]
)
def test_in_bfloat16_two_convolutions_are_a_block(name, first, tmp_path):
    with emulator.with_blocked(tmp_path, between) as cupy:
        network = a_network(numpy_baseline, SEEN[name])
        bound = prediction_blocks.layers_of(network)
        for at in bound:
            vars(at).update({key: cupy.asarray(at.W) for key in ("W",) if hasattr(at, "W")})
        blocks = pipeline(bound, network.model.input, 5, MODES["bf16"], (prediction_blocks.match,))
    assert (kinds(blocks) == ["PairOfConvolutions", "End"]) == first
    assert ("PairOfConvolutions" in kinds(blocks)) == first


# ---- Without one: what is asked for, and what is refused ----


@pytest.fixture
def prediction(monkeypatch):
    """The module; where there is no GPU, with NumPy's arrays, and graphs that compute when they are launched."""
    if gpu.why_not():
        monkeypatch.setitem(sys.modules, "mlpkit.engines.cupy_fused", SimpleNamespace(cross_entropy=None))
    from mlpkit.executors.cuda import prediction as module

    done = SimpleNamespace(synchronize=lambda: None)
    cuda = SimpleNamespace(Event=lambda **_: done, get_current_stream=lambda: done)
    cupy = SimpleNamespace(zeros=np.zeros, empty=np.empty, cuda=cuda)
    arena = SimpleNamespace(step=nullcontext)
    monkeypatch.setattr(module, "cp", cupy)
    monkeypatch.setattr(module, "watched", lambda work: work())
    monkeypatch.setattr(module, "Arena", lambda plan: arena)
    monkeypatch.setattr(module, "recorded", lambda work, pool: SimpleNamespace(launch=work))
    monkeypatch.setattr(module, "matches_for", lambda dtype: ())
    monkeypatch.setattr(module, "mode_for", MODES.get)
    monkeypatch.setattr(module.Batch, "send", lambda batch, x, rows: rows.__setitem__(slice(None), x))
    monkeypatch.setattr(module, "pinned", lambda shape, dtype: [np.zeros(shape, dtype)] * 2)
    monkeypatch.setattr(module, "carry", lambda source, target: target.__setitem__(slice(None), source))
    return module


def test_fewer_rows_than_there_is_room_for(prediction):
    network = a_network(numpy_baseline, LENET5, np.float64)
    predict = prediction.Prediction(network, 4)
    for m, dtype in ((4, np.uint8), (2, np.uint8), (3, np.float64), (1, np.uint8)):
        x = pixels(LENET5, m, seed=m)
        x = x if dtype == np.uint8 else x / 255
        z = predict(x.reshape(m, -1))
        assert_allclose(z, network.forward(x), rtol=1e-10, atol=1e-12)
        batch = predict.batch(dtype)
        assert_array_equal(batch.x[:m], x)
        assert not batch.x[m:].any()
        again = z.copy()
        predict(np.zeros_like(x))
        assert_array_equal(z, again)  # a copy
        batch.fill(x[:1])
        batch.replay()
        assert_allclose(batch.z[0], z[0], rtol=1e-10, atol=1e-12)
        assert not batch.x[1:].any()
    assert predict.batches.keys() == {np.dtype(np.uint8), np.dtype(np.float64)}


def test_a_batch_keeps_what_its_graph_reads(prediction, monkeypatch):
    monkeypatch.setattr(prediction, "recorded", lambda work, pool: None)  # as CuPy's graphs, which keep no array
    predict = prediction.Prediction(a_network(numpy_baseline, LENET5), 4)
    kept, batch = weakref.ref(predict.pipeline), predict.batch(np.uint8)
    del predict
    gc.collect()
    assert kept() is batch.reads[1]


def test_what_computes_the_whole_network_takes_the_place_of_all_blocks(prediction):
    network, x = a_network(numpy_baseline, LENET5), pixels(LENET5, 1)
    mine = prediction.Prediction(network, 1, whole=lambda x, z: z.fill(x.sum()))
    assert_array_equal(mine(x), np.full((1, 10), x.sum(), np.float32))


def test_what_is_refused(prediction):
    network = a_network(numpy_baseline, FASHION_CNN)
    refused_by(prediction.Prediction(network, 4), network.engine)
    for kind, n in ((ValueError, 0), (TypeError, 2.5)):
        with pytest.raises(kind):
            prediction.Prediction(network, n)


def refused_by(predict, engine):
    x, nan = pixels(FASHION_CNN, 4), np.full((2, 1, 28, 28), np.nan, np.float32)
    refused = (
        (ValueError, "at most 4", np.concatenate([x, x])),
        (ValueError, "shape", x[:, :, 1:]),
        (ValueError, "shape", x[:0]),
        (TypeError, "float64 but the network computes in float32", x.astype(np.float64)),
        (TypeError, "array", [[1]]),
        (ValueError, "finite", nan),
        (ValueError, "finite", engine.asarray(nan)),
    )
    for kind, said, given in refused:
        with pytest.raises(kind, match=said) as caught:
            predict(given)
        one_sentence(caught.value)
    with pytest.raises(TypeError, match="uint8 or float32"):
        predict.batch(np.int32)
    room = predict.batch(np.float32)
    room.fill(x[:3].astype("f4"))
    before = np.copy(engine.to_numpy(room.x))
    filled = (
        (ValueError, "at most 4", np.concatenate([x, x]).astype("f4")),
        (ValueError, "shape", x[:, :, 1:].astype("f4")),
        (ValueError, "shape", x[:0].astype("f4")),
        (TypeError, "of float32, not uint8", x),  # their 255 would be 255.0
        (TypeError, "convert", x.astype(np.float64)),
        (TypeError, "array", [[1]]),
    )
    for kind, said, given in filled:
        with pytest.raises(kind, match=said) as caught:
            room.fill(given)
        one_sentence(caught.value)
    with pytest.raises(TypeError, match="convert"):
        predict.batch(np.uint8).fill(x / np.float32(255))  # they would all be 0
    assert_array_equal(engine.to_numpy(room.x), before)


# ---- On a GPU ----


def error(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def wanted_of(network, x):
    """Return the outputs of float64."""
    exact = Network(numpy_baseline, network.model, dtype=np.float64)
    exact.set_theta(network.engine.to_numpy(network.theta).astype(float))
    exact.set_statistics(network.engine.to_numpy(network.statistics).astype(float))
    return exact.forward(x.astype(float) if x.dtype != np.uint8 else x)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize("model", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("name", ENGINES)
def test_predictions_are_the_baselines(name, model, n):
    network = a_network(name, model)
    predict = network.compiled(n)
    for seed, m in ((0, n), (1, max(1, n - 2)), (2, n)):
        x = pixels(model, m, seed)
        wanted = wanted_of(network, x)
        floats = (x / np.float32(255)).astype("f4")
        for given in (x, floats, network.engine.asarray(x), network.engine.asarray(floats)):
            z = network.engine.to_numpy(predict(given))
            assert z.shape == wanted.shape
            assert error(z, wanted) < ENGINES[name]


@pytest.mark.gpu
@pytest.mark.parametrize("n", [64, 1000, 4096])
@pytest.mark.parametrize("model", [FASHION_CNN, LENET5, RESIDUAL], ids=["fashion_cnn", "lenet5", "residual"])
@pytest.mark.parametrize("name", ENGINES)
def test_large_batches(name, model, n):
    network = a_network(name, model)
    x = pixels(model, n)
    z = network.engine.to_numpy(network.compiled(n)(x))
    some = np.unique([0, 1, n // 2, n - 1])
    assert error(z[some], wanted_of(network, x[some])) < ENGINES[name]
    rest = network.engine.to_numpy(network.forward(network.engine.asarray(x)))
    assert error(z, rest) < ENGINES[name]


@pytest.mark.gpu
def test_of_float64_the_prediction_is_float64():
    network = a_network("cuda_conv_graph", RESIDUAL, np.float64)
    x = pixels(RESIDUAL, 3)
    assert error(network.engine.to_numpy(network.compiled(4)(x)), wanted_of(network, x)) < 1e-12


@pytest.mark.gpu
@pytest.mark.parametrize("name", ENGINES)
def test_numbers_are_those_of_the_moment(name):
    network = a_network(name, RESIDUAL)
    x = pixels(RESIDUAL, 5)
    before, wanted = network.compiled(5), wanted_of(network, x)
    other = a_network(numpy_baseline, RESIDUAL, seed=7)
    network.set_theta(other.theta)
    network.set_statistics(other.statistics)
    assert error(network.engine.to_numpy(before(x)), wanted) < ENGINES[name]
    assert error(network.engine.to_numpy(network.compiled(5)(x)), wanted_of(network, x)) < ENGINES[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ENGINES)
def test_rows_that_were_there_before_change_nothing(name):
    network = a_network(name, FASHION_CNN)
    predict, rng = network.compiled(9), np.random.default_rng(3)
    x = rng.normal(size=(2, 1, 28, 28)).astype("f4")
    first = network.engine.to_numpy(predict(x))
    predict((1e3 * rng.normal(size=(9, 1, 28, 28))).astype("f4"))
    assert_array_equal(network.engine.to_numpy(predict(x)), first)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ENGINES)
def test_what_comes_from_the_host_goes_back_there_however_calls_follow_each_other(name):
    network = a_network(name, LENET5)
    engine, predict, batch = network.engine, (compiled := network.compiled(6)), compiled.batch(np.uint8)
    for seed, m in enumerate((6, 2, 5, 1, 6)):
        x = pixels(LENET5, m, seed)
        wanted = wanted_of(network, x)
        z, there = predict(x), predict(engine.asarray(x))
        batch.fill(pixels(LENET5, 3, seed + 10))
        assert isinstance(z, np.ndarray)
        assert not isinstance(there, np.ndarray)
        for found in (z, predict(x), engine.to_numpy(there)):
            assert error(found, wanted) < ENGINES[name]
        assert_array_equal(engine.to_numpy(batch.x)[:m], x)
        assert not engine.to_numpy(batch.x)[m:].any()
        assert_array_equal(engine.to_numpy(batch.z)[:m], predict(x))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 2, 3, 12, 40, 784, 10_000_001])
def test_what_is_carried_is_there(size):
    from mlpkit.executors.cuda import prediction as module

    host, there = module.pinned((size,), np.uint8)
    host[:] = np.random.default_rng(size).integers(0, 256, size)
    import cupy as cp

    here, back = cp.zeros(size, np.uint8), module.pinned((size,), np.uint8)
    module.carry(there, here)
    module.carry(here, back[1])
    cp.cuda.get_current_stream().synchronize()
    assert_array_equal(back[0], host)
    assert_array_equal(cp.asnumpy(here), host)


@pytest.mark.gpu
def test_a_server_fills_and_replays():
    network = a_network("cuda_conv_graph_bf16", LENET5)
    batch, x = network.compiled(7).batch(np.uint8), pixels(LENET5, 7)
    gc.collect()
    others = [network.engine.asarray(np.full(2**size, np.nan, "f4")) for size in range(20)]  # not where weights lie
    batch.x[...] = network.engine.asarray(x)
    batch.replay()
    first = network.engine.to_numpy(batch.z)
    assert error(first, wanted_of(network, x)) < 4e-2
    batch.replay()
    assert_array_equal(network.engine.to_numpy(batch.z), first)
    assert all(np.isnan(network.engine.to_numpy(other)).all() for other in others)


@pytest.mark.gpu
def test_what_is_no_batch_is_said():
    network = a_network("cuda_conv_graph", FASHION_CNN)
    refused_by(network.compiled(4), network.engine)
    assert network.compiled(4)(pixels(FASHION_CNN, 4).reshape(4, 784)).shape == (4, 10)


@pytest.mark.parametrize("options", [{"precision": "int8"}, {"precision": "int8", "calibration": np.zeros((1, 4))}])
def test_integers_are_for_other_engines(options, monkeypatch):
    if gpu.why_not():
        monkeypatch.setitem(sys.modules, "mlpkit.engines.cupy_fused", SimpleNamespace(cross_entropy=None))
    from mlpkit.executors.cuda.prediction import Prediction

    with pytest.raises(ValueError, match="take the engine cuda_int8") as refused:
        Prediction(SimpleNamespace(dtype=np.dtype("float32")), 4, **options)
    one_sentence(refused.value, "float32")

"""The engines that train any network on a GPU do what the baseline does in float64, in one operation and some steps."""

import gc
import weakref
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence
from test_conv_graph import ODD

from experiments.gpu_image_memory.measure import most_at_once, sum_of_sizes
from mlpkit import engines
from mlpkit.data import epoch_order
from mlpkit.engines import numpy_baseline
from mlpkit.executors import trainer_of
from mlpkit.nn.models import MODELS
from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME, SGD
from mlpkit.optim.schedules import Exponential
from mlpkit.training.fit import Diverged, fit

pytestmark = pytest.mark.gpu
FULL, FEWER = ("cuda_conv", "cuda_conv_graph"), ("cuda_conv_graph_tf32", "cuda_conv_graph_bf16")
TOLERANCE = {np.float32: 3e-6, np.float64: 1e-12}
ERRORS = {"cuda_conv": 2e-4, "cuda_conv_graph": 2e-4, "cuda_conv_graph_tf32": 2e-2, "cuda_conv_graph_bf16": 8e-2}
ALL_MODELS = {**MODELS, **ODD}


# Operations


def operations(dtype):
    """Yield names, and functions of an engine and of a way to its arrays that return results."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.normal(size=shape).astype(dtype)

    x, W, b, dz = draw(4, 3, 11, 9), draw(6, 3, 3, 3), draw(6), draw(4, 6, 6, 5)
    rows, matrix, bias, outputs = draw(7, 5), draw(5, 10), draw(10), draw(7, 10)
    labels, targets = rng.integers(0, 10, 7), (draw(7, 10) > 0).astype(dtype)
    gamma, beta, mean, variance, dy = draw(3), draw(3), draw(3), abs(draw(3)), draw(4, 3, 11, 9)
    pooled, alone, shuffled = draw(4, 3, 5, 4), draw(4, 1, 11, 9), draw(2, 8, 9, 12)

    def conv(engine, on):
        dW, db = on(W), on(b)
        engine.conv_backward_weights(on(x), on(dz), dW, db, 2, 1)
        dx = engine.conv_backward_input(on(dz), on(W), x.shape, 2, 1)
        return [engine.conv(on(x), on(W), on(b), 2, 1), engine.conv(on(x), on(W), None, 1, 0), dW, db, dx]

    def pools(engine, on):
        y, index = engine.max_pool(on(x), 3, 2)
        back = engine.max_pool_backward(on(pooled), index, x.shape, 3, 2)
        return [y, back, engine.avg_pool(on(x), 3, 2), engine.avg_pool_backward(on(pooled), x.shape, 3, 2)]

    def norm(engine, on):
        running, gradients = (on(mean), on(variance)), (on(gamma), on(beta))
        found = engine.batch_norm(on(x), on(gamma), on(beta), *running, 0.1, 1e-5)
        dx = engine.batch_norm_backward(on(dy), *found[1:], on(gamma), *gradients)
        y = engine.batch_norm_evaluate(on(x), on(gamma), on(beta), on(mean), on(variance), 1e-5)
        return [*found, *running, dx, *gradients, y]

    def side_by_side(engine, on):
        found = [engine.concat([on(x), on(dy), on(alone)]), *engine.concat_backward(on(x), [1, 2])]
        return [*found, engine.concat([on(rows), on(rows)]), engine.concat([on(x[:, :1]) for _ in range(9)])]

    def sizes(engine, on):
        found = [engine.pixel_shuffle(on(shuffled), 2), engine.pixel_unshuffle(on(shuffled), 3)]
        for kind in ("nearest", "bilinear"):
            found += [getattr(engine, f"upsample_{kind}")(on(x), scale) for scale in (1, 2, 3)]
            found.append(getattr(engine, f"upsample_{kind}_backward")(on(shuffled), 3))
        for mode in ("reflect", "replicate", "zero"):
            found += [engine.pad(on(x), size, mode) for size in (1, 4)]
            found.append(engine.pad_backward(on(shuffled), 2, mode))
        return found

    def per_image(engine, on):
        sums, (normalized, inverse_deviation) = on(gamma), engine.instance_norm(on(x), 1e-3)
        engine.channel_sums(on(x), sums)
        dx = engine.instance_norm_backward(on(dy), normalized, inverse_deviation)
        back = engine.global_avg_pool_backward(on(rows), (*rows.shape, 3, 2))
        per_channel = on(gamma).reshape(-1, 1, 1)
        affine = [engine.add(on(x), per_channel), engine.multiply(on(x), per_channel)]
        return [normalized, inverse_deviation, dx, sums, engine.global_avg_pool(on(x)), back, *affine]

    def dense(engine, on):
        dW, db, z = on(matrix), on(bias), on(outputs)
        engine.linear_backward_weights(on(rows), z, dW, db)
        dx, both = engine.linear_backward_input(z, on(matrix)), [engine.add(z, z), engine.multiply(z, z)]
        return [engine.linear(on(rows), on(matrix), on(bias)), dW, db, dx, *both, engine.argmax(z)]

    def activations(engine, on):
        found, z = [], on(outputs)
        for name, more in (("relu", ()), ("leaky_relu", (0.1,)), ("sigmoid", ()), ("tanh", ())):
            a = getattr(engine, name)(z, *more)
            found += [a, getattr(engine, f"{name}_backward")(a, z, *more)]
        return found

    def losses(engine, on):
        compared = {"mean_squared_error": targets, "binary_cross_entropy": targets}
        compared |= {"hinge": labels, "softmax_cross_entropy": labels}
        pairs = [getattr(engine, name)(on(outputs), on(others)) for name, others in compared.items()]
        return [each for pair in pairs for each in pair]

    yield from (conv, pools, norm, side_by_side, sizes, per_image, dense, activations, losses)


NAMES_OF_OPERATIONS = (
    "conv", "pools", "norm", "side_by_side", "sizes", "per_image", "dense", "activations", "losses",
)  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", NAMES_OF_OPERATIONS)
def test_operations_are_the_baselines_recorded_or_not(name, dtype):
    import cupy as cp

    (call,) = (call for call in operations(dtype) if call.__name__ == name)
    wanted = call(numpy_baseline, lambda a: a.astype(np.float64) if a.dtype.kind == "f" else a.copy())
    engine, given = engines.load("cupy_conv"), []

    def on(array):
        given.append((cp.asarray(array), array))
        return given[-1][0]

    first = [cp.asnumpy(each) for each in call(engine, on)]
    pool, stream, copies = cp.cuda.MemoryPool(), cp.cuda.Stream(non_blocking=True), iter(given)
    cp.cuda.Device().synchronize()
    with cp.cuda.using_allocator(pool.malloc), stream:  # it has memory from now on, and needs none while it is recorded
        call(engine, lambda array: next(copies)[0])
    stream.synchronize()
    for there, array in given:
        there[...] = cp.asarray(array)
    again = iter(given)
    cp.cuda.Device().synchronize()
    with cp.cuda.using_allocator(pool.malloc), stream:
        stream.begin_capture(cp.cuda.runtime.streamCaptureModeThreadLocal)
        second = call(engine, lambda array: next(again)[0])
        graph = stream.end_capture()
    graph.launch()
    cp.cuda.Device().synchronize()
    for one, other, exact in zip(first, second, wanted, strict=True):
        assert_array_equal(one, cp.asnumpy(other))
        assert_allclose(one, exact, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(exact).max()))


# Steps


def some_images(n=150, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, n)
    bright = rng.normal(size=(10, 1, 28, 28))[y] * 60 + 110
    return np.clip(bright + rng.normal(size=bright.shape) * 40, 0, 255).astype(np.uint8), y


def steps(engine, model, batch_size=32, epochs=2, optimizer="sgd", dtype=np.float32, lr=1e-3, n=150, decay=0.01):
    """Return losses, theta and statistics after some epochs."""
    network = Network(engine, model, dtype=dtype)
    takes, to_numpy = BY_NAME[optimizer](network, Exponential(lr, 20), weight_decay=decay), network.engine.to_numpy
    X, y = some_images(n)
    X, y = network.engine.asarray(X.reshape(n, *model.input)), network.engine.asarray(y)
    trainer = trainer_of(network, takes, X, y, batch_size)
    losses = [np.asarray(to_numpy(trainer.epoch(epoch_order(n, 0, epoch)))) for epoch in range(epochs)]
    trainer.close()
    assert takes.steps == epochs * -(-n // batch_size)
    return np.concatenate(losses), to_numpy(network.theta).copy(), to_numpy(network.statistics).copy()


@cache
def exact(model, batch_size=32, epochs=2, optimizer="sgd", n=150):
    """Return the baseline's, in float64."""
    return steps("numpy_baseline", ALL_MODELS[model], batch_size, epochs, optimizer, np.float64, n=n)


def close(found, wanted, error):
    assert np.isfinite(found[0]).all()
    for one, other in zip(found, wanted, strict=True):
        if other.size:
            assert np.abs(one - other).max() <= error * max(1, np.abs(other).max())


@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("name", [*FULL, *FEWER])
def test_steps_follow_the_baseline_in_float64(name, model):
    found = steps(name, ALL_MODELS[model])
    close(found, exact(model), ERRORS[name])


@pytest.mark.parametrize("model", ["lenet5", *ODD])
@pytest.mark.parametrize("name", FULL)
def test_float64_is_float64(name, model):
    found = steps(name, ALL_MODELS[model], dtype=np.float64)
    close(found, exact(model), 1e-9)


@pytest.mark.parametrize("optimizer", BY_NAME)
@pytest.mark.parametrize("name", FULL)
def test_every_optimizer(name, optimizer):
    found = steps(name, MODELS["lenet5"], optimizer=optimizer)
    assert_allclose(found[0], exact("lenet5", optimizer=optimizer)[0], rtol=2e-3)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 150, 200])
@pytest.mark.parametrize("name", [*FULL, *FEWER])
def test_any_batch_size(name, batch_size):
    found = steps(name, MODELS["lenet5"], batch_size, epochs=1, n=50)
    close(found, exact("lenet5", batch_size, 1, n=50), ERRORS[name])


@pytest.mark.parametrize("model", ["fashion_cnn", "residual", *ODD])
@pytest.mark.parametrize("name", [*FULL, *FEWER])
def test_the_same_run_has_the_same_bits(name, model):
    for one, other in zip(steps(name, ALL_MODELS[model]), steps(name, ALL_MODELS[model]), strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("model", ["fashion_cnn", "residual", *ODD])
@pytest.mark.parametrize("name", [*FULL, *FEWER])
def test_blocks_of_several_layers_are_those_of_one(name, model, monkeypatch):
    found = steps(name, ALL_MODELS[model])
    for module in FULL:
        monkeypatch.setattr(f"mlpkit.executors.{module}.matches_for", lambda dtype: ())
    close(found, steps(name, ALL_MODELS[model]), ERRORS[name])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("model", ["fashion_cnn", "lenet5", "residual", "chance", "wide", "pools first", "branches"])
@pytest.mark.parametrize("name", ["cuda_conv_graph", *FEWER])
def test_an_update_within_the_way_back_is_the_one_behind_it(name, model, optimizer, monkeypatch):
    found = steps(name, ALL_MODELS[model], optimizer=optimizer, decay=0)
    monkeypatch.setattr("mlpkit.executors.cuda.plan.update_of", lambda *_: None)
    for one, other in zip(found, steps(name, ALL_MODELS[model], optimizer=optimizer, decay=0), strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("name", FEWER)
def test_fewer_digits_are_refused_where_more_are_meant(name):
    network = Network(name, MODELS["lenet5"], dtype=np.float64)
    with pytest.raises(ValueError, match="not in float64") as caught:
        fit(network, SGD(network, 0.1), (np.zeros((9, 1, 28, 28)), np.zeros(9, int)))
    one_sentence(caught.value, name)


@pytest.mark.parametrize("name", [*FULL, *FEWER])
def test_an_epoch_may_be_shorter_and_its_order_on_the_gpu(name):
    found, (X, y) = [], some_images(100)
    for engine, on_gpu in ((name, False), (name, True), ("numpy_baseline", False)):
        network = Network(engine, MODELS["lenet5"])
        place, to_numpy = network.engine.asarray if on_gpu else np.asarray, network.engine.to_numpy
        trainer = trainer_of(network, SGD(network, 1e-3), *map(network.engine.asarray, (X, y)), 16)
        losses = [trainer.epoch(place(epoch_order(100, 0, epoch)[:n])) for epoch, n in enumerate((100, 40, 16, 3, 100))]
        assert [len(each) for each in losses] == [7, 3, 1, 1, 7]
        found.append((np.concatenate([*map(to_numpy, losses)]), to_numpy(network.theta)))
    for on_host, on_gpu in zip(*found[:2], strict=True):
        assert_array_equal(on_host, on_gpu)
    close(found[0], found[2], ERRORS[name])


@pytest.mark.parametrize("name", FULL)
def test_a_nan_is_seen_and_the_last_good_parameters_come_back(name, monkeypatch):
    monkeypatch.setattr("mlpkit.training.refusals.check_finite", lambda name, array: None)
    X, y = some_images(50)
    X = X.astype("f4") / 255
    X[17] = np.nan
    network = Network(name, MODELS["lenet5"])
    first = network.engine.to_numpy(network.theta).copy()
    with pytest.raises(Diverged):
        fit(network, SGD(network, 0.01), (X, y), epochs=1, batch_size=8)
    assert_array_equal(network.engine.to_numpy(network.theta), first)


@pytest.mark.parametrize("name", [*FULL, *FEWER])
def test_a_network_nobody_needs_is_forgotten(name):
    network = Network(name, MODELS["lenet5"])
    fit(network, SGD(network, 0.01), some_images(50), epochs=1, batch_size=8)
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_a_step_takes_less_memory_than_its_arrays():
    network = Network("cuda_conv_graph", MODELS["fashion_cnn"])
    trainer = trainer_of(network, SGD(network, 0.01), *map(network.engine.asarray, some_images(150)), 32)
    plans = {n: arena.plan for n, arena in trainer.arenas.items()}
    assert plans.keys() == {32, 22}
    assert len({arena.memory.ptr for arena in trainer.arenas.values()}) == 1
    for plan in plans.values():
        assert most_at_once(plan) <= plan.bytes <= 0.9 * sum_of_sizes(plan)

"""Every engine's executor trains, judges and predicts as the plain one does on the baseline."""

from concurrent.futures import ThreadPoolExecutor

import emulator
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import ENGINES, REASONS, blobs, one_sentence, sweep

from mlpkit import engines, executors
from mlpkit.engines import numpy_baseline
from mlpkit.executors import plain, trainer_of
from mlpkit.executors.plain import StepByStep
from mlpkit.nn.layers import Linear, ReLU
from mlpkit.nn.losses import SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5, MLP, mlp
from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME, SGD, AdamW, Momentum

FLOATS = (np.float32, np.float64)
IN_THEIR_KERNELS = ("cuda_persistent", "cuda_cluster", "cuda_three_kernels", "cuda_conv_fused")  # updates are
LESS_PRECISE = {"cuda_conv_graph_tf32": 1e-2, "cuda_conv_graph_bf16": 6e-2}


def here(names):
    """Return engines as parameters of a test; those that can't run on this machine are skipped with their reason."""
    skip = pytest.mark.skip
    return [pytest.param(name, marks=skip(reason=REASONS[name])) if REASONS[name] else name for name in names]


DENSE = engines.names(mlp(6, 3).operations)
CONVOLVES = [name for name in engines.names(LENET5.operations) if name not in DENSE]
# Those that train any perceptron with any optimizer; `test_persistent` and `test_limit` are about the others.
ANY_PERCEPTRON = [name for name in DENSE if name not in IN_THEIR_KERNELS]


@pytest.mark.parametrize("dtype", sweep(FLOATS, np.float32))
@pytest.mark.parametrize("optimizer", BY_NAME)
@pytest.mark.parametrize("name", ENGINES)
def test_twenty_steps_an_operation_at_a_time_follow_the_baseline(name, optimizer, dtype):
    def operations(network, takes):
        batches = [map(network.engine.asarray, blobs(1 + i % 7, seed=i, dtype=dtype)) for i in range(20)]
        trainer = StepByStep(network, takes, *map(network.engine.asarray, blobs(7, dtype=dtype)), 7)
        return network.engine.to_numpy([trainer.step(*batch) for batch in batches])

    follows_the_baseline(name, optimizer, dtype, operations)


@pytest.mark.parametrize("dtype", sweep(FLOATS, np.float32))
@pytest.mark.parametrize("optimizer", BY_NAME)
@pytest.mark.parametrize("name", here(name for name in ANY_PERCEPTRON if name not in LESS_PRECISE))
def test_twenty_steps_of_its_own_trainer_follow_the_baseline(name, optimizer, dtype):
    """In epochs of any length."""

    def epochs(network, takes):
        order, to_numpy = np.random.default_rng(0).permutation(23), network.engine.to_numpy
        trainer = trainer_of(network, takes, *map(network.engine.asarray, blobs(23, dtype=dtype)), 4)
        losses = [to_numpy(trainer.epoch(order[:n])).copy() for n in (23, 23, 4, 1, 9, 12)]
        trainer.close()
        assert takes.steps == 20
        return np.concatenate(losses)

    follows_the_baseline(name, optimizer, dtype, epochs)


def follows_the_baseline(name, optimizer, dtype, way):
    runs = []
    for engine in (engines.load(name), numpy_baseline):
        network = Network(engine, mlp(6, 4, 5, 4, 3), dtype=dtype)  # as many layers as `MLP`: both are compiled once
        takes = BY_NAME[optimizer](network, lr=0.01, weight_decay=0.01)
        runs.append((way(network, takes), engine.to_numpy(network.theta)))
    (losses, theta), (wanted_losses, wanted_theta) = runs
    assert losses.shape == (20,)
    assert np.isfinite(losses).all()
    # Adam and RMSprop divide by the size of a gradient, and so make much of a rounding in a small one.
    tolerance = {np.float32: 2e-4, np.float64: 1e-9}[dtype]
    assert_allclose(losses, wanted_losses, rtol=tolerance)
    assert_allclose(theta, wanted_theta, rtol=0, atol=tolerance)


# A reduce


def halved(grad):
    grad *= 0.5


@pytest.mark.parametrize("optimizer", [SGD, Momentum])
@pytest.mark.parametrize("name", here(ANY_PERCEPTRON))
def test_a_reduce_that_halves_the_gradient_halves_the_rate(name, optimizer):
    found = []
    for rate, reduce in ((0.1, halved), (0.05, None)):
        network = Network(name, mlp(6, 4, 5, 4, 3))
        takes, to_numpy = optimizer(network, rate, reduce=reduce), network.engine.to_numpy
        trainer = trainer_of(network, takes, *map(network.engine.asarray, blobs(23)), 4)
        losses = [to_numpy(trainer.epoch(np.arange(23))).copy() for _ in range(2)]
        trainer.close()
        found.append((np.concatenate(losses), to_numpy(network.theta).copy()))
    assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert_allclose(found[0][1], found[1][1], rtol=0, atol=1e-6)
    assert not np.array_equal(found[0][1], Network(name, mlp(6, 4, 5, 4, 3)).theta)


@pytest.mark.parametrize("name", IN_THEIR_KERNELS)
def test_a_kernel_that_updates_refuses_a_reduce(name, tmp_path):
    """Beside a CuPy that is NumPy."""
    model = LENET5 if name == "cuda_conv_fused" else MLP
    executor = emulator.engine(name.removeprefix("cuda_"), tmp_path, source="none is compiled").executor
    why_not, network = executor.why_not, Network(model=model)
    for optimizer in (SGD(network, 0.1, reduce=halved), AdamW(network, 0.1, reduce=halved)):
        one_sentence(why_not(model, optimizer, 32), name, "reduce", "take another engine")
    assert why_not(model, SGD(network, 0.1), 32) is None


# Evaluation


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), SoftmaxCrossEntropy(top=(2,))], ids=str)
@pytest.mark.parametrize("name", ENGINES)
def test_an_evaluation_says_what_evaluate_says(name, loss):
    """Of the parameters of the moment in which it is asked."""
    network = Network(name, Model((6,), (Linear(5), ReLU(), Linear(3)), loss))
    X, y = blobs(40)
    evaluate = executors.of(network.engine).Evaluation(network, *map(network.engine.asarray, (X, y)))
    for seed in range(2):
        network.set_theta(Network(model=network.model, seed=seed).theta)
        wait = evaluate()
        wanted = Network(model=network.model, seed=seed).evaluate(X, y)
        network.theta[:] = 0
        found = wait()
        assert found.keys() == wanted.keys()
        assert_allclose([*found.values()], [*wanted.values()], rtol=1e-5)
        assert all(isinstance(value, float) for value in found.values())


# Predictions


@pytest.mark.parametrize("name", here([*DENSE, *CONVOLVES]))
def test_compiled_predictions_are_the_networks_of_the_moment(name):
    model = LENET5 if name in CONVOLVES else mlp(6, 5, 3)
    network, exact = Network(name, model), Network(numpy_baseline, model, dtype=np.float64)
    to_numpy, on_engine = network.engine.to_numpy, network.engine.asarray
    exact.set_theta(to_numpy(network.theta).astype(float))
    compiled, X = network.compiled(5), np.random.default_rng(0).integers(256, size=(5, *model.input)).astype(np.uint8)
    network.theta[:] = 0
    wanted = exact.forward(X)

    def close(found, m):
        tolerance = LESS_PRECISE.get(name, 5e-5) * np.abs(wanted).max()
        assert_allclose(to_numpy(found)[:m], wanted[:m], rtol=0, atol=tolerance)

    for m in (5, 2, 1):
        for x in (X[:m], (X[:m] / np.float32(255)).astype(np.float32)):
            assert isinstance(compiled(x), np.ndarray)
            assert compiled(x).shape == wanted[:m].shape
            close(compiled(x), m)
            close(compiled(on_engine(x)), m)
    batch = compiled.batch(np.uint8)
    batch.fill(X[:3])
    batch.replay()
    close(batch.z, 3)
    assert not to_numpy(batch.x)[3:].any()


def test_what_a_plain_prediction_refuses():
    compiled = Network(model=mlp(6, 5, 3)).compiled(4)
    for kind, said, x in (
        (ValueError, "at most 4", np.zeros((5, 6), np.float32)),
        (ValueError, "shape", np.zeros((4, 5), np.float32)),
        (ValueError, "finite", np.full((2, 6), np.nan, np.float32)),
        (TypeError, "float64 but the network computes in float32", np.zeros((4, 6))),
    ):
        with pytest.raises(kind, match=said) as caught:
            compiled(x)
        one_sentence(caught.value)
    with pytest.raises(TypeError, match="uint8 or float32"):
        compiled.batch(np.int32)
    with pytest.raises(TypeError, match="of float32, not uint8"):
        compiled.batch(np.float32).fill(np.zeros((4, 6), np.uint8))
    for kind, n in ((ValueError, 0), (TypeError, 2.5)):
        with pytest.raises(kind):
            Network(model=mlp(6, 5, 3)).compiled(n)


@pytest.mark.parametrize("name", here(["numpy_baseline", "numba_hybrid", "cupy_conv"]))
def test_two_threads_may_predict_at_once(name):
    network = Network(name, LENET5)
    compiled, rng = network.compiled(8), np.random.default_rng(0)
    batches = [rng.integers(256, size=(8, *network.model.input)).astype(np.uint8) for _ in range(20)]
    wanted = [network.engine.to_numpy(network.forward(x)) for x in map(network.engine.asarray, batches)]
    with ThreadPoolExecutor(2) as threads:
        for found, each in zip(threads.map(compiled, batches), wanted, strict=True):
            assert_array_equal(found, each)
        for found, each in zip(threads.map(network.predict, batches), wanted, strict=True):
            assert_array_equal(found, each.argmax(axis=1))


# Which executor is whose


def test_a_readers_own_engine_may_bring_an_executor():
    class Mine:
        __name__ = "mlpkit.engines.mine"

    assert executors.of(Mine) is plain
    Mine.executor = "its own"
    assert executors.of(Mine) == "its own"

"""Engines that do a whole epoch on the GPU train as the baseline does: whatever the data, optimizer and batch size."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import blobs, one_sentence

from experiments.lab.bench import Stepper
from mlpkit import engines
from mlpkit.data import batches, epoch_order, load
from mlpkit.executors import trainer_of
from mlpkit.nn.models import LENET5, mlp
from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME, SGD, Adam
from mlpkit.optim.schedules import Exponential
from mlpkit.training.fit import Diverged, fit
from mlpkit.training.recipe import Recipe

pytestmark = pytest.mark.gpu
ONLY_MLPS = ("cupy_fused", "cuda_graph_cublas", "cuda_graph", "cuda_graph_epoch")
NAMES = ("cupy_naive", *ONLY_MLPS, "cupy_conv", "cuda_conv", "cuda_conv_graph")
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-9}


def train_both(name, sizes, optimizer, train, batch_size, epochs=2, dtype=np.float32):
    """Return (losses, theta) of the engine and of the baseline after some epochs; `optimizer` makes one."""
    found = []
    for engine in (name, "numpy_baseline"):
        network = Network(engine, mlp(*sizes), dtype=dtype)
        takes, to_numpy = optimizer(network), network.engine.to_numpy
        trainer = trainer_of(network, takes, *map(network.engine.asarray, train), batch_size)
        losses = [trainer.epoch(epoch_order(len(train.y), 0, epoch)) for epoch in range(epochs)]
        trainer.close()
        assert takes.steps == epochs * -(-len(train.y) // batch_size)
        found.append((np.concatenate([*map(to_numpy, losses)]), to_numpy(network.theta)))
    return found


def agree(found, dtype=np.float32):
    (losses, theta), (wanted_losses, wanted_theta) = found
    assert np.isfinite(losses).all()
    assert_allclose(losses, wanted_losses, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 100)
    assert_allclose(theta, wanted_theta, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("optimizer", BY_NAME)
@pytest.mark.parametrize("name", NAMES)
def test_two_epochs_follow_the_baseline(name, optimizer, dtype):
    def make(network):
        return BY_NAME[optimizer](network, Exponential(0.01, 20), weight_decay=0.01)

    agree(train_both(name, (6, 4, 5, 3), make, blobs(50, dtype=dtype), batch_size=8, dtype=dtype), dtype)


@pytest.mark.parametrize("sizes", [(6, 3), (6, 1, 3), (6, 33, 129, 3), (6, 128, 3), (6, 5, 4, 5, 4, 3)])
@pytest.mark.parametrize("batch_size", [1, 7, 50, 64])
@pytest.mark.parametrize("name", NAMES)
def test_any_sizes_will_do(name, batch_size, sizes):
    def make(network):
        """Start with biases too: else a row that nothing comes through gives sums of exactly 0: see `cuda/cublas`."""
        theta = Network("numpy_baseline", mlp(*sizes)).theta
        network.set_theta(theta + np.random.default_rng(0).normal(0, 0.01, theta.shape).astype(theta.dtype))
        return SGD(network, 0.05)

    agree(train_both(name, sizes, make, blobs(50), batch_size))


def test_cublas_takes_the_derivative_at_zero_for_one():
    """The one thing in which it differs from the baseline: see `cuda/cublas`."""
    import cupy as cp

    from mlpkit.engines.cuda import cublas

    x, W, b, out = cp.zeros((4, 8), "f"), cp.ones((8, 8), "f"), cp.zeros(8, "f"), cp.empty((4, 8), "f")
    mask = cublas.mask(4, 8)
    cublas.Product(x, W, out, cublas.RELU_AUX_BIAS, b, mask)(x, W, out)
    assert (cp.unpackbits(mask[:, :1].ravel()) == 1).all()
    assert (out == 0).all()


@pytest.mark.parametrize("n", [16, 128])
@pytest.mark.parametrize("k", [10, 128])
def test_cublas_splits_no_short_sum(k, n):
    """One kernel does it sooner than two, of which the second adds up the parts: see `cuda/cublas`."""
    import cupy as cp

    from experiments.lab.clock import recorded
    from experiments.lab.launched import kernels_of
    from mlpkit.engines.cuda import cublas

    a, b, out = cp.ones((n, k), "f"), cp.ones((k, 128), "f"), cp.empty((n, 128), "f")
    assert len(kernels_of(recorded(partial(cublas.Product(a, b, out), a, b, out)))) == 1


@pytest.mark.parametrize("name", NAMES)
def test_pixels_train_as_their_fractions_do(name):
    split = blobs(50)
    pixels = np.clip(40 * split.X + 120, 0, 255).astype(np.uint8)
    as_pixels, as_numbers = split._replace(X=pixels), split._replace(X=pixels.astype(np.float32) / 255)
    (of_pixels, theta), _ = train_both(name, (6, 5, 3), lambda n: Adam(n, 0.01), as_pixels, 8)
    (of_numbers, wanted), _ = train_both(name, (6, 5, 3), lambda n: Adam(n, 0.01), as_numbers, 8)
    assert_array_equal(of_pixels, of_numbers)
    assert_array_equal(theta, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_twenty_steps_of_mnist_follow_the_baseline(name):
    from mlpkit import data

    train = data.load().train
    for recipe in (Recipe(), Recipe(optimizer="adam", lr=1e-3, batch_size=64)):
        losses, wanted = (Stepper(engine, recipe, train).take(20)[1] for engine in (name, "numpy_baseline"))
        assert_allclose(losses, wanted, rtol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_is_seen_and_the_last_good_parameters_come_back(name, monkeypatch):
    monkeypatch.setattr(
        "mlpkit.training.refusals.check_finite", lambda name, array: None
    )  # else it is seen before the first step
    train = blobs(50)
    train.X[17, 2] = np.nan
    network = Network(name, mlp(6, 5, 3))
    first = network.engine.to_numpy(network.theta).copy()
    with pytest.raises(Diverged):
        fit(network, SGD(network, 0.1), train, epochs=1, batch_size=8)
    assert_array_equal(network.engine.to_numpy(network.theta), first)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_optimizer_is_not_the_old_ones_recording(name):
    """What a graph has recorded must not outlive what it was recorded for."""
    train, network = blobs(50), Network(name, mlp(6, 5, 3))
    baseline = Network("numpy_baseline", mlp(6, 5, 3))
    for make in (lambda n: Adam(n, 0.01), lambda n: Adam(n, 0.01, beta1=0.5), lambda n: SGD(n, 0.3)):
        for one in (network, baseline):
            fit(one, make(one), train, epochs=2, batch_size=8)
        assert_allclose(network.engine.to_numpy(network.theta), baseline.theta, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(name, tmp_path):
    train, validation = blobs(50), blobs(20, 1)

    def run(epochs, **options):
        network = Network(name, mlp(6, 5, 3))
        fit(network, Adam(network, 0.01), train, validation, epochs=epochs, batch_size=8, **options)
        return network.engine.to_numpy(network.theta)

    run(2, checkpoints=tmp_path)
    assert_array_equal(run(4, checkpoints=tmp_path, resume=True), run(4))


def test_a_copy_that_nobody_waits_for_writes_into_nobody_elses_memory():
    import cupy as cp
    import cupyx

    source = 'extern "C" __global__ void idle(long long n) { long long t = clock64(); while (clock64() - t < n); }'
    ones = cp.ones(1000, np.float32)
    cp.RawKernel(source, "idle")((1,), (1,), (100_000_000,))  # the copy is late
    engines.load("cupy_naive").fetch(ones)
    others = [cupyx.empty_pinned(1000, np.float32) for _ in range(4)]
    for other in others:
        other[:] = 7
    cp.cuda.runtime.deviceSynchronize()
    assert {*np.concatenate(others)} == {7}


@pytest.mark.parametrize("name", NAMES)
def test_a_network_nobody_needs_is_forgotten(name):
    network = Network(name, mlp(6, 5, 3))
    fit(network, SGD(network, 0.1), blobs(50), epochs=1, batch_size=8)
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", NAMES)
def test_labels_that_are_no_classes_are_refused_before_the_first_step(name):
    train = blobs(50)
    train.y[3] = 3
    network = Network(name, mlp(6, 5, 3))
    with pytest.raises(ValueError, match="from 0 to 2"):
        fit(network, SGD(network, 0.1), train, epochs=1, batch_size=8)


def test_an_epoch_has_as_many_losses_as_batches():
    losses = train_both("cuda_graph_epoch", (6, 5, 3), lambda n: SGD(n, 0.1), blobs(50), 8, epochs=1)[0][0]
    assert len(losses) == len(list(batches(np.arange(50), 8)))


def test_a_whole_epoch_is_replayed_by_two_launches():
    """One graph of all full batches, one of the last, shorter batch; and none is recorded twice."""
    network = Network("cuda_graph_epoch", mlp(6, 5, 3))
    trainer = trainer_of(network, SGD(network, 0.1), *map(network.engine.asarray, blobs(50)), 8)
    graphs = dict(trainer.graphs)
    assert graphs.keys() == {(6, 8), (1, 2)}
    for epoch in range(3):
        trainer.epoch(epoch_order(50, 0, epoch))
    assert trainer.graphs == graphs


@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_may_be_shorter_and_its_order_on_the_gpu(name):
    """And the losses of one are not overwritten by the next."""
    found, split = [], blobs(50)
    for engine, on_gpu in ((name, False), (name, True), ("numpy_baseline", False)):
        network = Network(engine, mlp(6, 5, 3))
        place, to_numpy = network.engine.asarray if on_gpu else np.asarray, network.engine.to_numpy
        trainer = trainer_of(network, Adam(network, 0.01), *map(network.engine.asarray, split), 8)
        losses = [trainer.epoch(place(epoch_order(50, 0, epoch)[:n])) for epoch, n in enumerate((50, 20, 8, 3, 50))]
        found.append((np.concatenate([*map(to_numpy, losses)]), to_numpy(network.theta)))
    for on_host, on_gpu in zip(*found[:2], strict=True):
        assert_array_equal(on_host, on_gpu)
    agree(found[1:])


@pytest.mark.parametrize("name", ONLY_MLPS)
def test_a_network_that_is_no_perceptron_is_refused_in_one_sentence(name):
    network = Network(name, LENET5)
    with pytest.raises(ValueError, match="multilayer perceptrons") as caught:
        fit(network, SGD(network, 0.1), (np.zeros((9, 1, 28, 28), "f"), np.zeros(9, int)), epochs=1)
    one_sentence(caught.value, name)


@pytest.mark.parametrize("name", NAMES)
def test_products_do_not_lose_digits_to_tensor_cores(name):
    """A float32 product must not be done in TF32, which has 10 bits of a number: rtol 1e-3."""
    engine, rng = engines.load(name), np.random.default_rng(0)
    x, W = rng.normal(size=(256, 512)).astype(np.float32), rng.normal(size=(512, 64)).astype(np.float32)
    network = Network(name, mlp(512, 64, 3))
    network.layers[0].W[:] = engine.asarray(W)
    z = engine.to_numpy(engine.linear(engine.asarray(x), network.layers[0].W, network.layers[0].b))
    assert_allclose(z, x.astype(np.float64) @ W, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    "name", ["cuda_graph_epoch", "cuda_three_kernels", "cuda_cluster", "cuda_persistent", "cuda_conv_graph"]
)
def test_a_validation_beside_the_next_epoch_is_that_of_its_own_epoch(name):
    """Where nobody looks, the next epoch changes the parameters while the validation of this one runs."""
    found = []
    for on_epoch in (None, lambda history: None):
        data = load()
        _, history = Recipe(epochs=3).train(data, engine=name, on_epoch=on_epoch)
        found.append([(epoch.validation["loss"], epoch.validation["accuracy"]) for epoch in history.epochs])
    assert found[0] == found[1]


def test_a_gpu_of_2018_has_too_little_shared_memory_for_float64(monkeypatch):
    from mlpkit.executors import cuda_graph

    def said(dtype):
        cuda_graph._chunk.cache_clear()
        optimizer = SGD(Network("cuda_graph", mlp(6, 5, 3), dtype=dtype), 0.1)
        return cuda_graph.why_not(optimizer.network.model, optimizer, 128)

    monkeypatch.setattr(cuda_graph.gpu, "shared_memory", lambda: 64 << 10)
    assert said("float32") is None
    assert "needs 68 KiB of a multiprocessor's shared memory in float64, and this GPU gives a block 64:" in said("f8")
    monkeypatch.setattr(cuda_graph.gpu, "shared_memory", lambda: 99 << 10)
    assert said("float64") is None
    cuda_graph._chunk.cache_clear()


def test_memory_of_an_evaluation_is_its_own_until_it_is_over():
    """The rehearsed one's came to be an epoch's losses, of which the first was then another one's."""
    from mlpkit.executors.cupy_fused import PlannedEvaluation

    network, rows = Network("cupy_fused", mlp(6, 5, 3)), blobs(50)
    evaluation = PlannedEvaluation(network, *map(network.engine.asarray, rows))
    there, answer = weakref.ref(evaluation), evaluation()
    del evaluation
    assert there() is not None
    assert answer().keys() == {"loss", "accuracy"}
    del answer
    gc.collect()
    assert there() is None

"""Several networks in one launch: each is trained as it would be alone, and as closely to float64 as float32 allows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence, sweep
from test_kernels import needs_compiler

from experiments.lab import ptxas
from mlpkit import data, executors, kernels
from mlpkit.data import epoch_order
from mlpkit.executors import trainer_of
from mlpkit.nn.models import MLP, mlp
from mlpkit.nn.network import Network
from mlpkit.optim import SGD, Adam, AdamW, Momentum
from mlpkit.training.fit import fit

NAME = "cuda_cluster"


# Without a GPU


@needs_compiler
@pytest.mark.parametrize("adam", sweep([0, 1], 1))
@pytest.mark.parametrize("batch", sweep([64, 128], 128))
def test_the_kernel_keeps_its_numbers_in_registers(batch, adam):
    found = ptxas.resources("cluster", BATCH=batch, ADAM=adam)["train"]
    assert found.registers <= 128  # of which a multiprocessor has enough for 512 threads
    assert found.spilled_bytes == 0


@needs_compiler
@pytest.mark.parametrize("inputs", sweep([16, 32, 48, 784], 16))
def test_the_kernel_compiles_for_images_of_any_size(inputs):
    assert kernels.ptx("cluster", INPUTS=inputs, CLASSES=3, BATCH=64)


@needs_compiler
def test_pixels_meet_the_tensor_cores_as_bytes_and_other_numbers_as_tf32():
    code = kernels.ptx("cluster")
    assert "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" in code
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in code


# With one


@pytest.mark.gpu
@pytest.mark.parametrize("networks", [(), (3,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_a_short_last_batch_is_that_of_its_examples(networks, dtype):
    from mlpkit.executors.cuda.transfers import RowLosses

    rows = np.random.default_rng(0).normal(size=(*networks, 4, 70)).astype(dtype)
    wanted = rows.mean(axis=-1, dtype=np.float64)
    wanted[..., -1] = rows[..., -1, :33].mean(axis=-1, dtype=np.float64)
    rows[..., -1, 33:] = np.nan
    losses = RowLosses(rows[..., 0].size, 70, np.dtype(dtype))
    losses.rows.set(rows.ravel())
    found = losses.means(wanted.shape, 3 * 70 + 33)
    assert found.dtype == dtype
    assert_allclose(found.get(), wanted, rtol=1e-6 if dtype == np.float32 else 1e-14)


@pytest.fixture(scope="module")
def mnist():
    return data.load().train


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_together_they_do_what_each_does_alone_to_the_last_bit(kind, mnist):
    rates, n = (0.1, 0.01, 0.001), 1000  # settings may differ, too
    together, alone = ([Network(NAME, seed=seed) for seed in range(3)] for _ in range(2))
    engine, Together = together[0].engine, executors.of(together[0].engine).Together
    X, y = map(engine.asarray, mnist)
    orders = engine.asarray(np.stack([epoch_order(len(mnist.y), seed, 0)[:n] for seed in range(3)]))
    optimizers = [kind(network, rate, weight_decay=rate) for network, rate in zip(together, rates, strict=True)]
    losses = Together(together, optimizers, X, y, 128).epoch(orders)
    assert losses.shape == (3, 8)
    for i, network in enumerate(alone):
        takes = kind(network, rates[i], weight_decay=rates[i])
        own = trainer_of(network, takes, X, y, 128).epoch(orders[i])
        assert_array_equal(engine.to_numpy(own), engine.to_numpy(losses[i]))
        assert_array_equal(engine.to_numpy(network.theta), engine.to_numpy(together[i].theta))
        assert takes.steps == optimizers[i].steps == 8


@pytest.mark.gpu
def test_more_networks_than_the_gpu_holds_wait_for_their_turn(mnist):
    engine, Together = (found := Network(NAME).engine), executors.of(found).Together
    X, y = map(engine.asarray, mnist)
    networks = [Network(NAME, seed=1) for _ in range(40)]
    optimizers = [SGD(network, 0.1) for network in networks]
    losses = Together(networks, optimizers, X, y, 64).epoch(np.stack([np.arange(500)] * 40))
    assert_array_equal(*np.broadcast_arrays(engine.to_numpy(losses), engine.to_numpy(losses[:1])))


@pytest.mark.gpu
def test_what_can_not_be_trained_together_is_refused_in_one_sentence(mnist):
    one, other, small = Network(NAME), Network(NAME, seed=1), Network(NAME, mlp(784, 8, 8, 8, 10))
    engine, Together = one.engine, executors.of(one.engine).Together
    X, y = map(engine.asarray, mnist)
    for networks, kinds, words in (
        ((one, small), (SGD, SGD), "one size"),
        ((one, other), (SGD, Adam), "all with Adam"),
        ((one, one), (SGD, SGD), "each network once"),
        ((one, other), (SGD, Momentum), "not Momentum"),
    ):
        optimizers = [kind(network, 0.1) for network, kind in zip(networks, kinds, strict=True)]
        with pytest.raises(ValueError, match=words) as caught:
            Together(networks, optimizers, X, y, 64)
        one_sentence(caught.value, NAME)
    together = Together((one, other), [SGD(one, 0.1), SGD(other, 0.1)], X, y, 64)
    with pytest.raises(ValueError, match="an order for each") as caught:
        together.epoch(np.zeros((3, 100), np.int64))
    one_sentence(caught.value, NAME)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "dtype", "batch_size", "words"),
    [
        (MLP, np.float64, 32, ("float32", "float64")),
        (MLP, np.float32, 129, ("at most 128", "129")),
        (mlp(3000, 8, 8, 8, 10), np.float32, 128, ("shared memory",)),
    ],
)
def test_what_the_kernel_can_not_hold_is_refused_in_one_sentence(model, dtype, batch_size, words):
    network = Network(NAME, model, dtype=dtype)
    X = np.zeros((40, *model.input), np.uint8)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        fit(network, AdamW(network, 0.1), (X, np.zeros(40, np.int64)), epochs=1, batch_size=batch_size)
    one_sentence(caught.value, NAME, *words)

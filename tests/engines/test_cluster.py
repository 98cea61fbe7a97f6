"""Several networks in one launch: each is trained as it would be alone, and as closely to float64 as float32 allows."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import one_sentence
from test_kernels import needs_compiler

from mlpkit import data, kernels
from mlpkit.data import epoch_order
from mlpkit.engines.cuda.rates import mean_losses
from mlpkit.nn.network import SIZES, Network
from mlpkit.training.fit import fit
from mlpkit.training.optim import SGD, Adam, AdamW, Momentum

NAME = "cuda_cluster"


# Without a GPU


@needs_compiler
@pytest.mark.parametrize("adam", [0, 1])
@pytest.mark.parametrize("batch", [64, 128])
def test_the_kernel_keeps_its_numbers_in_registers(batch, adam):
    found = kernels.resources("cluster", BATCH=batch, ADAM=adam)["train"]
    assert found.registers <= 128  # of which a multiprocessor has enough for 512 threads
    assert found.spilled_bytes == 0


@needs_compiler
@pytest.mark.parametrize("inputs", [16, 32, 48, 784])
def test_the_kernel_compiles_for_images_of_any_size(inputs):
    assert kernels.ptx("cluster", INPUTS=inputs, CLASSES=3, BATCH=64)


@needs_compiler
def test_pixels_meet_the_tensor_cores_as_bytes_and_other_numbers_as_tf32():
    code = kernels.ptx("cluster")
    assert "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" in code
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in code


@pytest.mark.parametrize("networks", [(), (3,)])
def test_the_mean_of_a_short_last_batch_is_that_of_its_examples(networks):
    rows = np.ones((*networks, 4, 8))
    rows[..., -1, 3:] = 100
    assert_array_equal(mean_losses(rows, 3), np.ones((*networks, 4)))


# With one


@pytest.fixture(scope="module")
def mnist():
    return data.load(scaled=False).train


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_together_they_do_what_each_does_alone_to_the_last_bit(kind, mnist):
    rates, n = (0.1, 0.01, 0.001), 1000  # settings may differ, too
    together, alone = ([Network(NAME, seed=seed) for seed in range(3)] for _ in range(2))
    engine = together[0].engine
    X, y = map(engine.asarray, mnist)
    orders = engine.asarray(np.stack([epoch_order(len(mnist.y), seed, 0)[:n] for seed in range(3)]))
    optimizers = [kind(network, rate, weight_decay=rate) for network, rate in zip(together, rates, strict=True)]
    losses = engine.train_together(together, optimizers, X, y, orders, 128)
    assert losses.shape == (3, 8)
    for i, network in enumerate(alone):
        takes = kind(network, rates[i], weight_decay=rates[i])
        own = engine.train_epoch(network, takes, X, y, orders[i], 128)
        assert_array_equal(engine.to_numpy(own), engine.to_numpy(losses[i]))
        assert_array_equal(engine.to_numpy(network.theta), engine.to_numpy(together[i].theta))
        assert takes.steps == optimizers[i].steps == 8


@pytest.mark.gpu
def test_more_networks_than_the_gpu_holds_wait_for_their_turn(mnist):
    engine = Network(NAME).engine
    X, y = map(engine.asarray, mnist)
    networks = [Network(NAME, seed=1) for _ in range(40)]
    orders = engine.asarray(np.stack([np.arange(500)] * 40))
    losses = engine.train_together(networks, [SGD(network, 0.1) for network in networks], X, y, orders, 64)
    assert_array_equal(*np.broadcast_arrays(engine.to_numpy(losses), engine.to_numpy(losses[:1])))


@pytest.mark.gpu
def test_what_can_not_be_trained_together_is_refused_in_one_sentence(mnist):
    one, other, small = Network(NAME), Network(NAME, seed=1), Network(NAME, (784, 8, 8, 8, 10))
    engine = one.engine
    X, y = map(engine.asarray, mnist)
    orders = engine.asarray(np.stack([np.arange(100)] * 2))
    for networks, kinds, words in (
        ((one, small), (SGD, SGD), "one size"),
        ((one, other), (SGD, Adam), "all with Adam"),
        ((one, one), (SGD, SGD), "each network once"),
        ((one, other), (SGD, Momentum), "not Momentum"),
    ):
        optimizers = [kind(network, 0.1) for network, kind in zip(networks, kinds, strict=True)]
        with pytest.raises(ValueError, match=words) as caught:
            engine.train_together(networks, optimizers, X, y, orders, 64)
        one_sentence(caught.value, NAME)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "dtype", "batch_size", "words"),
    [
        (SIZES, np.float64, 32, ("float32", "float64")),
        (SIZES, np.float32, 129, ("at most 128", "129")),
        ((3000, 8, 8, 8, 10), np.float32, 128, ("shared memory",)),
    ],
)
def test_what_the_kernel_can_not_hold_is_refused_in_one_sentence(sizes, dtype, batch_size, words):
    network = Network(NAME, sizes, dtype=dtype)
    X = np.zeros((40, sizes[0]), np.uint8)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        fit(network, AdamW(network, 0.1), (X, np.zeros(40, np.int64)), epochs=1, batch_size=batch_size)
    one_sentence(caught.value, NAME, *words)

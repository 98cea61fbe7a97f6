"""A training and a compiled prediction give a GPU's memory back: a sweep trains hundreds of networks in a process."""

import gc

import numpy as np
import pytest

from mlpkit import engines
from mlpkit.data.dataset import Dataset, Split
from mlpkit.executors import trainer_of
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP, RESIDUAL
from mlpkit.nn.network import Network
from mlpkit.optim import SGD
from mlpkit.training.recipe import Recipe

pytestmark = pytest.mark.gpu
TIMES, PAGE = 40, 2 << 20  # CUDA hands memory out in pages of 2 MiB


def free():
    """Return the bytes that are free when nobody but CUDA keeps any."""
    import cupy as cp

    gc.collect()
    cp.cuda.runtime.deviceSynchronize()
    cp.get_default_memory_pool().free_all_blocks()
    cp.get_default_pinned_memory_pool().free_all_blocks()
    return cp.cuda.runtime.memGetInfo()[0]


def lost(work):
    """Return how many bytes fewer are free after `TIMES` more calls, when two have made what lasts."""
    work(), work()
    before = free()
    for _ in range(TIMES):
        work()
    return before - free()


@pytest.mark.parametrize("model", [MLP, LENET5, FASHION_CNN], ids=["perceptron", "lenet5", "garments"])
@pytest.mark.parametrize("name", [name for name in engines.names() if engines.on_gpu(name)])
def test_forty_trainings_lose_no_memory(name, model):
    """Each has a last batch that is short: two graphs, and two plans."""
    shape = model.input if model is not MLP else (1, 28, 28)
    rng = np.random.default_rng(0)
    split = Split(rng.integers(256, size=(300, *shape)).astype(np.uint8), rng.integers(10, size=300))
    dataset, recipe = Dataset("noise", split, split, None, ()), Recipe(model=model, lr=1e-3, optimizer="adam", epochs=1)
    try:
        recipe.train(dataset, name)
    except (engines.EngineUnavailable, ValueError) as refusal:
        pytest.skip(str(refusal))
    assert lost(lambda: recipe.train(dataset, name)) <= PAGE


@pytest.mark.parametrize("name", ["cuda_conv_graph", "cuda_conv_graph_bf16", "cuda_graph"])
def test_forty_compiled_predictions_lose_no_memory(name):
    network = Network(model=MLP if name == "cuda_graph" else FASHION_CNN, engine=name)
    X = np.zeros((64, 1, 28, 28), np.uint8)
    assert lost(lambda: network.compiled(64)(X)) <= PAGE


@pytest.mark.parametrize("model", [LENET5, FASHION_CNN, RESIDUAL], ids=["lenet5", "garments", "residual"])
@pytest.mark.parametrize("name", ["cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16", "cupy_conv"])
def test_a_gpu_of_two_gib_is_large_enough(name, model):
    """With all images, and what CUDA itself takes: that is up to half a GiB."""
    import cupy as cp

    before, n = free(), 60_000
    network = Network(model=model, engine=name)
    X, y = (network.engine.asarray(np.zeros(shape, dtype)) for shape, dtype in (((n, 1, 28, 28), "u1"), (n, "i8")))
    trainer = trainer_of(network, SGD(network, 0.01), X, y, 128)
    trainer.epoch(np.arange(300))
    assert before - cp.cuda.runtime.memGetInfo()[0] < 3 << 29
    trainer.close()

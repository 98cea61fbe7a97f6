"""A training and a compiled prediction give a GPU's memory back: a sweep trains hundreds of networks in a process."""

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mlpkit import engines
from mlpkit.data.dataset import Dataset, Split
from mlpkit.executors import trainer_of
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP, RESIDUAL
from mlpkit.nn.network import Network
from mlpkit.optim import SGD
from mlpkit.training.recipe import Recipe

ALONE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) < 2
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ALONE, reason="other tests take memory of the GPU meanwhile: `make test-gpu` runs this one"),
]
TIMES, PAGE = 40, 2 << 20  # CUDA hands memory out in pages of 2 MiB
MODELS = {"perceptron": MLP, "lenet5": LENET5, "garments": FASHION_CNN}
ON_GPU = [name for name in engines.names() if engines.on_gpu(name)]
# A process that trains each model for three steps of 128, of all the images, and evaluates it. After each model it says
# why it could not, or null, and goes on when it is told to: until then all is still there.
TRAINS = """
import json, sys
import cupy as cp
import numpy as np
from mlpkit import engines
from mlpkit.executors import trainer_of
from mlpkit.nn import models
from mlpkit.nn.network import Network
from mlpkit.optim import SGD

cp.get_default_memory_pool().set_limit(size=1 << 30)
for model in (models.MLP, models.LENET5, models.FASHION_CNN):
    trainer = refusal = None
    try:
        network = Network(model=model, engine=sys.argv[1])
        asarray, shape = network.engine.asarray, model.input if len(model.input) > 1 else (1, 28, 28)
        X, y = asarray(np.zeros((60_000, *shape), "u1")), asarray(np.zeros(60_000, "i8"))
        trainer = trainer_of(network, SGD(network, 0.01), X, y, 128)
        losses = network.engine.to_numpy(trainer.epoch(np.arange(300)))
        assert np.isfinite(losses).all() and len(losses) == 3
        network.evaluate(X[:10_000], y[:10_000])
    except (engines.EngineUnavailable, ValueError) as error:
        refusal = str(error)
    print(json.dumps(refusal), flush=True)
    sys.stdin.readline()
    if trainer:
        trainer.close()
"""


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


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", ON_GPU)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_GPU)
def test_no_engine_takes_more_than_two_gib(name):
    """In a process of its own: with its pool, its arenas, its kernels and graphs, and all that CUDA takes for it."""
    before, taken, refused = free(), {}, {}
    command = [sys.executable, "-c", TRAINS, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for each in MODELS:
            if not (said := process.stdout.readline()):
                break  # it ended, with a traceback
            taken[each], refused[each] = before - free(), json.loads(said)
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    if all(refused.values()):
        pytest.skip(refused["garments"])
    print({each: f"{size / 2**20:,.0f} MiB" for each, size in taken.items() if not refused[each]})
    assert 0 < max(taken.values()) < 2 << 30

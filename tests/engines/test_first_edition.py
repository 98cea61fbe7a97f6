"""The numbers are the first edition's: first weights and order exactly, a hundred steps of every engine without a GPU.

And the second edition's, of every such engine that convolves.

Losses and parameters are the same bit for bit where the machine and its libraries are; elsewhere a product is summed in
another order, and the losses agree within a tolerance.
"""

import hashlib
import json
from functools import cache
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import sweep
from threadpoolctl import threadpool_limits

from mlpkit import data, engines, executors, machine
from mlpkit.engines.loops.compiler import Threads
from mlpkit.executors import trainer_of
from mlpkit.nn.models import LENET5, MLP
from mlpkit.nn.network import Network
from mlpkit.optim import SGD
from mlpkit.training.recipe import Recipe

FIRST, SECOND = (
    json.loads((Path(__file__).parents[1] / f"{edition}_edition.json").read_text("utf-8"))
    for edition in ("first", "second")
)
STEPS = 100
ALIKE = 60  # steps, elsewhere: later, at a rate of 0.2, a rounding's difference has grown a thousandfold
SLOW = {"python_loops": 20}  # steps of a quarter of a second each
SEEN_ALIKE = 10  # elsewhere, of networks that see: then a rounding may decide which pixel is its window's largest


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def train():
    return data.load().train


@pytest.fixture
def one_thread(monkeypatch):
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    monkeypatch.setattr(Threads, "most", 1)  # by which convolutions share out a sum
    with threadpool_limits(1, "blas"):
        yield
    numba.set_num_threads(threads)


@cache
def machine_here():
    """Return what decides how a product is summed."""
    here = machine.describe()
    blas = [here["blas"][name] for name in ("name", "version", "kernels")]
    llvm = llvmlite.binding.get_host_cpu_name()  # what Numba compiles for, and NumPy's loops choose by
    return {"cpu": here["cpu"], "llvm": llvm, "blas": blas, "numpy": np.__version__, "numba": numba.__version__}


def same_machine(edition):
    """Say whether a product is summed here as it was there."""
    return machine_here() == edition["machine"]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("init", ["he", "xavier"])
def test_the_first_weights_are_those_of_the_first_edition(init, seed):
    assert digest(Network(seed=seed, init=init).theta) == FIRST["theta"][f"{init}-{seed}"]


def test_the_order_is_that_of_the_first_edition():
    assert digest(data.epoch_order(55_000, 0, 0)) == FIRST["order"]


def test_every_engine_without_a_gpu_is_held_to_it():
    ours = {name for name in engines.names(MLP.operations) if not engines.on_gpu(name)}
    assert {run["engine"] for run in FIRST["runs"]} == ours


SWEPT = {*SLOW, "python_lists", "numba_parallel", "numba_fastmath"}  # others stand for them in `make test`
RUNS = [
    pytest.param(run, marks=[pytest.mark.slow] * (run["engine"] in SWEPT), id=f"{run['engine']}-{run['optimizer']}")
    for run in FIRST["runs"]
]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("run", RUNS)
def test_a_hundred_steps_are_those_of_the_first_edition(run, train):
    """From images of bytes, too: the first edition had rows of float32."""
    recipe = Recipe(**{name: run[name] for name in ("optimizer", "batch_size", "lr")})
    network = recipe.make_network(run["engine"])
    optimizer = recipe.make_optimizer(network, len(train.y))
    steps = SLOW.get(run["engine"], STEPS if same_machine(FIRST) else ALIKE)
    index = data.epoch_order(len(train.y), 0, 0)[: steps * recipe.batch_size]
    trainer = trainer_of(network, optimizer, train.X[index], train.y[index], recipe.batch_size)
    losses = trainer.epoch(np.arange(len(index)))
    trainer.close()
    assert_allclose(losses[:ALIKE], run["losses"][: min(steps, ALIKE)], rtol=2e-4)
    if same_machine(FIRST):
        assert_array_equal(losses, run["losses"][:steps])
        assert steps < STEPS or digest(network.theta) == run["theta"]


def test_every_engine_that_convolves_without_a_gpu_is_held_to_the_second():
    ours = {name for name in engines.names(LENET5.operations) if not engines.on_gpu(name)}
    ours = {name for name in ours if trains_lenet(name)}
    assert {run["engine"] for run in SECOND["runs"]} == ours


def trains_lenet(name):
    """Return whether an engine has all operations, and its executor trains such networks."""
    engine = engines.load(name)
    complete = all(hasattr(engine, operation) for operation in LENET5.operations)
    return complete and executors.of(engine).why_not(LENET5, None, 128) is None


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", sweep([run["engine"] for run in SECOND["runs"]], "numpy_im2col", "numba_conv"))
def test_a_hundred_steps_of_lenet_are_those_of_the_second_edition(name, train):
    (run,) = (run for run in SECOND["runs"] if run["engine"] == name)
    network = Recipe(model=LENET5).make_network(name)
    steps, same = (STEPS, True) if same_machine(SECOND) else (SEEN_ALIKE, False)
    trainer = trainer_of(network, SGD(network, 0.1), train.X[: 128 * STEPS], train.y[: 128 * STEPS], 128)
    losses = np.array([*map(float, trainer.epoch(data.epoch_order(128 * STEPS, 0, 0)[: 128 * steps]))])
    trainer.close()
    assert_allclose(losses[:SEEN_ALIKE], SECOND["losses"][:SEEN_ALIKE], rtol=2e-4)
    assert not same or (digest(losses), digest(network.theta)) == (run["losses"], run["theta"])

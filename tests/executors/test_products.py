"""A step's kernels of `cuda_graph` give the baseline's loss and gradients: here by the emulator, with no GPU."""

import sys
from functools import partial
from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import engine_like, one_sentence

from mlpkit import kernels
from mlpkit.executors import plain
from mlpkit.kernels import gpu
from mlpkit.nn.models import mlp
from mlpkit.nn.network import Network

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
ERRORS = {"float32": 2e-6, "float64": 1e-13}


@pytest.fixture
def engine(folder, monkeypatch):
    """The engine and its executor; their kernels run on the CPU, as soon as they are launched."""
    cupy = emulator._replace_cupy(monkeypatch, folder, 0)
    monkeypatch.setattr(kernels, "load", partial(emulator.File, folder, 0))
    usual = engine_like(asarray=cupy.ascontiguousarray)
    monkeypatch.setitem(sys.modules, "mlpkit.engines.cupy_fused", usual)
    monkeypatch.setattr(gpu, "require_capability", lambda least: None)
    found = emulator.own("engines.cuda_graph")
    emulator.own_parts(monkeypatch, "transfers", "graph")
    theirs = SimpleNamespace(**vars(plain), linear_layers=lambda network: network.layers[::2])
    monkeypatch.setitem(sys.modules, "mlpkit.executors.cupy_fused", theirs)
    found.executor = emulator.own("executors.cuda_graph")
    found.overlapping = found.executor.overlapping = lambda kernel: kernel
    return found


@needs_compiler
@pytest.mark.parametrize(("n", "sizes", "dtype"), [
    (7, (6, 3), "float32"), (50, (6, 33, 129, 3), "float32"), (70, (20, 40, 36), "float32"),
    (64, (6, 5, 4, 5, 4, 3), "float64"), (300, (6, 700, 40), "float64"),
])  # fmt: skip
def test_a_step_gives_the_baselines_loss_and_gradients(n, sizes, dtype, engine):
    rng = np.random.default_rng(0)
    network = Network(engine, mlp(*sizes), dtype=np.dtype(dtype))
    network.theta[:] += rng.normal(0, 0.01, network.theta.shape).astype(dtype)
    x, labels = rng.normal(size=(n, sizes[0])).astype(dtype), rng.integers(0, sizes[-1], n)
    exact = Network("numpy_baseline", mlp(*sizes), dtype=np.float64)
    exact.set_theta(network.theta.astype(np.float64))
    wanted = exact.loss_and_grad(x.astype(np.float64), labels)
    losses, step = np.full(3, np.nan, dtype).view(emulator.Array), np.ones(1, np.int32).view(emulator.Array)
    network.grad[:] = np.nan
    engine.executor.Gradient(network, n)(x.view(emulator.Array), labels.view(emulator.Array), losses, step)
    assert_array_equal(step, 2)
    assert_array_equal(np.isnan(losses), [True, False, True])
    assert_allclose(losses[1], wanted, rtol=ERRORS[dtype])
    assert_allclose(network.grad, exact.grad, rtol=0, atol=ERRORS[dtype])


@needs_compiler
def test_an_update_at_a_rate_on_the_gpu_changes_every_parameter(engine):
    rng = np.random.default_rng(0)
    theta, grad = (rng.normal(size=1025).astype(np.float32).view(emulator.Array) for _ in range(2))
    wanted = theta.astype(np.float64) - 0.5 * grad
    engine.sgd_update(theta, grad, np.full(1, 0.5, np.float32).view(emulator.Array))
    assert_allclose(theta, wanted, rtol=0, atol=1e-6)


def test_more_classes_than_a_block_holds_are_refused_in_one_sentence(engine):
    why_not = engine.executor.why_not
    optimizer = SimpleNamespace(network=SimpleNamespace(dtype=np.dtype("float32")))
    assert why_not(mlp(784, 128, 1536), optimizer, 128) is None
    one_sentence(why_not(mlp(784, 128, 1537), optimizer, 128), "cuda_graph", "1536 classes", "1537")

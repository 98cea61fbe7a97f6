"""The memory of a training step as it is planned on a GPU: counted with no GPU, from what a step asks for."""

import sys
from itertools import chain
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from shared import engine_like

pytest.importorskip("cupy")

import cupy as cp
from test_conv_graph import ODD

from experiments import gpu_image_memory as memory
from experiments.gpu_image_memory.read import run_of
from experiments.lab import results
from mlpkit.engines import numpy_baseline
from mlpkit.executors.cuda import arena, conv_blocks, norm_blocks
from mlpkit.kernels import gpu, tensor_map
from mlpkit.kernels.cnn import between, dense, first_bf16, norm
from mlpkit.kernels.conv import blocked
from mlpkit.nn.models import MODELS
from mlpkit.nn.network import Network

H200 = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232_448}


class Silent:
    """A kernel that is asked for, and does nothing."""

    @property
    def kernel(self):
        return self

    def __call__(self, *launch, **options):
        pass


class Pool:
    """Hands out addresses that nobody reads."""

    next = 1 << 30

    def malloc(self, size):
        address, self.next = self.next, self.next + -(-size // 512) * 512
        return cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(address, size, None, 0), 0)

    def free_all_blocks(self):
        pass


@pytest.fixture
def plan(monkeypatch):
    """Return the module `engines.cuda.plan`, with an H200 that computes nothing."""
    if gpu.why_not():
        monkeypatch.setitem(sys.modules, "mlpkit.engines.cupy_fused", SimpleNamespace(cross_entropy=None))
    from mlpkit.executors.cuda import plan

    device = lambda *_: SimpleNamespace(id=0, attributes=H200, compute_capability="90")  # noqa: E731
    monkeypatch.setattr(cp.cuda, "Device", device)
    monkeypatch.setattr(cp.cuda, "MemoryPool", Pool)
    monkeypatch.setattr(cp.cuda, "Memory", lambda size: cp.cuda.UnownedMemory(1 << 20, size, None, 0))
    monkeypatch.setattr(cp.cuda, "get_current_stream", MagicMock())
    monkeypatch.setattr(cp, "zeros", cp.empty)
    monkeypatch.setattr(blocked, "new_scale", lambda: cp.empty(8, np.float32))
    monkeypatch.setattr(tensor_map, "tiled", lambda *_: None)
    for module in (between, dense, first_bf16, norm, blocked):
        monkeypatch.setattr(module, "_kernel", lambda *_, **macros: Silent())
    for name in ("multiprocessors", "_launches", "_weights"):  # what they remember is of another GPU
        monkeypatch.setattr(blocked, name, getattr(blocked, name).__wrapped__)
    with cp.cuda.using_allocator(Pool().malloc):
        yield plan


def shapes_only():
    """Return an engine that makes arrays of the baseline's shapes on the GPU that computes nothing."""

    def there(function):
        def operation(*arguments):
            return on_device(function(*on_host(arguments)))

        return operation

    def on_host(value):
        if isinstance(value, tuple | list):
            return type(value)(map(on_host, value))
        return np.ones(value.shape, value.dtype) if isinstance(value, cp.ndarray) else value

    def on_device(value):
        if isinstance(value, tuple | list):
            return type(value)(map(on_device, value))
        return cp.empty(value.shape, value.dtype) if isinstance(value, np.ndarray | np.generic) else value

    names = {name for model in ODD.values() for name in model.operations}
    return engine_like(**{name: there(getattr(numpy_baseline, name)) for name in names})


def step_of(plan, model, n, precision="float32", engine=numpy_baseline, update=None):
    """Return a function that asks for a gradient as `PlannedTrainer` does, and returns whether it updates, too."""
    network = Network(engine, model)
    bound = [*network.layers]
    for at in bound:
        bound += chain.from_iterable(at.branches)
        for key, value in vars(at).items():
            if isinstance(value, np.ndarray):
                setattr(at, key, cp.empty(value.shape, value.dtype))
    gradient = plan.Gradient(network, n, precision, (norm_blocks.match, conv_blocks.match))
    x, labels = cp.empty((n, *model.input), np.float32), cp.empty(n, np.int64)
    losses, number = cp.empty(1, np.float32), cp.empty(1, np.int32)
    return lambda: gradient(x, labels, losses, number, update=update)


def test_a_wide_layer_whose_weights_begin_between_two_pieces_has_the_other_kernels(plan):
    for address, wide in ((1 << 20, True), ((1 << 20) + 8, False)):
        weights = [SimpleNamespace(shape=(1024, 64), data=SimpleNamespace(ptr=address))]
        layers = [SimpleNamespace(W=W) for W in weights]
        assert plan.dense.Head(layers, 64, blocked.MODES["bf16"]).sizes.wide == wide


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_arrays_live_as_long_in_each_step_as_in_the_one_that_was_watched(name, precision, plan):
    step = step_of(plan, MODELS[name], 32, precision)
    arrays = arena.Arena(plan.watched(step))
    for _ in range(20):  # Python replaces its own instructions by faster ones after some steps
        with arrays.step():
            step()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize(("name", "updates"), [("fashion_cnn", True), ("residual", False), ("mlp", False)])
def test_an_update_within_the_way_back_needs_no_memory(name, updates, precision, plan):
    update = plan.updates.Update(*(cp.empty(MODELS[name].layout.size, np.float32) for _ in range(2)), cp.empty(1, "f4"))
    step = step_of(plan, MODELS[name], 32, precision, update=update)
    assert step() == updates
    assert plan.watched(step) == plan.watched(step_of(plan, MODELS[name], 32, precision))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["branches", "branches first", "sizes"])
def test_layers_of_branches_and_of_other_sizes_leave_nothing_behind(name, precision, plan, monkeypatch):
    monkeypatch.setattr(plan.dense, "match", lambda *_: None)  # it asks cuBLAS, which is only where a GPU is
    monkeypatch.setattr(blocked, "convolve", lambda *_, **options: None)  # it would fill what it writes with zeros
    step = step_of(plan, ODD[name], 8, precision, shapes_only())
    arrays = arena.Arena(plan.watched(step))
    for _ in range(20):
        with arrays.step():
            step()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize(("name", "n"), [("fashion_cnn", 128), ("fashion_cnn", 32), ("lenet5", 32), ("residual", 32)])
def test_the_record_has_the_plan_of_this_code(name, n, precision, plan):
    engine = "cuda_conv_graph" if precision == "float32" else f"cuda_conv_graph_{precision}"
    found = plan.watched(step_of(plan, MODELS[name], n, precision))
    recorded = memory.intervals(results.published("gpu_image_memory"), engine, name, n)
    assert [(each.size, each.start, each.end, each.offset) for each in found.intervals] == recorded


@pytest.mark.parametrize(("name", "share"), [("lenet5", 0.55), ("fashion_cnn", 0.5), ("residual", 0.5)])
def test_a_step_takes_some_half_of_what_pytorch_takes(name, share, plan):
    """Two batches take turns: of LeNet-5, which is small, the second one is a twelfth of all."""
    record = results.published("gpu_image_memory")
    lasting = run_of(record, "cuda_conv_graph", name, 32)["lasting"]
    planned = plan.watched(step_of(plan, MODELS[name], 32)).bytes
    assert (planned + lasting) / 2**20 < share * memory.mib(record, "pytorch_cuda", name, 32)

"""A kernel that begins before the one before it has ended: what the driver is told, and on a GPU that it waits."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from shared import needs_hopper

from mlpkit import kernels
from mlpkit.kernels import overlap
from mlpkit.kernels.driver import cuda


def told(monkeypatch, status=cuda.CUresult.CUDA_SUCCESS):
    """Let a function take down what the driver would be told; return the list that it fills."""
    seen = []

    def cuLaunchKernelEx(config, function, address, extra):
        places = (ctypes.c_void_p * 2).from_address(address)
        numbers = ctypes.c_uint64.from_address(places[0]).value, ctypes.c_int32.from_address(places[1]).value
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        sizes = grid, block, config.sharedMemBytes, int(config.hStream)
        seen.append((int(function), sizes, [each.id for each in config.attrs], numbers, extra))
        return (status,)

    monkeypatch.setattr(overlap, "cuda", SimpleNamespace(**vars(cuda) | {"cuLaunchKernelEx": cuLaunchKernelEx}))
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return seen


SERIALIZATION, COOPERATIVE = overlap.SERIALIZATION[0], overlap.COOPERATIVE[0]


def test_what_the_driver_is_told(monkeypatch):
    seen = told(monkeypatch)
    kernel = overlap.Overlapping(SimpleNamespace(kernel=SimpleNamespace(ptr=99)))
    kernel((5,), (128,), (SimpleNamespace(data=SimpleNamespace(ptr=1 << 40)), np.int32(3)), shared_mem=64)
    assert seen == [(99, ((5, 1, 1), (128, 1, 1), 64, 7), [SERIALIZATION], (1 << 40, 3), 0)]
    assert kernel.attributes[0].value.programmaticStreamSerializationAllowed == 1


def test_blocks_that_wait_for_each_other_run_at_once(monkeypatch):
    seen = told(monkeypatch)
    kernel = overlap.Overlapping(SimpleNamespace(kernel=SimpleNamespace(ptr=99)), together=True)
    kernel((5,), (128,), (np.uint64(1), np.int32(3)))
    assert seen[0][2] == [SERIALIZATION, COOPERATIVE]
    assert kernel.attributes[1].value.cooperative == 1


def test_a_refusal_is_an_error(monkeypatch):
    told(monkeypatch, status=cuda.CUresult.CUDA_ERROR_INVALID_VALUE)
    kernel = overlap.Overlapping(SimpleNamespace(kernel=SimpleNamespace(ptr=99)))
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        kernel((1,), (1,), (np.uint64(1), np.int32(3)))


IN_TURN = (
    "conv_11_blocked", "conv_12_blocked_weights", "conv_13_portable", "conv_14_portable_weights", "blocked_operands",
    "between_forward", "between_backward", "first_forward", "first_weights", "dense", "dense_wgmma", "updates",
    "norm_forward", "norm_backward", "norm_add",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_TURN)
def test_a_kernel_that_may_begin_early_waits_for_those_before_it(name):
    text = kernels.place(name).read_text(encoding="utf-8")
    found = text.split('extern "C" __global__')[1:]
    assert found
    for kernel in found:
        body = kernel[: kernel.index("\n}\n")]
        assert "begin_in_turn();" in body or "ask_for(share" in body, body.splitlines()[0]


def test_so_does_who_asks_for_units_of_batch_normalization():
    text = (kernels.FOLDER / "cnn/norm.cuh").read_text(encoding="utf-8")
    hopper, others = text.split("inline void ask_for(")[1].split("\n}\n")[0].split("#else")
    for text, late in ((hopper, "late.ask(share, i"), (others, "there.ask(share)")):
        assert text.index("begin_in_turn();") < text.index(late)


def test_only_what_is_recorded_behind_kernels_begins_early(monkeypatch):
    launched, types = [], []
    kernel = overlap.InTurn(lambda grid, *_, **options: launched.append((grid, options)))
    monkeypatch.setattr(overlap, "Overlapping", lambda *_: lambda grid, *_: launched.append((grid, "early")))
    monkeypatch.setattr(overlap, "is_possible", lambda: True)
    monkeypatch.setattr(overlap, "call", lambda function, *of: types if of == ("asked",) else [0, 0, 0, ["asked"]])
    stream = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=stream))
    kernel((1,), (32,), (), shared_mem=5)
    for each in ("KERNEL", "MEMCPY"):
        types[:] = [getattr(cuda.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{each}")]
        with overlap.recording():
            kernel((2,), (32,), (), enable_cooperative_groups=True)
    kernel((3,), (32,), ())
    usual = {"shared_mem": 0}
    assert launched == [
        ((1,), {"shared_mem": 5}), ((2,), "early"), ((2,), usual | {"enable_cooperative_groups": True}), ((3,), usual)
    ]  # fmt: skip


def test_a_driver_that_does_not_know_the_question_lets_kernels_follow_each_other(monkeypatch):
    def call(function, *of):
        raise RuntimeError('Function "cuStreamGetCaptureInfo_v3" not found')

    monkeypatch.setattr(overlap, "call", call)
    stream = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=stream))
    assert not overlap._behind_kernels()


CHAIN = (
    kernels.source("predictions").split("extern __shared__")[0]
    + r"""
extern "C" __global__ void step(const float* x, float* y, int n) {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[n - 1 - i] + 1;
}
"""
)


@needs_hopper
@pytest.mark.gpu
def test_each_waits_for_the_one_before_it_in_a_graph_too():
    import cupy as cp

    step = overlap.Overlapping(cp.RawModule(code=CHAIN, options=kernels.OPTIONS).get_function("step"))
    n, times = 1 << 20, 40
    arrays = [cp.zeros(n, np.float32), cp.zeros(n, np.float32)]

    def chain():
        for i in range(times):
            step((2000,), (256,), (arrays[i % 2], arrays[1 - i % 2], np.int32(n)))

    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        chain()
        graph = stream.end_capture()
    for launch in (chain, graph.launch):
        arrays[0].fill(0)
        launch()
        assert (arrays[0] == times).all()

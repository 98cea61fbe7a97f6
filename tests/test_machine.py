"""The doctor knows this machine, and what to do about a GPU that can't be used."""

import builtins
import json
import sys
import threading
import time
import types

import numpy as np
import pytest
from shared import one_sentence

from mlpkit import engines, machine


def test_a_description_is_json_and_has_what_a_record_needs():
    facts = machine.describe()
    assert json.loads(json.dumps(facts)) == facts
    wanted = {"name", "cpu", "cores", "memory_gib", "system", "python", "libraries", "blas", "gpu"}
    assert wanted <= facts.keys()
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert facts["libraries"]["numpy"] == machine.np.__version__
    assert facts["blas"].keys() == {"name", "version", "kernels", "threads"}


@pytest.mark.skipif(sys.platform == "darwin", reason="threadpoolctl does not see Apple's Accelerate")
def test_the_blas_is_known():
    """Not knowing it would make every CPU number in the workbook worthless."""
    found = machine.blas()
    assert found["name"] in ("openblas", "mkl", "accelerate", "blis", "flexiblas")
    assert found["threads"] >= 1


def test_the_name_is_fit_for_a_folder(monkeypatch):
    assert machine.name()
    assert not set(machine.name()) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
    monkeypatch.setattr(machine, "gpu", lambda: {"found": True, "name": "NVIDIA H200 (SXM)"})
    assert machine.name() == "nvidia-h200-sxm"


def test_a_library_that_is_not_installed_has_no_version():
    assert machine.version("no-such-library") is None


def test_the_doctor_names_every_engine_and_library(monkeypatch):
    monkeypatch.setattr(engines, "available", lambda: {"numpy_baseline": None, "cupy_fused": "it needs a GPU"})
    text = machine.doctor()
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["numpy_baseline", "ready"],
        ["cupy_fused", "it", "needs", "a", "GPU"],
    ]
    for word in (*machine.LIBRARIES, machine.cpu_model(), "GPU", "BLAS", "cores"):
        assert word in text


def test_the_doctor_lists_the_engines_there_are():
    text = machine.doctor()
    for name in engines.NAMES:
        assert f"\n{name}" in text


@pytest.mark.parametrize(("load", "warned"), [(0.0, False), (1e6, True)])
def test_a_busy_machine_is_said_to_be_busy(load, warned, monkeypatch):
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, load, load), raising=False)
    assert bool(machine.busy()) == warned


# A GPU, and what can stand between it and CuPy


class CUDARuntimeError(RuntimeError):
    pass


PROPERTIES = {
    "name": b"NVIDIA H200",
    "totalGlobalMem": 140 * 2**30,
    "multiProcessorCount": 132,
    "major": 9,
    "minor": 0,
}


def cupy_with(**functions):
    """Return a CuPy whose runtime has the given functions."""
    usual = dict(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda device: PROPERTIES,
        driverGetVersion=lambda: 12040,
        runtimeGetVersion=lambda: 12090,
    )
    runtime = types.SimpleNamespace(**usual | functions)
    return types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))


def fails(message):
    def function(*arguments):
        raise CUDARuntimeError(message)

    return function


def test_a_gpu_is_described(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy_with())
    assert machine.gpu() == {
        "found": True,
        "name": "NVIDIA H200",
        "memory_gib": 140.0,
        "multiprocessors": 132,
        "compute_capability": "9.0",
        "driver": "12.4",
        "runtime": "12.9",
    }
    assert "NVIDIA H200, 140.0 GiB, driver for CUDA 12.4" in machine.doctor()
    json.dumps(machine.gpu())


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
            "install driver 525 or newer",
        ),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES"),
        ("cudaErrorSystemNotReady: system not yet initialized", "system not yet initialized"),
    ],
)
def test_a_gpu_that_cannot_be_used_comes_with_advice(message, advice, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(getDeviceCount=fails(message)))
    check_advice(advice)


def test_without_cupy_the_advice_is_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # makes `import cupy` raise ImportError
    check_advice("pip install cupy-cuda12x")


def test_a_cupy_that_cannot_be_loaded_says_why(monkeypatch):
    real = builtins.__import__

    def broken(name, *arguments):
        if name == "cupy":
            raise OSError("libcuda.so.1: cannot open shared object file")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert "libcuda.so.1" in machine.gpu()["why_not"]


def check_advice(advice):
    found = machine.gpu()
    assert found["found"] is False
    one_sentence(found["why_not"], advice)
    assert advice in machine.doctor()
    json.dumps(machine.describe())


def test_settling_calls_for_as_long_as_it_is_told():
    calls = []
    start = time.perf_counter()
    machine.settle(lambda: calls.append(time.perf_counter()), 0.05)
    assert calls[-1] - calls[0] > 0.04
    assert time.perf_counter() - start < 2
    calls.clear()
    machine.settle(lambda: calls.append(0), 0.0)
    assert calls == [0]


def test_rest_waits_for_a_thread_that_spins_and_not_for_long():
    def spin(seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            np.ones(100_000).sum()  # without the interpreter's lock most of the time

    spinning = threading.Thread(target=spin, args=(0.4,))
    spinning.start()
    machine.rest(longest=10.0, look_every=0.1)
    assert not spinning.is_alive()
    spinning = threading.Thread(target=spin, args=(0.5,))
    spinning.start()
    start = time.perf_counter()
    machine.rest(longest=0.05, look_every=0.02)
    assert time.perf_counter() - start < 0.4
    spinning.join()

"""What can stand between CuPy and a GPU is said in one sentence, and the engines that need one say it too."""

import builtins
import errno
import importlib.metadata
import importlib.util
import io
import json
import os
import subprocess
import sys
import types

import pytest
from shared import one_sentence

from experiments.lab import results
from mlpkit import __main__ as cli
from mlpkit import engines, machine
from mlpkit.kernels import gpu
from mlpkit.training.recipe import Recipe


class CUDARuntimeError(RuntimeError):
    pass


class CuPyOutOfMemory(MemoryError):
    """As CuPy's own: a MemoryError from one of its modules."""


class CUBLASError(RuntimeError):
    pass


for error in (CUDARuntimeError, CuPyOutOfMemory, CUBLASError):
    error.__module__ = "cupy.some.place"

PROPERTIES = {
    "name": b"NVIDIA H200",
    "totalGlobalMem": 140 * 2**30,
    "multiProcessorCount": 132,
    "l2CacheSize": 60 * 2**20,
    "ECCEnabled": 1,
    "major": 9,
    "minor": 0,
}
FOUND = {"NVRTC": "12.9", "cuBLAS": "found", "headers": "/usr/include"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Let nothing that one test found out reach another, and pretend to be on Linux with CUDA's libraries."""
    forget()
    monkeypatch.setattr(gpu, "sys", types.SimpleNamespace(platform="linux", prefix=sys.prefix))
    monkeypatch.setattr(gpu, "libraries", lambda: FOUND)
    monkeypatch.setattr(
        engines, "names", lambda: ("numpy_baseline",)
    )  # the GPU's own would be loaded with a false CuPy
    monkeypatch.setattr(gpu, "_query", lambda fields, bus_id: None)
    yield
    monkeypatch.undo()
    forget()


def forget():
    for function in (gpu.why_not, gpu.why_no_cupy, gpu.libraries, gpu._query):
        function.cache_clear()


def cupy_with(monkeypatch, **functions):
    """Make `import cupy` give a CuPy whose runtime has the given functions, beside those of a good one."""
    usual = dict(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda device: PROPERTIES,
        deviceGetPCIBusId=lambda device: "0000:1B:00.0",
        memGetInfo=lambda: (139 * 2**30, 140 * 2**30),
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 12090,
    )
    device = types.SimpleNamespace(compute_capability="90", attributes={"MaxSharedMemoryPerBlockOptin": 232_448})
    cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(**usual | functions), Device=lambda: device)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return cuda


def fails(error):
    def function(*arguments, **options):
        raise error

    return function


def cuda_error(message):
    return fails(CUDARuntimeError(message))


def unwrapped(text):
    """Return a text without the line breaks and indents that make it fit a page."""
    return " ".join(text.split())


def check_refused(*words):
    one_sentence(gpu.why_not(), *words)
    assert gpu.describe() == {"found": False, "why_not": gpu.why_not()}
    assert gpu.why_not() in unwrapped(machine.doctor())
    with pytest.raises(ImportError) as caught:
        gpu.require()
    assert str(caught.value) == gpu.why_not()


# A GPU that can be used


def test_a_gpu_is_described(monkeypatch):
    cupy_with(monkeypatch)
    monkeypatch.setattr(gpu, "_query", lambda fields, bus_id: ["580.159.04", "1980", "3201", "[N/A]"])
    assert gpu.why_not() is None
    assert gpu.require() is None
    assert gpu.describe() == {
        "found": True,
        "name": "NVIDIA H200",
        "memory_gib": 140.0,
        "free_gib": 139.0,
        "multiprocessors": 132,
        "compute_capability": "9.0",
        "l2_bytes": 60 * 2**20,
        "ecc": True,
        "driver": "13.0",
        "runtime": "12.9",
        "driver_version": "580.159.04",
        "max_sm_mhz": 1980.0,
        "max_memory_mhz": 3201.0,
        "power_limit_w": None,
    }
    json.dumps(machine.describe())
    assert machine.name() == "nvidia-h200"
    text = unwrapped(machine.doctor())
    assert "NVIDIA H200, 140.0 GiB (139.0 free), 132 multiprocessors, compute capability 9.0" in text
    assert "580.159.04, for CUDA up to 13.0; CuPy is built for CUDA 12.9" in text
    assert "convolutions by wgmma" in text


def test_a_gpu_is_described_without_nvidia_smi(monkeypatch):
    cupy_with(monkeypatch)
    found = gpu.describe()
    assert found["found"]
    assert found["max_sm_mhz"] is found["max_memory_mhz"] is found["power_limit_w"] is None
    machine.doctor()


def test_what_is_found_out_is_found_out_once(monkeypatch):
    asked = []
    cupy_with(monkeypatch, getDeviceCount=lambda: asked.append(1) or 1)
    assert [gpu.why_not() for _ in range(3)] == [None] * 3
    assert len(asked) == 1


def test_a_caption_names_the_gpu_and_the_day(monkeypatch):
    cupy_with(monkeypatch)
    record = results.new("engines") | {"date": "2026-11-21T10:00:00+00:00"}
    assert results.caption(record, cpu=False) == "NVIDIA H200, 2026-11-21"
    cpu = f"{machine.cpu_model()}, {machine.cores()} cores, 2026-11-21"
    assert results.caption(record) == f"NVIDIA H200, {cpu}"
    record["machine"]["gpu"] = {"found": False, "why_not": "none"}
    assert results.caption(record, cpu=False) == results.caption(record) == cpu


# What can stand in between


def test_no_driver(monkeypatch):
    error = cuda_error("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")
    cupy_with(monkeypatch, getDeviceCount=error, driverGetVersion=lambda: 0)
    check_refused("there is no NVIDIA driver", "install driver 525 or newer")


@pytest.mark.parametrize(
    ("runtime", "platform", "oldest"), [(12090, "linux", 525), (12090, "win32", 528), (13000, "linux", 580)]
)
def test_a_driver_that_is_too_old(runtime, platform, oldest, monkeypatch):
    error = cuda_error("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")
    versions = dict(driverGetVersion=lambda: 11040, runtimeGetVersion=lambda: runtime)
    cupy_with(monkeypatch, getDeviceCount=error, **versions)
    monkeypatch.setattr(gpu, "sys", types.SimpleNamespace(platform=platform))
    check_refused("too old, for CUDA 11.4", f"CuPy needs CUDA {runtime // 1000}", f"install driver {oldest} or newer")
    assert "Kepler GPU has none after 470" in gpu.why_not()


def test_a_driver_for_a_cuda_of_the_future(monkeypatch):
    versions = dict(driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 15010)
    cupy_with(monkeypatch, getDeviceCount=cuda_error("cudaErrorInsufficientDriver: no"), **versions)
    check_refused("for CUDA 13.0", "install a driver for CUDA 15")


@pytest.mark.parametrize("count", [cuda_error("cudaErrorNoDevice: no CUDA-capable device is detected"), lambda: 0])
def test_no_visible_gpu(count, monkeypatch):
    cupy_with(monkeypatch, getDeviceCount=count)
    check_refused("no NVIDIA GPU is visible", "CUDA_VISIBLE_DEVICES")


def test_an_error_that_only_cuda_can_explain(monkeypatch):
    cupy_with(monkeypatch, getDeviceCount=cuda_error("cudaErrorSystemNotReady: system not yet initialized"))
    check_refused("system not yet initialized", "nvidia-smi")


def test_a_driver_that_was_updated_while_it_ran(monkeypatch):
    mismatch = "cudaErrorSystemDriverMismatch: system has unsupported display driver / cuda driver combination"
    cupy_with(monkeypatch, getDeviceCount=cuda_error(mismatch))
    check_refused("restart this machine")


def test_memory_that_others_use(monkeypatch):
    cupy_with(monkeypatch, memGetInfo=cuda_error("cudaErrorMemoryAllocation: out of memory"))
    check_refused("in use by other programs")
    gpu.why_not.cache_clear()
    monkeypatch.setattr(gpu, "_query", lambda fields, bus_id: ["12", "81559"])
    check_refused("12 MiB of 81559 are free", "nvidia-smi")


def test_a_gpu_that_another_program_has_for_itself(monkeypatch):
    cupy_with(monkeypatch, memGetInfo=cuda_error("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy"))
    check_refused("can't be used", "busy", "nvidia-smi")


def test_without_cupy_the_advice_is_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # makes `import cupy` raise ImportError
    monkeypatch.setattr(gpu, "package", lambda: (None, None))
    check_refused("CuPy is not installed", 'pip install "cupy-cuda12x[ctk]"')


# What CuPy 14 says where a library that it was linked to is missing, shortened
PAGE = """
================================================================
Failed to import CuPy.

If you installed CuPy via wheels (cupy-cudaXXX or cupy-rocm-X-X), make sure that the package matches.

Original error:
  ImportError: libstdc++.so.6: cannot open shared object file: No such file or directory
================================================================
"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError(PAGE), "libstdc++.so.6: cannot open"),
        (ModuleNotFoundError("No module named 'cuda'", name="cuda"), "No module named 'cuda'"),
        (OSError("libcuda.so.1: cannot open shared object file"), "libcuda.so.1"),
        (FileNotFoundError(errno.ENOENT, "No such file", f"{sys.prefix}/cupy/_version.py"), "_version.py"),
    ],
)
def test_a_cupy_that_cannot_be_loaded_says_why(error, words, monkeypatch):
    cupy_that(monkeypatch, error)
    check_refused("CuPy can't be loaded", words, "install it again: pip install --force-reinstall")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC])
def test_a_home_that_cannot_be_written_is_not_answered_with_a_new_installation(number, monkeypatch):
    cupy_that(monkeypatch, OSError(number, os.strerror(number), "/home/me/.cupy"))
    check_refused("/home/me/.cupy", os.strerror(number), "CUPY_CACHE_DIR")


def cupy_that(monkeypatch, error):
    """Make `import cupy` raise an error."""
    real = builtins.__import__

    def broken(name, *arguments, **options):
        return fails(error)() if name == "cupy" else real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", broken)


def test_whatever_cupy_raises_becomes_a_sentence(monkeypatch):
    cupy_with(monkeypatch, memGetInfo=fails(KeyError("no such\nthing")))
    check_refused("KeyError")
    cupy_with(monkeypatch, getDeviceCount=fails(SystemError()))
    gpu.why_not.cache_clear()
    check_refused("SystemError")


def test_what_cupy_would_find_is_not_called_missing_where_cupy_is_what_fails(monkeypatch):
    monkeypatch.undo()
    forget()
    cupy_that(monkeypatch, OSError(errno.EROFS, os.strerror(errno.EROFS), "/home/me/.cupy"))
    text = unwrapped(machine.doctor())
    assert "kernels can't be compiled: both take CuPy" in text
    assert "missing" not in text


@pytest.mark.parametrize("error", [ImportError(PAGE), ImportError("numpy.core.multiarray failed to import")])
def test_a_numpy_from_elsewhere_is_blamed_and_not_cupy(error, monkeypatch, tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location("numpy", tmp_path / "numpy" / "__init__.py")
    found = types.SimpleNamespace(find_spec=lambda name: spec if name == "numpy" else None)
    monkeypatch.setattr(gpu, "PathFinder", found)
    cupy_that(monkeypatch, error)
    one_sentence(gpu.why_no_cupy(), f"a NumPy from {tmp_path}", f"take it out of {tmp_path}")
    gpu.why_no_cupy.cache_clear()
    monkeypatch.setenv("PYTHONPATH", f"/nowhere{os.pathsep}{tmp_path}")
    check_refused(f"a NumPy from {tmp_path}", "unset PYTHONPATH")
    assert f"numpy of {tmp_path} stands before that of {sys.prefix}: unset PYTHONPATH" in unwrapped(machine.doctor())


def test_what_this_environment_has_is_not_from_elsewhere():
    assert {name: gpu.elsewhere(name) for name in ("numpy", "numba", "six", "no_such_module", "sys")} == dict.fromkeys(
        ("numpy", "numba", "six", "no_such_module", "sys")
    )


def test_on_windows_on_arm_there_is_no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(gpu, "sys", types.SimpleNamespace(platform="win32", prefix=sys.prefix))
    monkeypatch.setattr(gpu.platform, "machine", lambda: "ARM64")
    check_refused("there is no CuPy for Windows on ARM")


def test_on_a_mac_there_is_no_cuda(monkeypatch):
    monkeypatch.setattr(gpu, "sys", types.SimpleNamespace(platform="darwin"))
    check_refused("no CUDA for macOS")


# CUDA's libraries


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cupy-cuda12x", 'pip install "cupy-cuda12x[ctk]"'),
        ("cupy-cuda13x", 'pip install "cupy-cuda13x[ctk]"'),
        ("cupy", "CUDA Toolkit"),
        (None, 'pip install "cupy-cuda12x[ctk]"'),
    ],
)
def test_missing_libraries_come_with_what_installs_them(name, advice, monkeypatch):
    cupy_with(monkeypatch)
    monkeypatch.setattr(gpu, "package", lambda: (name, "14.2.0"))
    monkeypatch.setattr(gpu, "libraries", lambda: FOUND | {"NVRTC": None, "cuBLAS": None})
    check_refused("NVRTC and cuBLAS", advice)
    assert "cuBLAS missing" in unwrapped(machine.doctor())
    assert "this adds what is missing" in unwrapped(machine.doctor())


def test_a_library_is_missing_whatever_the_search_for_it_raises(monkeypatch):
    monkeypatch.undo()
    looks = {
        "NVRTC": fails(RuntimeError('Failure finding "libnvrtc.so.13 or libnvrtc.so.12"')),
        "cuBLAS": fails(ImportError('Failure finding "libcublasLt.so.12"')),
        "headers": lambda: None,
        "a good one": lambda: "12.9",
    }
    monkeypatch.setattr(gpu, "LOOKS", looks)
    assert gpu.libraries() == {"NVRTC": None, "cuBLAS": None, "headers": None, "a good one": "12.9"}


def test_the_libraries_are_those_that_cupy_finds(monkeypatch):
    """Without a GPU, too: the set-up of the tests brings NVRTC and the headers, where they exist."""
    monkeypatch.undo()
    nvrtc = pytest.importorskip("cupy", exc_type=ImportError).cuda.nvrtc
    try:
        version = nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"NVRTC: {error}")
    assert gpu.libraries()["NVRTC"] == ".".join(map(str, version))
    assert gpu.libraries().keys() == FOUND.keys()


def test_kernels_cannot_be_checked_without_nvrtc(monkeypatch):
    cupy_with(monkeypatch)
    assert "can be compiled" in unwrapped(machine.doctor())
    monkeypatch.setattr(gpu, "libraries", lambda: FOUND | {"NVRTC": None})
    assert "can't be compiled" in unwrapped(machine.doctor())


@pytest.mark.parametrize("name", [*gpu.PACKAGES, None])
def test_every_package_of_cupy_is_known(name, monkeypatch):
    def version(asked):
        if asked in gpu.PACKAGES and asked != name:
            raise importlib.metadata.PackageNotFoundError(asked)
        return "14.2.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert gpu.package() == (name, "14.2.0" if name else None)
    assert machine.libraries()[name or "cupy-cuda12x"] == ("14.2.0" if name else None)


# nvidia-smi and the driver's own file


def test_the_driver_is_asked_about_the_gpu_that_cupy_uses(monkeypatch):
    monkeypatch.undo()
    asked = []

    def run(command, **options):
        asked.extend(command)
        return types.SimpleNamespace(stdout="580.159.04, 1980, 3201, 700.00\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert gpu._from_driver("0000:1B:00.0") == {
        "driver_version": "580.159.04",
        "max_sm_mhz": 1980.0,
        "max_memory_mhz": 3201.0,
        "power_limit_w": 700.0,
    }
    assert asked[0] == "nvidia-smi"
    assert asked[-2:] == ["-i", "0000:1B:00.0"]


@pytest.mark.parametrize("error", [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 20), None])
def test_a_driver_that_does_not_answer_is_no_error(error, monkeypatch):
    monkeypatch.undo()

    def run(command, **options):
        if error:
            raise error
        return types.SimpleNamespace(stdout="No devices were found\n")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(builtins, "open", fails(FileNotFoundError("/proc/driver/nvidia/version")))
    assert set(gpu._from_driver("0").values()) == {None}


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Sat Aug 12 00:00:00 UTC 2026",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.04  Release Build  (root@host)",
    ],
)
def test_the_drivers_version_is_read_from_its_module(line, monkeypatch):
    monkeypatch.setattr(builtins, "open", lambda path: io.StringIO(line + "\nGCC version:  gcc version 12.2.0\n"))
    assert gpu._driver_version() == "580.159.04"


# Engines


@pytest.fixture
def gpu_engine(monkeypatch, tmp_path):
    """Add an engine to the package that begins as those for a GPU do."""
    (tmp_path / "cupy_fake.py").write_text("from mlpkit.kernels import gpu\n\ngpu.require()\n")
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    monkeypatch.setattr(engines, "names", lambda: ("numpy_baseline", "cupy_fake"))
    yield
    sys.modules.pop("mlpkit.engines.cupy_fake", None)
    vars(engines).pop("cupy_fake", None)


def test_an_engine_that_needs_a_gpu_says_why_it_can_not_run(gpu_engine, monkeypatch):
    cupy_with(monkeypatch, getDeviceCount=lambda: 0)
    with pytest.raises(engines.EngineUnavailable) as caught:
        engines.load("cupy_fake")
    one_sentence(caught.value, f"engine cupy_fake can't run on this machine: {gpu.why_not()}")
    assert engines.available() == {"numpy_baseline": None, "cupy_fake": str(caught.value)}
    assert machine.doctor().splitlines()[-1].split(maxsplit=1) == ["cupy_fake", "needs a GPU: see above"]


def test_an_engine_that_needs_a_gpu_is_ready_beside_one(gpu_engine, monkeypatch):
    cupy_with(monkeypatch)
    assert engines.available() == {"numpy_baseline": None, "cupy_fake": None}


def test_training_without_a_gpu_is_refused_with_one_sentence(gpu_engine, monkeypatch, capsys):
    cupy_with(monkeypatch, getDeviceCount=lambda: 0)
    assert cli.main(["train", "--engine", "cupy_fake"]) == 1
    one_sentence(capsys.readouterr().err.strip().splitlines()[-1], "mlpkit: engine cupy_fake can't run", gpu.why_not())


# Out of memory


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CuPyOutOfMemory("Out of memory allocating 9 bytes (allocated so far: 3 bytes)."), "GPU memory: allocating 9 "),
        (CUDARuntimeError("cudaErrorMemoryAllocation: out of memory"), "GPU memory: cudaErrorMemoryAllocation"),
        (CUBLASError("CUBLAS_STATUS_ALLOC_FAILED"), "GPU memory: CUBLAS_STATUS_ALLOC_FAILED"),
        (MemoryError("Unable to allocate 7.28 TiB for an array"), "out of memory: Unable to allocate 7.28 TiB"),
        (MemoryError(), "out of memory"),
    ],
)
def test_too_little_memory_is_one_sentence(error, words, monkeypatch, capsys):
    monkeypatch.setattr(Recipe, "train", fails(error))
    assert cli.main(["train", "--batch-size", "50000"]) == 1
    sentence = capsys.readouterr().err.strip().splitlines()[-1]
    one_sentence(sentence, "mlpkit: out of ", words, "try a smaller batch")


@pytest.mark.parametrize("error", [RuntimeError("a bug: out of memory"), CUDARuntimeError("cudaErrorIllegalAddress")])
def test_other_errors_keep_their_traceback(error, monkeypatch):
    monkeypatch.setattr(Recipe, "train", fails(error))
    with pytest.raises(RuntimeError) as caught:
        cli.main(["train"])
    assert caught.value is error


def test_cupys_own_error_is_known_as_such():
    memory = pytest.importorskip("cupy.cuda.memory", exc_type=ImportError)
    one_sentence(gpu.out_of_memory(memory.OutOfMemoryError(10**9, 3)), "out of GPU memory: allocating 1,000,000,000")


def test_an_older_gpu_is_told_what_an_engine_needs(monkeypatch):
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(cupy.cuda, "Device", lambda: types.SimpleNamespace(compute_capability="86"))
    gpu.require_capability(8.0)
    with pytest.raises(ImportError, match=r"compute capability 9\.0 or newer, and this one has 8\.6"):
        gpu.require_capability(9.0)


def test_a_newer_gpu_is_told_what_was_made_for_an_older_one_alone(monkeypatch):
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(cupy.cuda, "Device", lambda: types.SimpleNamespace(compute_capability="120"))
    gpu.require_capability(9.0)
    with pytest.raises(ImportError, match=r"compute capability 9\.0 alone, and this one has 12\.0"):
        gpu.require_capability(9.0, alone=True)


# One GPU that stands for another


def standing_for(monkeypatch, said, capability="90", shared=232_448):
    attributes = {"MaxSharedMemoryPerBlockOptin": shared, "MultiProcessorCount": 132}
    device = types.SimpleNamespace(compute_capability=capability, attributes=attributes)
    cupy_with(monkeypatch).Device = lambda: device
    if said is None:
        monkeypatch.delenv(gpu.SETTING, raising=False)
    else:
        monkeypatch.setenv(gpu.SETTING, said)


@pytest.mark.parametrize(
    ("said", "capability", "kib"),
    [(None, 90, 227), ("", 90, 227), ("9.0", 90, 227), ("8.9", 89, 99), ("8.0", 80, 163), ("7.5", 75, 64)],
)
def test_a_gpu_stands_for_an_older_one(said, capability, kib, monkeypatch):
    standing_for(monkeypatch, said)
    assert gpu.why_not() is None
    assert (gpu.capability(), gpu.shared_memory()) == (capability, kib << 10)
    assert gpu.is_restricted() == (capability < 90)
    assert gpu.Needs(90, alone=True).are_met() == (capability == 90)
    assert gpu.Needs(80, shared=100 << 10).are_met() == (kib > 100 and capability >= 80)
    kernel = types.SimpleNamespace()
    assert gpu.with_shared_memory(kernel, 200 << 10) is kernel
    assert kernel.max_dynamic_shared_size_bytes == min(200, kib) << 10


@pytest.mark.parametrize("said", ["10.0", "12.0", "8", "7.0", "80", "eight", "nan", "-8.0"])
def test_what_it_cannot_stand_for_is_refused(said, monkeypatch):
    standing_for(monkeypatch, said)
    check_refused("MLPKIT_CAPABILITY", said, "7.5", "9.0", "unset")


@pytest.mark.parametrize(("said", "found"), [(None, 132), ("", 132), ("132", 132), ("24", 24), ("1", 1)])
def test_a_gpu_stands_for_one_with_fewer_multiprocessors(said, found, monkeypatch):
    standing_for(monkeypatch, None)
    if said is not None:
        monkeypatch.setenv(gpu.FEWER, said)
    assert gpu.why_not() is None
    assert gpu.multiprocessors() == found


@pytest.mark.parametrize("said", ["133", "0", "-24", "24.0", "many", "²"])
def test_how_many_it_has_not_is_refused(said, monkeypatch):
    standing_for(monkeypatch, None)
    monkeypatch.setenv(gpu.FEWER, said)
    check_refused("MLPKIT_MULTIPROCESSORS", said, "from 1 to 132", "unset")


def test_hoppers_instructions_are_hidden_from_who_stands_for_an_older_chip(monkeypatch):
    from mlpkit.kernels.conv import variants

    for said, by, but in ((None, "wgmma", ""), ("8.6", "mma.sync", ""), ("7.5", "mma.sync", "BF16 as fp16")):
        standing_for(monkeypatch, said)
        assert (variants.served().by, variants.served().but) == (by, but)
        assert ("as MLPKIT_CAPABILITY says" in variants.describe()) == bool(said)
    standing_for(monkeypatch, None, "120", 101_376)
    assert variants.served().by == "mma.sync"
    assert "slower than in the records" in variants.describe()
    standing_for(monkeypatch, None, "61", 49_152)
    assert variants.served() is None
    assert "cuBLAS" in variants.describe()

"""Can CuPy use a GPU here? If not: what stands between them, in one sentence that somebody can act on.

An engine that needs a GPU begins with `gpu.require()`, one that needs a new one with `gpu.require_capability()` too;
`engines.load` and `engines.available` do the rest. CUDA is looked for as the engines will look for it, through CuPy:
its driver, its GPU, its libraries, some memory.
"""

import errno
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cupy")  # one import name; the last is built from source, or conda's
USUAL = PACKAGES[0]  # what pyproject.toml asks for
# The first driver for each CUDA version, from NVIDIA's compatibility guide
DRIVERS = {12: 525, 13: 580}
WINDOWS_DRIVERS = {12: 528, 13: 580}
# The compute capability to compile for, where it is not to be the GPU's own; and the KiB of shared memory that a block
# may have on chips of each, times ten, from the CUDA C++ Programming Guide
SETTING = "MLPKIT_CAPABILITY"
# How many of its multiprocessors kernels that count them may take, where it is not to be all
FEWER = "MLPKIT_MULTIPROCESSORS"
SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
NO_KEPLER = "(a Kepler GPU has none after 470, so it can't be used here)"
# Why a folder can't be made in somebody's home: it is read-only, is none, or is full
NO_FOLDER = {
    getattr(errno, f"E{name}", None) for name in ("ACCES", "PERM", "ROFS", "NOENT", "NOTDIR", "NOSPC", "DQUOT")
}


@cache
def why_not():
    """Return None where CuPy can use a GPU, else the reason as one sentence. Never raises."""
    try:
        return _obstacle()
    except Exception as error:  # a broken CUDA installation can raise anything
        return f"CuPy fails here with {type(error).__name__}: {_summary(error)}"


def require():
    """Do nothing where CuPy can use a GPU. Raises ImportError with the reason where it can't."""
    if reason := why_not():
        raise ImportError(reason)


def require_capability(least, alone=False):
    """Raise ImportError where the GPU's compute capability is below `least`, a number such as 9.0.

    alone: whether a newer one won't do either, as for kernels with instructions that one chip alone has.
    """
    found, has = capability() / 10, f"{SETTING} says" if is_restricted() else "this one has"
    if found < least:
        raise ImportError(f"it needs a GPU of compute capability {least} or newer, and {has} {found}")
    if alone and found > least:
        raise ImportError(f"its kernel is for GPUs of compute capability {least} alone, and {has} {found}")


def capability():
    """Return the compute capability that kernels are compiled for, times ten: the GPU's, or a lower one that is set.

    With the variable MLPKIT_CAPABILITY=8.0, a newer GPU runs what one of 8.0 would: with its instructions, and with its
    shared memory. CuPy's own kernels and NVIDIA's libraries know nothing of it.
    """
    found = own_capability()
    return min(found, round(10 * float(os.environ.get(SETTING) or found)))


def own_capability():
    """Return the GPU's compute capability, times ten."""
    return int(_device().compute_capability)


def _device():
    import cupy

    return cupy.cuda.Device()


def is_restricted():
    """Return whether the GPU could do more than is compiled for."""
    return bool(os.environ.get(SETTING)) and capability() < own_capability()


def shared_memory():
    """Return the bytes of shared memory that a block may have: the GPU's, or fewer where it stands for another one."""
    found = _device().attributes["MaxSharedMemoryPerBlockOptin"]
    return min(found, SHARED[capability()] << 10) if is_restricted() else found


def multiprocessors():
    """Return how many multiprocessors the GPU has, or as how many it stands for.

    With the variable MLPKIT_MULTIPROCESSORS=24, our kernels divide their work as on a GPU that has 24. Those that stay
    for an epoch leave the others idle; kernels whose blocks come and go run on all of them.
    """
    found = _device().attributes["MultiProcessorCount"]
    return min(found, int(os.environ.get(FEWER) or found))


@dataclass(frozen=True)
class Needs:
    """What a kernel needs of a GPU.

    capability: the least one, times ten. alone: whether a newer one won't do either, nor one that stands for it.
    shared: bytes of shared memory that a block must be able to have.
    """

    capability: int
    alone: bool = False
    shared: int = 0

    def are_met(self):
        """Return whether this GPU has them."""
        here = capability()
        fits = here == self.capability and not is_restricted() if self.alone else here >= self.capability
        return fits and shared_memory() >= self.shared


def with_shared_memory(kernel, most=None):
    """Return a kernel whose blocks may have so many bytes of shared memory, or all that there are."""
    there = shared_memory()
    kernel.max_dynamic_shared_size_bytes = min(most or there, there)
    return kernel


def package():
    """Return the name of the package that CuPy came with, and its version: (None, None) where there is none."""
    for name in PACKAGES:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None, None


def how_to_install():
    """Return what to do so that CuPy finds CUDA's libraries, and is there itself."""
    name, _ = package()
    return "install NVIDIA's CUDA Toolkit" if name == "cupy" else f'pip install "{name or USUAL}[ctk]"'


def describe():
    """Return `found`, and the GPU's facts as JSON can hold them, or `why_not`."""
    if reason := why_not():
        return {"found": False, "why_not": reason}
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(0)
    return {
        "found": True,
        "name": properties["name"].decode(),
        "memory_gib": _gib(properties["totalGlobalMem"]),
        "free_gib": _gib(runtime.memGetInfo()[0]),
        "multiprocessors": properties["multiProcessorCount"],
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        **({"compiled_for": f"{capability() / 10}"} if is_restricted() else {}),
        **({"counted_multiprocessors": multiprocessors()} if os.environ.get(FEWER) else {}),
        "l2_bytes": properties.get("l2CacheSize"),
        "ecc": bool(properties["ECCEnabled"]) if "ECCEnabled" in properties else None,
        "driver": _cuda_version(runtime.driverGetVersion()),
        "runtime": _cuda_version(runtime.runtimeGetVersion()),
        **_from_driver(runtime.deviceGetPCIBusId(0)),
    }


@cache
def count():
    """Return how many GPUs this process sees."""
    import cupy as cp

    return cp.cuda.runtime.getDeviceCount()


def names():
    """Return what CUDA_VISIBLE_DEVICES calls each GPU that this process sees: so another process is given one alone."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count())))
    return told.split(",")[: count()]


@cache
def why_no_cupy():
    """Return None where CuPy can be imported, else the reason as one sentence. Needs no GPU."""
    if sys.platform == "darwin":
        return "there is no CUDA for macOS"
    try:
        import cupy  # noqa: F401
    except Exception as error:
        if not isinstance(error, ImportError) or error.name != "cupy":
            return _broken(error)
        if sys.platform == "win32" and platform.machine() == "ARM64":
            return "there is no CuPy for Windows on ARM"
        return f"CuPy is not installed: {how_to_install()}"
    return None


@cache
def libraries():
    """Return what CuPy finds of CUDA's libraries, which needs no GPU: a version or a place by name, None if missing."""
    return {name: _attempt(look) for name, look in LOOKS.items()}


def out_of_memory(error):
    """Return a sentence where an error says that memory ran out, on the GPU or beside it; None for other errors."""
    said = re.sub("^Out of memory ", "", _summary(error))
    on_gpu = type(error).__module__.startswith("cupy")
    if isinstance(error, MemoryError):
        where = "GPU memory" if on_gpu else "memory"
    elif on_gpu and re.search("MemoryAllocation|OUT_OF_MEMORY|ALLOC_FAILED", said):
        where = "GPU memory"
    else:
        return None
    return f"out of {where}: {said or 'no more of it'}; try a smaller batch, or close other programs that use it"


def _obstacle():
    if reason := why_no_cupy():
        return reason
    import cupy

    return _no_device(cupy.cuda.runtime) or _wrong_setting(cupy) or _no_libraries() or _no_memory(cupy.cuda.runtime)


def _wrong_setting(cupy):
    fewer, said = os.environ.get(FEWER), os.environ.get(SETTING)
    there = cupy.cuda.Device().attributes["MultiProcessorCount"] if fewer else 0
    if fewer and not (fewer.isascii() and fewer.isdigit() and 1 <= int(fewer) <= there):
        return f"{FEWER} is {fewer!r}: set it to a number from 1 to {there}, as this GPU has, or unset it"
    if not said:
        return None
    found = int(cupy.cuda.Device().compute_capability)
    known = [f"{each / 10}" for each in SHARED if each <= found]
    if said in known:
        return None
    return f"{SETTING} is {said!r}: set it to {', '.join(known[:-1])} or {known[-1]}, as this GPU can be, or unset it"


def _broken(error):
    if isinstance(error, OSError) and error.errno in NO_FOLDER and not _is_installed(error.filename):
        folder = f"CuPy can't make its folder {error.filename} ({error.strerror})"
        return f"{folder}: set the variable CUPY_CACHE_DIR to a folder that can be written"
    if folder := elsewhere("numpy"):
        return f"CuPy can't be loaded beside a NumPy from {folder}: {use_own(folder)}"
    advice = f'pip install --force-reinstall "{package()[0] or USUAL}"'
    return f"CuPy can't be loaded: {_summary(error)}; install it again: {advice}"


def elsewhere(module):
    """Return the folder that `import` takes a module from where this environment has another; else None."""
    spec = PathFinder.find_spec(module)
    folder = Path(spec.origin).parents[1 if spec.submodule_search_locations else 0] if spec and spec.origin else None
    own = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))
    if folder in (None, *own) or not any((path / module).exists() for path in own):
        return None
    return folder


def use_own(folder):
    """Return what to do so that what is installed in this environment comes before what a folder has."""
    listed = [os.path.realpath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return "unset PYTHONPATH" if os.path.realpath(folder) in listed else f"take it out of {folder}"


def _is_installed(path):
    return not path or str(path).startswith(sys.prefix)


def _no_device(runtime):
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if "InsufficientDriver" in str(error):
            return _driver_advice(runtime)
        if "SystemDriverMismatch" in str(error):
            return "the NVIDIA driver's parts don't belong together, as after an update: restart this machine"
        if "NoDevice" not in str(error):
            return f"CUDA says: {_summary(error)} (does nvidia-smi say more? a restart can help)"
        count = 0
    return None if count else "the driver is there, but no NVIDIA GPU is visible (is CUDA_VISIBLE_DEVICES empty?)"


def _driver_advice(runtime):
    found, needed = runtime.driverGetVersion(), runtime.runtimeGetVersion() // 1000
    oldest = (WINDOWS_DRIVERS if sys.platform == "win32" else DRIVERS).get(needed)
    advice = f"install driver {oldest} or newer" if oldest else f"install a driver for CUDA {needed}"
    if found == 0:
        return f"there is no NVIDIA driver: {advice} if this machine has an NVIDIA GPU"
    problem = f"the NVIDIA driver is too old, for CUDA {_cuda_version(found)}, and CuPy needs CUDA {needed}"
    return f"{problem}: {advice} {NO_KEPLER}"


def _no_libraries():
    missing = [name for name, found in libraries().items() if found is None]
    if not missing:
        return None
    return f"CuPy does not find CUDA's {' and '.join(missing)}: {how_to_install()}"


def _no_memory(runtime):
    """Touch the GPU, which takes some of its memory."""
    try:
        runtime.memGetInfo()
    except runtime.CUDARuntimeError as error:
        if "MemoryAllocation" not in str(error):
            return f"the GPU can't be used: {_summary(error)} (does nvidia-smi say more?)"
        free, total = _query("memory.free,memory.total", runtime.deviceGetPCIBusId(0)) or ("?", "?")
        return f"the GPU's memory is in use by other programs ({free} MiB of {total} are free): nvidia-smi lists them"
    return None


def _nvrtc_version():
    from cupy.cuda import nvrtc

    return ".".join(map(str, nvrtc.getVersion()))


def _cublas():
    from cupy.cuda import cublas  # this loads the library

    return cublas and "found"


def _headers():
    from cuda.pathfinder import find_nvidia_header_directory

    return find_nvidia_header_directory("cudart")


LOOKS = {"NVRTC": _nvrtc_version, "cuBLAS": _cublas, "headers": _headers}


def _attempt(look):
    try:
        return look()
    except Exception:  # ImportError, RuntimeError, cuda-pathfinder's own errors, ...
        return None


def _from_driver(bus_id):
    """Return what CUDA does not tell and the driver does; None for each thing that it does not tell either."""
    asked = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit")
    version, *numbers = _query(",".join(asked), bus_id) or [None] * len(asked)
    names = ("max_sm_mhz", "max_memory_mhz", "power_limit_w")
    return {"driver_version": version or _driver_version(), **dict(zip(names, map(_number, numbers), strict=True))}


@cache
def _query(fields, bus_id):
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", bus_id]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return values if len(values) == len(fields.split(",")) else None


def _driver_version():
    """Return the driver's version as its Linux module gives it."""
    try:
        with open("/proc/driver/nvidia/version") as file:
            found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.readline())
    except OSError:
        return None
    return found[0] if found else None


def _number(text):
    try:
        return float(text)
    except (TypeError, ValueError):  # nvidia-smi says [N/A]
        return None


def _summary(error):
    """Return the line of an error's message that says most: CuPy's own can be a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")]
    if "Original error:" in lines[:-1]:
        return lines[lines.index("Original error:") + 1]
    return lines[0].rstrip(".") if lines else ""


def _gib(size):
    return round(size / 2**30, 1)


def _cuda_version(number):
    return f"{number // 1000}.{number % 1000 // 10}"

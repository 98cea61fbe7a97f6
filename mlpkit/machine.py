"""What machine is this? No number in the workbook means anything without the answer.

`describe` returns the answer as a dict that goes into every record; `doctor` says it in words, with what is missing.
"""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time

import numpy as np  # before threadpoolctl looks: it sees only the libraries that are loaded
from threadpoolctl import threadpool_info

from . import engines

LIBRARIES = ("numpy", "numba", "cupy-cuda12x", "matplotlib", "ipywidgets", "jupyterlab")


def describe():
    """Return this machine's processor, cores, memory, BLAS, GPU and library versions, as JSON can hold them."""
    return {
        "name": name(),
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gib": memory_gib(),
        "load": load(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {library: version(library) for library in LIBRARIES},
        "blas": blas(),
        "gpu": gpu(),
    }


def name():
    """Return a short name for this kind of machine, fit for a folder."""
    found = gpu()
    model = found["name"] if found["found"] else f"{cpu_model()} {cores()} cores"
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")


def cpu_model():
    """Return the processor's name as its maker gives it, as far as the system tells."""
    try:
        if sys.platform == "linux":
            with open("/proc/cpuinfo") as file:
                names = [line.partition(":")[2] for line in file if line.startswith("model name")]
            return names[0].strip()
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, IndexError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


def cores():
    """Return how many cores this process may use, which in a container can be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib():
    """Return the machine's memory in GiB, None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def load():
    """Return how many processes wanted a core in the last minute, on average; None where the system does not tell."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def busy():
    """Return a warning where other programs keep this machine so busy that times come out too long, else None."""
    waiting = load() or 0
    if waiting < cores() / 2:
        return None
    return f"this machine is busy (load {waiting} on {cores()} cores): times will come out too long"


def rest(longest=0.3, look_every=0.002):
    """Wait until no thread of this process computes or spins, at most `longest` seconds.

    The threads of OpenBLAS and of OpenMP wait for more work with open eyes: for some time after their last work they
    take a core from whoever is measured next.
    """
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(look_every)
        if time.process_time() - before < look_every / 4:
            return


def settle(call, seconds=0.1):
    """Wait until other threads are at rest, then call again and again for so long: before several cores are timed.

    Threads that wake together may wake on one core, and it takes the system some time to part them.
    """
    rest()
    end = time.perf_counter() + seconds
    call()
    while time.perf_counter() < end:
        call()


def version(library):
    """Return the installed version of a library, None where it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def blas():
    """Return the library behind NumPy's matrix products, with the kernels it chose and the threads it uses."""
    np.dot(np.ones(2), np.ones(2))
    for library in threadpool_info():
        if library["user_api"] == "blas":
            return {
                "name": library["internal_api"],
                "version": library["version"],
                "kernels": library.get("architecture"),
                "threads": library["num_threads"],
            }
    return {"name": "unknown", "version": None, "kernels": None, "threads": None}


def gpu():
    """Return `found`, and the GPU's facts, or in `why_not` what stands between CuPy and a GPU."""
    try:
        import cupy
    except ImportError:
        return _no_gpu("CuPy is not installed: pip install cupy-cuda12x")
    except Exception as error:  # a broken CUDA installation can raise anything while CuPy loads
        return _no_gpu(f"CuPy can't be loaded: {error}")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return _no_gpu(_driver_advice(str(error)))
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "found": True,
        "name": properties["name"].decode(),
        "memory_gib": round(properties["totalGlobalMem"] / 2**30, 1),
        "multiprocessors": properties["multiProcessorCount"],
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "driver": _cuda_version(cupy.cuda.runtime.driverGetVersion()),
        "runtime": _cuda_version(cupy.cuda.runtime.runtimeGetVersion()),
    }


def _no_gpu(reason):
    return {"found": False, "why_not": reason}


def _driver_advice(error):
    if "InsufficientDriver" in error:
        return "no NVIDIA driver, or one too old for CUDA 12: install driver 525 or newer"
    if "NoDevice" in error:
        return "the driver is there, but no NVIDIA GPU is visible (is CUDA_VISIBLE_DEVICES empty?)"
    return f"CUDA says: {error}"


def _cuda_version(number):
    return f"{number // 1000}.{number % 1000 // 10}"


def doctor():
    """Return what this machine is and which engines it can run, as text for a person."""
    facts = describe()
    lines = [
        f"{'processor':<12}{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB",
        f"{'system':<12}{facts['system']}, Python {facts['python']}",
        f"{'BLAS':<12}{_blas_line(facts['blas'])}",
        f"{'GPU':<12}{_gpu_line(facts['gpu'])}",
        "",
        *(f"{library:<16}{found or 'not installed'}" for library, found in facts["libraries"].items()),
        "",
        *(f"{engine:<16}{why_not or 'ready'}" for engine, why_not in engines.available().items()),
    ]
    return "\n".join(lines)


def _blas_line(found):
    return f"{found['name']} {found['version']}, {found['kernels']} kernels, {found['threads']} threads"


def _gpu_line(found):
    if not found["found"]:
        return f"none: {found['why_not']}"
    return f"{found['name']}, {found['memory_gib']} GiB, driver for CUDA {found['driver']}"

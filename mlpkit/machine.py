"""What machine is this? No number in the workbook means anything without the answer.

`describe` returns the answer as a dict that goes into every record; `doctor` says it in words, with what is missing.
"""

import importlib.metadata
import math
import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np  # before threadpoolctl looks: it sees only the libraries that are loaded
from threadpoolctl import threadpool_info

from mlpkit import engines, kernels
from mlpkit.kernels import gpu

from .words import counted

LIBRARIES = ("numpy", "numba", "matplotlib", "ipywidgets", "jupyterlab")
# The words, and those of Linux: of x86 and, where there is no name at all, of ARM
_NUMBERS = {"family": "cpu family", "model": "model", "implementer": "CPU implementer", "part": "CPU part"}
ROOT = Path(__file__).resolve().parents[1]
GROUPS = "/sys/fs/cgroup"


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
        "libraries": libraries(),
        "blas": blas(),
        "gpu": gpu.describe(),
    }


def name():
    """Return a short name for this kind of machine, fit for a folder."""
    found = gpu.describe()
    model = found["name"] if found["found"] else f"{cpu_model()} {cores()} cores"
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")


def cpu_model():
    """Return the processor's name as its maker gives it, as far as the system tells.

    A name without a number, as virtual machines have, is that of many: its family and model follow. ARM's processors
    tell numbers alone.
    """
    try:
        if sys.platform == "linux":
            with open("/proc/cpuinfo") as file:
                lines = [line.partition(":") for line in file]
            told = {key.strip(): value.strip() for key, _, value in reversed(lines)}  # of the first of all cores
            name = told.get("model name", "")
            if re.search(r"\d", name.partition("@")[0]):
                return name
            numbers = [f"{word} {told[key]}" for word, key in _NUMBERS.items() if key in told]
            return ", ".join([name or platform.machine(), *numbers])
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


def cores():
    """Return how many cores this process may use, which in a container can be fewer than there are.

    A quota of time on all cores, as `docker run --cpus=1.5` gives, counts as cores, rounded up.
    """
    if hasattr(os, "process_cpu_count"):  # since Python 3.13; it heeds PYTHON_CPU_COUNT, too
        count = os.process_cpu_count()
    else:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min([count or 1, *(max(1, math.ceil(quota)) for quota in _quotas())])


def _quotas():
    """Return what Linux's control groups allow this process of a second, in seconds: one for each group that limits.

    A group is in others, and each may have a limit: a file `cpu.max` (version 2), or two (version 1). A container sees
    its own group as the outermost.
    """
    found = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = Path(GROUPS, controllers)
        for folder in {root / name for name in (".", group[1:], *map(str, Path(group[1:]).parents))}:
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            match " ".join(_read(folder / file) for file in files).split():
                case [quota, period] if quota.isdecimal():  # no limit is "max", or -1
                    found.append(int(quota) / int(period))
    return found


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def memory_gib():
    """Return the machine's memory in GiB, None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def load():
    """Return how many processes wanted a core in the last minute, on average; None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 1)
    except (AttributeError, OSError):
        return None


def busy():
    """Return a warning where other programs keep this machine so busy that times come out too long, else None."""
    waiting = load() or 0
    if waiting < cores() / 2:
        return None
    return f"this machine is busy (load {waiting} on {counted(cores(), 'core')}): times will come out too long"


def libraries():
    """Return {library: version, None where it is not installed}. CuPy stands under its package's name."""
    cupy, its_version = gpu.package()
    return {library: version(library) for library in LIBRARIES} | {cupy or gpu.USUAL: its_version}


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
    return {"name": _built_with(), "version": None, "kernels": None, "threads": None}


def _built_with():
    """Return the name of the BLAS that NumPy was built with: threadpoolctl does not know them all, as on a Mac."""
    built = np.show_config(mode="dicts").get("Build Dependencies", {})
    return built.get("blas", {}).get("name", "unknown")


def doctor():
    """Return what this machine is and which engines it can run, as text for a person."""
    facts = describe()
    head = [
        f"{'processor':<12}{_known(facts['cpu'], (facts['cores'], 'cores'), (facts['memory_gib'], 'GiB'))}",
        f"{'system':<12}{facts['system']}, Python {facts['python']}",
        f"{'BLAS':<12}{_blas_line(facts['blas'])}",
        *_gpu_lines(facts["gpu"]),
        *(f"{'packages':<12}{warning}" for warning in _strays()),
        *(f"{'load':<12}{warning}" for warning in [busy()] if warning),
    ]
    found = engines.available()
    width = max(map(len, (*facts["libraries"], *found))) + 2
    page = textwrap.TextWrapper(88, subsequent_indent=" " * 12, break_on_hyphens=False, break_long_words=False)
    lines = [
        *map(page.fill, head),
        "",
        *(f"{library:<{width}}{version or 'not installed'}" for library, version in facts["libraries"].items()),
        "",
        *(f"{engine:<{width}}{line}" for engine, line in _engine_lines(found).items()),
    ]
    return "\n".join(lines)


def _strays():
    """Yield a sentence for each folder that has others of this environment's packages, which Python finds first."""
    modules = [*LIBRARIES, "cupy"]
    for folder in dict.fromkeys(filter(None, map(gpu.elsewhere, modules))):
        names = ", ".join(module for module in modules if gpu.elsewhere(module) == folder)
        yield f"{names} of {folder} stands before that of {sys.prefix}: {gpu.use_own(folder)}"


def _blas_line(found):
    name = f"{found['name']} {found['version'] or ''}".strip()
    line = _known(name, (found["kernels"], "kernels"), (found["threads"], "threads"))
    if (found["threads"] or 1) > cores():  # BLAS and Numba know of no quota
        line += f", which wait for each other: set OPENBLAS_NUM_THREADS={cores()} and NUMBA_NUM_THREADS={cores()}"
    return line


def _known(name, *facts):
    """Return a line of the facts that are known, pairs (value, unit); a system need not tell them all."""
    units = ((value, unit.removesuffix("s") if value == 1 else unit) for value, unit in facts)
    return ", ".join([name, *(f"{value} {unit}" for value, unit in units if value is not None)])


def _gpu_lines(found):
    yield f"{'GPU':<12}{_gpu_line(found)}"
    if found["found"]:
        driver = found["driver_version"] or "of unknown version"
        yield f"{'driver':<12}{driver}, for CUDA up to {found['driver']}; CuPy is built for CUDA {found['runtime']}"
        from mlpkit.kernels.conv import variants  # here: nobody needs it where there is no GPU

        yield f"{'engines':<12}{variants.describe()}"
    if gpu.why_no_cupy():
        yield f"{'CUDA':<12}its libraries are not looked for, and kernels can't be compiled: both take CuPy"
        return
    libraries = gpu.libraries()
    yield f"{'CUDA':<12}" + ", ".join(f"{name} {_found(place)}" for name, place in libraries.items())
    yield f"{'kernels':<12}{_kernels_line(libraries['NVRTC'])}"
    if None in libraries.values():
        yield f"{'':<12}Beside a GPU, this adds what is missing (2 GB): {_how_to_add_cuda()}"


def _gpu_line(found):
    if not found["found"]:
        return f"none: {found['why_not']}"
    return (
        f"{found['name']}, {found['memory_gib']} GiB ({found['free_gib']} free), {found['multiprocessors']} "
        f"multiprocessors, compute capability {found['compute_capability']}"
    )


def _found(place):
    if place is None:
        return "missing"
    return place if place[0].isdigit() else "found"


def _kernels_line(nvrtc):
    if nvrtc is None:
        return "CUDA kernels can't be compiled here, not even to check them: that takes NVRTC"
    try:
        kernels.ptxas()
    except FileNotFoundError as error:
        return f"CUDA kernels can be compiled, with or without a GPU, but not assembled: {error}"
    return "CUDA kernels can be compiled and checked, with or without a GPU"


def _how_to_add_cuda():
    """Return the command that adds CUDA's libraries to the environment that Python runs in."""
    if gpu.package()[0] not in (None, gpu.USUAL):
        return gpu.how_to_install()
    if os.name != "nt" and Path(sys.prefix) == ROOT / ".venv":
        return "make run GPU=yes"
    return 'python -m pip install -c constraints.txt -e ".[gpu]"'


def _engine_lines(found):
    """Return {engine: its state}; several may lack the same thing, which is said once."""
    lines, said = {}, {gpu.why_not(): "needs a GPU: see above"}
    for engine, why_not in found.items():
        reason = why_not and why_not.removeprefix(f"engine {engine} can't run on this machine: ")
        lines[engine] = said.get(reason, why_not) if reason else "ready"
        said.setdefault(reason, f"can't run, as {engine}")
    return lines

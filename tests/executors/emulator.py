"""Run the kernels of whole epochs on a CPU: what their threads do to each other, with no GPU.

CUDA C is almost C++. What is not, is small here: CUDA's own words, and the instructions of the kernels' `ptx.cuh`, a
function each. `emulator.h` defines both; the rest of a kernel is compiled as it stands. Where it uses an instruction
that is missing there, or holds assembly itself, that is an error: then the kernel has changed, and the emulator must
follow. The executor's Python runs as it stands, too: its CuPy is NumPy. What all kernels share is compiled once, the
header too: for itself each takes a fifth of a second then, and two with the lot.

Each of the GPU's threads becomes a fiber, up to 65,536 of them in one thread of the CPU. A fiber runs until it waits:
at a barrier, for the other lanes of its warp, or in a loop that looks for a packet or a copy. A seed decides which warp
is next, which blocks are slow, and when and in which order packets and images arrive. So each seed is another schedule,
and each run of a seed is the same. All blocks of a launch run at once, those of several clusters too. Where nobody can
go on, the emulator says so: a deadlock is an error and not a hang.

What it can't show: a race between two waits of the same warp (a warp goes on undisturbed until it waits), an ordinary
write that other blocks see late, how the chip rounds its sums and approximate roots, what the compiler makes of the
code, and how long anything takes.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from shared import engine_like

from mlpkit import kernels
from mlpkit.executors import plain
from mlpkit.kernels.compiling import rehearsing
from mlpkit.kernels.conv import blocked

# -O1 compiles in two thirds of the time that -O2 takes, and the fibers run as fast: they wait for memory.
OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-w", "-fsanitize=alignment")
HERE = Path(__file__).parent
H100 = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232_448}

INSTRUCTIONS = (kernels.FOLDER / "ptx.cuh").read_text(encoding="utf-8")
SHARED_MEMORY = "extern __shared__ __align__(128) unsigned char shared_bytes[];"  # a word that emulator.h defines
CLUSTER = re.compile(r"\b__cluster_dims__\((\w+)\)")

LAUNCH = """
extern "C" const char* %s(void** values, const size_t* sizes, size_t given, int grid, int threads, size_t memory,
                               unsigned seed) {
    return launch(%s, values, sizes, given, grid, %s, threads, memory, seed);
}
"""


class Changed(Exception):
    """The kernel's source is no longer what the emulator knows."""


class Failed(Exception):
    """A launch came to no end, or did what can't be done."""


def version():
    """Return what tells apart what different compilers, or different emulators, make of a kernel."""
    parts = [repr(OPTIONS).encode(), *((HERE / name).read_bytes() for name in ("emulator.h", "emulator.cpp"))]
    if shutil.which("g++"):
        parts.append(subprocess.run(["g++", "--version"], capture_output=True).stdout)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]


def why_not():
    """Return why this machine can't run the emulator, or None."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return "the emulator's fibers are for Linux on x86-64"
    return None if shutil.which("g++") else "no g++ here"


needs_compiler = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


# ---- The kernels ----


def translated(name, source, wanted=None):
    """Return the source of `<name>.cu` as C++, with functions that launch kernels of it. Raises Changed.

    wanted: {kernel: name of the function that launches it}.
    """
    source = source.replace(INSTRUCTIONS, "")
    if left := re.findall(r"^.*\basm\b.*$", source, re.MULTILINE):
        raise Changed(f"{name}.cu has assembly that the emulator does not replace: {left[0].strip()}")
    size = blocks[1] if (blocks := CLUSTER.search(source)) else 1
    launches = [LAUNCH % (launch, kernel, size) for kernel, launch in (wanted or {"train": "emulate"}).items()]
    return "".join(['#include "emulator.h"\n', source.replace(SHARED_MEMORY, ""), *launches])


def compiled(name, folder, source, *definitions, kernel="train"):
    """Return a kernel's library, with macros as in "-DBATCH=64"; compiled once for all who share the folder.

    kernel: the name of one, or several names.
    """
    wanted = {kernel: "emulate"} if isinstance(kernel, str) else {each: f"emulate_{each}" for each in kernel}
    code = translated(name, source, wanted)
    key = hashlib.sha256(f"{code}{definitions}".encode()).hexdigest()[:16]
    path = folder / f"{name}-{key}.so"
    if not path.exists():
        text, shared = folder / f"{name}-{key}.{os.getpid()}.cpp", shared_parts(folder)
        text.write_text(code, encoding="utf-8")
        part = run_compiler(text.with_suffix(".o"), *OPTIONS, *definitions, f"-I{shared}", f"-I{HERE}", "-c", text)
        # A command of its own: with OPTIONS it would link the checks' own library, which not every machine has.
        run_compiler(path, "-shared", part, shared / "emulator.o")
        text.unlink(), part.unlink()
    library = ctypes.CDLL(str(path))
    size, sizes = ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
    for launch in map(partial(getattr, library), wanted.values()):
        launch.argtypes = [ctypes.c_void_p, sizes, size, ctypes.c_int, ctypes.c_int, size, ctypes.c_uint]
        launch.restype = ctypes.c_char_p
    return library


@cache
def shared_parts(folder):
    """Return a folder with what all kernels share, compiled: the header and the scheduler."""
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    run_compiler(shared / "emulator.h.gch", *OPTIONS, "-x", "c++-header", HERE / "emulator.h")
    run_compiler(shared / "emulator.o", *OPTIONS, "-O3", "-c", HERE / "emulator.cpp")  # once, for all launches
    return shared


def run_compiler(path, *command):
    """Return the path of a file that g++ makes, unless it is there; it appears as a whole. Raises Changed."""
    if path.exists():
        return path
    part = path.with_name(f"{os.getpid()}.{path.name}")
    done = subprocess.run(["g++", *map(str, command), "-o", str(part)], capture_output=True, text=True)
    if done.returncode:
        raise Changed(f"{command[-1]} does not compile for the emulator:\n{done.stderr}")
    return part.replace(path)


class _Module:
    """A compiled kernel file, as `cupy.RawModule` shows it."""

    def __init__(self, folder, seed, source, name, **macros):
        definitions = [f"-D{macro}={value}" for macro, value in macros.items()]
        self.library, self.seed = compiled(name, folder, source, *definitions), seed

    def get_function(self, name):
        return {"train": _Kernel(self.library, self.seed), "requirements": self._requirements}[name]

    def _requirements(self, grid, block, arguments):
        self.library.requirements(ctypes.c_void_p(arguments[0].data.ptr))


class _Kernel:
    """A kernel, as CuPy shows it: it is called with its grid, its threads and its arguments. Raises Failed."""

    max_dynamic_shared_size_bytes = 48 << 10  # until somebody asks for more

    def __init__(self, library, seed, launch="emulate"):
        self.launch, self.seed = getattr(library, launch), seed

    def compile(self):
        """Do nothing: it is compiled."""

    ptr = 0  # of the driver's function

    @property
    def kernel(self):
        return self

    def __call__(self, grid, block, arguments, shared_mem=0, enable_cooperative_groups=False):
        if rehearsing():
            return
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise Failed(f"{shared_mem} bytes of shared memory, but {self.max_dynamic_shared_size_bytes} are allowed")
        values = [np.array(each.data.ptr if isinstance(each, Array) else each) for each in arguments]
        places = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        sizes = (ctypes.c_size_t * len(values))(*(value.nbytes for value in values))
        if failure := self.launch(places, sizes, len(values), *grid, *block, shared_mem, self.seed):
            raise Failed(failure.decode())


class File:
    """A file of several kernels, as `kernels.load` returns it. source: of the file, if it is not its own."""

    def __init__(self, folder, seed, name, source=None, **macros):
        source = source or kernels.source(name)
        definitions = [f"-D{macro}={value}" for macro, value in macros.items()]
        names = re.findall(r'extern "C" __global__[^{]*?void (\w+)\(', source)
        self.library, self.seed = compiled(name, folder, source, *definitions, kernel=names), seed

    def get_function(self, name):
        return _Kernel(self.library, self.seed, f"emulate_{name}")


# ---- The executors: what they ask of CuPy, from NumPy ----


class Array(np.ndarray):
    """NumPy's array, with its address where CuPy's arrays have it."""

    @property
    def data(self):
        return _Memory(self.ctypes.data)


class _Memory:
    def __init__(self, ptr):
        self.ptr = ptr

    def copy_from_host_async(self, address, size, stream=None):
        ctypes.memmove(self.ptr, address, size)

    def copy_to_host_async(self, address, size, stream=None):
        ctypes.memmove(address, self.ptr, size)

    def copy_from_device_async(self, memory, size, stream=None):
        ctypes.memmove(self.ptr, memory.ptr, size)


def _array_from(function):
    return lambda *arguments, **options: np.asarray(function(*arguments, **options)).view(Array)


def _unwritten(shape, dtype=float):
    """Return an array that nobody has written: its floats are NaN."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = 0xFF
    return array


def _cupy(folder, seed):
    cupy = ModuleType("cupy")
    functions = {
        name: getattr(np, name) for name in ("asarray", "ascontiguousarray", "concatenate", "pad", "rint", "zeros")
    }
    vars(cupy).update({name: _array_from(f) for name, f in (functions | {"empty": _unwritten}).items()})
    cupy.ndarray = Array
    cupy.cuda = MagicMock()  # streams and events do nothing: whatever is asked for is done at once
    cupy.cuda.Device = lambda: SimpleNamespace(attributes=H100, compute_capability="90")
    cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor = lambda *of: 1
    return cupy


def with_cupy(folder, seed=0):
    """Return a context in which `import cupy` brings NumPy's arrays, and `kernels.load` kernels that run on them."""
    patch = pytest.MonkeyPatch()
    _replace_cupy(patch, folder, seed)
    patch.setattr(kernels, "load", partial(File, folder, seed))
    return contextlib.closing(SimpleNamespace(close=patch.undo))


@contextlib.contextmanager
def with_blocked(folder, *modules):
    """Let `with_cupy` be a GPU of four multiprocessors, on which these modules of `kernels` run; give that `cupy`."""
    with with_cupy(folder), pytest.MonkeyPatch.context() as patch:
        load, cupy = kernels.load, sys.modules["cupy"]
        for module in modules:
            patch.setattr(module, "_kernel", lambda file, name, **macros: load(file, **macros).get_function(name))
        patch.setattr(blocked, "multiprocessors", lambda: 4)
        vars(cupy).update(uint16=np.uint16, uint32=np.uint32, float32=np.float32, where=np.where, isnan=np.isnan)
        cupy.asnumpy = np.asarray
        yield cupy


def _replace_cupy(patch, folder, seed):
    cupy, cupyx = _cupy(folder, seed), ModuleType("cupyx")
    cupyx.empty_pinned = _unwritten
    patch.setitem(sys.modules, "cupy", cupy)
    patch.setitem(sys.modules, "cupyx", cupyx)
    return cupy


def own(name):
    """Return a module of `mlpkit` that nobody else has, made with the `cupy` of now."""
    spec = importlib.util.find_spec(f"mlpkit.{name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_parts(patch, *names):
    """Return modules of `executors.cuda` that nobody else has, a dictionary, while whoever imports them gets these."""
    parts = {}
    for name in names:
        parts[name] = own(f"executors.cuda.{name}")
        patch.setitem(sys.modules, parts[name].__name__, parts[name])
    return parts


def engine(name, folder, seed=0, source=None):
    """Return an engine whose `executor` is that of `cuda_<name>`, with an emulated kernel.

    source: of the kernel, if it is not the file's own.
    """
    with pytest.MonkeyPatch.context() as patch:
        cupy, gpu = _replace_cupy(patch, folder, seed), own("kernels.gpu")
        found, gpu._device = engine_like(asarray=cupy.ascontiguousarray), lambda: cupy.cuda.Device()
        patch.setattr(kernels, "gpu", gpu)
        patch.setitem(sys.modules, "mlpkit.executors.cupy_fused", plain)  # what they take from it, plain has
        parts = own_parts(patch, "padded", "transfers", "waiting", "graph")
        found.executor = own(f"executors.cuda_{name}")
    parts["transfers"].kernels = SimpleNamespace(load=partial(File, folder, seed))
    parts["waiting"].kernels = SimpleNamespace(load=partial(_Module, folder, seed, source or kernels.source(name)))
    return found

"""Run the kernels of whole epochs on a CPU: what their threads do to each other, with no GPU.

CUDA C is almost C++. What is not, is small here: CUDA's own words, which `emulator.h` defines, and a few functions of
a kernel that hold a line of assembly each. These are found by their names and get another body (`BODIES`); the rest of
the file is compiled as it stands. A function that is missing, or assembly that nobody replaced, is an error: then the
kernel has changed, and the emulator must follow. The engine's Python runs as it stands, too: its CuPy is NumPy.

Each of the GPU's threads becomes a fiber, up to 65,536 of them in one thread of the CPU. A fiber runs until it waits:
at a barrier, for the other lanes of its warp, or in a loop that looks for a packet or a copy. A seed decides which warp
is next, which blocks are slow, and when and in which order packets and images arrive. So each seed is another schedule,
and each run of a seed is the same. All blocks of a launch run at once, those of several clusters too. Where nobody can
go on, the emulator says so: a deadlock is an error and not a hang.

What it can't show: a race between two waits of the same warp (a warp goes on undisturbed until it waits), an ordinary
write that other blocks see late, how the chip rounds its sums and approximate roots, what the compiler makes of the
code, and how long anything takes.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from shared import engine_like

from mlpkit import kernels

# -O1 compiles in two thirds of the time that -O2 takes, and the fibers run as fast: they wait for memory.
OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-w", "-fsanitize=alignment")
ENGINES = "mlpkit.engines"
H100 = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232_448}

# Functions that hold assembly, and what they do here. First those of both kernels.
_SHARED_BODIES = {
    "void mark(int step, int stage)": "",
    "float root(float x)": "return sqrtf(x);",
    "void multiply(int (&c)[4], const Word (&a)[4], Word b0, Word b1)": (
        "multiply_bytes<32>(c, {{a[0], a[1], a[2], a[3]}, {b0, b1}});"
    ),
    "void multiply_short(float (&c)[4], const Word (&a)[4], const Word (&b)[2])": (
        "multiply_tf32(c, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});"
    ),
    "void load_matrices(Word (&a)[4], const unsigned char* row)": "load_four_matrices(a, row, false);",
    "void load_transposed(Word (&a)[4], const unsigned char* row)": "load_four_matrices(a, row, true);",
}
BODIES = {
    "persistent": _SHARED_BODIES
    | {
        "void give_up_after_a_while(Word& looks)": "look_again();",
        "void send(Packet* to, float value, Word tag)": (
            "const Packet packet = (Packet)tag << 32 | __float_as_uint(value); later([=] { *to = packet; });"
        ),
        "void look(Packet& packet, const Packet* at, bool asked = true)": "if (asked) packet = *at;",
        "void look(ulonglong2& packets, const Packet* at, bool asked = true)": "if (asked) packets = {at[0], at[1]};",
        "void send_four(float4* to, float4 values, Word mark)": (
            "values.x = __uint_as_float(__float_as_uint(values.x) & ~1u | mark); later([=] { *to = values; });"
        ),
        "void look(float4& four, const float4* at, bool asked = true)": "if (asked) four = *at;",
        "void sync_half(int half)": "named_barrier(1 + half, THREADS / 2);",
        "void start(Packet* barrier)": "*(Counter*)barrier = {0, 1, 0};",
        "void expect(Packet* barrier, Word bytes)": "count(barrier, bytes, 1);",
        "void copy(unsigned char* to, const unsigned char* from, Word bytes, Packet* barrier)": (
            "later([=] { memcpy(to, from, bytes); count(barrier, -(int)bytes, 0); });"
        ),
        "bool is_over(Packet* barrier, Word phase)": "return ((Counter*)barrier)->phase != phase;",
        "void multiply_half(int (&c)[4], Word a0, Word a1, Word b0)": "multiply_bytes<16>(c, {{a0, a1}, {b0}});",
        "Word shortened(float x)": "return to_tf32(x);",
    },
    "cluster": _SHARED_BODIES
    | {
        "void cluster_arrive()": "__syncwarp(); arrive_at_cluster();",
        "void cluster_wait()": "wait_for_cluster();",
        "void copy(void* to, const void* from)": "copy_later(to, from, BYTES);",
        "void wait_for_copies()": "wait_for_copies_of_mine();",
    },
}
SHARED_MEMORY = "extern __shared__ __align__(128) unsigned char shared_bytes[];"  # a word that emulator.h defines
CLUSTER = re.compile(r"\b__cluster_dims__\((\w+)\)")

LAUNCH = """
extern "C" const char* emulate(void** values, const size_t* sizes, size_t given, int grid, int threads, size_t memory,
                               unsigned seed) {
    return launch(train, values, sizes, given, grid, %s, threads, memory, seed);
}
"""


class Changed(Exception):
    """The kernel's source is no longer what the emulator knows."""


class Failed(Exception):
    """A launch came to no end, or did what can't be done."""


def why_not():
    """Return why this machine can't run the emulator, or None."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return "the emulator's fibers are for Linux on x86-64"
    return None if shutil.which("g++") else "no g++ here"


# ---- The kernels ----


def translated(name, source):
    """Return the source of `<name>.cu` as C++. Raises Changed."""
    for signature, body in BODIES[name].items():
        head = f"__device__ {signature} {{"
        # What follows is one line, or lines that are indented, up to the brace that closes it.
        pattern = rf"^{re.escape(head)}(?: .*|\n(?:    .*\n|\n)*)?}}$"
        source, found = re.subn(pattern, lambda _, text=head + body + "}": text, source, flags=re.MULTILINE)
        if not found:
            raise Changed(f"{name}.cu has no function {signature!r} any more: the emulator must follow.")
    if left := re.findall(r"^.*\basm\b.*$", source, re.MULTILINE):
        raise Changed(f"{name}.cu has assembly that the emulator does not replace: {left[0].strip()}")
    header = Path(__file__).with_name("emulator.h").read_text(encoding="utf-8")
    blocks = CLUSTER.search(source)
    return header + source.replace(SHARED_MEMORY, "") + LAUNCH % (blocks[1] if blocks else 1)


def compiled(name, folder, source, **macros):
    """Return the kernel's library; compiled once for all who share the folder."""
    code = translated(name, source)
    key = hashlib.sha256(f"{code}{macros}".encode()).hexdigest()[:16]
    path = folder / f"{key}.so"
    if not path.exists():
        text, part, made = (folder / f"{key}.{os.getpid()}.{kind}" for kind in ("cpp", "o", "so"))
        text.write_text(code, encoding="utf-8")
        definitions = [f"-D{macro}={value}" for macro, value in macros.items()]
        # In two commands: one would link the checks' own library, which not every machine has, and none needs here.
        for command in ([*OPTIONS, *definitions, "-c", text, "-o", part], ["-shared", part, "-o", made]):
            done = subprocess.run(["g++", *map(str, command)], capture_output=True, text=True)
            if done.returncode:
                raise Changed(f"{name}.cu does not compile for the emulator:\n{done.stderr}")
        made.replace(path)
    library = ctypes.CDLL(str(path))
    size, sizes = ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
    library.emulate.argtypes = [ctypes.c_void_p, sizes, size, ctypes.c_int, ctypes.c_int, size, ctypes.c_uint]
    library.emulate.restype = ctypes.c_char_p
    return library


class _Module:
    """A compiled kernel file, as `cupy.RawModule` shows it."""

    def __init__(self, folder, seed, source, name, **macros):
        self.library, self.seed = compiled(name, folder, source, **macros), seed

    def get_function(self, name):
        return {"train": _Kernel(self.library, self.seed), "requirements": self._requirements}[name]

    def _requirements(self, grid, block, arguments):
        self.library.requirements(ctypes.c_void_p(arguments[0].data.ptr))


class _Kernel:
    """A kernel, as CuPy shows it: it is called with its grid, its threads and its arguments. Raises Failed."""

    max_dynamic_shared_size_bytes = 48 << 10  # until somebody asks for more

    def __init__(self, library, seed):
        self.library, self.seed = library, seed

    def __call__(self, grid, block, arguments, shared_mem=0):
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise Failed(f"{shared_mem} bytes of shared memory, but {self.max_dynamic_shared_size_bytes} are allowed")
        values = [np.array(each.data.ptr if isinstance(each, Array) else each) for each in arguments]
        places = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        sizes = (ctypes.c_size_t * len(values))(*(value.nbytes for value in values))
        if failure := self.library.emulate(places, sizes, len(values), *grid, *block, shared_mem, self.seed):
            raise Failed(failure.decode())


# ---- The engines: what they ask of CuPy, from NumPy ----


class Array(np.ndarray):
    """NumPy's array, with its address where CuPy's arrays have it."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def _array_from(function):
    return lambda *arguments, **options: np.asarray(function(*arguments, **options)).view(Array)


def _unwritten(shape, dtype=float):
    """Return an array that nobody has written: its floats are NaN."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = 0xFF
    return array


def _cupy():
    cupy = ModuleType("cupy")
    functions = {name: getattr(np, name) for name in ("asarray", "ascontiguousarray", "pad", "rint", "zeros")}
    vars(cupy).update({name: _array_from(f) for name, f in (functions | {"empty": _unwritten}).items()})
    cupy.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(attributes=H100, compute_capability="90"))
    return cupy


def _own(name):
    """Return an engine module that nobody else has."""
    spec = importlib.util.find_spec(f"{ENGINES}.{name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def engine(name, folder, seed=0, source=None):
    """Return the engine `cuda_<name>` with an emulated kernel. source: of the kernel, if it is not the file's own."""
    cupy = _cupy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(sys.modules, f"{ENGINES}.cupy_fused", engine_like(asarray=cupy.ascontiguousarray))
        patch.setitem(sys.modules, f"{ENGINES}.cuda.held", _own("cuda.held"))
        module = _own(f"cuda_{name}")
    module.kernels = SimpleNamespace(load=partial(_Module, folder, seed, source or kernels.source(name)))
    return module

"""Run `persistent.cu` on a CPU: what its threads do to each other, with no GPU.

CUDA C is almost C++. What is not, is small here: CUDA's own words, which `emulator.h` defines, and a few functions of
the kernel that hold a line of assembly each. These are found by their names and get another body (`BODIES`); the rest
of the file is compiled as it stands. A function that is missing, or assembly that nobody replaced, is an error: then
the kernel has changed, and the emulator must follow.

Each of the GPU's threads becomes a fiber, up to 65,536 of them in one thread of the CPU. A fiber runs until it waits:
at a barrier, for the other lanes of its warp, or in a loop that looks for a packet. A seed decides which warp is next,
which blocks are slow, and when and in which order packets and images arrive. So each seed is another schedule, and each
run of a seed is the same. Where nobody can go on, the emulator says so: a deadlock is an error and not a hang.

What it can't show: a race between two waits of the same warp (a warp goes on undisturbed until it waits), how the chip
rounds its sums and approximate roots, what the compiler makes of the code, and how long anything takes.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from shared import engine_like

from mlpkit import kernels
from mlpkit.engines import _rates

OPTIONS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-w")
BATCHES = (32, 64, 128, 256)

# Functions that hold assembly, and what they do here.
BODIES = {
    "void mark(int step, int stage)": "",
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
    "float root(float x)": "return sqrtf(x);",
    "void multiply(int (&c)[4], const Word (&a)[4], Word b0, Word b1)": (
        "multiply_bytes<32>(c, {{a[0], a[1], a[2], a[3]}, {b0, b1}});"
    ),
    "void multiply_half(int (&c)[4], Word a0, Word a1, Word b0)": "multiply_bytes<16>(c, {{a0, a1}, {b0}});",
    "void load_matrices(Word (&a)[4], const unsigned char* row)": "load_four_matrices(a, row, false);",
    "void load_transposed(Word (&a)[4], const unsigned char* row)": "load_four_matrices(a, row, true);",
    "void multiply_short(float (&c)[4], const Word (&a)[4], const Word (&b)[2])": (
        "multiply_tf32(c, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});"
    ),
    "Word shortened(float x)": "return to_tf32(x);",
}
SHARED = "extern __shared__ __align__(128) unsigned char shared_bytes[];"  # a word that emulator.h defines

LAUNCH = """
extern "C" const char* emulate(unsigned seed, const unsigned char* X, const long long* y, const long long* order,
                               int examples, int batch_size, float* row_losses, float* theta, float* m, float* v,
                               const float* rates, const float* s) {
    int needs[4];  // bytes that are exchanged, bytes of shared memory, blocks, threads
    requirements(needs);
    std::vector<float4> exchange(needs[0] / sizeof(float4));
    const auto run = [&] {
        train(X, y, order, examples, batch_size, row_losses, (Packets*)exchange.data(), theta, m, v, rates, s[0], s[1],
              s[2], s[3], s[4], s[5], s[6]);
    };
    return launch(run, needs[2], needs[3], needs[1], seed);
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


def translated(source):
    """Return the kernel's source as C++. Raises Changed."""
    for signature, body in BODIES.items():
        head = f"__device__ {signature} {{"
        # What follows is one line, or lines that are indented, up to the brace that closes it.
        pattern = rf"^{re.escape(head)}(?: .*|\n(?:    .*\n|\n)*)?}}$"
        source, found = re.subn(pattern, lambda _, text=head + body + "}": text, source, flags=re.MULTILINE)
        if not found:
            raise Changed(f"persistent.cu has no function {signature!r} any more: the emulator must follow.")
    if left := re.findall(r"^.*\basm\b.*$", source, re.MULTILINE):
        raise Changed(f"persistent.cu has assembly that the emulator does not replace: {left[0].strip()}")
    header = Path(__file__).with_name("emulator.h").read_text(encoding="utf-8")
    return header + source.replace(SHARED, "") + LAUNCH


def compiled(folder, source, **macros):
    """Return the function that launches the kernel; compiled once for all who share the folder."""
    code = translated(source)
    name = hashlib.sha256(f"{code}{macros}".encode()).hexdigest()[:16]
    path = folder / f"{name}.so"
    if not path.exists():
        text, made = folder / f"{name}.{os.getpid()}.cpp", folder / f"{name}.{os.getpid()}.so"
        text.write_text(code, encoding="utf-8")
        command = ["g++", *OPTIONS, *(f"-D{key}={value}" for key, value in macros.items()), str(text), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Changed(f"persistent.cu does not compile for the emulator:\n{done.stderr}")
        made.replace(path)
    emulate = ctypes.CDLL(str(path)).emulate
    emulate.restype = ctypes.c_char_p
    return emulate


def engine(folder, seed=0, source=None):
    """Return an engine that trains with the emulated kernel. source: of the kernel, where it is not the file's own."""
    return engine_like(train_epoch=partial(_train_epoch, folder, seed, source or kernels.source("persistent")))


def _train_epoch(folder, seed, source, network, optimizer, X, y, order, batch_size):
    """Train as `cuda_persistent` does. Raises Failed."""
    from mlpkit.engines import _held

    macros = _held.macros_for(BATCHES, {}, network.sizes, optimizer, batch_size)
    emulate = compiled(folder, source, **macros)
    steps = -(-len(order) // batch_size)
    pixels, labels, order = _held.as_bytes(X, macros["INPUTS"], "emulator"), y.astype(np.int64), order.astype(np.int64)
    row_losses = np.full((steps, batch_size), np.nan, np.float32)
    table = _rates.rates(optimizer, steps).astype(np.float32)
    settings = np.array(_rates.settings(optimizer), np.float32)
    vectors = [network.theta, *optimizer.state.values()]
    held = [_held.hold(vector, network.sizes) for vector in vectors]
    m, v = held[1:] or (table, table)  # nobody looks at them
    numbers = ctypes.c_int(len(order)), ctypes.c_int(batch_size)
    arrays = [pixels, labels, order, *numbers, row_losses, held[0], m, v, table, settings]
    failure = emulate(
        ctypes.c_uint(seed), *(ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arrays)
    )
    if failure:
        raise Failed(failure.decode())
    for vector, copy in zip(vectors, held, strict=True):
        _held.take_back(vector, copy, network.sizes)
    optimizer.steps += steps
    return _rates.mean_losses(row_losses, len(order) % batch_size)

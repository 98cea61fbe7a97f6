"""The same product in Python: three rungs again, by Numba, and a block's work, by Triton. Both may be missing.

Each has the rungs' arrays and their gate. Neither library is imported before somebody asks for its product.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from experiments.lab import lines
from mlpkit import kernels

from .rungs import RUNGS, by_rows


@dataclass(frozen=True)
class Other:
    """A product that is not in CUDA C.

    file, function: where its code is; all of the file, where no function is named. why_not(): why it can't be had
    beside this GPU, a sentence, or None. prepare(a, b): as the rungs' `prepare`.
    """

    label: str
    precision: str
    file: str
    function: str | None
    why_not: Callable
    prepare: Callable


def why_no_numba():
    """Return why Numba can't compile for this GPU, a sentence, or None where it can."""
    if find_spec("numba") is None:
        return "Numba's kernels are left out: it is not installed."
    from numba import config, cuda

    if config.ENABLE_CUDASIM:
        return "Numba's kernels are left out: NUMBA_ENABLE_CUDASIM is set, and so Numba only plays the GPU's part."
    if not cuda.is_available():
        return "Numba's kernels are left out: it finds no CUDA, which pip install numba-cuda may bring."
    try:
        cuda.jit("void()")(lambda: None)
    except Exception as error:  # such as one about a NumPy that is too new for it
        return f"Numba's kernels are left out: it compiles nothing here ({' '.join(str(error).split())[:200]})."
    return None


def numba(name, a, b):
    """Return a function that launches one of Numba's kernels, and the array that it writes."""
    import cupy
    from numba import cuda

    from . import numba_matmuls

    a, b = by_rows("float32", a, b)
    c = cupy.empty((len(a), b.shape[1]), np.float32)
    launch = numba_matmuls.prepare(getattr(numba_matmuls, name), *c.shape)
    return _compiled(partial(launch, *(cuda.as_cuda_array(array) for array in (a, b, c)))), c


def numba_ptx(name):
    """Return the assembly (PTX) that Numba makes of one of its kernels for this GPU."""
    import cupy

    from . import numba_matmuls

    numba(name, *cupy.ones((2, 4, 4), np.float32))
    return next(iter(getattr(numba_matmuls, name).inspect_asm().values()))


def why_no_triton():
    """Return why Triton's kernel can't run here, a sentence, or None where it can."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    return f"Triton's kernel is left out: {' and '.join(missing)} must be installed." if missing else None


def triton(a, b, bias=None):
    """Return a function that launches Triton's kernel, and the array it writes; with a bias, the layer max(., 0)."""
    import cupy
    import torch

    from . import triton_matmul

    c = cupy.empty((len(a), b.shape[1]), np.float32)
    a_width, b_width = a.shape[1], b.shape[1]
    a, b = (torch.from_dlpack(rounded).view(torch.bfloat16) for rounded in by_rows("bf16", a, b))
    bias = None if bias is None else torch.from_dlpack(bias)
    return _compiled(partial(triton_matmul.launch, a[:, :a_width], b[:, :b_width], torch.from_dlpack(c), bias)), c


def _compiled(call):
    """Return a function that was called once: the first call compiles, and is no time of a kernel."""
    call()
    return call


def _numba(name, label):
    return Other(f"Numba: {label}", "float32", "numba_matmuls.py", name, why_no_numba, partial(numba, name))


OTHERS = {
    "numba_naive": _numba("naive", "a thread a number"),
    "numba_coalesced": _numba("coalesced", "side by side"),
    "numba_shared": _numba("shared", "shared memory"),
    "triton": Other("Triton, bfloat16", "bf16", "triton_matmul.py", None, why_no_triton, triton),
}


def available(others=OTHERS, progress=print):
    """Return those of the products that can be had here, by name. progress: is told why others can't."""
    reasons = {name: other.why_not() for name, other in others.items()}
    for reason in dict.fromkeys(filter(None, reasons.values())):
        progress(reason)
    return {name: other for name, other in others.items() if not reasons[name]}


# How much is written, and what becomes of it


def source(variant):
    """Return the Python of one of the `OTHERS`: its function, or its whole file."""
    other = OTHERS[variant]
    text = Path(__file__).with_name(other.file).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == other.function:
            return "\n".join(text.splitlines()[node.decorator_list[0].lineno - 1 : node.end_lineno]) + "\n"
    return text


def code_lines(variant):
    """Return how many lines of code a variant is: comments and the list of instructions are not counted."""
    if variant in OTHERS:
        return lines.count_text(source(variant))
    path = kernels.place(RUNGS[variant].file)
    files = [path, *(header for header in kernels.headers(path) if header.parent == path.parent)]
    return sum(map(lines.count, [*files, kernels.FOLDER / "tensor_map.py"] if RUNGS[variant].boxes else files))


def loop_cost(ptx):
    """Return how many instructions of the assembly stand in the busiest loop for each of its multiply-adds."""
    pieces = re.split(r"^\$\w+:", ptx, flags=re.MULTILINE)
    busiest = max(pieces, key=lambda piece: piece.count("fma.rn.f32"))
    instructions = re.findall(r"^\s*(?:@!?%p\d+\s+)?[a-z][\w.]*\s.*;", busiest, re.MULTILINE)
    return len(instructions) / busiest.count("fma.rn.f32")

"""CUDA C, one idea a file, and what turns a file into something that Python can launch.

A kernel's sizes that are known before it runs (tile edges, layer widths) are macros: `load("tiles", TILE=32)` compiles
`tiles.cu` with `-DTILE=32`. NVRTC, the compiler that comes with CuPy's CUDA libraries, needs no GPU: `ptx` and `cubin`
compile for a chip that need not be here.

What several kernels need is a header, `.cuh`: beside the file that includes it, or here where several folders need it.

A file defines each macro that it needs, inside `#ifndef`, so that it compiles as it stands: the tests compile every
file for sm_80 and sm_90, and slow ones for sm_100 and sm_120. A file for newer chips alone says so in a line of its
first comment, `// needs sm_90`. One that says `// needs sm_90a` uses instructions that only this very chip has, and
neither older nor newer ones. What `ptx.cuh` has is there from sm_75 on, in whichever way.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import textwrap
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from mlpkit.files import write_atomically

from . import gpu
from .compiling import Module

FOLDER = Path(__file__).parent
OPTIONS = ("-std=c++17", "-default-device")
# A kernel, from its first line to its last; the name stands before the bracket of its parameters
KERNEL = re.compile(r'^extern "C" __global__ (?:\w+(?:\([^()]*\))?\s+)*(\w+)\((?:.*\}\n|(?:.*\n)+?\}\n)', re.MULTILINE)
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)


def source(name):
    """Return the CUDA C of the file `<name>.cu`, with the text of each header that it needs in place of its `#include`.

    A header stands there once, where it is included first. Raises ValueError where there is no such file.
    """
    return _with_headers(place(name), set())


def headers(path):
    """Return the paths of the headers that a file, a `.cu` or a `.cuh`, includes itself."""
    return [_header(path, name) for name in INCLUDE.findall(path.read_text(encoding="utf-8"))]


def place(name):
    """Return the path of `<name>.cu`, in whichever folder it lies. Raises ValueError where there is none."""
    for path in FOLDER.glob(f"*/{name}.cu"):
        return path
    raise ValueError(f"there is no kernel file {name!r}; the files are {', '.join(names())}.")


def excerpt(name, first, last):
    """Return some lines of `<name>.cu`: from the one that contains `first` to the next one that contains `last`.

    What all of them are indented by is taken off. Raises ValueError where there are no such lines.
    """
    lines = source(name).splitlines()
    begin = next((i for i, line in enumerate(lines) if first in line), None)
    end = next((i for i, line in enumerate(lines) if begin is not None and i >= begin and last in line), None)
    if begin is None or end is None:
        raise ValueError(f"{name}.cu has no lines from {first!r} to {last!r}.")
    return textwrap.dedent("\n".join(lines[begin : end + 1]))


def names():
    """Return the names of all kernel files."""
    return sorted(path.stem for path in FOLDER.glob("*/*.cu"))


def alone(code, kernel):
    """Return CUDA C without its kernels but one: all that begins with `extern "C" __global__` where a line does."""
    for found in reversed(list(KERNEL.finditer(code))):
        if found[1] != kernel:
            code = code[: found.start()] + code[found.end() :]
    return code


def chip(name):
    """Return the oldest chip that `<name>.cu` is for, such as "sm_80"; one that ends with "a" is the only one.

    A file that does not say so itself is for all GPUs of the workbook's, from Turing on.
    """
    comment = re.match("(//.*\n)*", source(name))
    found = re.search(r"^// needs (sm_\w+)$", comment[0] if comment else "", re.MULTILINE)
    return found[1] if found else "sm_75"


def is_for(name, capability):
    """Say whether `<name>.cu` is for GPUs of a compute capability, given as its digits, such as "90"."""
    found = chip(name).removeprefix("sm_")
    return f"{capability}a" == found if found.endswith("a") else int(capability) >= int(found)


@cache
def load(name, **macros):
    """Return the file `<name>.cu` as a `compiling.Module`, for this GPU, with macros defined.

    Of its kernels those are compiled that are asked for, each `alone`: that takes a part of the time, side by side, and
    makes the same machine code of it.
    """
    return Module(partial(_raw_module, name, macros))


def _raw_module(name, macros, kernel):
    import cupy

    if chip(name).endswith("a"):  # CuPy compiles for sm_90 where the GPU is one
        return cupy.RawModule(path=str(_file_of_code(name, kernel, chip(name), macros)))
    if gpu.is_restricted():  # PTX, which runs on newer chips, too
        return cupy.RawModule(path=str(_file_of_code(name, kernel, f"compute_{gpu.capability()}", macros)))
    return cupy.RawModule(code=alone(source(name), kernel), options=(*OPTIONS, *_definitions(macros)))


def ptx(name, arch="sm_90", **macros):
    """Return the assembly (PTX) of `<name>.cu` for a chip, such as "sm_90", from NVRTC: no GPU is needed.

    Raises RuntimeError with the compiler's messages where the file is wrong.
    """
    return _compile(name, source(name), exactly(name, arch).replace("sm", "compute"), macros).decode()


def cubin(name, arch="sm_90", **macros):
    """Return the machine code of `<name>.cu` for a chip, as bytes, from NVRTC: no GPU is needed.

    Raises RuntimeError with the compiler's messages where the file is wrong.
    """
    return _compile(name, source(name), exactly(name, arch), macros)


def exactly(name, arch):
    """Return `arch` with the "a" of a file that is for this very chip."""
    return chip(name) if chip(name) == f"{arch}a" else arch


def _file_of_code(name, kernel, arch, macros):
    """Return the path of a file with a kernel's code for a chip, compiled if it is not in CuPy's cache already.

    It is machine code: of PTX for "compute_80" what `ptxas` makes for this GPU. Where there is none it is PTX, which
    the driver compiles when it is loaded.
    """
    from cupy.cuda import nvrtc

    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    code, target = alone(source(name), kernel), f"sm_{gpu.own_capability()}" if arch.startswith("compute") else None
    depends_on = repr((code, arch, macros, nvrtc.getVersion(), target))
    path = folder / f"{name}-{hashlib.sha256(depends_on.encode()).hexdigest()[:16]}.cubin"
    paths = path, path.with_suffix(".ptx")
    if not any(each.is_file() for each in paths):
        compiled = _compile(name, code, arch, macros)
        assembled = _assembled(compiled, target) if target else compiled
        write_atomically(paths[assembled is None], compiled if assembled is None else assembled)
    return next(each for each in paths if each.is_file())


def _assembled(code, arch):
    """Return PTX as machine code for a chip, or None where no `ptxas` is installed that can read it."""
    with tempfile.TemporaryDirectory() as folder:
        read, written = Path(folder, "code.ptx"), Path(folder, "code.cubin")
        read.write_bytes(code)
        try:
            subprocess.run([ptxas(), f"-arch={arch}", "-o", written, read], check=True, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError):
            return None
        return written.read_bytes()


def _compile(name, code, arch, macros):
    """Return what NVRTC makes for `arch`: PTX as bytes for "compute_90", machine code for "sm_90"."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(code, f"{name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={arch}", *_definitions(macros)))
        # CuPy leaves out the last byte of either, a zero. Machine code needs it: its header says how long it is.
        return nvrtc.getPTX(program) if arch.startswith("compute") else nvrtc.getCUBIN(program) + b"\0"
    except nvrtc.NVRTCError as error:
        raise RuntimeError(
            f"{name}.cu does not compile for {arch.replace('compute', 'sm')}:\n{nvrtc.getProgramLog(program)}"
        ) from error
    finally:
        nvrtc.destroyProgram(program)


def ptxas():
    """Return the path of the assembler `ptxas`, as a wheel or a CUDA installation brings it."""
    for package in ("nvidia.cuda_nvcc", "nvidia.cu13"):
        for place in _places(package):
            if (place / "bin" / "ptxas").is_file():
                return str(place / "bin" / "ptxas")
    found = shutil.which("ptxas")
    if found is None:
        raise FileNotFoundError("ptxas is not installed: pip install nvidia-cuda-nvcc-cu12")
    return found


def _with_headers(path, seen):
    def text(found):
        header = _header(path, found[1])
        if header in seen:
            return ""
        seen.add(header)
        return _with_headers(header, seen)

    return INCLUDE.sub(text, path.read_text(encoding="utf-8"))


def _header(path, name):
    """Return the path of a header that a file includes: beside it, or else in the folder above all."""
    beside = path.with_name(name)
    return beside if beside.is_file() else FOLDER / name


def _places(package):
    try:
        found = find_spec(package)
    except ModuleNotFoundError:
        return []
    return [Path(place) for place in found.submodule_search_locations or ()] if found else []


def _definitions(macros):
    return [f"-D{name}={value}" for name, value in macros.items()]

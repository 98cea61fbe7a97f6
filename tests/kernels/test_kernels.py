"""Every CUDA file compiles for two generations of GPUs and keeps its numbers in registers: seen without a GPU."""

import contextlib
import re
import shutil
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest
from shared import one_sentence, sweep

from experiments.lab import ptxas
from experiments.lab.ptxas import Resources
from mlpkit import kernels
from mlpkit.kernels import gpu

SCALE = r"""// y = FACTOR x, and sums in shared memory
#ifndef FACTOR
#define FACTOR 2
#endif

extern "C" __global__ void scale(const float *x, float *y, int n)
{
    __shared__ float tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? FACTOR * x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = tile[threadIdx.x ^ 1];
}

extern "C" __global__ void nothing() {}
"""

# 300 numbers that are all needed at the end can't be in 255 registers.
GREEDY = r"""
extern "C" __global__ void greedy(float *x, int n)
{
    float held[300];
    #pragma unroll
    for (int i = 0; i < 300; i++) held[i] = x[i * n];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 300; i++) x[i * n] = held[299 - i] * held[(i * 7) % 300];
}
"""


def _missing():
    if gpu.libraries()["NVRTC"] is None:
        return "NVRTC is not installed"
    try:
        kernels.ptxas()
    except FileNotFoundError as error:
        return str(error)
    return None


needs_compiler = pytest.mark.skipif(_missing() is not None, reason=_missing() or "")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Put kernel files of the test's own where the package looks for them: in a room."""
    monkeypatch.setattr(kernels, "FOLDER", tmp_path)
    kernels.load.cache_clear()
    room = tmp_path / "room"
    room.mkdir()
    for name, code in {"scale": SCALE, "greedy": GREEDY, "wrong": "__global__ void f() { missing(); }"}.items():
        (room / f"{name}.cu").write_text(code)
    (room / "notes.txt").write_text("no kernel")
    yield room
    kernels.load.cache_clear()


# The package's own files


# Bytes that a thread may spill all the same: 512 threads share all registers, and for sm_80 they suffice
SPILLED = {"limit_portable": 28, "between_backward": 4}


@needs_compiler
@pytest.mark.parametrize("arch", sweep(["sm_80", "sm_90"], "sm_90"))
@pytest.mark.parametrize("name", kernels.names())
def test_a_kernel_file_compiles_and_spills_nothing(name, arch):
    if arch < kernels.chip(name).rstrip("a"):
        pytest.skip(f"{name}.cu needs {kernels.chip(name)}")
    found = ptxas.resources(name, arch)
    assert found, f"{name}.cu has no kernel"
    assert max(one.spilled_bytes for one in found.values()) <= SPILLED.get(name, 0)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_100", "sm_120"])
@pytest.mark.parametrize("name", kernels.names())
def test_a_kernel_file_compiles_for_blackwell(name, arch):
    if kernels.chip(name).endswith("a"):
        pytest.skip(f"{name}.cu is for {kernels.chip(name)} alone")
    assert kernels.cubin(name, arch)


@pytest.mark.parametrize("name", kernels.names())
def test_a_kernel_file_begins_with_its_idea(name):
    assert kernels.source(name).startswith("// ")


# The functions


def test_the_names_are_those_of_the_files(folder):
    assert kernels.names() == ["greedy", "scale", "wrong"]
    assert kernels.source("scale") == SCALE


def test_a_name_that_no_file_has_is_refused_with_the_names(folder):
    with pytest.raises(ValueError, match="no kernel file") as caught:
        kernels.source("scail")
    one_sentence(caught.value, "'scail'", "scale")


@needs_compiler
def test_a_macro_changes_the_code(folder):
    assert ".target sm_90" in kernels.ptx("scale")
    assert ".target sm_80" in kernels.ptx("scale", "sm_80")
    assert kernels.ptx("scale") == kernels.ptx("scale", FACTOR=2) != kernels.ptx("scale", FACTOR=3)


@needs_compiler
def test_a_mistake_comes_with_the_compilers_words(folder):
    with pytest.raises(RuntimeError) as caught:
        kernels.ptx("wrong", "sm_80")
    for words in ("wrong.cu does not compile for sm_80", 'identifier "missing" is undefined'):
        assert words in str(caught.value)


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_resources_are_read_for_each_kernel(arch, folder):
    found = ptxas.resources("scale", arch)
    assert found.keys() == {"scale", "nothing"}
    assert found["scale"].shared_bytes == 1024
    assert 0 < found["nothing"].registers < found["scale"].registers < 32
    assert found["nothing"].shared_bytes == 0
    assert {one.spilled_bytes for one in found.values()} == {0}


@needs_compiler
def test_a_spill_is_seen(folder):
    (greedy,) = ptxas.resources("greedy").values()
    assert greedy.registers == 255
    assert greedy.spilled_bytes > 0


# As ptxas 12.9 prints it; the spill is made up
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 4.121 ms
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
"""


def test_the_report_of_ptxas_is_read_kernel_by_kernel():
    assert dict(ptxas._read_report(REPORT)) == {"first": Resources(40, 1024, 12), "second": Resources(4, 0, 0)}


def test_without_ptxas_the_advice_is_to_install_it(monkeypatch):
    monkeypatch.setattr(kernels, "_places", lambda package: [])
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError) as caught:
        kernels.ptxas()
    one_sentence(caught.value, "pip install nvidia-cuda-nvcc-cu12")
    monkeypatch.setattr(kernels.shutil, "which", lambda name: "/usr/local/cuda/bin/ptxas")
    assert kernels.ptxas() == "/usr/local/cuda/bin/ptxas"


@needs_compiler
def test_ptxas_is_a_program():
    said = subprocess.run([kernels.ptxas(), "--version"], capture_output=True, text=True, check=True).stdout
    assert "ptxas" in said


def test_a_kernel_is_made_once_and_alone_for_each_set_of_macros(folder, monkeypatch):
    made = []

    def module(code, options):
        made.append((code, options))
        return types.SimpleNamespace(compile=lambda: None)

    cuda = types.SimpleNamespace(Device=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(RawModule=module, cuda=cuda))
    first, other = kernels.load("scale", FACTOR=3), kernels.load("scale", FACTOR=4)
    assert kernels.load("scale", FACTOR=3) is first is not other
    for each in (first, other, first):
        each.get_function("scale").future.result()
    code = SCALE.replace('extern "C" __global__ void nothing() {}\n', "")
    assert sorted(made) == [(code, (*kernels.OPTIONS, f"-DFACTOR={factor}")) for factor in (3, 4)]


def test_a_file_without_its_other_kernels():
    two = """// two
__device__ float half(float x) { return x / 2; }

extern "C" __global__ __launch_bounds__(THREADS, 1) __cluster_dims__(2)
void first(float* x
#if MORE
           , int n
#endif
)
{
    if (threadIdx.x) {
        *x = half(*x);
    }
}

extern "C" __global__ void second(float* x) { *x = 0; }
"""
    begin, end = two.index('extern "C" __global__ __launch'), two.index('extern "C" __global__ void second')
    assert kernels.alone(two, "first") == two[:end]
    assert kernels.alone(two, "second") == two[:begin] + "\n" + two[end:]


@pytest.mark.parametrize("name", kernels.names())
def test_each_kernel_of_a_file_is_found(name):
    source = kernels.source(name)
    found = [each[1] for each in kernels.KERNEL.finditer(source)]
    assert len(found) == len(set(found)) == len(re.findall(r"^(?!//).*__global__", source, re.MULTILINE))


SEVERAL = [name for name in kernels.names() if len(kernels.KERNEL.findall(kernels.source(name))) > 1]


@needs_compiler
@pytest.mark.parametrize("name", sweep(SEVERAL, "updates"))
def test_a_kernel_that_is_compiled_alone_is_the_same_machine_code(name):
    source, arch = kernels.source(name), kernels.exactly(name, "sm_90")
    whole = code_of_kernels(kernels.cubin(name, "sm_90"))
    assert whole.keys() == set(kernels.KERNEL.findall(source))
    for kernel, code in whole.items():
        assert code_of_kernels(kernels._compile(name, kernels.alone(source, kernel), arch, {})) == {kernel: code}


def code_of_kernels(cubin):
    """Return the instructions of each kernel in an ELF file, and how many registers they need, as its sections say."""
    (at,), (size, count, names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<2I4Q2I", cubin, at + size * number) for number in range(count)]
    found = {}
    for name, _, _, _, offset, length, _, info in sections:
        start = sections[names][4] + name
        section = cubin[start : cubin.index(b"\0", start)].decode()
        if section.startswith(".text.") and not section.startswith(".text.__"):  # these are a library's
            found[section.removeprefix(".text.")] = cubin[offset : offset + length], info >> 24
    return found


# An instruction that only sm_90a has.
HOPPERS = """// A fence.
// needs sm_90a
extern "C" __global__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
"""


@needs_compiler
def test_a_file_for_one_chip_alone_is_compiled_for_that_chip(folder, monkeypatch, tmp_path):
    import cupy

    (folder / "fence.cu").write_text(HOPPERS)
    assert (kernels.chip("fence"), kernels.chip("scale")) == ("sm_90a", "sm_75")
    assert ".target sm_90a" in kernels.ptx("fence")
    assert ptxas.resources("fence").keys() == {"fence"}
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cupy, "RawModule", lambda path: types.SimpleNamespace(path=path, compile=lambda: None))
    monkeypatch.setattr(cupy.cuda, "Device", contextlib.nullcontext)
    compiled = kernels.load("fence").get_function("fence").future.result().path
    assert Path(compiled).read_bytes().startswith(b"\x7fELF")
    monkeypatch.setattr(kernels, "_compile", None)  # so that a second one would fail
    kernels.load.cache_clear()
    assert kernels.load("fence").get_function("fence").future.result().path == compiled


@needs_compiler
def test_code_for_a_lesser_chip_is_assembled_for_this_one_and_kept(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu, "own_capability", lambda: 90)
    path = kernels._file_of_code("scale", "nothing", "compute_80", {})
    assert code_of_kernels(path.read_bytes()).keys() == {"nothing"}
    assert path.read_bytes()[48] == 90  # ELF's flags
    monkeypatch.setattr(kernels, "_compile", None)  # so that a second one would fail
    assert kernels._file_of_code("scale", "nothing", "compute_80", {}) == path


@needs_compiler
@pytest.mark.parametrize("why", ["none", "an older one"])
def test_without_an_assembler_the_driver_gets_ptx(why, folder, monkeypatch, tmp_path):
    def missing():
        raise FileNotFoundError

    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu, "own_capability", lambda: 90)
    monkeypatch.setattr(kernels, "ptxas", missing if why == "none" else lambda: shutil.which("false"))
    path = kernels._file_of_code("scale", "nothing", "compute_80", {})
    assert ".target sm_80" in path.read_text()
    monkeypatch.setattr(kernels, "_compile", None)
    assert kernels._file_of_code("scale", "nothing", "compute_80", {}) == path


@needs_compiler
def test_hoppers_instructions_do_not_compile_for_others(folder):
    (folder / "fence.cu").write_text(HOPPERS.replace("// needs sm_90a\n", ""))
    with pytest.raises(RuntimeError, match=r"fence\.cu does not compile for sm_90:\n.*not supported"):
        kernels.cubin("fence")


@needs_compiler
def test_machine_code_is_whole(folder):
    """An ELF file's header says how long it is: tables at an offset, entries, and an entry's size."""
    code = kernels.cubin("scale")
    programs, sections = struct.unpack_from("<QQ", code, 32)
    sizes = struct.unpack_from("<4H", code, 54)
    ends = programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]
    assert max(ends) == len(code)


@pytest.mark.gpu
def test_a_kernel_runs(folder):
    import cupy

    x = cupy.arange(512, dtype=cupy.float32)
    y = cupy.empty_like(x)
    kernels.load("scale", FACTOR=3).get_function("scale")((2,), (256,), (x, y, x.size))
    cupy.testing.assert_array_equal(y, 3 * x.reshape(-1, 2)[:, ::-1].ravel())


def test_an_excerpt_is_the_lines_from_one_to_another(monkeypatch):
    monkeypatch.setattr(kernels, "source", lambda name: SCALE)
    assert kernels.excerpt("scale", "int i =", "tile[").splitlines() == [
        "int i = blockIdx.x * blockDim.x + threadIdx.x;",
        "tile[threadIdx.x] = i < n ? FACTOR * x[i] : 0.0f;",
    ]
    assert kernels.excerpt("scale", "nothing", "nothing") == 'extern "C" __global__ void nothing() {}'
    for words in (("no such", "tile"), ("nothing", "scale")):
        with pytest.raises(ValueError, match="has no lines from"):
            kernels.excerpt("scale", *words)


def test_a_header_stands_once_where_it_is_included_first(folder):
    (folder.parent / "everywhere.cuh").write_text("// everywhere\n")
    (folder / "here.cuh").write_text('#include "everywhere.cuh"\n// here\n')
    (folder / "both.cu").write_text('// both\n#include "here.cuh"\n#include "everywhere.cuh"\n// end\n')
    assert kernels.source("both") == "// both\n// everywhere\n// here\n// end\n"
    assert kernels.headers(folder / "here.cuh") == [folder.parent / "everywhere.cuh"]
    assert kernels.headers(folder / "scale.cu") == []


def test_a_header_that_is_missing_is_named(folder):
    (folder / "alone.cu").write_text('#include "missing.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"missing\.cuh"):
        kernels.source("alone")


def test_the_assembly_of_the_networks_kernels_is_in_one_header():
    files = [path for path in (kernels.FOLDER / "mlp").iterdir() if path.suffix in (".cu", ".cuh")]
    assert len(files) > 10
    assert [path.name for path in files if "asm" in path.read_text(encoding="utf-8")] == []


def test_each_header_is_included_by_somebody():
    files = [path for suffix in ("cu", "cuh") for path in kernels.FOLDER.rglob(f"*.{suffix}")]
    included = {header for path in files for header in kernels.headers(path)}
    assert included == {path for path in files if path.suffix == ".cuh"}


# What a kernel is not made for

WRONG = [
    ("persistent", {"BATCH": 96}, "rows are dealt out"),
    ("persistent", {"INPUTS": 50}, "pieces of 16 pixels"),
    ("persistent", {"CLASSES": 17}, "one tile of classes"),
    ("cluster", {"BATCH": 32}, "a row of BATCH elements"),
    ("cluster", {"ADAM": 2}, "Adam's averages"),
    ("matmul_3_shared", {"TILE": 64}, "1024 threads"),
    ("matmul_6_pipelined", {"STAGES": 40}, "227 KiB"),
    ("matmul_7_tf32", {"DEPTH": 8}, "two sets"),
    ("cluster_barrier", {"BLOCKS": 32}, "16 blocks"),
    ("matmul_10_wgmma", {"STAGES": 5}, "227 KiB"),
]


@needs_compiler
@pytest.mark.parametrize(("name", "macros", "words"), WRONG)
def test_sizes_that_a_kernel_is_not_made_for_do_not_compile(name, macros, words):
    with pytest.raises(RuntimeError, match=words):
        kernels.ptx(name, **macros)

"""How the record "inside" is made."""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from experiments.lab import results
from experiments.lab.clock import device_us
from mlpkit import engines, kernels

THREADS, WARPS = 256, 8  # of a block, as in warps.cu
PROGRAM = Path(__file__).with_name("faulty.cu")
FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")  # where CUDA's tools are, if not on the path
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy", "WarpStateStats")
TOOLS = {  # name: the tool, what comes before the program, and the program's arguments
    "printf": ((), ("print", "8")),
    "outside": ((), ("outside",)),
    "memcheck": (("compute-sanitizer", "--print-limit", "1"), ("outside",)),
    "padded": (("compute-sanitizer", "--padding", "512", "--print-limit", "1"), ("outside",)),
    "race": ((), ("race",)),
    "racecheck": (("compute-sanitizer", "--tool", "racecheck", "--print-limit", "1"), ("race", "8")),
    "ncu": (
        ("ncu", "--clock-control", "none", *chain.from_iterable(("--section", name) for name in SECTIONS)),
        ("right", "65536"),
    ),
    "cuda-gdb": (
        (
            "cuda-gdb", "-q", "-batch", "-ex", "set cuda break_on_launch application", "-ex", "run",
            "-ex", "info cuda kernels", "-ex", "break 19", "-ex", "continue", "-ex", "cuda block 1 thread 37",
            "-ex", "print sum", "-ex", "print i", "-ex", "print part[36]", "-ex", "info cuda warps", "--args",
        ),
        ("right", "8"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. rows, columns: of the sums. labels: that are counted."""

    samples: int = 15
    rows: int = 16384
    columns: tuple[int, ...] = (32, 256, 1024)
    ways: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rounds: int = 1000
    blocks: int = 132
    labels: int = 1 << 24
    classes: tuple[int, ...] = (1, 10, 1000)
    runs: int = 100
    seconds: int = 60  # that a tool may take


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure everything, and return the record. Raises `engines.EngineUnavailable` where there is no GPU."""
    engines.load("cupy_naive")  # or why there is none
    record = results.new("inside", plan=asdict(plan))
    parts = (_sums, _orders, _ways, _counts, _tools)
    return results.collect(record, chain.from_iterable(part(plan, progress) for part in parts), save)


def _kernel(name):
    return kernels.load("warps").get_function(name)


def _samples(call, plan):
    call()
    return [round(device_us(call, 10), 3) for _ in range(plan.samples)]


def _sums(plan, progress):
    import cupy as cp

    for columns in plan.columns:
        x = cp.random.default_rng(0).random((plan.rows, columns), np.float32)
        for name in ("sum_shared", "sum_shuffled", "sum_by_warps", "sum_atomic"):
            progress(f"{name}, {plan.rows:,} rows of {columns:,}")
            sums, kernel = cp.zeros(plan.rows, np.float32), _kernel(name)
            blocks = plan.rows // WARPS if name == "sum_by_warps" else plan.rows
            call = partial(kernel, (blocks,), (THREADS,), (x, sums, np.int32(columns)))
            call()
            assert cp.allclose(sums, x.sum(axis=1), rtol=1e-5), name
            yield {"kind": "sum", "name": name, "columns": columns, "samples_us": _samples(call, plan)}


def _orders(plan, progress):
    """How many different sums a kernel finds of the same numbers, run again and again."""
    import cupy as cp

    x = cp.random.default_rng(0).random(1 << 20, np.float32)
    for name, blocks, columns in (("sum_shuffled", 1, 1 << 20), ("sum_atomic", 1, 1 << 20)):
        progress(f"{name}, again and again")
        found = set()
        for _ in range(plan.runs):
            total = cp.zeros(1, np.float32)
            _kernel(name)((blocks,), (THREADS,), (x, total, np.int32(columns)))
            found.add(float(total[0]))
        exact = float(x.sum(dtype=np.float64))
        yield {"kind": "orders", "name": name, "runs": plan.runs, "sums": sorted(found), "exact": exact}


def _ways(plan, progress):
    import cupy as cp

    x = cp.zeros(plan.blocks * THREADS, np.float32)
    for name in ("part_lanes", "part_warps"):
        for ways in plan.ways:
            progress(f"{name}, {ways} ways")
            call = partial(_kernel(name), (plan.blocks,), (THREADS,), (x, np.int32(ways), np.int32(plan.rounds)))
            yield {"kind": "ways", "name": name, "ways": ways, "samples_us": _samples(call, plan)}


def _counts(plan, progress):
    import cupy as cp

    for classes in plan.classes:
        labels = cp.random.default_rng(0).integers(0, classes, plan.labels, dtype=np.int32)
        for name in ("count_global", "count_shared", "count_by_warps"):
            progress(f"{name}, {classes:,} classes")
            counts, kernel = cp.zeros(classes, np.uint32), _kernel(name)
            what = labels, counts, np.int32(plan.labels), np.int32(classes)
            call = partial(kernel, (8 * plan.blocks,), (THREADS,), what, shared_mem=4 * classes)
            call()
            assert (counts == cp.bincount(labels, minlength=classes)).all(), name
            yield {"kind": "count", "name": name, "classes": classes, "samples_us": _samples(call, plan)}


def _tools(plan, progress):
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS])
    with tempfile.TemporaryDirectory() as folder:
        for name, (tool, arguments) in TOOLS.items():
            progress(name)
            options = ("-g", "-G") if name == "cuda-gdb" else ("-lineinfo", "-O3")
            yield {"kind": "tool", "name": name} | _said(tool, arguments, options, Path(folder), path, plan.seconds)


def _said(tool, arguments, options, folder, path, seconds):
    """Return what a tool prints about the program, without this machine's paths; or why it prints nothing."""
    try:
        nvcc = ["nvcc", "-std=c++17", "-arch=native", *options, PROGRAM.name, "-o", str(folder / "faulty")]
        for command, cwd in ((nvcc, PROGRAM.parent), ([*tool, "./faulty", *arguments], folder)):
            command = [shutil.which(command[0], path=path) or command[0], *command[1:]]
            done = subprocess.run(
                command, cwd=cwd, timeout=seconds, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
    except (OSError, subprocess.SubprocessError) as error:
        return {"command": "", "text": "", "why_not": f"{type(error).__name__}: {error}"}
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", done.stdout)
    text = re.sub(r"/\S*/(?=[\w.-]+)", "", text).replace(str(folder), "")
    return {"command": " ".join((*tool, "./faulty", *arguments)), "text": text[:8000], "why_not": ""}

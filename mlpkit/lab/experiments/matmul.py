"""One matrix product in eight ways, from three plain loops to tiles in registers: what each is worth, and why.

Every stage is a function of the same three matrices, `out = a b`, and changes one thing: the order of the loops, leave
to reorder a sum, how many numbers a load is used for, where the totals are kept. A `Stage` has it compiled for one core
and for all. The record "matmul" holds what the stages do over many shapes, what bounds them, and what threads cost.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from types import FunctionType

import numba
import numpy as np
from numba import prange

from mlpkit.engines import numba_fastmath, numba_parallel, numba_serial, python_lists, python_loops
from mlpkit.engines.loops import gemm as _gemm
from mlpkit.engines.loops.compiler import FASTMATH, compile_loops, compiled
from mlpkit.engines.loops.simd import BYTES, LANES, ROWS, tile
from mlpkit.lab import machine, processes, results
from mlpkit.nn.network import SIZES

from . import floor as roofline
from .floor import at_a_line, seconds_of
from .sweep import with_threads

LAYERS = ("omp", "workqueue", "tbb")  # Numba's threading layers
CONTRACT = {"contract"}  # leave to make one instruction of a product and a sum; rounds once instead of twice


# The stages. Each writes the product of a (n, k) and b (k, m) into out (n, m); all float32 or all float64.


def order_ikj(a, b, out):
    """Add `a[i, k]` times row k of b to row i of out: the inner loop walks along rows, which lie in one piece."""
    for i in prange(a.shape[0]):
        out[i] = 0
        for k in range(b.shape[0]):
            factor = a[i, k]
            for j in range(b.shape[1]):
                out[i, j] += factor * b[k, j]


def outer_1x8(a, b, out):
    """Do as `order_ikj` does, but take eight rows of b at a time: out is read and written an eighth as often."""
    whole = b.shape[0] // 8 * 8
    for i in prange(a.shape[0]):
        out[i] = 0
        for k in range(0, whole, 8):
            factors = eight(a[i], k)
            for j in range(b.shape[1]):
                out[i, j] = out[i, j] + dot8(factors, column8(b, k, j))
        add_product(a[i : i + 1, whole:], b[whole:], out[i : i + 1])


def outer_4x8(a, b, out):
    """Do as `outer_1x8` does, but for four rows of out at a time: b is read a quarter as often."""
    whole = b.shape[0] // 8 * 8
    for block in prange((a.shape[0] + 3) // 4):
        i = 4 * block
        out[i : i + 4] = 0
        if i + 4 <= a.shape[0]:
            for k in range(0, whole, 8):
                p, q, r, s = eight(a[i], k), eight(a[i + 1], k), eight(a[i + 2], k), eight(a[i + 3], k)
                for j in range(b.shape[1]):
                    c = column8(b, k, j)
                    w, x = out[i, j] + dot8(p, c), out[i + 1, j] + dot8(q, c)
                    y, z = out[i + 2, j] + dot8(r, c), out[i + 3, j] + dot8(s, c)
                    out[i, j], out[i + 1, j], out[i + 2, j], out[i + 3, j] = w, x, y, z
            add_product(a[i : i + 4, whole:], b[whole:], out[i : i + 4])
        else:
            add_product(a[i:], b, out[i:])


@compiled(__name__)
def eight(row, k):
    """Return eight numbers of a row, from the k-th on."""
    return row[k], row[k + 1], row[k + 2], row[k + 3], row[k + 4], row[k + 5], row[k + 6], row[k + 7]


@compiled(__name__)
def column8(b, k, j):
    """Return eight numbers of column j, from row k on."""
    return b[k, j], b[k + 1, j], b[k + 2, j], b[k + 3, j], b[k + 4, j], b[k + 5, j], b[k + 6, j], b[k + 7, j]


@compiled(__name__, fastmath=CONTRACT)
def dot8(p, c):
    """Return the sum of the products of two tuples of eight."""
    first = p[0] * c[0] + p[1] * c[1] + p[2] * c[2] + p[3] * c[3]
    return first + p[4] * c[4] + p[5] * c[5] + p[6] * c[6] + p[7] * c[7]


@compiled(__name__)
def add_product(a, b, out):
    """Add the product of a and b to out."""
    for i in range(a.shape[0]):
        for k in range(b.shape[0]):
            for j in range(b.shape[1]):
                out[i, j] += a[i, k] * b[k, j]


def four_sums(a, b, out):
    """Do as `python_loops.matmul` does, but with four sums for each number of out, none of which waits for another."""
    whole = b.shape[0] // 4 * 4
    for i in prange(a.shape[0]):
        for j in range(b.shape[1]):
            p = q = r = s = out.dtype.type(0)
            for k in range(0, whole, 4):
                p += a[i, k] * b[k, j]
                q += a[i, k + 1] * b[k + 1, j]
                r += a[i, k + 2] * b[k + 2, j]
                s += a[i, k + 3] * b[k + 3, j]
            for k in range(whole, b.shape[0]):
                p += a[i, k] * b[k, j]
            out[i, j] = (p + q) + (r + s)


def blas(a, b, out):
    """Leave it to NumPy, and that to the BLAS it was built with."""
    np.matmul(a, b, out=out)


@dataclass(frozen=True)
class Stage:
    """A way to multiply. one, all: the function, compiled for one core and for all. slow: not for large matrices."""

    label: str
    one: Callable
    all: Callable
    slow: bool = False


def _stage(label, function, slow=False, **options):
    """Return a stage: the function compiled twice, under names that keep the two apart on disk."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__doc__ = function.__doc__
    one = compiled(f"{__name__}_one", **options)(function)
    return Stage(label, one, compiled(f"{__name__}_all", parallel=True, **options)(copy), slow)


_one_reordered = compile_loops(f"{__name__}_reordered", fastmath=FASTMATH).matmul

STAGES = {
    "ijk": Stage("three loops, i j k", numba_serial.matmul, numba_parallel.matmul, slow=True),
    "ijk_reordered": Stage("i j k, leave to reorder", _one_reordered, numba_fastmath.matmul, slow=True),
    "four_sums": _stage("i j k, four sums", four_sums, slow=True),
    "ikj": _stage("i k j", order_ikj),
    "outer_1x8": _stage("1 row x 8 k", outer_1x8, fastmath=CONTRACT),
    "outer_4x8": _stage("4 rows x 8 k", outer_4x8, fastmath=CONTRACT),
    "tiles": Stage("tiles in registers", _gemm.multiply, _gemm.matmul),
    "blas": Stage("NumPy's BLAS", blas, blas),
}


# The shapes


@dataclass(frozen=True)
class Product:
    """A product to time: of a (n, k) and b (k, m). turned: "a" or "b" where that one is the transpose of an array."""

    group: str
    name: str
    n: int
    k: int
    m: int
    turned: str = ""

    @property
    def flops(self):
        """Multiplications and additions."""
        return 2 * self.n * self.k * self.m

    def arrays(self, dtype=np.float32):
        """Return a, b and room for their product, each at a cache line: elsewhere some stages take twice as long."""
        rng = np.random.default_rng(0)
        a, b = (rng.random(shape, dtype) for shape in ((self.n, self.k), (self.k, self.m)))
        a = at_a_line(a.T).T if self.turned == "a" else at_a_line(a)
        b = at_a_line(b.T).T if self.turned == "b" else at_a_line(b)
        return a, b, at_a_line(np.zeros((self.n, self.m), dtype))


FIRST = Product("step", "X W1", 128, SIZES[0], SIZES[1])
TURNED = Product("turned", "X W1, W1 stored by columns", 128, SIZES[0], SIZES[1], turned="b")
STEP = (
    FIRST,
    Product("step", "a1 W2", 128, 128, 128),
    Product("step", "a3 W4", 128, 128, 10),
    Product("step", "X^T dz1", 784, 128, 128, turned="a"),
    Product("step", "a1^T dz2", 128, 128, 128, turned="a"),
    Product("step", "a3^T dz4", 128, 128, 10, turned="a"),
    Product("step", "dz2 W2^T", 128, 128, 128, turned="b"),
    Product("step", "dz4 W4^T", 128, 10, 128, turned="b"),
)
BATCHES = tuple(Product("batch", str(n), n, 784, 128) for n in (1, 2, 8, 16, 32, 64, 128, 256, 512, 2048))
CUBES = tuple(Product("cube", str(n), n, n, n) for n in (64, 128, 256, 512, 1024, 2048))
DEPTHS = tuple(Product("depth", str(k), 128, k, 128) for k in (16, 32, 48, 64, 96, 128, 256, 784))
GROUPS = {"step": STEP, "turned": (TURNED,), "batch": BATCHES, "cube": CUBES, "depth": DEPTHS}


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each rate, each of calls that fill `sample_seconds`.

    patience: seconds after which a stage takes no further sample. slow: stages that are slow get no product of more
    operations. region_seconds: for the cost of a parallel region, each time. tile_depths: steps of a tile timed alone.
    groups: of products. threads: whether to measure what threads cost.
    """

    samples: int = 7
    sample_seconds: float = 0.008
    patience: float = 0.6
    slow: float = 3e8
    region_seconds: float = 5.0  # what a busy machine does to a region is rare, and takes milliseconds
    tile_depths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 784)
    groups: tuple[str, ...] = tuple(GROUPS)
    threads: bool = True


USUAL = Plan()


# The record


def run(save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    """
    record = results.new("matmul", plan=asdict(plan), lanes=LANES, rows=ROWS)
    parts = (_peaks, _stages, _interpreted, _chains, _tiles, _peaks, _regions, _turns)  # peaks: before and after
    return results.collect(record, chain.from_iterable(part(plan, progress) for part in parts), save)


def _peaks(plan, progress):
    for threads in roofline.thread_counts():
        progress(f"peak, {threads} threads")
        roofline.peak(threads, flops=1)  # compiles
        samples = [roofline.peak(threads, 10**9) for _ in range(5 * plan.samples)]
        yield {"kind": "peak", "threads": threads, "samples_gflops": samples}


def _stages(plan, progress):
    products = [product for group in plan.groups for product in GROUPS[group]]
    for product in products:
        for threads in roofline.thread_counts() if product.group in ("step", "batch", "cube") else [1]:
            progress(f"{product.name} {product.n} x {product.k} x {product.m}, {threads} threads")
            for name, samples in rates(product, threads, plan).items():
                yield (
                    {"kind": "stage", "stage": name, "threads": threads} | asdict(product) | {"samples_gflops": samples}
                )


def rates(product, threads=1, plan=USUAL, names=tuple(STAGES)):
    """Return GFLOP/s by stage, a list of samples each, taken in turns; none for a stage that would take too long.

    Raises AssertionError where a stage's product is not NumPy's.
    """
    a, b, out = product.arrays()
    wanted, calls = a @ b, {}
    samples: dict[str, list[float]] = {name: [] for name in names}
    with with_threads(threads):
        for name in names:
            if not (STAGES[name].slow and product.flops > plan.slow):
                call = STAGES[name].one if threads == 1 else STAGES[name].all
                call(a, b, out)  # compiles
                np.testing.assert_allclose(out, wanted, rtol=1e-3)
                once = seconds_of(call, a, b, out)
                calls[name] = call, max(1, int(plan.sample_seconds / once)), once
        for turn in range(plan.samples):
            for name, (call, times, once) in calls.items():
                if turn == 0 or turn * times * once < plan.patience:
                    if threads > 1 and once < plan.sample_seconds:
                        machine.settle(lambda call=call: call(a, b, out))
                    samples[name].append(product.flops / seconds_of(call, a, b, out, times=times) / 1e9)
    return samples


def _interpreted(plan, progress):
    product = Product("interpreted", "X W1 of 4 images, 10 units", 4, 784, 10)
    a, b, out = product.arrays()
    rows = a.tolist(), list(map(list, zip(*b.tolist(), strict=True)))
    calls = {
        "python_loops": lambda: python_loops.matmul(a, b, out),
        "python_lists": lambda: [[python_lists.dot(row, column) for column in rows[1]] for row in rows[0]],
    }
    for name, call in calls.items():
        progress(f"{name}, interpreted")
        samples = [product.flops / seconds_of(call) / 1e9 for _ in range(plan.samples)]
        yield {"kind": "interpreted", "stage": name, "threads": 1} | asdict(product) | {"samples_gflops": samples}


def _chains(plan, progress):
    """Yield nanoseconds a term of a sum of 4,096 numbers, in order and with leave to reorder."""
    values = np.ones(4096, np.float32)
    reordered = compile_loops(f"{__name__}_reordered", fastmath=FASTMATH).sum
    for name, call in {"in order": numba_serial.sum, "reordered": reordered}.items():
        progress(f"a sum {name}")
        call(values)
        samples = [seconds_of(call, values, times=200) / len(values) * 1e9 for _ in range(2 * plan.samples)]
        yield {"kind": "sum", "order": name, "samples_ns": samples}


@compiled(__name__)
def repeat_tile(a, b, out, depth, times):
    """Compute the same tile so many times: a (ROWS, depth), b (depth, a register), out (ROWS, a register)."""
    for _ in range(times):
        a_at, b_at, out_at = a.ctypes.data, b.ctypes.data, out.ctypes.data
        tile(out.dtype, a_at, a.strides[0], a.strides[1], b_at, b.strides[0], out_at, out.strides[0], depth, False)


def tile_ns(depth, samples=7, times=2000):
    """Return nanoseconds that a tile of float32 numbers takes with all it needs in the first cache: samples of them."""
    a, b, out = (
        np.ones((ROWS, depth), np.float32),
        np.ones((depth, LANES), np.float32),
        np.ones((ROWS, LANES), np.float32),
    )
    repeat_tile(a, b, out, depth, 1)
    return [seconds_of(repeat_tile, a, b, out, depth, times) / times * 1e9 for _ in range(samples)]


def _tiles(plan, progress):
    for depth in plan.tile_depths:
        progress(f"a tile of {depth} steps")
        yield {"kind": "tile", "depth": depth, "bytes": BYTES, "samples_ns": tile_ns(depth, 2 * plan.samples)}


# What threads cost: measured in processes of their own, since Numba chooses its threads once


def touch(out):
    """Write a number into each element: a parallel loop with nothing in it."""
    for i in prange(len(out)):
        out[i] = i


TOUCH = _stage("touch", touch)


def _regions(plan, progress):
    """Yield the cost of a parallel region for each threading layer and number of threads, alone and beside others."""
    cores = machine.cores()
    settings = [(threads, others) for threads in sorted({1, cores, 2 * cores}) for others in (0, 1)]
    for layer in LAYERS if plan.threads else ():
        for threads, others in settings:
            progress(f"a parallel region: {layer}, {threads} threads, beside {others} busy programs")
            names = {"kind": "region", "layer": layer, "threads": threads, "others": others}
            with roofline.busy_programs(others):
                found = in_process("region", plan.region_seconds, layer, threads)
            yield names | found
            if found["why_not"]:
                break  # nor will it work with other numbers of threads


def _turns(plan, progress):
    """Yield times of a product by Numba's threads, by BLAS's, and by both in turns, with threads that wait two ways."""
    for policy in (None, "passive") if plan.threads else ():
        for others in (0, 1):
            progress(f"Numba and BLAS in turns, waiting {policy or 'as usual'}, beside {others} busy programs")
            names = {"kind": "turns", "wait_policy": policy, "others": others, "threads": machine.cores()}
            with roofline.busy_programs(others):
                yield names | in_process("turns", plan.region_seconds, "omp", machine.cores(), policy)


def in_process(task, seconds, layer, threads, policy=None):
    """Return what `region` or `turns` measures in a process with this threading layer, or `why_not` it can't."""
    chosen = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    ours = (*chosen, "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")
    env = {name: value for name, value in os.environ.items() if name not in ours} | chosen
    env |= {"OMP_WAIT_POLICY": policy} if policy else {}
    try:
        return {"why_not": None} | processes.ask(__name__, task, str(seconds), env=env)
    except processes.Failed as error:
        return {"why_not": str(error)}


def region(seconds):
    """Return microseconds of an empty parallel loop in this process, and of the same loop compiled for one core."""
    out = np.zeros(numba.config.NUMBA_NUM_THREADS)
    return {"samples_us": _sample(seconds, TOUCH.all, out), "call_us": _sample(seconds / 10, TOUCH.one, out)}


def turns(seconds):
    """Return microseconds of X W1 by Numba's threads and by BLAS's, each again and again, then in turns."""
    arrays = FIRST.arrays()
    found = {"numba": _sample(seconds, _gemm.matmul, *arrays), "blas": _sample(seconds, blas, *arrays)}
    found |= {"numba_in_turns": [], "blas_in_turns": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        found["numba_in_turns"].append(seconds_of(_gemm.matmul, *arrays) * 1e6)
        found["blas_in_turns"].append(seconds_of(blas, *arrays) * 1e6)
    return {f"{name}_us": [round(us, 2) for us in samples[:400]] for name, samples in found.items()}


def _sample(seconds, call, *arguments, times=10, most=200):
    """Return microseconds a call: samples of `times` calls each, as many as fit, at least one and at most `most`."""
    for _ in range(3):
        call(*arguments)
    end = time.perf_counter() + seconds
    samples: list[float] = []
    while not samples or (time.perf_counter() < end and len(samples) < most):
        samples.append(round(seconds_of(call, *arguments, times=times) * 1e6, 3))
    return samples


# What the record says


def peak(record, threads=1):
    """Return the highest GFLOP/s that were seen in registers alone, on so many cores."""
    return max(max(run["samples_gflops"]) for run in results.runs(record, kind="peak", threads=threads))


def gflops(record, stage, product=FIRST, threads=1):
    """Return a stage's GFLOP/s, None where it was not run: the best sample, as other programs can only take from it."""
    found = results.runs(record, kind="stage", stage=stage, threads=threads, **asdict(product))
    return max(found[0]["samples_gflops"], default=None) if found else None


def threads_of(record):
    """Return the numbers of threads that a record has, the smallest first."""
    return sorted({run["threads"] for run in results.runs(record, kind="peak")})


def table(record):
    """Return the record as text for the terminal."""
    lines = []
    for threads in threads_of(record):
        lines.append(f"peak of {threads} cores: {peak(record, threads):.1f} GFLOP/s")
        for run in results.runs(record, kind="stage", group="step", name=FIRST.name, threads=threads):
            lines.append(f"  {STAGES[run['stage']].label:<26}{_share(record, run)}")
    for run in results.runs(record, kind="interpreted"):
        lines.append(f"  {run['stage']:<26}{1000 * max(run['samples_gflops']):8.2f} MFLOP/s")
    lines += [_region_line(run) for run in results.runs(record, kind="region")]
    lines += [_turns_line(run) for run in results.runs(record, kind="turns")]
    return "\n".join(lines)


def _share(record, run):
    rate = max(run["samples_gflops"])
    return f"{rate:8.1f} GFLOP/s  {rate / peak(record, run['threads']):5.1%}"


def _region_line(run):
    what = f"{run['layer']}, {run['threads']} threads, beside {run['others']} busy: "
    if run["why_not"]:
        return what + run["why_not"]
    return what + f"{np.median(run['samples_us']):,.1f} us a region, {np.mean(run['samples_us']):,.1f} on average"


def _turns_line(run):
    what = f"waiting {run['wait_policy'] or 'as usual'}, beside {run['others']} busy: "
    times = {name: np.median(samples) for name, samples in run.items() if name.endswith("_us")}
    return what + (run["why_not"] or ", ".join(f"{name[:-3]} {us:,.0f} us" for name, us in times.items()))


if __name__ == "__main__":
    print(json.dumps({"region": region, "turns": turns}[sys.argv[1]](float(sys.argv[2]))))

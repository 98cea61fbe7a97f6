"""The stages timed: their rates over shapes, the interpreted loops', and what bounds them, a sum's chain and a tile."""

from dataclasses import asdict
from functools import partial
from math import ceil

import numpy as np

from experiments.lab import quiet
from experiments.lab.clock import in_turns, seconds_of, steps_in
from experiments.lab.products import Product
from mlpkit.engines import numba_serial, python_lists, python_loops
from mlpkit.engines.loops.compiler import compiled
from mlpkit.engines.loops.simd import BYTES, LANES, ROWS, tile
from mlpkit.words import counted

from .shapes import GROUPS
from .stages import STAGES, reordered


def stages(plan, progress):
    """Yield a run for each product, number of threads and stage."""
    for product in (product for group in plan.groups for product in GROUPS[group]):
        for threads in quiet.thread_counts() if product.group in ("step", "batch", "cube") else [1]:
            progress(f"{product.name} {product.n} x {product.k} x {product.m}, {counted(threads, 'thread')}")
            for name, samples in rates(product, threads, plan).items():
                names = {"kind": "stage", "stage": name, "threads": threads}
                yield names | asdict(product) | {"samples_gflops": samples}


def rates(product, threads, plan, names=tuple(STAGES)):
    """Return GFLOP/s by stage, a list of samples each, taken in turns; none for a stage that would take too long.

    Raises AssertionError where a stage's product is not NumPy's.
    """
    a, b, out = product.arrays()
    wanted, samplers, rounds = a @ b, {}, {}
    with quiet.with_threads(threads):
        for name in names:
            if not (STAGES[name].slow and product.flops > plan.slow):
                call = partial(STAGES[name].one if threads == 1 else STAGES[name].all, a, b, out)
                call()  # compiles
                np.testing.assert_allclose(out, wanted, rtol=1e-3)
                once = seconds_of(call)
                times = steps_in(plan.sample_seconds, once, most=10**6)
                samplers[name] = partial(_gflops, product, call, times, threads > 1 and once < plan.sample_seconds)
                rounds[name] = max(1, min(plan.samples, ceil(plan.patience / (times * once))))
        samples = in_turns(samplers, rounds)
    return {name: samples.get(name, []) for name in names}


def _gflops(product, call, times=1, settle=False):
    if settle:
        quiet.settle(call)
    return product.flops / seconds_of(call, times=times) / 1e9


def interpreted(plan, progress):
    """Yield GFLOP/s of the loops that Python interprets, on a product so small that it can wait for them."""
    product = Product("interpreted", "X W1 of 4 images, 10 units", 4, 784, 10)
    a, b, out = product.arrays()
    rows, columns = a.tolist(), b.T.tolist()
    calls = {
        "python_loops": lambda: python_loops.matmul(a, b, out),
        "python_lists": lambda: [[python_lists.dot(row, column) for column in columns] for row in rows],
    }
    for name, call in calls.items():
        progress(f"{name}, interpreted")
        samples = [_gflops(product, call) for _ in range(plan.samples)]
        yield {"kind": "interpreted", "stage": name, "threads": 1} | asdict(product) | {"samples_gflops": samples}


def dependency_chains(plan, progress):
    """Yield nanoseconds a term of a sum of 4,096 numbers, in order and with permission to reorder."""
    values = np.ones(4096, np.float32)
    for name, call in {"in order": numba_serial.sum, "reordered": reordered.sum}.items():
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
    a, b, out = (np.ones(shape, np.float32) for shape in ((ROWS, depth), (depth, LANES), (ROWS, LANES)))
    repeat_tile(a, b, out, depth, 1)
    return [seconds_of(repeat_tile, a, b, out, depth, times) / times * 1e9 for _ in range(samples)]


def tiles(plan, progress):
    """Yield nanoseconds of a tile, by its depth."""
    for depth in plan.tile_depths:
        progress(f"a tile of {depth} steps")
        yield {"kind": "tile", "depth": depth, "bytes": BYTES, "samples_ns": tile_ns(depth, 2 * plan.samples)}

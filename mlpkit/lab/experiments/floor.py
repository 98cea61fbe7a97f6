"""How fast can a training step be? No faster than its arithmetic at the processor's peak, nor than its data arrive.

That is the roofline of Williams, Waterman and Patterson (2009): an operation that does F floating-point operations and
has to move B bytes takes at least `max(F / peak, B / bandwidth)`. This module measures both rates by running them,
writes down F and B for each operation of a step, and times the operations where they happen, in the midst of a step.
The record "floor" holds all of it.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import njit
from threadpoolctl import threadpool_limits

from mlpkit.data import load
from mlpkit.engines import BASELINE, numpy_baseline
from mlpkit.engines.loops.simd import FMA_FLOPS, fma
from mlpkit.lab import machine, processes, results
from mlpkit.lab.bench import Stepper, median_us
from mlpkit.training.recipe import Recipe

KIB = 2**10
RECIPES = (Recipe(lr=0.01), Recipe(optimizer="adam", lr=1e-3))  # small rates: a batch of 1 must not diverge
CORETYPES = ("Prescott", "Nehalem", "Sandybridge", "Haswell", "Zen", "SkylakeX")  # sets of kernels, oldest first


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each rate and each setting. sizes: bytes in use while bandwidth is measured.

    A sample of a step is the mean of as many steps as fit into `sample_seconds`.
    """

    samples: int = 15
    sample_seconds: float = 0.02
    sizes: tuple[int, ...] = tuple(16 * KIB * 2**k for k in range(15))
    traffic: int = 4 * 10**9  # bytes moved for a sample of bandwidth
    flops: int = 10**10  # of each thread for a sample of the peak
    batch_sizes: tuple[int, ...] = (1, 8, 32, 128, 512, 2048)
    coretypes: tuple[str, ...] = CORETYPES
    processes: int = 3  # for each set of kernels
    busy_steps: int = 10  # of a sample beside busy programs, so that these get their turn; 0: none


USUAL = Plan()


# The two rates


def peak(threads=1, flops=Plan.flops):
    """Return GFLOP/s of float32 multiply-adds that never leave the registers, in `threads` threads at once.

    flops: how many operations each thread does. A multiply-add counts as two.
    """
    steps = max(1, flops // FMA_FLOPS)
    seconds = _together(threads, lambda: partial(fma, steps))
    return threads * steps * FMA_FLOPS / seconds / 1e9


@njit(nogil=True)
def copy(a, b, c, times):
    """`a = b`, so many times over."""
    for _ in range(times):
        for i in range(a.size):
            a[i] = b[i]


@njit(nogil=True)
def triad(a, b, c, times):
    """`a = b + 3 c`, so many times over: the kernel that McCalpin's STREAM (1995) is known for."""
    for _ in range(times):
        for i in range(a.size):
            a[i] = b[i] + np.float32(3) * c[i]


STREAMS: dict[str, tuple[Any, int]] = {"copy": (copy, 2), "triad": (triad, 3)}  # (kernel, arrays that it touches)


def bandwidth(nbytes, kernel="triad", threads=1, traffic=Plan.traffic):
    """Return GB/s that `kernel` moves over float32 arrays of `nbytes` in all, shared out to `threads` threads.

    What is counted is what the program reads and writes, as STREAM does: a cache that has to read a line before it can
    write it moves more. traffic: how many bytes to move, the same ones again and again.
    """
    function, streams = STREAMS[kernel]
    n = max(1, nbytes // (4 * streams * threads))
    times = max(1, traffic // (4 * streams * threads * n))

    def prepare():
        arrays = [at_a_line(np.ones(n, np.float32)) for _ in range(streams)]
        arrays += arrays[-1:] * (3 - streams)
        function(*arrays, 1)
        return partial(function, *arrays, times)

    return threads * times * 4 * streams * n / _together(threads, prepare) / 1e9


def at_a_line(array):
    """Return a contiguous copy of an array that begins at a cache line, so that no vector straddles two."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copied = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def _together(threads, prepare):
    """Return the seconds that so many threads take, from a common start until the last is done.

    prepare: called in each thread before the start; returns the call to time, which has to release the GIL.
    """
    gate = Barrier(threads + 1, timeout=60)

    def work():
        call = prepare()
        gate.wait()  # ready
        gate.wait()  # go
        call()

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        gate.wait()
        start = time.perf_counter()  # before the gate opens: afterwards this thread might have to wait for a core
        gate.wait()
        for future in futures:
            future.result()
        return time.perf_counter() - start


# What a step consists of


@dataclass(frozen=True)
class Operation:
    """One call of an engine function in a step.

    flops: its floating-point operations, where a comparison, a root and an exponential count as one each.
    bytes: of its inputs, each read once, and its outputs, each written once. source: the bytes of the memory that it
    picks its inputs from, which are more than it reads where it gathers.
    """

    name: str
    function: str
    flops: int
    bytes: int
    source: int
    arguments: tuple = field(repr=False, default=())
    settings: dict = field(repr=False, default_factory=dict)

    def make(self):
        """Return a call without arguments that does this operation again, on the same arrays."""
        return partial(getattr(numpy_baseline, self.function), *self.arguments, **self.settings)


def operations(recipe, train):
    """Return the operations of one training step on `train`, in their order, each with its cost."""
    calls: list[Any] = []

    def write_down(name, function, *arguments, **settings):
        calls.append((name, arguments, settings))
        return function(*arguments, **settings)

    Stepper(watched(write_down), recipe, train).take(1)
    labels = _labels([name for name, *_ in calls])
    return [Operation(label, call[0], *_cost(*call), *call[1:]) for label, call in zip(labels, calls, strict=True)]


def watched(watch):
    """Return an engine that does what the baseline does, but leaves each operation to watch(name, function, ...)."""
    functions = {name: value for name, value in vars(numpy_baseline).items() if callable(value)}
    return SimpleNamespace(**functions | {name: partial(watch, name, functions[name]) for name in COSTS})


def profile(recipe, train, steps):
    """Return seconds (steps, operations) of each operation in so many steps, after some steps to warm up."""
    return Profiler(recipe, train).take(steps)


class Profiler:
    """Takes training steps and times every operation in them."""

    def __init__(self, recipe, train, warmup=3):
        self.times: list[float] = []
        self.stepper = Stepper(watched(self._clock), recipe, train)
        self.stepper.take(warmup)

    def take(self, steps):
        """Return seconds (steps, operations), the operations in the order of `operations`."""
        self.times.clear()
        self.stepper.take(steps)
        return np.reshape(self.times, (steps, -1))

    def _clock(self, name, function, *arguments, **settings):
        start = time.perf_counter()
        result = function(*arguments, **settings)
        self.times.append(time.perf_counter() - start)
        return result


def _labels(names):
    """Return the names with the number of the layer, which the backward pass counts down; gathers are X, then y."""
    total, seen, labels = Counter(names), Counter[str](), []
    for name in names:
        seen[name] += 1
        forward = name.partition("_backward")[0]
        layer = seen[name] if name == forward else total[forward] + 1 - seen[name]
        labels.append(f"{name} {'Xy'[layer - 1] if name == 'gather' else layer}" if total[forward] > 1 else name)
    return labels


def _cost(name, arguments, settings):
    """Return (flops, bytes, source) of a call."""
    flops, moved = COSTS[name](*arguments, **settings)
    inputs = [a.nbytes for a in (*arguments, *settings.values()) if isinstance(a, np.ndarray)]
    return int(flops), int(moved), int(max(moved, *inputs))


def _gather(X, index):
    return 0, 2 * len(index) * X[:1].nbytes + index.nbytes


def _linear(x, W, b):
    n, (n_in, n_out) = len(x), W.shape
    return 2 * n * n_in * n_out + n * n_out, x.nbytes + W.nbytes + b.nbytes + n * b.nbytes


def _linear_backward_weights(x, dz, dW, db):
    return 2 * len(x) * dW.size + dz.size, x.nbytes + dz.nbytes + dW.nbytes + db.nbytes


def _linear_backward_input(dz, W):
    return 2 * len(dz) * W.size, dz.nbytes + W.nbytes + len(dz) * W[:, 0].nbytes


COSTS: dict[str, Any] = {  # from a call's arguments: (flops, bytes); the factors count the baseline's formulas
    "gather": _gather,
    "linear": _linear,
    "linear_backward_weights": _linear_backward_weights,
    "linear_backward_input": _linear_backward_input,
    "relu": lambda z: (z.size, 2 * z.nbytes),
    "relu_backward": lambda a, da: (2 * a.size, 3 * a.nbytes),
    "softmax_cross_entropy": lambda z, labels: (6 * z.size + 4 * len(z), 2 * z.nbytes + labels.nbytes),
    "axpy": lambda alpha, x, y: (2 * x.size, 3 * x.nbytes),
    "sgd_update": lambda theta, grad, lr: (2 * theta.size, 3 * theta.nbytes),
    "momentum_update": lambda theta, grad, **settings: (4 * theta.size, 5 * theta.nbytes),
    "nesterov_update": lambda theta, grad, **settings: (6 * theta.size, 5 * theta.nbytes),
    "rmsprop_update": lambda theta, grad, **settings: (9 * theta.size, 5 * theta.nbytes),
    "adam_update": lambda theta, grad, **settings: (14 * theta.size, 7 * theta.nbytes),
}


# The record


def run(train=None, save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record. train: (X, y), MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    """
    train = train or load().train
    record = results.new("floor", plan=asdict(plan), recipes=[recipe.to_dict() for recipe in RECIPES])
    parts = (_peaks, _bandwidths, _steps, _kernels, _busy)
    return results.collect(record, chain.from_iterable(part(train, plan, progress) for part in parts), save)


def thread_counts():
    """Return the numbers of threads to measure: one, and one a core."""
    return sorted({1, machine.cores()})


def _peaks(train, plan, progress):
    for threads in thread_counts():
        progress(f"peak, {threads} threads")
        peak(threads, flops=1)  # compiles
        samples = [peak(threads, plan.flops) for _ in range(plan.samples)]
        yield {"kind": "peak", "threads": threads, "samples_gflops": samples}


def _bandwidths(train, plan, progress):
    for threads in thread_counts():
        for kernel in STREAMS:
            for nbytes in plan.sizes:
                progress(f"bandwidth of {kernel}, {threads} threads, {nbytes // KIB:,} KiB")
                samples = [bandwidth(nbytes, kernel, threads, plan.traffic) for _ in range(max(1, plan.samples // 2))]
                names = {"kind": "bandwidth", "kernel": kernel, "threads": threads, "bytes": nbytes}
                yield names | {"samples_gbps": samples}


def _steps(train, plan, progress):
    for recipe in RECIPES:
        for batch_size in plan.batch_sizes:
            for threads in thread_counts():
                progress(f"steps with {recipe.optimizer}, batch {batch_size}, {threads} threads")
                with threadpool_limits(threads):
                    yield from _step(recipe.but(batch_size=batch_size), train, plan, threads)


def _step(recipe, train, plan, threads):
    """Yield a run for whole steps, then one for each operation in them, timed in turns."""
    stepper, profiler = Stepper(BASELINE, recipe, train), Profiler(recipe, train)
    steps = _steps_in(plan.sample_seconds, stepper)
    whole, parts = [], []
    for _ in range(plan.samples):
        whole.append(stepper.take(steps)[0] * 1e6)
        parts.append(profiler.take(steps).mean(axis=0) * 1e6)
    names = {"optimizer": recipe.optimizer, "batch_size": recipe.batch_size, "threads": threads}
    yield {"kind": "step", **names, "steps_a_sample": steps, "samples_us": whole}
    for operation, samples in zip(operations(recipe, train), np.transpose(parts), strict=True):
        cost = {key: getattr(operation, key) for key in ("name", "function", "flops", "bytes", "source")}
        yield {"kind": "operation", **names, **cost, "samples_us": samples.round(3).tolist()}


def _steps_in(seconds, stepper):
    """Return how many steps fit into so many seconds, at least 1 and at most 100, judged by the best of five."""
    return max(1, min(100, int(seconds / min(stepper.take(1)[0] for _ in range(5)))))


def _kernels(train, plan, progress):
    """Yield what each of OpenBLAS's sets of kernels does, in processes of its own: the set is chosen as it loads."""
    if machine.blas()["name"] != "openblas" or platform.machine().lower() not in ("x86_64", "amd64"):
        return
    for turn in range(plan.processes):
        for coretype in (None, *plan.coretypes):
            progress(f"kernels {coretype or 'as detected'}, process {turn + 1} of {plan.processes}")
            yield from with_kernels(coretype)


def with_kernels(coretype=None):
    """Return the runs that `kernels` measures, in a process whose OpenBLAS is asked for the kernels of `coretype`.

    A processor that lacks their instructions ends the process; then there is one run that says why not.
    """
    asked = {"OPENBLAS_CORETYPE": coretype} if coretype else {}
    usual = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    try:
        return [run | {"asked": coretype} for run in processes.ask(__name__, env=usual | asked)]
    except processes.Failed as error:
        return [{"kind": "kernels", "asked": coretype, "why_not": str(error)}]


def kernels(samples=7, n=1024):
    """Return a run for each number of threads: GFLOP/s of an n x n product, and microseconds of a training step."""
    A = np.random.default_rng(0).random((n, n), dtype=np.float32)
    stepper = Stepper(BASELINE, Recipe(), _made_up_images())
    runs = []
    for threads in thread_counts():
        with threadpool_limits(threads):
            A @ A, stepper.take(3)  # warm up
            rates = [2 * n**3 / seconds_of(lambda: A @ A) / 1e9 for _ in range(samples)]
            steps = _steps_in(Plan.sample_seconds, stepper)
            times = [stepper.take(steps)[0] * 1e6 for _ in range(samples)]
        names = {"kind": "kernels", "found": machine.blas()["kernels"], "threads": threads, "why_not": None}
        runs.append(names | {"samples_gflops": rates, "samples_us": times})
    return runs


def _made_up_images(n=5000):
    """Return (X, y) that are quicker to make than MNIST is to read, and no quicker to learn from."""
    rng = np.random.default_rng(0)
    return rng.random((n, 784), dtype=np.float32), rng.integers(10, size=n)


def seconds_of(call, *arguments, times=1):
    """Return the seconds of one call, as the mean of so many."""
    start = time.perf_counter()
    for _ in range(times):
        call(*arguments)
    return (time.perf_counter() - start) / times


def _busy(train, plan, progress):
    """Yield times of steps while other programs want a core, with one BLAS thread and with all, in turns."""
    stepper = Stepper(BASELINE, Recipe(), train)
    stepper.take(3)
    for others in sorted({0, 1, machine.cores()}) if plan.busy_steps else ():
        progress(f"steps beside {others} busy programs")
        times: dict[int, list[float]] = {threads: [] for threads in thread_counts()}
        with busy_programs(others):
            for _ in range(plan.samples):
                for threads, samples in times.items():
                    with threadpool_limits(threads):
                        samples.append(stepper.take(plan.busy_steps)[0] * 1e6)
        for threads, samples in times.items():
            yield {"kind": "busy", "others": others, "threads": threads, "samples_us": samples}


@contextmanager
def busy_programs(n, seconds=60):
    """Run `n` programs beside this one that do nothing but compute; they end by themselves after so many seconds."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(n)]
    try:
        time.sleep(0.2 if n else 0)  # until they are at it
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


# What the record says


class Roofs:
    """The two limits that a record found for `threads` threads.

    The best of its samples: other programs, interrupts and a cool clock can only make a rate too low.
    """

    def __init__(self, record, threads=1):
        runs = [run for run in record["runs"] if run.get("threads") == threads]
        self.peak = max(sample for run in runs if run["kind"] == "peak" for sample in run["samples_gflops"])
        best: dict[int, float] = {}
        for run in results.runs({"runs": runs}, kind="bandwidth"):
            best[run["bytes"]] = max(best.get(run["bytes"], 0), *run["samples_gbps"])
        self.sizes, self.rates = np.array(sorted(best)), np.array([best[size] for size in sorted(best)])

    def bandwidth(self, nbytes):
        """Return GB/s for data of `nbytes`: of the faster kernel, and between two sizes on the line between them."""
        return float(np.interp(np.log(nbytes), np.log(self.sizes), self.rates))

    def floor_us(self, operation):
        """Return the microseconds that an operation, given as a run of the record, takes at least."""
        arithmetic = operation["flops"] / self.peak / 1e3
        return max(arithmetic, operation["bytes"] / self.bandwidth(operation["source"]) / 1e3)


def kernel_rows(record):
    """Return a run for each set of kernels and number of threads, which has the samples of all its processes."""
    rows: dict[tuple, dict] = {}
    for run in results.runs(record, kind="kernels"):
        row = rows.setdefault((run["asked"], run.get("threads")), run | {"samples_gflops": [], "samples_us": []})
        row["samples_gflops"] += run.get("samples_gflops", [])
        row["samples_us"] += run.get("samples_us", [])
    return list(rows.values())


def table(record):
    """Return the record as text for the terminal: both rates, what steps take and their floors, a profile, and BLAS."""
    lines = []
    for threads in sorted({run["threads"] for run in results.runs(record, kind="step")}):
        roofs = Roofs(record, threads)
        lines += [f"{threads} threads: peak {roofs.peak:.0f} GFLOP/s", _bandwidth_line(roofs)]
        lines += [_step_line(record, roofs, run) for run in results.runs(record, kind="step", threads=threads)]
    usual = {"batch_size": Recipe().batch_size, "optimizer": "sgd", "threads": 1}
    lines += [_operation_line(run) for run in results.runs(record, kind="operation", **usual)]
    lines += [_kernels_line(run) for run in kernel_rows(record)]
    lines += [_busy_line(run) for run in results.runs(record, kind="busy")]
    return "\n".join(lines)


def _operation_line(run):
    work, moved = run["flops"] / 1e6, run["bytes"] / 1e6
    return f"{run['name']:<28}{work:>8.2f} MFLOP{moved:>8.3f} MB{median_us(run):>8.1f} us"


def _busy_line(run):
    low, high = min(run["samples_us"]), max(run["samples_us"])
    beside = f"beside {run['others']} busy programs, {run['threads']} threads: "
    return f"{beside}{median_us(run):>10,.0f} us a step, from {low:,.0f} to {high:,.0f}"


def _bandwidth_line(roofs):
    return "GB/s: " + ", ".join(f"{nbytes // KIB:,} KiB {roofs.bandwidth(nbytes):.0f}" for nbytes in roofs.sizes)


def _step_line(record, roofs, step):
    same = {key: step[key] for key in ("optimizer", "batch_size", "threads")}
    parts = results.runs(record, kind="operation", **same)
    measured, floor = sum(map(median_us, parts)), sum(map(roofs.floor_us, parts))
    return (
        f"  {step['optimizer']}, batch {step['batch_size']:>4}: {median_us(step):>9,.0f} us a step, "
        f"operations {measured:>9,.0f} us, floor {floor:>9,.0f} us"
    )


def _kernels_line(run):
    asked = f"kernels {run['asked'] or 'as detected'}: "
    if run["why_not"]:
        return asked + run["why_not"]
    return asked + (
        f"{run['found']}, {run['threads']} threads, {np.median(run['samples_gflops']):.0f} GFLOP/s, "
        f"{median_us(run):,.0f} us a step"
    )


if __name__ == "__main__":
    print(json.dumps(kernels()))

"""How often does a program walk over its memory? Each walk is a pass, and between two products passes are all there is.

This module times what one fused loop saves: the operations of `engines._fused` against NumPy's, over sizes; Adam's
update on its way from a formula in a loop to vector instructions, one obstacle less on each rung; the page faults that
new temporaries cost; the matrix products alone; and when each part of a training step begins and ends. The record
"passes" holds all of it. The arithmetic is the engines'; here are only NumPy's updates with `out=` and the variants
that are naive on purpose.
"""

import json
import math
import platform
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, cycle, pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numba
import numpy as np
from numba import njit
from threadpoolctl import threadpool_limits

from mlpkit.data import load
from mlpkit.engines import BASELINE, numba_hybrid, numba_step, numpy_baseline, python_loops
from mlpkit.engines.loops import fused as _fused
from mlpkit.engines.loops import gemm as _gemm
from mlpkit.lab import machine, processes, results
from mlpkit.lab.bench import Stepper, median_us
from mlpkit.nn.network import PARAMETERS, SIZES
from mlpkit.training.recipe import Recipe

from . import floor as roofline
from .floor import seconds_of
from .matmul import Product

ENGINES = (BASELINE, "numba_hybrid", "numba_step")
RECIPES = tuple(
    Recipe(optimizer=optimizer, lr=lr, batch_size=batch_size)
    for optimizer, lr in (("sgd", 0.05), ("adam", 1e-3))
    for batch_size in (64, 128)
)


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each call; each is the mean of as many calls as fit into `sample_seconds`.

    sizes: of the vector of parameters. settle: seconds of work before a sample that needs all cores, until the threads
    of the other kind no longer wait for work with a core of their own. turns: of `steps` steps each, written down.
    busy: samples beside a busy program. processes: to count page faults in. batch_sizes: of the layers' operations.
    """

    samples: int = 25
    sample_seconds: float = 0.002
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, PARAMETERS, 1_000_000, 10_000_000)
    batch_sizes: tuple[int, ...] = (64, 128)
    settle: float = 0.1
    turns: int = 10
    steps: int = 6
    busy: int = 15
    processes: int = 3


USUAL = Plan()


# NumPy with `out=`: no new arrays, and as many passes


def sgd_out(theta, grad, lr, spare):
    np.multiply(grad, lr, out=spare)
    np.subtract(theta, spare, out=theta)


def momentum_out(theta, grad, velocity, lr, momentum, spare):
    np.multiply(velocity, momentum, out=velocity)
    np.add(velocity, grad, out=velocity)
    np.multiply(velocity, lr, out=spare)
    np.subtract(theta, spare, out=theta)


def rmsprop_out(theta, grad, s, lr, rho, eps, spare, spare2):
    np.multiply(s, rho, out=s)
    np.multiply(grad, grad, out=spare)
    np.multiply(spare, 1 - rho, out=spare)
    np.add(s, spare, out=s)
    np.sqrt(s, out=spare)
    np.add(spare, eps, out=spare)
    np.multiply(grad, lr, out=spare2)
    np.divide(spare2, spare, out=spare2)
    np.subtract(theta, spare2, out=theta)


def adam_out(theta, grad, m, v, t, lr, beta1, beta2, eps, spare, spare2):
    np.multiply(m, beta1, out=m)
    np.multiply(grad, 1 - beta1, out=spare)
    np.add(m, spare, out=m)
    np.multiply(v, beta2, out=v)
    np.multiply(grad, grad, out=spare)
    np.multiply(spare, 1 - beta2, out=spare)
    np.add(v, spare, out=v)
    np.multiply(v, 1 / (1 - beta2**t), out=spare)
    np.sqrt(spare, out=spare)
    np.add(spare, eps, out=spare)
    np.multiply(m, lr / (1 - beta1**t), out=spare2)
    np.divide(spare2, spare, out=spare2)
    np.subtract(theta, spare2, out=theta)


UPDATES: dict[str, tuple[Any, dict]] = {  # (with out=, settings); the spare arrays are called spare, spare2
    "sgd": (sgd_out, dict(lr=1e-9)),
    "momentum": (momentum_out, dict(lr=1e-9, momentum=0.9)),
    "rmsprop": (rmsprop_out, dict(lr=1e-9, rho=0.9, eps=1e-8)),
    "adam": (adam_out, dict(t=5, lr=1e-9, beta1=0.9, beta2=0.999, eps=1e-8)),
}
STATE = {"sgd": (), "momentum": ("velocity",), "rmsprop": ("s",), "adam": ("m", "v")}


# Adam in a loop, naive on purpose: each lacks one thing that the next has


def adam_constants_outside(theta, grad, m, v, t, lr, beta1, beta2, eps):
    m_scale, v_scale = lr / (1 - beta1**t), 1 / (1 - beta2**t)
    for i in range(len(theta)):
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i]
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] ** 2
        theta[i] -= m_scale * m[i] / (math.sqrt(v_scale * v[i]) + eps)


def adam_in_float32(theta, grad, m, v, t, lr, beta1, beta2, eps):
    number = np.float32
    m_scale, v_scale = number(lr / (1 - beta1**t)), number(1 / (1 - beta2**t))
    rest1, rest2 = number(1 - beta1), number(1 - beta2)
    beta1, beta2, eps = number(beta1), number(beta2), number(eps)
    for i in range(len(theta)):
        m[i] = beta1 * m[i] + rest1 * grad[i]
        v[i] = beta2 * v[i] + rest2 * grad[i] ** 2
        theta[i] -= m_scale * m[i] / (math.sqrt(v_scale * v[i]) + eps)


LADDER: dict[str, tuple[Any, str]] = {  # rung: (function, error model)
    "as written": (python_loops.adam_update, "python"),
    "constants before the loop": (adam_constants_outside, "python"),
    "NumPy's error model": (adam_constants_outside, "numpy"),
    "settings in float32": (adam_in_float32, "numpy"),
    "local names": (_fused.adam_update, "numpy"),
}


def roots(function):
    """Return (vector, scalar): how many square root instructions a compiled function has of each kind.

    Knows the names of x86-64's and ARM's; on another processor both are 0.
    """
    code = "".join(function.inspect_asm().values())
    vector = re.findall(r"sqrtp[sd]\s|fsqrt(?:\.\d\w|\s+[vz]\d)", code)
    scalar = re.findall(r"sqrts[sd]\s|fsqrt\s+[sd]\d", code)
    return len(vector), len(scalar)


@njit(error_model="numpy")
def divide_by_root(a, b, times):
    """`a = b / (sqrt(a) + eps)`, so many times over: Adam's slow instructions and little else."""
    for _ in range(times):
        for i in range(a.size):
            a[i] = b[i] / (math.sqrt(a[i]) + np.float32(1e-8))


def vectors(n, count, offset=16):
    """Return `count` float32 vectors of n positive numbers, each beginning `offset` bytes after a cache line.

    16 is where NumPy's large arrays begin under glibc. No two begin at the same place in a page of memory: a processor
    that compares the last bits of addresses first may take equal ones for the same address, and wait.
    """
    rng = np.random.default_rng(0)
    made = []
    for k in range(count):
        raw = np.empty(n + 2048, np.float32)
        start = (-raw.ctypes.data % 4096 + 64 * (16 * k % 64) + offset) // 4
        vector = raw[start : start + n]
        vector[:] = rng.random(n, dtype=np.float32) / 16 + 0.01
        made.append(vector)
    return made


# The record


def run(train=None, save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record. train: (X, y), MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    """
    train = train or load().train
    record = results.new("passes", plan=asdict(plan), threads=numba.get_num_threads())
    parts = (_ladder, _roots, _updates, _layers, _products, _parts, _busy, _pages)
    return results.collect(record, chain.from_iterable(part(train, plan, progress) for part in parts), save)


def _ladder(train, plan, progress):
    for offset in (0, 16):
        arrays, settings, calls, counts = vectors(PARAMETERS, 4, offset), UPDATES["adam"][1], {}, {}
        for rung, (function, error_model) in LADDER.items():
            progress(f"ladder of Adam, {rung}, {offset} bytes after a cache line")
            compiled = njit(error_model=error_model)(function)
            compiled(*arrays, *settings.values())
            calls[rung], counts[rung] = partial(compiled, *arrays, *settings.values()), roots(compiled)
        calls["vectors that overlap"] = partial(compiled, *arrays[:3], arrays[2], *settings.values())
        counts["vectors that overlap"] = counts[rung]
        for rung, samples in _in_turns(calls, plan).items():
            yield {"kind": "ladder", "rung": rung, "offset": offset, "roots": counts[rung], "samples_us": samples}


def _roots(train, plan, progress):
    progress("division and square root")
    a, b = vectors(2_048, 2, 0)
    samples = _in_turns({"": partial(divide_by_root, a, b, 1000)}, plan)[""]
    yield {"kind": "root", "samples_ns": [us / len(a) for us in samples]}  # 1000 times over: us are ns


def _updates(train, plan, progress):
    for n in plan.sizes:
        for name in UPDATES:
            progress(f"update of {n:,} parameters with {name}")
            for way, samples in _in_turns(update_calls(name, n), plan).items():
                yield {"kind": "update", "name": name, "n": n, "way": way, "samples_us": samples}


def update_calls(name, n):
    """Return a call without arguments for each way to update n parameters: NumPy, `out=`, fused, on all cores."""
    with_out, settings = UPDATES[name]
    arrays = vectors(n, 2 + len(STATE[name]))
    spares = vectors(n, 2 if "eps" in settings else 1)
    function = f"{name}_update"
    return {
        "NumPy": partial(getattr(numpy_baseline, function), *arrays, **settings),
        "NumPy, out=": partial(with_out, *arrays, *settings.values(), *spares),
        "fused": partial(getattr(numba_hybrid.fused, function), *arrays, *settings.values()),
        "fused, all cores": partial(getattr(numba_step.fused, function), *arrays, *settings.values()),
    }


def _layers(train, plan, progress):
    for batch_size in plan.batch_sizes:
        for name, calls in layer_calls(train, batch_size).items():
            progress(f"{name} at batch {batch_size}")
            for way, samples in _in_turns(calls, plan).items():
                yield {"kind": "layer", "name": name, "batch_size": batch_size, "way": way, "samples_us": samples}


def layer_calls(train, n):
    """Return calls[operation][way] for what lies between the products, at a batch of n."""
    rng, hidden, classes = np.random.default_rng(0), SIZES[1], SIZES[-1]
    z, z2, a, da, da2 = (rng.normal(size=(n, hidden)).astype(np.float32) for _ in range(5))
    b = np.zeros(hidden, np.float32)
    logits, logits2 = (rng.normal(size=(n, classes)).astype(np.float32) for _ in range(2))
    last, labels = np.zeros(classes, np.float32), rng.integers(classes, size=n)
    plain, fused = numpy_baseline, numba_hybrid.fused
    return {
        "gather": {
            "NumPy": _rows_of(plain.gather, train, n, seed=0),
            "fused": _rows_of(fused.gather, train, n, seed=1),
            "fused, all cores": _rows_of(numba_step.fused.gather, train, n, seed=2),
        },
        "bias and ReLU": {
            "NumPy": lambda: plain.relu(z + b),
            "fused": partial(fused.add_bias_relu, z2, b),
            "fused, all cores": partial(numba_step.fused.add_bias_relu, z2, b),
        },
        "softmax and loss": {
            "NumPy": lambda: plain.softmax_cross_entropy(logits + last, labels),
            "fused": partial(fused.cross_entropy, logits2, last, labels, n),
        },
        "ReLU backward": {
            "NumPy": partial(plain.relu_backward, a, da),
            "fused": partial(fused.relu_backward_in_place, a, da2),
            "fused, all cores": partial(numba_step.fused.relu_backward_in_place, a, da2),
        },
        "bias gradient": {
            "NumPy": partial(np.sum, da, axis=0, out=b.copy()),
            "fused": partial(fused.sum_rows, da, b.copy()),
        },
    }


def _rows_of(gather, train, n, seed):
    """Return a call that gathers n rows of the training set, other ones at each call."""
    X, rng = train[0], np.random.default_rng(seed)
    batches = cycle([rng.integers(len(X), size=n) for _ in range(400)])
    return lambda: gather(X, next(batches))


def _products(train, plan, progress):
    for batch_size in plan.batch_sizes:
        progress(f"the products of a step at batch {batch_size}")
        wanted = products(batch_size)
        arrays = [product.arrays() for product in wanted]
        names = {"kind": "products", "batch_size": batch_size, "flops": sum(product.flops for product in wanted)}
        for threads, ours, where in ((1, _gemm.multiply, "one core"), (None, _gemm.matmul, "all cores")):
            calls = {"BLAS": partial(_multiply_all, np.matmul, arrays), "tiles": partial(_multiply_all, ours, arrays)}
            with threadpool_limits(threads):
                for way, samples in _in_turns(calls, plan, plan.settle).items():
                    yield names | {"way": f"{way}, {where}", "samples_us": samples}


def products(n):
    """Return the matrix products of a step, of a batch of n."""
    layers = list(pairwise(SIZES))
    forward = [Product("forward", f"{k} to {m}", n, k, m) for k, m in layers]
    weights = [Product("weights", f"{k} to {m}", k, n, m, turned="a") for k, m in layers]
    inputs = [Product("inputs", f"{k} to {m}", n, m, k, turned="b") for k, m in layers[1:]]
    return forward + weights + inputs


def _multiply_all(multiply, arrays):
    for a, b, out in arrays:
        multiply(a, b, out)


def _in_turns(calls, plan, settle=0.0):
    """Return the samples of each of the calls, taken in turns, in microseconds."""
    times: dict[str, int] = {}
    samples: dict[str, list[float]] = {}
    for name, call in calls.items():
        call()
        once = max(1e-7, min(seconds_of(call) for _ in range(3)))
        times[name], samples[name] = max(1, min(10_000, int(plan.sample_seconds / once))), []
    for _ in range(plan.samples):
        for name, call in calls.items():
            _repeat(call, settle)
            samples[name].append(round(seconds_of(call, times=times[name]) * 1e6, 4))
    return samples


def _repeat(call, seconds):
    """Call once, or, before several cores are timed, again and again for so many seconds: see `machine.settle`."""
    if seconds:
        machine.settle(call, seconds)
    else:
        call()


# When each part of a step begins and ends


class StepRecorder:
    """Takes training steps and writes down when each of the engine's parts begins and ends.

    What lies between two parts is Python and, in `numba_hybrid`, the products, which are no function of the engine.
    Use it in a `with` statement: meanwhile the engine's module calls functions that look at the clock.
    """

    def __init__(self, engine, recipe, train):
        self.module = {module.__name__.rpartition(".")[2]: module for module in _MODULES}[engine]
        self.marks: list[tuple[str, float, float]] = []
        names = ["gather", *_UPDATE_NAMES] if self.module in _INSIDE else roofline.COSTS
        self.stepper = Stepper(self._clocked(self.module, names), recipe, train)

    def _clocked(self, functions, names):
        found = vars(functions)
        return SimpleNamespace(**found | {name: partial(self._watch, name, found[name]) for name in names})

    def _watch(self, name, function, *arguments, **settings):
        begin = time.perf_counter()
        result = function(*arguments, **settings)
        self.marks.append((name, begin, time.perf_counter()))
        return result

    @contextmanager
    def watching(self):
        """Let the engine's module call functions that look at the clock."""
        name = _INSIDE.get(self.module)
        if name is None:
            yield
            return
        functions = getattr(self.module, name)
        inner = [key for key, value in vars(functions).items() if callable(value) and key not in _UPDATE_NAMES]
        with patch.object(self.module, name, self._clocked(functions, inner)):
            yield

    def take(self, settle, steps):
        """Return (names, spans): of each step the begin and end of its parts in us, and last its own end."""
        names: list[str] = []
        spans = []
        with self.watching():
            _repeat(self.stepper.take_one, settle)
            for _ in range(steps):
                self.marks.clear()
                begin = time.perf_counter()
                self.stepper.take_one()
                end = time.perf_counter()
                names = [name for name, *_ in self.marks]
                moments = [moment for _, *span in self.marks for moment in span] + [end]
                spans.append([round((moment - begin) * 1e6, 2) for moment in moments])
        return names, spans


_MODULES = (numpy_baseline, numba_hybrid, numba_step)
_INSIDE = {numba_hybrid: "fused", numba_step: "step"}
_UPDATE_NAMES = ("axpy", *(name for name in vars(numpy_baseline) if name.endswith("_update")))


def _parts(train, plan, progress):
    for recipe in RECIPES:
        recorders = {engine: StepRecorder(engine, recipe, train) for engine in ENGINES}
        runs: dict[str, dict] = {}
        for turn in range(plan.turns):
            for engine, recorder in recorders.items():
                progress(f"parts of a step: {engine}, {recipe.optimizer}, batch {recipe.batch_size}, turn {turn + 1}")
                parts, spans = recorder.take(plan.settle, plan.steps)
                names = {"kind": "parts", "engine": engine, "recipe": recipe.to_dict(), "parts": parts, "spans_us": []}
                runs.setdefault(engine, names)["spans_us"] += spans
        yield from runs.values()


def _busy(train, plan, progress):
    """Yield times of steps beside a program that wants a core, of each engine in turns."""
    steppers = {engine: Stepper(engine, Recipe(), train) for engine in ENGINES}
    for others in (0, 1):
        progress(f"steps beside {others} busy programs")
        samples: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        with roofline.busy_programs(others):
            for _ in range(plan.busy):
                for engine, stepper in steppers.items():
                    _repeat(stepper.take_one, plan.settle)
                    samples[engine].append(stepper.take(5)[0] * 1e6)
        yield from ({"kind": "busy", "others": others, "engine": e, "samples_us": us} for e, us in samples.items())


# The page faults of temporaries


def _pages(train, plan, progress):
    for turn in range(plan.processes):
        for large in (False, True):
            progress(f"page faults, process {turn + 1} of {plan.processes}")
            yield {"kind": "pages", "large": large} | in_new_process(large)


def in_new_process(large=False):
    """Return what NumPy's Adam takes in a process of its own: `samples_us`, and page `faults` an update.

    large: let that process first free an array of 16 MB. glibc's allocator takes arrays above a threshold from the
    system and gives them back when they are freed; such an array raises the threshold. Where the allocator is another,
    there is a reason in `why_not` instead. Raises `processes.Failed`.
    """
    if platform.libc_ver()[0] != "glibc":
        return {"why_not": "this system's allocator is not glibc's", "samples_us": [], "faults": None}
    return processes.ask(__name__, *(["large"] if large else [])) | {"why_not": None}


def updates_and_faults(large, samples=30, warmup=5):
    """Return microseconds of each of NumPy's Adam updates, and the page faults of one, in this process."""
    import resource  # not on Windows

    if large:
        np.ones(4_000_000, np.float32)  # is freed at once
    theta, grad, m, v = (np.full(PARAMETERS, 0.01, np.float32) for _ in range(4))  # frees nothing, unlike `vectors`
    call = partial(numpy_baseline.adam_update, theta, grad, m, v, **UPDATES["adam"][1])
    seconds_of(call, times=warmup)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = [round(seconds_of(call) * 1e6, 2) for _ in range(samples)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"samples_us": times, "faults": faults / samples}


# What the record says


def profile(run):
    """Return the microseconds of each part of a quiet step, by name, and of the rest; equal names are added up."""
    spans, whole = quiet_step(run)
    totals: dict[str, float] = {}
    for name, begin, end in spans:
        totals[name] = totals.get(name, 0) + end - begin
    return totals | {"rest": whole - sum(totals.values())}


def quiet_step(run):
    """Return ([(part, begin, end) ...], whole) in microseconds: the mean of the quickest fifth of a run's steps."""
    spans = np.array(run["spans_us"])
    *moments, whole = spans[np.argsort(spans[:, -1])[: -(-len(spans) // 5)]].mean(axis=0).tolist()
    return list(zip(run["parts"], moments[::2], moments[1::2], strict=True)), whole


def best_us(run):
    """Return the least of a run's samples, in microseconds: what the machine can do where nobody disturbs it."""
    return min(run["samples_us"])


def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(_LINES[run["kind"]](run) for run in record["runs"])


def _line(*names):
    return lambda run: f"{run['kind']}: {', '.join(str(run[name]) for name in names):<52}{best_us(run):>12,.1f} us"


def _parts_line(run):
    recipe = run["recipe"]
    parts = ", ".join(f"{name} {us:.1f}" for name, us in profile(run).items())
    return f"{run['engine']}, {recipe['optimizer']}, batch {recipe['batch_size']}: {parts} us"


def _pages_line(run):
    before = "after a large array" if run["large"] else "fresh process"
    if run["why_not"]:
        return f"pages, {before}: {run['why_not']}"
    return f"pages, {before}: {median_us(run):,.0f} us and {run['faults']:.0f} faults an update"


_LINES: dict[str, Any] = {
    "ladder": _line("rung", "offset"),
    "root": lambda run: f"root and division: {np.median(run['samples_ns']):.3f} ns a number",
    "update": _line("name", "n", "way"),
    "layer": _line("name", "batch_size", "way"),
    "products": _line("way", "batch_size"),
    "parts": _parts_line,
    "busy": lambda run: f"beside {run['others']} busy programs, {run['engine']}: {median_us(run):,.0f} us a step",
    "pages": _pages_line,
}


if __name__ == "__main__":
    print(json.dumps(updates_and_faults(large="large" in sys.argv[1:])))

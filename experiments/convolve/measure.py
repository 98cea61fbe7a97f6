"""How the record "convolve" is made: case by case, the engines' operations in turns."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

import numpy as np

from experiments.lab import quiet, results
from experiments.lab.clock import in_turns, seconds_of, steps_in
from mlpkit import engines
from mlpkit.engines import BASELINE
from mlpkit.words import counted

from .cases import GRID, LAYERS, OPERATIONS, Case

SETTLE = 0.1  # seconds of calls before a sample on several cores, whose threads may have woken on one
TOLERANCE = 1e-4  # of the largest number that should come out: float32 in another order, and in transforms


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long to take over it.

    engines: their names, None for all of the processor's that convolve, but Python's. grid: cases on one core.
    layers: cases by name, on one core and on all. A sample is the mean of as many calls as fit into `sample_seconds`.
    No operation is timed that would last more than `longest` seconds. flops: operations of a sample of the peak. sizes:
    bytes of arrays, for bandwidth.
    """

    engines: tuple[str, ...] | None = None
    grid: tuple[Case, ...] = GRID
    layers: tuple[tuple[str, Case], ...] = tuple(LAYERS.items())
    rounds: int = 3
    layer_rounds: int = 5
    sample_seconds: float = 0.005
    longest: float = 0.5
    flops: int = 10**10
    sizes: tuple[int, ...] = (2**18, 2**20, 2**22, 2**24, 2**26, 2**28)


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Time the operations of every engine in every case, and return the record."""
    from experiments.lab import roof  # takes Numba

    record = results.new("convolve", plan=asdict(plan) | {"grid": len(plan.grid), "layers": len(plan.layers)})
    names = plan.engines or convolving()
    grid = ((None, case, 1, plan.rounds) for case in plan.grid)
    layers = (
        (name, case, threads, plan.layer_rounds) for name, case in plan.layers for threads in quiet.thread_counts()
    )
    peaks = partial(roof.peaks, 5, plan.flops)
    streams = roof.bandwidths(3, plan.sizes, 10**9, progress)
    cases = (_case(names, *each, plan, progress) for each in chain(layers, grid))
    return results.collect(record, chain(peaks(progress), streams, chain.from_iterable(cases), peaks(progress)), save)


def convolving():
    """Return the names of the engines that can run here on the processor, and have a convolution of their own."""
    can_run = engines.available()
    fast = [n for n in engines.names(OPERATIONS) if not (can_run[n] or engines.on_gpu(n) or engines.interpreted(n))]
    found: dict = {}
    for name in sorted(fast, key=lambda name: name != BASELINE):  # the others may have the baseline's own function
        convolution = getattr(engines.load(name), "conv", None)
        if convolution:
            found.setdefault(convolution, name)
    return tuple(found.values())


def _case(names, layer, case, threads, rounds, plan, progress):
    """Return the runs of a case: one for each engine and operation."""
    progress(f"{layer or 'grid'}: {_words(case)}, {counted(threads, 'thread')}")
    arrays, wanted = _arrays(case), _wanted(case)
    runs = []
    with quiet.with_threads(threads):
        for name in names:
            for operation in OPERATIONS:
                run = {"kind": "layer" if layer else "grid", "layer": layer, "engine": name, "operation": operation}
                run |= asdict(case) | {"threads": threads, "why_not": None, "samples_us": []}
                runs.append((run, partial(_call, engines.load(name), operation, case, *arrays)))
                _start(*runs[-1], wanted[operation], plan)
        calls = {number: partial(_sample, *both) for number, both in enumerate(runs) if not both[0]["why_not"]}
        settle = (lambda number: quiet.settle(runs[number][1], SETTLE)) if threads > 1 else None
        in_turns(calls, rounds, settle)
    return [run for run, _ in runs]


def _words(case):
    return (
        f"{case.batch} x {case.channels} -> {case.channels_out}, {case.size} x {case.size}, "
        f"{case.kernel} x {case.kernel}"
    )


def _arrays(case, dtype=np.float32):
    """Return x, W, b and dz of a case: the same numbers in every run."""
    rng = np.random.default_rng(0)
    k, out = case.kernel, case.channels_out
    x = rng.standard_normal((case.batch, case.channels, case.size, case.size), np.float32)
    W = rng.standard_normal((out, case.channels, k, k), np.float32) / np.float32(np.sqrt(case.channels * k * k))
    b, dz = (rng.standard_normal(s, np.float32) for s in (out, (case.batch, out, case.places, case.places)))
    return [np.ascontiguousarray(array, dtype) for array in (x, W, b, dz)]


def _call(engine, operation, case, x, W, b, dz):
    """Do one operation, and return what comes of it."""
    if operation == "conv":
        return engine.conv(x, W, b, case.stride, case.padding)
    if operation == "conv_backward_input":
        return engine.conv_backward_input(dz, W, x.shape, case.stride, case.padding)
    dW, db = np.empty_like(W), np.empty_like(b)
    engine.conv_backward_weights(x, dz, dW, db, case.stride, case.padding)
    return dW


def _wanted(case):
    """Return what each operation should give, by the baseline in float64."""
    arrays, baseline = _arrays(case, np.float64), engines.load(BASELINE)
    return {operation: _call(baseline, operation, case, *arrays) for operation in OPERATIONS}


def _start(run, call, wanted, plan):
    """Do an operation once or twice, compare, and decide how many calls a sample has."""
    error = float(np.abs(call() - wanted).max() / np.abs(wanted).max())
    run["error"] = error if np.isfinite(error) else None
    if not error <= TOLERANCE:
        run["why_not"] = f"it is off by {error:.1e} of the largest number"
        return
    seconds = min(seconds_of(call), seconds_of(call))
    run["calls_a_sample"] = steps_in(plan.sample_seconds, seconds, most=None)
    if seconds > plan.longest:
        run["why_not"] = f"it lasts {seconds:.2g} s"


def _sample(run, call):
    run["samples_us"].append(seconds_of(call, times=run["calls_a_sample"]) * 1e6)

"""Which engine wins where? A step's time over batch sizes and widths, on one thread and on all cores.

All engines that share a batch size and a width take turns, so that they meet the same quiet and busy moments. Before a
turn all threads must be asleep: OpenBLAS's, for one, go on looking for work for a tenth of a second after they have had
some, and would take a core from the next engine. The record "sweep" holds all samples.
"""

from dataclasses import asdict, dataclass
from itertools import pairwise, product

import numpy as np

from mlpkit import engines
from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.lab import machine, results
from mlpkit.lab.bench import GateError, Stepper, gate, median_us
from mlpkit.lab.machine import thread_counts
from mlpkit.lab.machine import with_threads as with_threads
from mlpkit.nn.network import SIZES
from mlpkit.training.recipe import Recipe

RECIPE = Recipe(lr=0.01)  # a small rate: a batch of 1 must not diverge
NAMES = (BASELINE, *engines.NUMBA)  # the processor's, but those that take hours
SERIAL = ("numba_serial",)  # use one thread, however many there are
WITH_BLAS = (BASELINE, "numba_hybrid")  # leave BLAS's threads awake behind them
SETTLE = 0.06  # seconds of steps before a sample on several cores


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long to take over it.

    engines, batch_sizes: each with each. widths: units of each hidden layer. threads: None stands for one and all
    cores. A sample is the mean of as many steps as fit into `sample_seconds`. A case takes `rounds` samples, or as many
    as fit into `patience` seconds; none if a step would last more than `longest` seconds.
    """

    engines: tuple[str, ...] = NAMES
    batch_sizes: tuple[int, ...] = (1, 4, 16, 64, 128, 256, 1024, 4096)
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    threads: tuple[int, ...] | None = None
    rounds: int = 3
    sample_seconds: float = 0.01
    patience: float = 0.25
    longest: float = 4.0


USUAL = Plan()


def run(train=None, save=results.save, progress=print, plan=USUAL):
    """Time a step of each engine in every case, and return the record. train: (X, y), MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    A case that is not run has the reason in `why_not`.
    """
    train = train or load().train
    record = results.new("sweep", plan=asdict(plan), recipe=RECIPE.to_dict())
    for width in plan.widths:
        recipe = RECIPE.but(sizes=sizes(width))
        progress(f"width {width}: checking the engines")
        why_not = {name: _why_not(name, recipe, train) for name in plan.engines}
        for batch_size in sorted(plan.batch_sizes):
            progress(f"width {width}, batch {batch_size}")
            cases = [_case(name, threads, width, batch_size) for threads, name in _who(plan)]
            for case in cases:
                case["why_not"] = why_not[case["engine"]] or _too_long(case, record, plan)
            _time_in_rounds(cases, recipe.but(batch_size=batch_size), train, plan)
            record["runs"] += cases
            save(record)
    return record


def sizes(width):
    """Return the layers of the network whose three hidden layers have `width` units each."""
    return SIZES[0], width, width, width, SIZES[-1]


def flops(width, batch_size):
    """Return the floating-point operations of a step's matrix products, all but the first layer's unneeded `dx`."""
    layers = sizes(width)
    products = [2 * batch_size * k * m for k, m in pairwise(layers)]
    return 3 * sum(products) - products[0]


def _who(plan):
    """Yield (threads, engine) of the cases that take turns; those that leave threads awake come last."""
    counts = plan.threads or thread_counts()
    for threads, name in product(counts, sorted(plan.engines, key=lambda name: name in WITH_BLAS)):
        if threads == 1 or name not in SERIAL:
            yield threads, name


def _case(name, threads, width, batch_size):
    return {"engine": name, "threads": threads, "width": width, "batch_size": batch_size, "samples_us": []}


def _why_not(name, recipe, train):
    """Return why an engine gets no time, or None; compile it on the way."""
    try:
        engines.load(name)
        gate(name, recipe, train)
    except (engines.EngineUnavailable, GateError) as error:
        return str(error)
    return None


def _too_long(case, record, plan):
    """Return why a case takes too long, or None, judged by the same engine's largest batch so far, on any threads."""
    earlier = results.runs(record, engine=case["engine"], width=case["width"])
    timed = [run for run in earlier if run["samples_us"]]
    if not timed:
        return None
    largest = max(run["batch_size"] for run in timed)
    us = min(median_us(run) for run in timed if run["batch_size"] == largest)
    seconds = us / 1e6 * case["batch_size"] / largest
    return f"a step would take about {seconds:.1f} s" if seconds > plan.longest else None


def _time_in_rounds(cases, recipe, train, plan):
    """Add samples to all cases that have no reason against it, one a round."""
    running = [case for case in cases if not case["why_not"]]
    steppers = {case["engine"]: Stepper(case["engine"], recipe, train) for case in running}
    for case in running:
        _start(case, steppers[case["engine"]], plan)
    for turn in range(plan.rounds):
        for case in running:
            if len(case["samples_us"]) <= turn < case["rounds"]:
                _sample(case, steppers[case["engine"]])


def _start(case, stepper, plan):
    """Take a first step, and decide on the number and length of the samples; for a slow case it is the first sample."""
    machine.rest()
    with with_threads(case["threads"]):
        seconds = stepper.take(1)[0]
        if seconds > plan.patience:
            case["samples_us"].append(seconds * 1e6)
        elif seconds < plan.sample_seconds:
            seconds = min(seconds, stepper.take(1)[0])
    case["rounds"] = max(1, min(plan.rounds, int(plan.patience / seconds)))
    case["steps_a_sample"] = max(1, int(plan.sample_seconds / seconds))


def _sample(case, stepper):
    with with_threads(case["threads"]):
        if case["steps_a_sample"] > 1:
            # Wakes the threads, and brings this engine's network back into the cache.
            machine.settle(stepper.take_one, SETTLE if case["threads"] > 1 else 0.0)
        else:
            machine.rest()
        seconds, losses = stepper.take(case["steps_a_sample"])
    if np.isfinite(losses).all():
        case["samples_us"].append(seconds * 1e6)
    else:
        case["why_not"] = "the loss is not finite"


# What the record says


METRICS = {  # of a run, and the baseline's in the same case
    "us a step": lambda run, baseline: median_us(run),
    "us an example": lambda run, baseline: median_us(run) / run["batch_size"],
    "speed against NumPy": lambda run, baseline: median_us(baseline) / median_us(run),
    "GFLOP/s": lambda run, baseline: flops(run["width"], run["batch_size"]) / median_us(run) / 1e3,
}


def value(record, metric, engine, width, batch_size, threads=1):
    """Return a number out of `METRICS` for one case, None where it has no time.

    threads: those that the engine may use, and the baseline it is compared with; a serial engine uses one of them.
    """
    run = _find(record, engine, width, batch_size, 1 if engine in SERIAL else threads)
    baseline = _find(record, BASELINE, width, batch_size, threads)
    return METRICS[metric](run, baseline) if run and baseline else None


def curve(record, metric, engine, width, threads=1):
    """Return the batch sizes at which an engine has a time, and the metric at each."""
    batch_sizes = sorted({run["batch_size"] for run in results.runs(record, engine=engine, width=width)})
    values = [(n, value(record, metric, engine, width, n, threads)) for n in batch_sizes]
    found = [pair for pair in values if pair[1] is not None]
    return [n for n, _ in found], [v for _, v in found]


def _find(record, engine, width, batch_size, threads):
    wanted = dict(engine=engine, width=width, batch_size=batch_size, threads=threads)
    return next((run for run in results.runs(record, **wanted) if run["samples_us"] and not run["why_not"]), None)


def table(record):
    """Return the record as text for the terminal: a row an engine, a column a batch size, its speed against NumPy's."""
    widths, threads, batch_sizes = (_values(record, name) for name in ("width", "threads", "batch_size"))
    lines = []
    for width, count in product(widths, threads):
        lines += [f"speed against NumPy, width {width}, {count} threads; batch sizes:"]
        lines += [f"{'':<16}" + "".join(f"{n:>9,}" for n in batch_sizes)]
        for engine in dict.fromkeys(run["engine"] for run in record["runs"]):
            speeds = [value(record, "speed against NumPy", engine, width, n, count) for n in batch_sizes]
            lines += [f"{engine:<16}" + "".join(f"{'-' if s is None else f'{s:.3g}':>9}" for s in speeds)]
    return "\n".join(lines)


def _values(record, name):
    return sorted({run[name] for run in record["runs"]})

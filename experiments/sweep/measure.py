"""How the record "sweep" is made: case by case, the engines of each in turns."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import numpy as np

from experiments.lab import quiet, results
from experiments.lab.bench import Stepper, why_not_timed
from experiments.lab.clock import in_turns, steps_in
from experiments.lab.results import median_us
from mlpkit import engines
from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.nn.models import MLP, mlp
from mlpkit.training.recipe import Recipe

from .read import SERIAL, sizes

RECIPE = Recipe(lr=0.01)  # a small rate: a batch of 1 must not diverge
OURS = engines.names(MLP.operations)
NAMES = (BASELINE, *(name for name in OURS if engines.library(name) == "numba"))  # the processor's
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


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Time a step of each engine in every case, and return the record. train: (X, y), MNIST's where None is given."""
    train = train or load(scaled=True).train
    record = results.new("sweep", plan=asdict(plan), recipe=RECIPE.to_dict())
    for width in plan.widths:
        recipe = RECIPE.but(model=mlp(*sizes(width)))
        progress(f"width {width}: checking the engines")
        why_not = {name: why_not_timed(name, recipe, train) for name in plan.engines}
        for batch_size in sorted(plan.batch_sizes):
            progress(f"width {width}, batch {batch_size}")
            cases = [_case(name, threads, width, batch_size) for threads, name in _who(plan)]
            for case in cases:
                case["why_not"] = why_not[case["engine"]] or _too_long(case, record, plan)
            _time(cases, recipe.but(batch_size=batch_size), train, plan)
            record["runs"] += cases
            save(record)
    return record


def _who(plan):
    """Yield (threads, engine) of the cases that take turns; those that leave threads awake come last."""
    counts = plan.threads or quiet.thread_counts()
    for threads, name in product(counts, sorted(plan.engines, key=lambda name: name in WITH_BLAS)):
        if threads == 1 or name not in SERIAL:
            yield threads, name


def _case(name, threads, width, batch_size):
    return {"engine": name, "threads": threads, "width": width, "batch_size": batch_size, "samples_us": []}


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


def _time(cases, recipe, train, plan):
    """Add samples to all cases that have no reason against it, in turns."""
    running = [case for case in cases if not case["why_not"]]
    steppers = {case["engine"]: Stepper(case["engine"], recipe, train) for case in running}
    for case in running:
        _start(case, steppers[case["engine"]], plan)
    calls = {number: partial(_sample, case, steppers[case["engine"]]) for number, case in enumerate(running)}
    in_turns(calls, {number: case["rounds"] - len(case["samples_us"]) for number, case in enumerate(running)})


def _start(case, stepper, plan):
    """Take a first step, and decide on the number and length of the samples; for a slow case it is the first sample."""
    quiet.rest()
    with quiet.with_threads(case["threads"]):
        seconds = stepper.take(1)[0]
        if seconds > plan.patience:
            case["samples_us"].append(seconds * 1e6)
        elif seconds < plan.sample_seconds:
            seconds = min(seconds, stepper.take(1)[0])
    case["rounds"] = steps_in(plan.patience, seconds, most=plan.rounds)
    case["steps_a_sample"] = steps_in(plan.sample_seconds, seconds, most=None)


def _sample(case, stepper):
    """Add a sample to the case. Raises StopIteration at a loss that is not finite."""
    with quiet.with_threads(case["threads"]):
        if case["steps_a_sample"] > 1:
            # Wakes the threads, and brings this engine's network back into the cache.
            quiet.settle(stepper.take_one, SETTLE if case["threads"] > 1 else 0.0)
        else:
            quiet.rest()
        seconds, losses = stepper.take(case["steps_a_sample"])
    if not np.isfinite(losses).all():
        case["why_not"] = "the loss is not finite"
        raise StopIteration
    case["samples_us"].append(seconds * 1e6)

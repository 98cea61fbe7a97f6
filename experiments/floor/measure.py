"""How the record "floor" is made: both rates, steps with their operations, BLAS's sets of kernels, busy neighbours.

As a program of its own it measures one set of kernels, which OpenBLAS chooses as it loads.
"""

import json
import os
import platform
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.lab import processes, quiet, results
from experiments.lab.bench import Stepper
from experiments.lab.clock import in_turns, seconds_of, steps_in
from experiments.lab.operations import Recorder, operations
from mlpkit import machine
from mlpkit.data import load
from mlpkit.engines import BASELINE, numpy_baseline
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

from .read import KIB

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


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Measure everything, and return the record. train: (X, y), MNIST's where None is given."""
    from experiments.lab import roof  # takes Numba

    train = train or load(scaled=True).train
    record = results.new("floor", plan=asdict(plan), recipes=[recipe.to_dict() for recipe in RECIPES])
    made = (
        roof.peaks(plan.samples, plan.flops, progress),
        roof.bandwidths(max(1, plan.samples // 2), plan.sizes, plan.traffic, progress),
        _steps(train, plan, progress),
        _kernels(plan, progress),
        _busy(train, plan, progress),
    )
    return results.collect(record, chain.from_iterable(made), save)


def _steps(train, plan, progress):
    for recipe in RECIPES:
        for batch_size in plan.batch_sizes:
            for threads in quiet.thread_counts():
                progress(f"steps with {recipe.optimizer}, batch {batch_size}, {counted(threads, 'thread')}")
                with threadpool_limits(threads):
                    yield from _step(recipe.but(batch_size=batch_size), train, plan, threads)


def _step(recipe, train, plan, threads):
    """Yield a run for whole steps, then one for each operation in them, timed in turns."""
    stepper, recorder = Stepper(BASELINE, recipe, train), Recorder(numpy_baseline, recipe, train)
    steps = _steps_in(plan.sample_seconds, stepper)
    calls = {
        "step": lambda: stepper.take(steps)[0] * 1e6,
        "parts": lambda: recorder.durations(steps).mean(axis=0) * 1e6,
    }
    samples = in_turns(calls, plan.samples)
    names = {"optimizer": recipe.optimizer, "batch_size": recipe.batch_size, "threads": threads}
    yield {"kind": "step", **names, "steps_a_sample": steps, "samples_us": samples["step"]}
    for operation, us in zip(operations(recipe, train), np.transpose(samples["parts"]), strict=True):
        cost = {key: getattr(operation, key) for key in ("name", "function", "flops", "bytes", "source")}
        yield {"kind": "operation", **names, **cost, "samples_us": us.round(3).tolist()}


def _steps_in(seconds, stepper):
    """Return how many steps fit into so many seconds, judged by the best of five."""
    return steps_in(seconds, min(stepper.take(1)[0] for _ in range(5)))


def _kernels(plan, progress):
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
    """Return a run for each number of threads: GFLOP/s of an n x n product, and microseconds of a training step.

    The images are made up: quicker than MNIST is to read, and no quicker to learn from.
    """
    rng = np.random.default_rng(0)
    A = rng.random((n, n), dtype=np.float32)
    train = rng.random((5000, 784), dtype=np.float32), rng.integers(10, size=5000)
    stepper, runs = Stepper(BASELINE, Recipe(), train), []
    for threads in quiet.thread_counts():
        with threadpool_limits(threads):
            A @ A, stepper.take(3)  # warm up
            rates = [2 * n**3 / seconds_of(np.matmul, A, A) / 1e9 for _ in range(samples)]
            steps = _steps_in(USUAL.sample_seconds, stepper)
            times = [stepper.take(steps)[0] * 1e6 for _ in range(samples)]
        names = {"kind": "kernels", "found": machine.blas()["kernels"], "threads": threads, "why_not": None}
        runs.append(names | {"samples_gflops": rates, "samples_us": times})
    return runs


def _busy(train, plan, progress):
    """Yield times of steps while other programs want a core, with one BLAS thread and with all, in turns."""
    stepper = Stepper(BASELINE, Recipe(), train)
    stepper.take(3)

    def sample(threads):
        with threadpool_limits(threads):
            return stepper.take(plan.busy_steps)[0] * 1e6

    calls = {threads: partial(sample, threads) for threads in quiet.thread_counts()}
    for others in sorted({0, 1, machine.cores()}) if plan.busy_steps else ():
        progress(f"steps beside {counted(others, 'busy program')}")
        with processes.busy_programs(others):
            samples = in_turns(calls, plan.samples)
        yield from ({"kind": "busy", "others": others, "threads": t, "samples_us": us} for t, us in samples.items())


if __name__ == "__main__":
    print(json.dumps(kernels()))

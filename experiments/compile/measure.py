"""How the records "compile" and "gpu_compile" are made. The package, as a program, times one engine's first steps."""

import os
import tempfile
from dataclasses import dataclass

import numpy as np

from experiments.lab import processes, results
from experiments.lab.bench import Stepper, why_not
from experiments.lab.clock import in_turns, seconds_of
from mlpkit import engines
from mlpkit.nn.models import MLP
from mlpkit.training.recipe import Recipe

from .read import CACHES

CACHE_VARIABLES = ("NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")  # Numba's, CuPy's, the driver's
NUMBA = tuple(name for name in engines.names(MLP.operations) if engines.library(name) == "numba")


@dataclass(frozen=True)
class Plan:
    """Which engines to start. processes: how many with each cache, an empty one and a filled one, for each engine."""

    engines: tuple[str, ...] = NUMBA
    processes: int = 2


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, experiment="compile"):
    """Time the first step of each engine with an empty cache and with a filled one, and return the record.

    experiment: the record's name. Who can't train so has the reason there. Raises EngineUnavailable where nobody can.
    """
    reasons = {name: why_not(name, Recipe()) for name in plan.engines}
    if all(reasons.values()):
        raise engines.EngineUnavailable(next(iter(reasons.values()), "no engine was asked for"))
    record = results.new(experiment, recipe=Recipe().to_dict(), processes=plan.processes)
    for name in plan.engines:
        run = {"engine": name, "why_not": reasons[name]}
        record["runs"] += [run | {"cache": cache, "samples_s": []} for cache in CACHES]

    def start(name):
        with tempfile.TemporaryDirectory() as folder:
            for case in results.runs(record, engine=name):
                case["samples_s"].append(in_new_process(name, folder))

    in_turns(
        {name: lambda name=name: start(name) for name in plan.engines if not reasons[name]},
        plan.processes,
        settle=progress,
        keep=lambda name, _: save(record),
    )
    return record


def in_new_process(name, cache):
    """Return the seconds that `first_steps` finds for the engine `name`, with `cache` for the compilers' folder.

    Raises `processes.Failed`.
    """
    return processes.ask(__package__, name, env=os.environ | {variable: str(cache) for variable in CACHE_VARIABLES})


def first_steps(name):
    """Return the seconds of importing the engine (with its libraries), of preparing, of the first step, of a later one.

    To prepare is to make the network and the optimizer and to put the data where the engine wants them. A GPU's driver
    starts with the import. Of the images only their number matters here: they are made up.
    """
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(1000, 784)).astype(np.float32)
    train = pixels / np.float32(255), rng.integers(10, size=1000)
    imported, steppers = seconds_of(engines.load, name), []

    def prepare():
        steppers.append(Stepper(name, Recipe(), train))
        steppers[0].engine.synchronize()

    prepared = seconds_of(prepare)
    first, *later = (steppers[0].take(1)[0] for _ in range(4))
    return {"import": imported, "prepare": prepared, "first": first, "later": min(later)}

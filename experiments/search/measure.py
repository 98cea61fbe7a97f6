"""How the record "search" is made. Its trials are trained by the search's own function, one thread each."""

import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.lab import results
from experiments.lab.bench import whole
from experiments.lab.clock import device_us
from mlpkit import data, engines, executors, machine
from mlpkit.data import epoch_order
from mlpkit.training.recipe import Recipe

from . import kills

SEARCH: dict[str, Any] = {
    "lr": {"low": 1e-3, "high": 1.0, "log": True, "points": 5},
    "optimizer": {"choices": ["sgd", "momentum", "adam"]},
    "batch_size": {"choices": [32, 128]},
    "schedule": {"choices": ["constant", "cosine"]},
}
FRESH = 1000  # the first of the seeds that chose nothing
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Plan:
    """How much to measure: so many studies by each sampler, of so many trials, trained for so many epochs.

    fresh: seeds from which each winner is trained again. long: studies with and without Hyperband, of `long_epochs`.
    timed: trials of one worker and of two, `pairs` times. files: trials in a file when Optuna is asked. kills: so many
    processes are killed in a search of `killed_trials`. sweeps: launches of fifteen rates on a GPU.
    """

    engine: str = "numba_step"
    images: int = 10_000
    samplers: tuple[str, ...] = ("tpe", "random", "grid")
    studies: int = 5
    trials: int = 60
    epochs: int = 2
    fresh: int = 5
    long: int = 2
    long_epochs: int = 9
    timed: int = 16
    pairs: int = 3
    files: tuple[int, ...] = (10, 100, 1000)
    kills: int = 6
    killed_trials: int = 30
    sweeps: int = 5


USUAL = Plan()
THOROUGH = Plan(studies=15, long=5, pairs=5, files=(10, 100, 1000, 10_000), kills=20, killed_trials=80)


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure everything, and return the record. Raises ImportError where Optuna or Dask is not installed."""
    import distributed
    import optuna

    versions = {"optuna": optuna.__version__, "distributed": distributed.__version__}
    record = results.new("search", plan=asdict(plan), search=SEARCH, libraries=versions)
    os.environ |= ONE_THREAD  # for the processes that follow
    return results.collect(record, _runs(plan, progress), save)


def _runs(plan, progress):
    parts = (_workers, _studies, _files, _kills, _sweeps)
    for part in parts:
        yield from part(plan, progress)


# Studies, each in a process of its own


def study_of(plan, sampler, number, epochs=None, pruner="none", **more):
    """Return a `Study`, number so many, whose trainings have that seed."""
    from mlpkit.search.study import Study

    recipe = {"epochs": epochs or plan.epochs, "seed": number}
    shared = dict(engine=plan.engine, images=plan.images, trials=plan.trials, seed=number)
    name = f"{sampler} {number} {pruner}"
    return Study(Path(name), name, SEARCH, recipe, sampler=sampler, pruner=pruner, **shared | more)


def one(plan, sampler, number, epochs, pruner):
    """Run a study in this process, and train its winner from fresh seeds; return a run of the record."""
    from mlpkit.search.run import prepared
    from mlpkit.search.task import train_to

    study = study_of(plan, sampler, number, epochs, pruner)
    found, trials = prepared(study, None), []
    for _ in range(plan.trials):
        trial, began, end = found.ask(study.distributions()), time.perf_counter(), 0
        part: Any = None
        for end in study.rungs():
            part = train_to(study, trial.params, end, part)
            trial.report(part[0], end)
            if end < study.rungs()[-1] and trial.should_prune():
                break
        done = end == study.rungs()[-1]
        found.tell(trial, part[0] if done else None, None if done else _pruned())
        trials.append([*trial.params.values(), round(part[0], 5), end, round(time.perf_counter() - began, 4)])
    winner, again = found.best_trial.params, range(FRESH, FRESH + plan.fresh)
    fresh = [_judged(study.recipe_of(winner).but(seed=seed), plan) for seed in again]
    run = {"kind": "study", "sampler": sampler, "pruner": pruner, "number": number, "epochs": study.rungs()[-1]}
    return run | {"trials": trials, "winner": winner, "best": found.best_value, "fresh": fresh}


def _pruned():
    from optuna.trial import TrialState

    return TrialState.PRUNED


def _judged(recipe, plan):
    """Return the accuracies on validation and test of one training."""
    found = data.load()
    few = found._replace(train=data.Split(*(array[: plan.images] for array in found.train)))
    network, history = recipe.train(few, plan.engine)
    whole(history)
    return [round(network.evaluate(*part)["accuracy"], 5) for part in (found.validation, found.test)]


def _studies(plan, progress):
    cases = [*product(plan.samplers, range(plan.studies), [plan.epochs], ["none"])]
    cases += product(["random"], range(plan.long), [plan.long_epochs], ["none", "hyperband"])
    with ProcessPoolExecutor(max(1, machine.cores() - 1), get_context("spawn")) as pool:
        for number, done in enumerate(as_completed([pool.submit(one, plan, *case) for case in cases]), 1):
            progress(f"study {number} of {len(cases)}")
            yield done.result()


# Two workers and one, on two cores


def _workers(plan, progress):
    for pair in range(plan.pairs):
        for count in (1, 2):
            progress(f"{count} of 2 workers, for the time number {pair}")
            yield {"kind": "workers", "workers": count} | timed(plan, count)


def timed(plan, count, epochs=6):
    """Return the seconds from the first trial's begin to the last one's end, and those of each.

    plan: its engine, images and `timed` trials. count: of workers. epochs: of each trial.
    """
    import optuna

    with TemporaryDirectory() as folder:
        path = Path(folder, "timed.toml")
        kills.write(path, plan.engine, plan.images, plan.timed, workers=count, epochs=epochs)
        cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
        narrowed = ["taskset", "-c", ",".join(map(str, cores))] if len(cores) > 1 else []
        command = [*narrowed, sys.executable, "-m", "mlpkit", "search", str(path)]
        subprocess.run(command, check=True, capture_output=True, cwd=results.ROOT)
        trials = optuna.load_study(study_name="timed", storage=f"sqlite:///{folder}/studies.db").trials
    first, last = min(t.datetime_start for t in trials), max(t.datetime_complete for t in trials)
    return {"seconds": (last - first).total_seconds(), "each": [round(t.duration.total_seconds(), 4) for t in trials]}


# How long Optuna takes to propose


def _files(plan, progress):
    import optuna

    with TemporaryDirectory() as folder:
        file = Path(folder, "studies.db")
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        for trials in plan.files:
            progress(f"asking with {trials:,} trials in the file")
            for sampler in ("tpe", "random"):
                yield {"kind": "file", "sampler": sampler, "trials": trials} | _asked(plan, sampler, trials, storage)
                yield {"kind": "bytes", "trials": trials, "bytes": file.stat().st_size}


def _asked(plan, sampler, count, storage):
    """Return the seconds of some questions and of some results, once a study of a sampler has so many trials."""
    import optuna

    from mlpkit.search.run import prepared

    study, rng = study_of(plan, sampler, 0), np.random.default_rng(count)
    ranges, found = study.distributions(), prepared(study, storage)
    for _ in range(count - len(found.trials)):
        drawn = [10 ** rng.uniform(-3, 0), *(rng.choice(SEARCH[n]["choices"]).item() for n in list(SEARCH)[1:])]
        params = dict(zip(SEARCH, drawn, strict=True))
        found.add_trial(optuna.create_trial(params=params, distributions=ranges, value=rng.uniform(0.8, 0.97)))
    samples: dict[str, list[float]] = {"ask": [], "tell": []}
    for _ in range(8):
        began = time.perf_counter()
        trial = found.ask(ranges)
        asked = time.perf_counter()
        found.tell(trial, 0.9)
        samples["ask"].append(round(asked - began, 5))
        samples["tell"].append(round(time.perf_counter() - asked, 5))
    return samples


# Processes that are killed


def _kills(plan, progress):
    if not plan.kills:
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "killed.toml")
        kills.write(path, plan.engine, plan.images, plan.killed_trials, epochs=4, heartbeat=1)
        yield {"kind": "kills"} | kills.killed(path, plan.kills, progress=progress)


# Fifteen rates in one launch


def _sweeps(plan, progress):
    reason = engines.available()["cuda_cluster"]
    if reason:
        return
    for seed in range(plan.sweeps):
        progress(f"fifteen rates in one launch, seed {seed}")
        yield {"kind": "sweep"} | sweep(seed)


def sweep(seed, epochs=2):
    """Train the perceptron at fifteen rates of Adam at once; return rates, accuracies, and microseconds of an epoch."""
    dataset, engine = data.load(), engines.load("cuda_cluster")
    rates = np.geomspace(1e-4, 5e-2, 15).tolist()
    recipes = [Recipe(optimizer="adam", lr=lr, schedule="cosine", epochs=epochs, seed=seed) for lr in rates]
    networks = [recipe.make_network("cuda_cluster") for recipe in recipes]
    made = [r.make_optimizer(network, len(dataset.train.y)) for r, network in zip(recipes, networks, strict=True)]
    module: Any = executors.of(engine)
    trainer = module.Together(networks, made, *map(engine.asarray, dataset.train), 128)
    orders = [engine.asarray(np.stack([epoch_order(55_000, seed, e)] * 15)) for e in range(epochs)]
    us = [device_us(lambda order=order: trainer.epoch(order)) for order in orders]
    validation = tuple(map(engine.asarray, dataset.validation))
    found = [round(network.evaluate(*validation)["accuracy"], 5) for network in networks]
    trainer.close()
    return {"seed": seed, "rates": rates, "accuracy": found, "epoch_us": us}

"""How the record "busy" is made: a process an engine; windows of a second, alone and beside one busy program.

A third program would be counted as a busy one. So a window begins when nobody else computes, and counts only where
nobody did in it, as far as the system tells.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module

import numpy as np

from experiments.lab import peers, processes, quiet, results
from experiments.lab.bench import GATE_STEPS, Stepper
from mlpkit import engines, machine
from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.executors.team import ThreadTeam
from mlpkit.nn.models import LENET5, MLP
from mlpkit.training.recipe import Recipe

RECIPE = Recipe()
SEES = Recipe(model=LENET5, lr=0.05)  # for an engine that has nothing of its own for the other model
SIDES = (0, 1)  # how many busy programs there are


@dataclass(frozen=True)
class Plan:
    """Who is measured, engines and `lab.peers`, in so many windows of so many seconds, each of samples.

    The plain parallel loops are not among them. They gain a factor of two from a second core, so that beside a program
    that needs it they take twice as long, and a little more for the team's trials: any team can do no better.

    A sample is the mean of `steps` steps. disturbed: how many cores others may have used in a window that counts.
    tries: how many windows there may be until there are enough that count. patience: seconds to wait for each to begin.
    """

    engines: tuple[str, ...] = (BASELINE, "numba_blocked", "numba_hybrid", "numba_step", "numba_conv")
    others: tuple[str, ...] = ("pytorch", "jax_epoch")
    rounds: int = 5
    seconds: float = 1.0
    steps: int = 10
    disturbed: float = 0.1
    tries: int = 10
    patience: float = 10.0

    def counts(self, window):
        """Say whether a window counts: whether others computed little enough in it, as far as anybody knows."""
        return (window["others_cores"] or 0) <= self.disturbed


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure everybody, and return the record."""
    versions = {library: machine.version(library) for library in ("numpy", "numba", "torch", "jax")}
    record = results.new("busy", plan=asdict(plan), recipe=RECIPE.to_dict(), libraries=versions)
    record["settings"]["sees"] = {name: SEES.to_dict() for name in plan.engines if recipe_of(name) is SEES}
    return results.collect(record, _runs(plan, progress), save)


def recipe_of(name):
    """Return by which recipe an engine or a peer trains here."""
    return SEES if name in set(engines.names(LENET5.operations)) - set(engines.names(MLP.operations)) else RECIPE


@cache
def _wanted(recipe):
    return Stepper(BASELINE, recipe, load("mnist", scaled=True).train).take(GATE_STEPS)[1]


def _runs(plan, progress):
    for name in plan.engines + plan.others:
        progress(f"{name}, alone and beside a busy program")
        try:
            answer = processes.ask(__name__, name, json.dumps(asdict(plan)))
        except processes.Failed as error:
            answer = {
                "first_losses": [],
                "runs": [{"way": "own", "others": 0, "samples_us": [], "why_not": str(error)}],
            }
        losses = answer["first_losses"]
        wrong = losses and not peers.are_wanted(losses, _wanted(recipe_of(name)), *peers.GATE)
        for run in answer["runs"]:
            why_not = f"its first losses differ from the baseline's: {losses}" if wrong else None
            yield {"engine": name, "why_not": why_not} | run


def windows(name, plan):
    """Return the first losses, and a run for each way of taking steps and number of busy programs, in this process.

    samples_us: microseconds a step, of the windows that count. Of all windows: window_us, cpu_us, how long all threads
    together computed or spun for a step, and others_cores, how many cores were used by other programs than these.
    """
    stepper, steps = _prepared(name)
    losses = np.atleast_1d(steps(GATE_STEPS)).tolist()
    steps(plan.steps)
    teams: dict = {"own": None}
    if stepper and stepper.trainer.team.threads:
        teams = {"all": ThreadTeam(), "crew": stepper.trainer.team}
    found: dict = {(way, others): [] for way in teams for others in SIDES}
    for _ in range(plan.tries):
        for (way, others), measured in found.items():
            if sum(map(plan.counts, measured)) < plan.rounds:
                if stepper:
                    stepper.trainer.team = teams[way] or stepper.trainer.team
                measured.append(_window(steps, others, plan))
    return {"first_losses": losses, "runs": [_run(way, others, plan, found[way, others]) for way, others in found]}


def _run(way, others, plan, measured):
    samples = [sample for window in measured if plan.counts(window) for sample in window["window_us"]]
    raw = {name: [window[name] for window in measured] for name in measured[0]}
    return {"way": way, "others": others, "samples_us": samples} | raw


def _prepared(name):
    """Return an engine's `Stepper`, None for a peer, and a function that takes so many steps and returns losses."""
    if name in engines.names():
        stepper = Stepper(name, recipe_of(name), load("mnist", scaled=True).train)
        return stepper, lambda n: stepper.take(n)[1]
    return None, import_module(f"{peers.__name__}.{name}").prepare(peers.problem(RECIPE))


def _window(steps, others, plan):
    """Return samples beside so many busy programs, for `plan.seconds`, and who computed meanwhile."""
    quiet.rest()
    _wait_for_others(plan.patience)
    used, mine, begin = _used(), _mine(), time.perf_counter()
    samples: list[float] = []
    with processes.busy_programs(others, 600):
        cpu, start = time.process_time(), time.perf_counter()
        end, last = start + plan.seconds, start
        while last < end or not samples:
            steps(plan.steps)
            samples.append(round((time.perf_counter() - last) / plan.steps * 1e6, 1))
            last = time.perf_counter()
        cpu = time.process_time() - cpu
    by_others = None if used is None else round((_used() - used - _mine() + mine) / (time.perf_counter() - begin), 3)
    return {"window_us": samples, "cpu_us": round(cpu / len(samples) / plan.steps * 1e6, 1), "others_cores": by_others}


def _wait_for_others(patience, look=0.2):
    """Wait until no other program has computed for a moment, at most so many seconds."""
    end = time.perf_counter() + patience
    while _used() is not None and time.perf_counter() < end:
        before = _used() - _mine()
        time.sleep(look)
        if _used() - _mine() - before < look / 10:
            return


def _used():
    """Return the seconds for which all cores together have computed, None where the system does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _mine():
    """Return the seconds for which this process and those that it has ended have computed."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    print(json.dumps(windows(sys.argv[1], Plan(**settings))))

"""When each part of a training step begins and ends: functions that read the clock replace the engine's."""

from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

from experiments.lab import processes, quiet
from experiments.lab.bench import Stepper
from experiments.lab.clock import in_turns
from experiments.lab.operations import Recorder, watched
from mlpkit import engines, executors
from mlpkit.engines import numpy_baseline
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

from .read import ENGINES

RECIPES = tuple(
    Recipe(optimizer=optimizer, lr=lr, batch_size=batch_size)
    for optimizer, lr in (("sgd", 0.05), ("adam", 1e-3))
    for batch_size in (64, 128)
)
INSIDE = {"numba_hybrid": "fused", "numba_step": "step"}  # engine: its executor's namespace of compiled functions
UPDATES = ("axpy", *(name for name in vars(numpy_baseline) if name.endswith("_update")))


class StepRecorder(Recorder):
    """Writes down the parts of an engine's steps, also of those that an engine takes in a way of its own.

    What lies between two parts is Python and, in `numba_hybrid`, the products, which are no function of the engine.
    """

    def __init__(self, name, recipe, train):
        engine, self.inside = engines.load(name), INSIDE.get(name)
        self.executor = executors.of(engine)
        super().__init__(engine, recipe, train, ("gather", *UPDATES) if self.inside else None)

    def watching(self):
        """Return a context in which the executor's step calls functions that read the clock."""
        if self.inside is None:
            return nullcontext()
        functions = getattr(self.executor, self.inside)
        names = [name for name in vars(functions) if name not in UPDATES]
        return patch.object(self.executor, self.inside, watched(self.watch, functions, names))

    def settled(self, settle, steps):
        """Return what `take` returns, in microseconds, after steps for `settle` seconds."""
        with self.watching():
            repeat(self.stepper.take_one, settle)
            names, timestamps = self.take(steps)
        return names, (timestamps * 1e6).round(2).tolist()


def repeat(call, seconds):
    """Call once, or, before several cores are timed, again and again for so many seconds: see `quiet.settle`."""
    if seconds:
        quiet.settle(call, seconds)
    else:
        call()


def parts(train, plan, progress):
    """Yield for each recipe and engine when the parts of its steps begin and end, taken in turns."""
    for recipe in RECIPES:
        progress(f"parts of a step: {recipe.optimizer}, batch {recipe.batch_size}")
        recorders = {engine: StepRecorder(engine, recipe, train) for engine in ENGINES}
        calls = {engine: partial(recorder.settled, plan.settle, plan.steps) for engine, recorder in recorders.items()}
        for engine, taken in in_turns(calls, plan.turns).items():
            names = {"kind": "parts", "engine": engine, "recipe": recipe.to_dict(), "parts": taken[-1][0]}
            yield names | {"spans_us": [span for _, spans in taken for span in spans]}


def busy(train, plan, progress):
    """Yield times of steps beside a program that wants a core, of each engine in turns."""
    steppers = {engine: Stepper(engine, Recipe(), train) for engine in ENGINES}
    calls = {engine: partial(_step_us, stepper) for engine, stepper in steppers.items()}
    for others in (0, 1):
        progress(f"steps beside {counted(others, 'busy program')}")
        with processes.busy_programs(others):
            samples = in_turns(calls, plan.busy, lambda engine: repeat(steppers[engine].take_one, plan.settle))
        yield from ({"kind": "busy", "others": others, "engine": e, "samples_us": us} for e, us in samples.items())


def _step_us(stepper):
    return stepper.take(5)[0] * 1e6

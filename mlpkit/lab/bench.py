"""Measure engines fairly: first whether they compute the same, then how long they take, then what the network learned.

Every engine starts from the same weights and sees the same batches. Its first losses are compared with the baseline's,
and an engine that differs gets no time. Times are taken in rounds, one sample of each engine a round, so that all of
them meet the same quiet and busy moments of the machine. Every raw sample goes into the record at once.
"""

import time
from dataclasses import asdict, dataclass

import numpy as np

from mlpkit import engines
from mlpkit.data import epoch_order
from mlpkit.engines import BASELINE as BASELINE
from mlpkit.training.fit import epoch_runner

from . import machine, results
from .results import brief as brief
from .results import median_us as median_us
from .results import not_run as not_run

GATE_STEPS = 20
GATE_ROWS = 4  # the batch of the gate: small, so that an engine of plain Python passes it in seconds
RTOL = 2e-4  # of the gate's losses, in float32


class GateError(AssertionError):
    """An engine's losses are not the baseline's; the message names the step."""


@dataclass(frozen=True)
class Timing:
    """How to take times. warmup: steps that are not timed. A sample is the mean of `steps_a_sample` steps.

    patience: seconds that an engine may take for its samples, and twice that for training; a slower one takes fewer
    steps a sample, then fewer samples, and is not trained.
    """

    warmup: int = 20
    steps_a_sample: int = 100
    rounds: int = 15
    patience: float = 8.0


USUAL = Timing()
THOROUGH = Timing(rounds=30, patience=20.0)  # for a record that is published


class Stepper:
    """An engine with a network of its own, ready to take steps through the training set (X, y), again and again.

    engine: a name, or a module. X (n, inputs), float32 or uint8; y (n,) integers.
    """

    def __init__(self, engine, recipe, train):
        X, y = train
        self.network = recipe.make_network(engine)
        self.optimizer = recipe.make_optimizer(self.network, len(y))
        self.engine = self.network.engine
        self.steps_of_epoch = epoch_runner(self.engine)
        order = epoch_order(len(y), recipe.seed, 0)
        self.X, self.y, self.order = map(self.engine.asarray, (X, y, order))
        self.batch_size = recipe.batch_size
        self.next_step = 0

    def take(self, steps):
        """Take steps, wait for the engine, and return (seconds a step, losses (steps,), a NumPy array)."""
        start = time.perf_counter()
        losses = [part for order in self.orders(steps) for part, _ in self.run(order)]
        self.engine.synchronize()
        return (time.perf_counter() - start) / steps, np.concatenate([self.engine.to_numpy(part) for part in losses])

    def take_one(self):
        """Take one step: the call that `machine.settle` repeats."""
        return self.take(1)

    def run(self, order):
        """Take the steps of an order (n,), and yield (losses, examples a step) of some steps at a time.

        A GPU may still be at work on them.
        """
        return self.steps_of_epoch(self.network, self.optimizer, self.X, self.y, order, self.batch_size)

    def orders(self, steps):
        """Yield pieces of the order, with full batches for so many steps, in as few pieces as there can be."""
        whole = max(1, len(self.order) // self.batch_size)  # a set smaller than a batch is one batch
        while steps > 0:
            count = min(steps, whole)
            if self.next_step + count > whole:
                self.next_step = 0
            first, self.next_step = self.next_step, self.next_step + count
            yield self.order[first * self.batch_size : self.next_step * self.batch_size]
            steps -= count


def gate(engine, recipe, train):
    """Return the losses (GATE_STEPS,) of an engine's first steps, at a small batch, on the training set (X, y).

    Raises GateError unless they are the baseline's within RTOL. A loss that is not finite never passes.
    """
    small = recipe.but(batch_size=GATE_ROWS)
    wanted, losses = (Stepper(name, small, train).take(GATE_STEPS)[1] for name in (BASELINE, engine))
    wrong = ~(np.isfinite(losses) & np.isclose(losses, wanted, rtol=RTOL, atol=0))
    if wrong.any():
        step = wrong.argmax()
        raise GateError(
            f"engine {engine} differs from {BASELINE}: at step {step + 1} its loss is {losses[step]:.6g}, "
            f"not {wanted[step]:.6g}."
        )
    return losses


def relative_error(losses, wanted):
    """Return the largest difference of any loss from the wanted one, as a part of it; NaN where one of them is NaN."""
    return float(np.max(np.abs(losses / wanted - 1)))


def compare(dataset, recipe, timing=USUAL, names=engines.NAMES, save=results.save, progress=print):
    """Gate, time and train the engines called `names`, and return the record.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    An engine that can't run, that refuses the network or the GPU, or that differs from the baseline has its reason in
    the record instead of numbers.
    """
    record = results.new("engines", recipe=recipe.to_dict(), timing=asdict(timing))
    steppers = {}
    for name in names:
        progress(f"checking {name}")
        run = {"engine": name, "why_not": None, "samples_us": []}
        record["runs"].append(run)
        try:
            engines.load(name)
            run["gate_losses"] = gate(name, recipe, dataset.train).tolist()
            steppers[name] = Stepper(name, recipe, dataset.train)
        except (engines.EngineUnavailable, GateError, ValueError) as error:
            run["why_not"] = str(error)
        save(record)
    time_in_rounds(record, steppers, timing, save, progress)
    for name in steppers:
        progress(f"training with {name}")
        train_whole(_run(record, name), dataset, recipe, 2 * timing.patience)
        save(record)
    return record


def time_in_rounds(record, steppers, timing, save, progress):
    """Add to each run one sample a round, in microseconds a step; a slow engine drops out when its time is up."""
    plans = {name: _plan(stepper, timing) for name, stepper in steppers.items()}
    for turn in range(timing.rounds):
        for name, (steps, samples) in plans.items():
            if turn < samples:
                progress(f"timing {name}")
                run = _run(record, name)
                run["steps_a_sample"] = steps
                if steps > 1:
                    machine.settle(steppers[name].take_one)
                run["samples_us"].append(steppers[name].take(steps)[0] * 1e6)
                save(record)


def _plan(stepper, timing):
    """Warm up, and return (steps a sample, samples) that fit into the engine's time."""
    once = max(stepper.take(1)[0], 1e-9)
    steps = min(timing.steps_a_sample, int(timing.patience / (timing.rounds * once)))
    if steps < 1:
        return 1, max(1, int(timing.patience / once))
    stepper.take(min(timing.warmup, steps))
    return steps, timing.rounds


def train_whole(run, dataset, recipe, patience):
    """Add the losses and the test accuracy of a whole training, or, over `patience` seconds, how long it would take."""
    steps = recipe.epochs * recipe.steps_an_epoch(len(dataset.train.y))
    run["test_accuracy"], run["training_seconds"] = None, steps * median_us(run) / 1e6
    if run["training_seconds"] > patience:
        return
    network, history = recipe.train(dataset, run["engine"])
    run["loss"], run["training_seconds"] = history.loss, sum(history.seconds)
    run["test_accuracy"] = network.evaluate(*dataset.test)[1]


def _run(record, engine):
    return results.runs(record, engine=engine)[0]


def table(record):
    """Return the record of a comparison as a table for the terminal; below it why some engines are missing."""
    baseline = median_us(_run(record, BASELINE)) if results.runs(record, engine=BASELINE) else None
    lines = [f"{'engine':<18}{'us a step':>12}{'speed-up':>12}  {'test accuracy':<16}"]
    lines += [_row(run, baseline) for run in record["runs"] if run["samples_us"] and not run["why_not"]]
    return "\n".join([*lines, *not_run(record["runs"])])


def _row(run, baseline):
    time_us = median_us(run)
    speed = f"{baseline / time_us:.3g}x" if baseline else "-"
    return f"{run['engine']:<18}{brief(time_us):>12}{speed:>12}  {_learned(run)}"


def _learned(run):
    if "test_accuracy" not in run:
        return "-"  # not trained, or interrupted before
    if run["test_accuracy"] is None:
        return f"({_duration(run['training_seconds'])} to train)"
    return f"{run['test_accuracy']:.2%}"


def _duration(seconds):
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"

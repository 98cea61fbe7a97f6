"""Measure engines fairly: only one whose losses are the baseline's gets a time, and all take the same steps.

Every engine starts from the same weights and sees the same batches. Its first losses are compared with the baseline's,
and an engine that differs gets no time.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.lab.clock import seconds_until_done
from mlpkit import engines
from mlpkit.data import epoch_order
from mlpkit.engines import BASELINE
from mlpkit.executors import check_trains, trainer_of

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
    patience: float = 4.0


class Stepper:
    """An engine with a network of its own, ready to take steps through the training set (X, y), again and again.

    engine: a name, or a module. X (n, ...), uint8 pixels or float32; y (n,) integers. Raises ValueError, with the
    engine's sentence, where it can't train so.
    """

    def __init__(self, engine, recipe, train):
        X, y = train
        self.network = recipe.make_network(engine)
        self.optimizer = recipe.make_optimizer(self.network, len(y))
        self.engine, self.batch_size = self.network.engine, recipe.batch_size
        order = epoch_order(len(y), recipe.seed, 0)
        X, y, self.order = map(self.engine.asarray, (X, y, order))
        self.trainer = trainer_of(self.network, self.optimizer, X, y, self.batch_size)
        self.next_step = 0

    def take(self, steps):
        """Take steps, wait for the engine, and return (seconds a step, losses (steps,), a NumPy array)."""
        seconds, losses = seconds_until_done(self.engine, partial(self.ask, steps))
        return seconds / steps, np.concatenate([self.engine.to_numpy(part) for part in losses])

    def take_one(self):
        """Take one step: the call that `quiet.settle` repeats."""
        return self.take(1)

    def ask(self, steps):
        """Ask for steps, and return their losses in parts, arrays that a GPU may still be at work on."""
        return [self.trainer.epoch(order) for order in self.orders(steps)]

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


def why_not(name, recipe):
    """Return None, or in a sentence why an engine can't train by a recipe: this machine's reason, or the engine's."""
    try:
        network = recipe.make_network(name)
        check_trains(network, recipe.make_optimizer(network, recipe.batch_size), recipe.batch_size)
    except (engines.EngineUnavailable, ValueError) as error:
        return " ".join(str(error).split())
    return None


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


def why_not_timed(engine, recipe, train):
    """Return None for an engine that passes `gate`, else in a sentence why it gets no time."""
    try:
        gate(engine, recipe, train)
    except (engines.EngineUnavailable, GateError, ValueError) as error:
        return str(error)
    return None


def whole(history):
    """Return the history of a training that nobody stopped.

    Raises KeyboardInterrupt where Ctrl-C ended it, which `fit` answers with what there is: a part is no evidence.
    """
    if history.stopped == "interrupted":
        raise KeyboardInterrupt
    return history


def relative_error(losses, wanted):
    """Return the largest difference of any loss from the wanted one, as a part of it; NaN where one of them is NaN."""
    return float(np.max(np.abs(losses / wanted - 1)))

"""A schedule is the learning rate as a function of the step: large steps to get there, small ones to settle.

Each is a small object that is called with the number of steps already taken (0 for the first) and returns the rate,
float64; or with an array of such numbers, for an array of rates. An optimizer takes a schedule wherever it takes a
number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlpkit.checks import check_not_negative, check_positive, check_steps
from mlpkit.nn.written import Written

CHECKS = {"lr": check_positive, "every": check_steps, "steps": check_steps, "factor": check_positive}
CHECKS |= {"final_fraction": check_positive, "final_lr": check_not_negative}


@dataclass(frozen=True, repr=False)
class Schedule(Written):
    """What checks a schedule's numbers, by their names, and makes them Python's own.

    So 1, 1.0 and np.float64(1) are one rate, in a checkpoint too. Raises ValueError or TypeError for what is out of
    range.
    """

    def __post_init__(self):
        for name, value in list(vars(self).items()):
            if name in CHECKS:
                object.__setattr__(self, name, CHECKS[name](name, value))


@dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """The same rate at every step."""

    lr: float

    def __call__(self, step):
        return self.lr + 0 * step


@dataclass(frozen=True, repr=False)
class StepDecay(Schedule):
    """`lr * factor ** (step // every)`: the rate falls by a factor each `every` steps."""

    lr: float
    every: int
    factor: float = 0.1

    def __call__(self, step):
        return self.lr * self.factor ** (np.asarray(step) // self.every)  # powers of NumPy's ints wrap around


@dataclass(frozen=True, repr=False)
class Exponential(Schedule):
    """`lr * final_fraction ** (step / steps)`: a smooth fall to `final_fraction * lr` after `steps` steps."""

    lr: float
    steps: int
    final_fraction: float = 0.01

    def __call__(self, step):
        return self.lr * self.final_fraction ** (np.asarray(step) / self.steps)


@dataclass(frozen=True, repr=False)
class Cosine(Schedule):
    """Half a cosine, from `lr` at step 0 down to `final_lr` at `steps`, and there it stays.

    Loshchilov and Hutter (2017), "SGDR", equation 5, without restarts.
    """

    lr: float
    steps: int
    final_lr: float = 0.0

    def __call__(self, step):
        done = np.minimum(np.asarray(step) / self.steps, 1.0)
        return self.final_lr + (self.lr - self.final_lr) * (1 + np.cos(np.pi * done)) / 2


@dataclass(frozen=True, repr=False)
class WarmUp(Schedule):
    """The first `steps` steps rise in a straight line to the rate of `then`, which follows with its own step 0."""

    then: Callable[[Any], Any]
    steps: int

    def __post_init__(self):
        if not callable(self.then):
            raise TypeError(f"then must be a schedule, such as Constant({self.then!r}), not {self.then!r}.")
        super().__post_init__()

    def __call__(self, step):
        step = np.asarray(step)
        rising = self.then(0) * (step + 1) / self.steps
        return np.where(step < self.steps, rising, self.then(np.maximum(step - self.steps, 0)))[()]

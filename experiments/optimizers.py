"""Which optimizer learns most in ten epochs? Each at its best of three rates."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.optim import GOOD_RATES
from mlpkit.training.recipe import Recipe

RATES = GOOD_RATES | {"sgd": 0.3}
RATES.pop("adamw")  # without a decay, it is Adam
AROUND = (0.5, 1, 2)  # times that rate, so that each can be judged at its best of three
PLAN = Plan(
    tuple(Recipe(optimizer=name, lr=factor * lr, epochs=10) for name, lr in RATES.items() for factor in AROUND), seeds=5
)
measure = partial(trainings.measure, "optimizers", plan=PLAN)

"""Which optimizer learns most in ten epochs? Each at its best of three rates."""

from functools import partial

from mlpkit.lab import trainings
from mlpkit.lab.trainings import Plan
from mlpkit.lab.trainings import table as table
from mlpkit.training.recipe import Recipe

RATES = {"sgd": 0.3, "momentum": 0.05, "nesterov": 0.05, "rmsprop": 5e-4, "adam": 1e-3}  # a good one for each
AROUND = (0.5, 1, 2)  # times that rate, so that each can be judged at its best of three
PLAN = Plan(
    tuple(Recipe(optimizer=name, lr=factor * lr, epochs=10) for name, lr in RATES.items() for factor in AROUND), seeds=5
)
measure = partial(trainings.measure, "optimizers", plan=PLAN)

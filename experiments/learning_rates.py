"""How wrong may the learning rate be? SGD and Adam over three powers of ten."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.training.recipe import Recipe

RATES = {
    "sgd": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "adam": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
}
PLAN = Plan(tuple(Recipe(optimizer=name, lr=lr, epochs=5) for name, rates in RATES.items() for lr in rates))
measure = partial(trainings.measure, "learning_rates", plan=PLAN)

"""How good is the recipe that the validation set has chosen? The only one that is shown the test set."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import BEST, Plan
from experiments.lab.trainings import table as table

PLAN = Plan((BEST,), seeds=5, tested=(BEST,))
measure = partial(trainings.measure, "best", plan=PLAN)

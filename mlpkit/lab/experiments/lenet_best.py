"""How good is the recipe for LeNet-5 that the validation set has chosen? The only one that is shown the test set."""

from functools import partial

from mlpkit.lab import trainings
from mlpkit.lab.trainings import Plan
from mlpkit.lab.trainings import table as table

from .lenet import TOGETHER

BEST = TOGETHER[1]
PLAN = Plan((BEST,), seeds=5, tested=(BEST,), engine="numba_conv")
measure = partial(trainings.measure, "lenet_best", plan=PLAN)

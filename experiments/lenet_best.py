"""How good are the recipes for LeNet-5 that the validation set has chosen, for one epoch and for ten?

The only ones that are shown the test set.
"""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table

from .lenet import PLAIN, TOGETHER

BEST = PLAIN.but(epochs=1, warmup_epochs=0.1, weight_decay=0.05), TOGETHER[1]
PLAN = Plan(BEST, seeds=5, tested=BEST, engine="numba_conv")
measure = partial(trainings.measure, "lenet_best", plan=PLAN)

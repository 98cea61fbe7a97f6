"""How much should weights decay? AdamW's decoupled decay, and Adam with a penalty in its gradient."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import BEST, Plan
from experiments.lab.trainings import table as table

DECOUPLED = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
L2 = (1e-5, 1e-4, 3e-4, 1e-3)  # the penalty's factor, for Adam without the W
PLAN = Plan(
    (
        *(BEST.but(weight_decay=factor) for factor in DECOUPLED),
        *(BEST.but(optimizer="adam", weight_decay=factor) for factor in L2),
    )
)
measure = partial(trainings.measure, "weight_decay", plan=PLAN)

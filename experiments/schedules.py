"""How should the learning rate fall? The best recipe, with one schedule after another."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import BEST, Plan
from experiments.lab.trainings import table as table

SCHEDULES = (("constant", 0), ("step", 0), ("exponential", 0), ("cosine", 0), ("cosine", 2))  # epochs of warm-up
PLAN = Plan(
    (
        *(BEST.but(schedule=name, warmup_epochs=epochs) for name, epochs in SCHEDULES),
        BEST.but(schedule="constant", warmup_epochs=0, lr=1e-3),
    )
)
measure = partial(trainings.measure, "schedules", plan=PLAN)

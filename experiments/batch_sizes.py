"""What does the batch size change, when each has a rate that suits it? Adam, ten epochs."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import ADAM, Plan
from experiments.lab.trainings import table as table

RATES = {32: 1e-3, 64: 2e-3, 128: 2e-3, 256: 2e-3, 512: 5e-3, 1024: 8e-3}  # a good one for each
PLAN = Plan(tuple(ADAM.but(batch_size=size, lr=lr) for size, lr in RATES.items()))
measure = partial(trainings.measure, "batch_sizes", plan=PLAN)

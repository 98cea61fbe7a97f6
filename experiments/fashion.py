"""How well are garments told apart after five epochs, by the network of 896,522 parameters?"""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.nn.models import FASHION_CNN
from mlpkit.training.recipe import Recipe

FIVE = Recipe(
    model=FASHION_CNN, optimizer="adamw", lr=2e-3, schedule="cosine", warmup_epochs=0.5, weight_decay=0.02,
    batch_size=64, epochs=5,
)  # fmt: skip
PLAN = Plan((FIVE,), seeds=5, engine="numba_conv", data="fashion-mnist")
measure = partial(trainings.measure, "fashion", plan=PLAN)

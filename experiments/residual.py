"""How far does a residual network come in two epochs, and in three?

It takes some eighty times the arithmetic of LeNet-5, so this is a record of a GPU; any engine with its operations would
see the same.
"""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.data.augment import Augmentation
from mlpkit.nn.models import RESIDUAL
from mlpkit.training.recipe import Recipe

SEEN = Augmentation(shift=1, rotation=8, elastic=0.7)
THREE = Recipe(
    model=RESIDUAL, optimizer="adamw", lr=0.015, schedule="cosine", warmup_epochs=0.3, weight_decay=0.05, epochs=3,
    augment=SEEN,
)  # fmt: skip
RECIPES = THREE.but(epochs=2), THREE
PLAN = Plan(RECIPES, seeds=5, tested=RECIPES, engine="cupy_naive")
measure = partial(trainings.measure, "residual", plan=PLAN)

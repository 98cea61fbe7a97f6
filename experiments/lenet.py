"""What helps LeNet-5 with images that it has not seen? Decay, dropout, images that change: each alone, and together."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.data.augment import Augmentation
from mlpkit.nn.layers import Dropout, Linear
from mlpkit.nn.models import LENET5, Model
from mlpkit.training.recipe import Recipe


def dropping(model, rate):
    """Return a model that drops numbers before each of its Linear layers but the first."""
    layers: list = []
    for layer in model.layers:
        if isinstance(layer, Linear) and any(isinstance(before, Linear) for before in layers):
            layers.append(Dropout(rate))
        layers.append(layer)
    return Model(model.input, tuple(layers), model.loss)


PLAIN = Recipe(model=LENET5, optimizer="adamw", lr=6e-3, schedule="cosine", warmup_epochs=1, epochs=10)
ALONE = (
    *(PLAIN.but(weight_decay=factor) for factor in (0.05, 0.2)),
    *(PLAIN.but(model=dropping(LENET5, rate)) for rate in (0.25, 0.5)),
    *(PLAIN.but(augment=Augmentation(shift=pixels)) for pixels in (1, 2)),
    *(PLAIN.but(augment=Augmentation(rotation=degrees)) for degrees in (8, 15)),
    *(PLAIN.but(augment=Augmentation(elastic=pixels)) for pixels in (0.7, 1.4)),
)
ALL = Augmentation(shift=1, rotation=8, elastic=0.7)
TOGETHER = (
    PLAIN.but(augment=ALL),
    PLAIN.but(augment=ALL, weight_decay=0.05),
    PLAIN.but(augment=ALL, weight_decay=0.05, model=dropping(LENET5, 0.25)),
)
PLAN = Plan((PLAIN, *ALONE, *TOGETHER), engine="numba_conv")
measure = partial(trainings.measure, "lenet", plan=PLAN)

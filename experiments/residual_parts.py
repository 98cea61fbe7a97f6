"""What do the ways past the blocks do for a residual network, and what does batch normalization, after two epochs?"""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Layer
from mlpkit.nn.model import Model
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual
from mlpkit.training.recipe import Recipe

from .residual import THREE


def straight(layers):
    """Return layers without ways past them: what is inside of a Residual, in a row."""
    return tuple(
        one for layer in layers for one in (straight(layer.layers) if isinstance(layer, Residual) else (layer,))
    )


def plain(layers):
    """Return layers without batch normalization: convolutions get their bias back."""
    kept: list[Layer] = []
    for layer in layers:
        if isinstance(layer, Residual):
            kept.append(Residual(plain(layer.layers)))
        elif isinstance(layer, Conv):
            kept.append(Conv(layer.channels, layer.size, layer.stride, layer.padding))
        elif not isinstance(layer, BatchNorm):
            kept.append(layer)
    return tuple(kept)


def with_layers(recipe, change):
    """Return a recipe whose model's layers are changed."""
    model = recipe.model
    return recipe.but(model=Model(model.input, change(model.layers), model.loss))


BOTH: Recipe = THREE.but(epochs=2, augment=None)
LOWER = BOTH.but(lr=0.002)
PLAN = Plan(
    tuple(
        recipe
        for each in (BOTH, LOWER)
        for recipe in (
            each,
            with_layers(each, straight),
            with_layers(each, plain),
            with_layers(each, lambda layers: straight(plain(layers))),
        )
    ),
    seeds=2,
    engine="cupy_naive",
)
measure = partial(trainings.measure, "residual_parts", plan=PLAN)

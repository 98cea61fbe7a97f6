"""What does a bend cost in accuracy? LeNet-5 with sigmoid, tanh and leaky ReLU in the place of ReLU."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.nn.layers import LeakyReLU, ReLU, Sigmoid, Tanh
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5
from mlpkit.training.recipe import Recipe

RATES = 2e-3, 6e-3
FIVE = Recipe(model=LENET5, optimizer="adamw", schedule="cosine", warmup_epochs=1, weight_decay=0.05, epochs=5)
KINDS = {ReLU(): "he", LeakyReLU(): "he", Tanh(): "xavier", Sigmoid(): "xavier"}  # with the first weights that suit


def bent(model, kind):
    """Return a model with layers `kind` in the place of its ReLU layers."""
    return Model(model.input, tuple(kind if one == ReLU() else one for one in model.layers), model.loss)


PLAN = Plan(
    tuple(FIVE.but(model=bent(LENET5, kind), init=init, lr=lr) for kind, init in KINDS.items() for lr in RATES),
    engine="numba_conv",
)
measure = partial(trainings.measure, "activations", plan=PLAN)

"""What does a loss cost in accuracy? LeNet-5 with four of them, each judged by how many images it gets right."""

from functools import partial

from experiments.lab import trainings
from experiments.lab.trainings import Plan
from experiments.lab.trainings import table as table
from mlpkit.nn.losses import BinaryCrossEntropy, Hinge, MeanSquaredError, SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5

from .activations import FIVE, RATES

LOSSES = SoftmaxCrossEntropy(), Hinge(), BinaryCrossEntropy(), MeanSquaredError()
PLAN = Plan(
    tuple(FIVE.but(model=Model(LENET5.input, LENET5.layers, loss), lr=lr) for loss in LOSSES for lr in RATES),
    engine="numba_conv",
)
measure = partial(trainings.measure, "losses", plan=PLAN)

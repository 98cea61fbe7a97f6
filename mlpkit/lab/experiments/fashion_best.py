"""How well are garments told apart after twenty epochs, half of what goes into each dense layer being dropped?"""

from functools import partial

from mlpkit.lab import trainings
from mlpkit.lab.trainings import Plan
from mlpkit.lab.trainings import table as table
from mlpkit.nn.layers import Dropout, Linear
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN

from .fashion import FIVE

DROPPING = Model(FASHION_CNN.input, tuple(
    one for layer in FASHION_CNN.layers for one in ((Dropout(0.5), layer) if isinstance(layer, Linear) else (layer,))
))  # fmt: skip
BEST = FIVE.but(model=DROPPING, epochs=20, warmup_epochs=1)
PLAN = Plan((BEST,), seeds=3, tested=(BEST,), engine="numba_conv", data="fashion-mnist")
measure = partial(trainings.measure, "fashion_best", plan=PLAN)

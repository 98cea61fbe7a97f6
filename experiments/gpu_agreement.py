"""Do the engines on the GPU train the same network as the baseline? See `agreement`."""

from functools import partial

from mlpkit import engines
from mlpkit.nn.models import MLP

from . import agreement
from .agreement import Plan
from .agreement import table as table

NAMES = (engines.BASELINE, *filter(engines.on_gpu, engines.names(MLP.operations)))
measure = partial(agreement.measure, plan=Plan(NAMES, needs="cupy_naive"), experiment="gpu_agreement")

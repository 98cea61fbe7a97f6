"""How long does a reader of the GPU's chapters wait for the compiler? See `compile`."""

from functools import partial

from mlpkit import engines
from mlpkit.nn.models import MLP

from . import compile as compiling
from .compile import Plan
from .compile import table as table

NAMES = tuple(filter(engines.on_gpu, engines.names(MLP.operations)))
measure = partial(compiling.measure, plan=Plan(NAMES, processes=1), experiment="gpu_compile")

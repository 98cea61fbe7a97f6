"""Which kernels is a step of a network that sees on a GPU, engine by engine, and how long is each? See `timeline`.

The network is the garments' of 896,522 parameters.
"""

from functools import partial

from . import timeline
from .gpu_image_peers import FASHION
from .timeline import Plan
from .timeline import table as table

NAMES = ("cupy_naive", "cupy_conv", "cuda_conv", "cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16")
PLAN = Plan(asked=(4, 20), ahead=(2, 4), whole=100, names=NAMES)
measure = partial(timeline.measure, plan=PLAN, recipe=FASHION, experiment="gpu_image_timeline")

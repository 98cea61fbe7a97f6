"""CUDA graph of blocks in TF32: as `cuda_conv_graph`, with products of fewer bits.

Convolutions multiply fp16, whose 11 bits are TF32's; each array has a scale of its own, so that nothing overflows.
The other products are TF32's own. Sums, updates and all that is kept are float32.
"""

from functools import partial

from . import cuda_conv_graph
from .cuda.evaluation import Evaluation as Evaluation

NAME = "cuda_conv_graph_tf32"
why_not = partial(cuda_conv_graph.why_not_with_less_precision, NAME)


class Trainer(cuda_conv_graph.Trainer):
    """Replays one step at a time. See `executors.protocol.Trainer`."""

    precision = "tf32"


class Prediction(cuda_conv_graph.Prediction):
    """Predictions, compiled. See `executors.protocol.Prediction`."""

    precision = "tf32"

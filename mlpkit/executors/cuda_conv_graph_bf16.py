"""CUDA graph of blocks in BF16: as `cuda_conv_graph`, with products of fewer bits.

Between convolutions images are bfloat16, and so are the elements that are multiplied. Linear layers, which take little
time, multiply TF32. Sums, parameters and their updates are float32.
"""

from functools import partial

from . import cuda_conv_graph
from .cuda.evaluation import Evaluation as Evaluation

NAME = "cuda_conv_graph_bf16"
why_not = partial(cuda_conv_graph.why_not_with_less_precision, NAME)


class Trainer(cuda_conv_graph.Trainer):
    """Replays one step at a time. See `executors.protocol.Trainer`."""

    precision = "bf16"


class Prediction(cuda_conv_graph.Prediction):
    """Predictions, compiled. See `executors.protocol.Prediction`."""

    precision = "bf16"

"""CUDA graph of blocks in BF16: as `cuda_conv_graph`, with products of numbers with fewer digits.

Between convolutions images are bfloat16, and so are the numbers that are multiplied. Linear layers, which take little
time, multiply TF32. Sums, parameters and their updates are float32.
"""

from . import cuda_conv_graph
from .cupy_conv import *

NAME = "cuda_conv_graph_bf16"
GATE = (5, 3e-2)  # of the first losses, how many are held to the baseline's, and how closely: see `lab.peers`


def why_not(model, optimizer, batch_size):
    """Return None, or in a sentence what it can't. See `protocol`."""
    return cuda_conv_graph.why_not_with_fewer_digits(NAME, model, optimizer)


class Trainer(cuda_conv_graph.Trainer):
    """Replays one step at a time. See `protocol.Trainer`."""

    precision = "bf16"


class Prediction(cuda_conv_graph.Prediction):
    """Answers, compiled. See `protocol.Prediction`."""

    precision = "bf16"

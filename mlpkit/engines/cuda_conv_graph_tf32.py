"""CUDA graph of blocks in TF32: as `cuda_conv_graph`, with products of numbers with fewer digits.

Convolutions multiply halves, whose 11 bits are TF32's; each array has a scale of its own, so that nothing overflows.
The other products are TF32's own. Sums, updates and all that is kept are float32.
"""

from . import cuda_conv_graph
from .cupy_conv import *

NAME = "cuda_conv_graph_tf32"
GATE = (5, 2e-3)  # of the first losses, how many are held to the baseline's, and how closely: see `lab.peers`


def why_not(model, optimizer, batch_size):
    """Return None, or in a sentence what it can't. See `protocol`."""
    return cuda_conv_graph.why_not_with_fewer_digits(NAME, model, optimizer)


class Trainer(cuda_conv_graph.Trainer):
    """Replays one step at a time. See `protocol.Trainer`."""

    precision = "tf32"


class Prediction(cuda_conv_graph.Prediction):
    """Answers, compiled. See `protocol.Prediction`."""

    precision = "tf32"

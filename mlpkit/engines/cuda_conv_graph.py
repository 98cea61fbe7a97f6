"""CUDA graph of blocks: the whole step, from the batch to the update, is recorded once and replayed.

As in `cuda_conv`, for any model whose targets are labels of classes. See `cuda/plan`.
"""

from mlpkit.kernels import gpu

from .cuda.matches import matches_for
from .cuda.plan import PlannedTrainer
from .cuda.prediction import Prediction as Prediction
from .cupy_conv import *
from .stepping import OF_CLASSES

gpu.require_capability(9.0)  # its blocks are written for Hopper

NAME = "cuda_conv_graph"


def why_not(model, optimizer, batch_size):
    """Return None where the targets are labels of classes, else a sentence. See `protocol`."""
    return labels_only(NAME, model)


def labels_only(engine, model):
    """Return None, or the sentence with which `engine`, a name, refuses a model whose targets are numbers."""
    if model.loss in OF_CLASSES:
        return None
    return f"{engine} trains with labels of classes, not with {model.loss}: take the engine cuda_conv."


def why_not_with_fewer_digits(engine, model, optimizer):
    """Return None, or why `engine`, a name, refuses a network whose products are to have fewer digits."""
    if optimizer.network.dtype != "float32":
        return (
            f"{engine} computes in float32, with fewer digits, not in {optimizer.network.dtype}: take cuda_conv_graph."
        )
    return labels_only(engine, model)


class Trainer(PlannedTrainer):
    """Replays one step at a time. See `protocol.Trainer`."""

    def __init__(self, network, optimizer, X, y, batch_size):
        self.matches = matches_for(network.dtype)
        super().__init__(network, optimizer, X, y, batch_size)

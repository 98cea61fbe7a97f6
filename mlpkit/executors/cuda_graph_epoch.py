"""CUDA graph of an epoch: all its full batches are one graph, and so one launch."""

from . import cuda_graph
from .cuda_graph import Evaluation as Evaluation
from .cuda_graph import Prediction as Prediction
from .cuda_graph import too_many_classes
from .plain import mlps_only

NAME = "cuda_graph_epoch"


def why_not(model, optimizer, batch_size):
    """Return None for a multilayer perceptron that has not too many classes, else a sentence."""
    return mlps_only(NAME, model) or too_many_classes(NAME, model)


class Trainer(cuda_graph.Trainer):
    """Replays all steps with a full batch at once. See `executors.protocol.Trainer`."""

    steps_a_graph = None

"""CUDA graph of an epoch: all its full batches are one graph, and so one launch."""

from functools import partial

from . import cuda_graph
from .cuda_graph import Evaluation as Evaluation
from .cuda_graph import Prediction as Prediction

NAME = "cuda_graph_epoch"
why_not = partial(cuda_graph.why_not_as, NAME)


class Trainer(cuda_graph.Trainer):
    """Replays all steps with a full batch at once. See `executors.protocol.Trainer`."""

    steps_a_graph = None

"""CUDA graph of cuBLAS's kernels: those of `cupy_fused`, recorded once as a graph and replayed step by step."""

from .cuda.graph import GradientTrainer
from .cupy_fused import Evaluation as Evaluation
from .cupy_fused import Gradient
from .cupy_fused import Prediction as Prediction
from .plain import mlps_only

NAME = "cuda_graph_cublas"


def why_not(model, optimizer, batch_size):
    """Return None for a multilayer perceptron, else a sentence. See `executors`."""
    return mlps_only(NAME, model)


class Trainer(GradientTrainer):
    """Replays one step at a time. See `executors.protocol.Trainer`."""

    Gradient = Gradient

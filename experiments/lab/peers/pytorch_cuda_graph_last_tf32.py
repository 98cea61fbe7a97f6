"""PyTorch, graph, NHWC, TF32: as `pytorch_cuda_graph_tf32`, channels last, the layout of most of cuDNN's best plans."""

from . import pytorch_cuda_graph

GATE = (5, 2e-3)  # losses, and how close: see `peers.GATE`


def prepare(problem):
    return pytorch_cuda_graph.prepare(problem, precision="high", last=True)

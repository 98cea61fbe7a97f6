"""PyTorch, graph, max-autotune, bf16: as `pytorch_cuda_graph_tuned_tf32`, with products of 16 bits by autocast."""

from . import pytorch_cuda_graph
from .pytorch_cuda_graph import TUNED

GATE = (5, 3e-2)  # losses, and how close: see `peers.GATE`


def prepare(problem):
    return pytorch_cuda_graph.prepare(problem, precision="bf16", last=True, options=TUNED)

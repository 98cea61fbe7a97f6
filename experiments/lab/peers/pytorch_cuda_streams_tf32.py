"""PyTorch, graph, streams, TF32: of each fraction that a product takes, tensor cores see 10 bits of 23."""

from . import pytorch_cuda_streams

GATE = (5, 2e-3)  # losses, and how close: see `peers.GATE`


def prepare(problem):
    return pytorch_cuda_streams.prepare(problem, precision="high")

"""PyTorch, CUDA graph, bf16: products and convolutions of 16 bits, by autocast; parameters and update are float32."""

from . import pytorch_cuda_graph

GATE = (5, 3e-2)  # losses, and how close: see `peers.GATE`


def prepare(problem):
    return pytorch_cuda_graph.prepare(problem, precision="bf16", last=True)

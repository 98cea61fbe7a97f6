"""PyTorch, graph, max-autotune, TF32: `torch.compile` times kernels for each forward convolution.

Channels last, as its own kernels for convolutions are. Backward passes of convolutions stay cuDNN's.
"""

from . import pytorch_cuda_graph
from .pytorch_cuda_graph import TUNED

GATE = (5, 2e-3)  # losses, and how close: see `peers.GATE`


def prepare(problem):
    return pytorch_cuda_graph.prepare(problem, precision="high", last=True, options=TUNED)

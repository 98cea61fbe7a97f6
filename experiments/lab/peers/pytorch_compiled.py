"""PyTorch, compiled: on the CPU, network and loss by `torch.compile`, which needs a C++ compiler."""

from . import pytorch


def prepare(problem):
    return pytorch.prepare(problem, compiled=True)

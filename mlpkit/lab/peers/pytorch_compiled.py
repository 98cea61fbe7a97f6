"""PyTorch on the CPU, with network and loss compiled by `torch.compile`, which needs a C++ compiler."""

from . import pytorch


def prepare(problem):
    return pytorch.prepare(problem, compiled=True)

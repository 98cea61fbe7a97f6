"""PyTorch, channels last: on the CPU, images laid out (n, height, width, channels), which its convolutions prefer."""

import torch

from . import pytorch


def prepare(problem):
    return pytorch.prepare(problem, memory_format=torch.channels_last)

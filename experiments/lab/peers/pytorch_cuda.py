"""PyTorch on the GPU: eager, the CPU's loop, with the images and the order of the examples on the GPU beforehand.

The images are there as float32: as uint8 they would cost two kernels more a step. What takes the time is Python, which
asks for one kernel after another; `foreach` instead of `fused`, or functions instead of modules, make no difference.
"""

from . import pytorch


def prepare(problem):
    return pytorch.prepare(problem, device="cuda")

"""JAX on the CPU, a scan over steps: the program of `jax_epoch`, compiled for the processor.

Its threads are as many as there are cores.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

from . import jax_epoch


def prepare(problem):
    return jax_epoch.prepare(problem)

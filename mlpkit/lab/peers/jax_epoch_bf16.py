"""JAX, a scan over steps, bf16: what the matrix products read is rounded to 16 bits, and added up in float32.

Parameters, activations and the update stay float32.
"""

from . import jax_epoch
from .jax_step import BF16

GATE = (5, 3e-2)  # losses, and how close: see `peers.GATE`


def prepare(problem):
    return jax_epoch.prepare(problem, precision=BF16)

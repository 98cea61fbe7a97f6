"""JAX, a scan over steps, three products of TF32: for float32's accuracy of dense layers, by tensor cores.

XLA's preset for products of matrices. It has none for convolutions, which are of float32 here.
"""

from functools import partial

from . import jax_epoch
from .jax_step import TF32X3

prepare = partial(jax_epoch.prepare, precision=TF32X3)

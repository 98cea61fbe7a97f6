"""JAX on the CPU."""

from experiments.lab.peers import jax_epoch_cpu  # noqa: F401  (it chooses the device, before JAX looks for one)

from .jax_epoch import Trainer as Trainer

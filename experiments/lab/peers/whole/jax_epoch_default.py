"""JAX, its products of TF32."""

from functools import partial

from experiments.lab.peers.jax_epoch_default import GATE as GATE

from . import jax_epoch

Trainer = partial(jax_epoch.Trainer, precision="default")

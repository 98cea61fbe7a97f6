"""What a kernel that updates the parameters itself must know of an optimizer."""

import numpy as np

from ..optim import SGD, Adam, AdamW
from ..schedules import Constant

KINDS = (SGD, Adam, AdamW)


def check_optimizer(optimizer, engine):
    """Raise ValueError unless the optimizer is one that these kernels know."""
    if type(optimizer) not in KINDS:
        names = ", ".join(kind.__name__ for kind in KINDS)
        raise ValueError(f"{engine} knows the optimizers {names}, not {type(optimizer).__name__}: take another engine.")


def rates(optimizer, steps):
    """Return an array (steps, 3): the rate of each of the next steps, and 1 - beta^t for Adam's two betas, else 1."""
    t = optimizer.steps + np.arange(steps)
    table = np.ones((steps, 3))
    schedule = optimizer.schedule  # a constant one need not be asked for each step
    table[:, 0] = schedule.lr if isinstance(schedule, Constant) else [schedule(step) for step in t.tolist()]
    if optimizer.state:
        table[:, 1:] -= np.array([optimizer.beta1, optimizer.beta2]) ** (t[:, None] + 1.0)
    return table


def settings(optimizer):
    """Return the kernels' last arguments: each beta with 1 - beta, eps, the L2 penalty, the shrinking of the weights.

    1 - beta is taken in float64: of a beta of 0.999 in float32 it would be off by about one part in 78,000.
    """
    decay = optimizer.weight_decay
    decays = (0.0, decay) if isinstance(optimizer, AdamW) else (decay, 0.0)
    betas = (optimizer.beta1, optimizer.beta2) if optimizer.state else (0.0, 0.0)
    pairs = [number for beta in betas for number in (beta, 1 - beta)]
    return tuple(map(optimizer.network.dtype.type, (*pairs, getattr(optimizer, "eps", 0.0), *decays)))


def mean_losses(row_losses, rest):
    """Return the means of batches (..., steps, batch size); the last one has only `rest` examples, unless that is 0."""
    losses = row_losses.mean(axis=-1)
    if rest:
        losses[..., -1] = row_losses[..., -1, :rest].mean(axis=-1)
    return losses

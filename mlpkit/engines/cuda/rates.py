"""What a kernel that updates the parameters itself must know of an optimizer."""

import numpy as np

from mlpkit.training.optim import SGD, Adam, AdamW
from mlpkit.training.schedules import Constant

KINDS = (SGD, Adam, AdamW)


def check_optimizer(optimizer, engine):
    """Raise ValueError unless the optimizer is one that these kernels know."""
    if type(optimizer) not in KINDS:
        names = ", ".join(kind.__name__ for kind in KINDS)
        raise ValueError(f"{engine} knows the optimizers {names}, not {type(optimizer).__name__}: take another engine.")


def rates(optimizer, steps):
    """Return an array (steps, 3): the rate of each of the next steps, and what Adam multiplies m and sqrt(v) by.

    Those are lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t): its averages begin at zero, and are too small at first.
    """
    t = optimizer.steps + np.arange(steps)
    table = np.ones((steps, 3))
    schedule = optimizer.schedule  # a constant one need not be asked for each step
    table[:, 0] = schedule.lr if isinstance(schedule, Constant) else [schedule(step) for step in t.tolist()]
    if optimizer.state:
        table[:, 1] = table[:, 0] / (1 - optimizer.beta1 ** (t + 1.0))
        table[:, 2] = 1 / np.sqrt(1 - optimizer.beta2 ** (t + 1.0))
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
    """Return the means of batches (..., steps, batch size); the last one has only `rest` examples, unless that is 0.

    What lies beyond those examples is overwritten with zeros.
    """
    if not rest:
        return row_losses.mean(axis=-1)
    row_losses[..., -1, rest:] = 0  # so that the short batch is added up like all others, to the last bit
    losses = row_losses.sum(axis=-1)
    losses[..., :-1] /= row_losses.shape[-1]
    losses[..., -1] /= rest
    return losses

"""What a kernel that updates the parameters itself must know of an optimizer."""

import numpy as np

from mlpkit.optim import SGD, Adam, AdamW

KINDS = (SGD, Adam, AdamW)  # that the kernels know


def why_unknown(optimizer, engine, sends=False):
    """Return None, or the sentence that says that the kernels can't do such an optimizer's update.

    sends: whether they send gradients to other GPUs, where a `reduce` that has `mailboxes` wants it.
    """
    if type(optimizer) not in KINDS:
        known = ", ".join(kind.__name__ for kind in KINDS)
        return f"{engine} knows the optimizers {known}, not {type(optimizer).__name__}: take another engine."
    if optimizer.reduce and not (sends and hasattr(optimizer.reduce, "mailboxes")):
        return f"{engine} updates within its kernel, where reduce can't be called: take another engine."
    return None


def rates(optimizer, steps):
    """Count the next steps, and return an array (steps, 3): each rate, and what Adam multiplies m and sqrt(v) by.

    Those are lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t): its averages begin at zero, and are too small at first.
    """
    t = optimizer.steps + np.arange(1.0, steps + 1)
    table = np.ones((steps, 3))
    table[:, 0] = optimizer.advance(steps)
    if optimizer.state:
        table[:, 1] = table[:, 0] / (1 - optimizer.settings["beta1"] ** t)
        table[:, 2] = 1 / np.sqrt(1 - optimizer.settings["beta2"] ** t)
    return table


def settings(optimizer):
    """Return the kernels' last arguments: each beta with 1 - beta, eps, the L2 penalty, the shrinking of the weights.

    1 - beta is taken in float64: of a beta of 0.999 in float32 it would be off by about one part in 78,000.
    """
    decay = optimizer.weight_decay
    decays = (0.0, decay) if optimizer.decoupled else (decay, 0.0)
    beta1, beta2, eps = (optimizer.settings.get(name, 0.0) for name in ("beta1", "beta2", "eps"))
    values = (beta1, 1 - beta1, beta2, 1 - beta2, eps, *decays)
    return tuple(map(optimizer.network.dtype.type, values))

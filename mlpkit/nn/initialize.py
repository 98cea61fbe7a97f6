"""How large the first weights are decides whether a signal survives its way through the layers.

Both rules keep the variance of a layer's output close to that of its input. Biases start at zero.
"""

import numpy as np


def he(rng, n_in, n_out):
    """Return normal weights (n_in, n_out), float64, of variance 2 / n_in: for ReLU, which drops half of the signal.

    He, Zhang, Ren and Sun (2015), "Delving Deep into Rectifiers", equation 10.
    """
    return rng.normal(0.0, np.sqrt(2 / n_in), (n_in, n_out))


def xavier(rng, n_in, n_out):
    """Return uniform weights (n_in, n_out), float64, of variance 2 / (n_in + n_out): for tanh and the like.

    Glorot and Bengio (2010), "Understanding the difficulty of training deep feedforward neural networks", equation 16.
    """
    limit = np.sqrt(6 / (n_in + n_out))
    return rng.uniform(-limit, limit, (n_in, n_out))


RULES = {"he": he, "xavier": xavier}

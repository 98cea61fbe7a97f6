"""How large the first weights are decides whether a signal survives its way through the layers.

Both rules keep the variance of a layer's output close to that of its input. Biases start at zero.
"""

from functools import lru_cache
from math import prod

import numpy as np


def fans(shape):
    """Return how many numbers each output is a sum over, and each input goes into, for weights of a shape.

    shape: (inputs, outputs), or (channels out, channels in, height, width).
    """
    if len(shape) == 2:
        return shape
    window = prod(shape[2:])
    return shape[1] * window, shape[0] * window


def he(rng, shape):
    """Return normal weights, float64, of variance 2 / n_in: for ReLU, which drops half of the signal.

    He, Zhang, Ren and Sun (2015), "Delving Deep into Rectifiers", equation 10.
    """
    return rng.standard_normal(shape) * np.sqrt(2 / fans(shape)[0])


def xavier(rng, shape):
    """Return uniform weights, float64, of variance 2 / (n_in + n_out): for tanh and the like.

    Glorot and Bengio (2010), "Understanding the difficulty of training deep feedforward neural networks", equation 16.
    """
    limit = np.sqrt(6 / sum(fans(shape)))
    return rng.uniform(-limit, limit, shape)


RULES = {"he": he, "xavier": xavier}


@lru_cache(maxsize=8)
def start(model, seed, init):
    """Return the vectors that a network of a `Model` begins with: (parameters, statistics), float64, to be copied.

    Weights are drawn by the rule `init`, as they are declared; what the model's `ones` names is 1; the rest is 0. The
    last ones are remembered, as several engines begin with the same: to draw takes the time of hundreds of steps.
    """
    rng, vectors = np.random.default_rng(seed), []
    for layout in (model.layout, model.statistics):
        vectors.append(np.zeros(layout.size))
        for name, view in layout.views(vectors[-1]).items():
            if view.ndim > 1:
                view[...] = RULES[init](rng, view.shape)
            elif name in model.ones:
                view[...] = 1
        vectors[-1].flags.writeable = False
    return tuple(vectors)

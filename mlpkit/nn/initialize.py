"""How large the first weights are decides whether a signal survives its way through the layers.

Both rules keep the variance of a layer's output close to that of its input. Biases start at zero.
"""

from functools import lru_cache
from math import prod

import numpy as np

from .layout import Layout


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


def start(layout, ones, seed, init):
    """Return a vector (layout.size,) float64 to begin with: weights by the rule `init`, 1 where `ones` says so, else 0.

    layout: a `Layout`. ones: names of arrays. seed: of the generator, which draws the weights as they are declared. The
    vector can't be written to: the last ones are remembered, as several engines begin with the same, and to draw takes
    the time of hundreds of a GPU's steps. Raises ValueError where it does not fit into memory.
    """
    try:
        return _drawn(tuple(layout.shapes.items()), frozenset(ones), seed, init)
    except (MemoryError, ValueError):  # or into NumPy's idea of an array
        raise ValueError(f"{layout.size:,} parameters do not fit into memory: choose a smaller model.") from None


@lru_cache(maxsize=8)
def _drawn(shapes, ones, seed, init):
    layout, rng = Layout(shapes), np.random.default_rng(seed)
    vector = np.zeros(layout.size)
    for name, view in layout.views(vector).items():
        if view.ndim > 1:
            view[...] = RULES[init](rng, view.shape)
        elif name in ones:
            view[...] = 1
    vector.flags.writeable = False
    return vector

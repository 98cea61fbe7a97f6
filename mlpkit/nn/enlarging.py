"""Networks that make a small picture larger: from the luminance (1, h, w) that a picture has, and a halo around it.

No convolution pads. So a pixel out depends on what is around its own place in the picture, and on no edge: a network
that was trained on patches takes pictures of any size, whole or in tiles, with the parameters that it has.
"""

import numpy as np

from mlpkit.checks import check_count

from .conv import Conv
from .layers import ReLU, Tanh
from .losses import MeanSquaredError
from .model import Model
from .residual import Residual
from .resize import Crop, PixelShuffle


def srcnn(size, middle=1, loss=None):
    """Return SRCNN for pictures that bicubic has enlarged: Dong, Loy, He and Tang (2014), 9-1-5 or 9-5-5."""
    layers = Conv(64, 9), ReLU(), Conv(32, middle), ReLU(), Conv(1, 5)
    return Model((1, *_both(size)), layers, loss or MeanSquaredError(peak=1.0))


def espcn(size, scale, loss=None):
    """Return ESPCN, whose convolutions see the small picture: Shi et al. (2016), 5-3-3."""
    check_count("scale", scale)
    layers = Conv(64, 5), Tanh(), Conv(32, 3), Tanh(), Conv(scale**2, 3), PixelShuffle(scale)
    return Model((1, *_both(size)), layers, loss or MeanSquaredError(peak=1.0))


def enlarger(size, scale, channels=16, depth=4, loss=None):
    """Return our own: convolutions that see the small picture learn what bicubic lacks. size: with the halo.

    One of 5 x 5, `depth` of 3 x 3 and one of 3 x 3 with as many channels as a pixel becomes pixels; beside them one of
    5 x 5, which begins as bicubic, see `begin_as_bicubic`.
    """
    check_count("scale", scale)
    inner = (one for _ in range(check_count("depth", depth)) for one in (Conv(channels, 3), ReLU()))
    layers = Conv(channels, 5), ReLU(), *inner, Conv(scale**2, 3)
    shortcut = Crop(depth + 1), Conv(scale**2, 5, bias=False)
    return Model(
        (1, *_both(size)), (Residual(layers, shortcut), PixelShuffle(scale)), loss or MeanSquaredError(peak=1.0)
    )


def _both(size):
    return size if isinstance(size, tuple) else (size, size)


def begin_as_bicubic(network, weights):
    """Give an `enlarger` first weights with which it is little else than bicubic. weights: of one axis, (scale, 5)."""
    theta = network.engine.to_numpy(network.theta).copy()
    views = network.views(theta)
    last, shortcut = [name for name, view in views.items() if view.ndim == 4][-2:]
    views[last] *= 0.01
    views[shortcut][:] = np.einsum("pa,qb->pqab", weights, weights).reshape(-1, 1, 5, 5)
    network.set_theta(theta)


def geometry(model):
    """Return the halo around a small picture that a model eats up, and its scale. Raises ValueError for no enlarger."""
    if len(model.input) != 3 or len(model.output) != 3:
        raise ValueError(f"a picture is made larger by a model from images to images, not to {model.output}.")
    (_, h, _), (_, tall, _) = model.input, model.output
    larger = Model((1, h + 1, model.input[2]), model.layers, model.loss)
    scale = larger.output[1] - tall
    return (h - tall // scale) // 2, scale

"""A network for predictions alone: batch normalization becomes part of the layer before it.

In evaluation a batch normalization is a factor and a shift for each channel, which are constants. So they belong into
the filters, or the weights, and the bias of the convolution or linear layer right before it:
`gamma (W x + b - mean) / sqrt(variance + eps) + beta = (s W) x + (b - mean) s + beta`, with `s = gamma / sqrt(...)`.

And a convolution of an image that was made larger by copies of its pixels need not see the copies: those that a window
sees of one pixel become one, with the sum of their weights. Which they are depends on where in a pixel's square the
window lies, so there are filters for each of these places, and a PixelShuffle puts side by side what they give.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from .conv import Conv
from .layers import Dropout, Linear
from .model import Model
from .network import Network, check_is_network
from .norm import BatchNorm
from .resize import PixelShuffle, Upsample


def fold(network):
    """Return a new network that computes in evaluation what this one does now: sums are float64's, rounded once.

    It has no Dropout, no BatchNorm right behind a Conv or a Linear layer, and where the engine has a `pixel_shuffle` no
    nearest Upsample right before a Conv that keeps the size. The network stays as it is.
    """
    layers, arrays = _folded(check_is_network(network).layers)
    found = Network(network.engine, Model(network.model.input, layers, network.model.loss), dtype=network.dtype)
    views = {**found.views(found.theta), **found.model.statistics.views(found.statistics)}
    for name, array in arrays.items():
        views[name][...] = array
    return found


def _folded(bound, first=0):
    """Return the layers, a tuple, and a dict of their arrays, whose names begin with their numbers, from `first` on."""
    layers: list[Any] = []
    own: list[dict] = []
    for at in bound:
        if isinstance(at.layer, BatchNorm) and layers and isinstance(layers[-1], Conv | Linear):
            if isinstance(layers[-1], Conv):
                layers[-1] = replace(layers[-1], bias=True)
            own[-1] = _with_norm(own[-1], at)
        elif not isinstance(at.layer, Dropout):
            layer, arrays = _inside(at)
            layers.append(layer)
            own.append({name: getattr(at, name) for name in _arrays(at)} | arrays)
    for i in range(len(layers) - 2, -1, -1) if bound and hasattr(bound[0].engine, "pixel_shuffle") else ():
        if _sees_copies(*layers[i : i + 2]):
            layers[i : i + 2], own[i : i + 2] = _on_smaller_images(layers[i].scale, layers[i + 1], own[i + 1])
    return tuple(layers), {f"{i}.{name}": array for i, found in enumerate(own, first) for name, array in found.items()}


def _sees_copies(before, conv):
    """Return whether a layer makes copies of pixels, and the next one is a convolution that keeps their number."""
    if not isinstance(before, Upsample) or before.mode != "nearest" or not isinstance(conv, Conv):
        return False
    return conv.stride == 1 and conv.size == 2 * conv.padding + 1 >= 3


def _on_smaller_images(scale, conv, arrays):
    """Return the layers and their arrays that do on an image what `conv` does on one `scale` times as large.

    Row `scale i + p` sees through tap a row `i + (p + a - padding) // scale` of the smaller one.
    """
    W, reach = arrays["W"].astype(np.float64), -(-conv.padding // scale)
    meets = [[reach + (p + a - conv.padding) // scale for a in range(conv.size)] for p in range(scale)]
    small = 0 * W[:, None, None, :, :1, :1].repeat(scale, 1).repeat(scale, 2)
    small = small.repeat(2 * reach + 1, 4).repeat(2 * reach + 1, 5)
    for p, q, a, b in np.ndindex(scale, scale, conv.size, conv.size):
        small[:, p, q, :, meets[p][a], meets[q][b]] += W[..., a, b]
    found = replace(conv, channels=scale**2 * conv.channels, size=2 * reach + 1, padding=reach)
    own = {"W": small.reshape(-1, *small.shape[3:]).astype(arrays["W"].dtype)}
    own |= {name: b.repeat(scale**2) for name, b in arrays.items() if name == "b"}
    return (found, PixelShuffle(scale)), (own, {})


def _inside(at):
    """Return a layer whose branches are folded, and the arrays in them by name; another layer as it is."""
    branches: list[tuple] = []
    arrays: dict[str, Any] = {}
    for branch in at.branches:
        layers, found = _folded(branch, sum(map(len, branches)))
        branches.append(layers)
        arrays |= found
    return (at.layer.with_branches(*branches) if branches else at.layer), arrays


def _arrays(at):
    """Return the names of a bound layer's parameters and statistics."""
    return [name for name in at.lasting if f"d{name}" in at.lasting or not name.startswith("d")]


def _with_norm(arrays, norm):
    """Return W and b of a layer that normalizes, too, in their type."""
    W, b = arrays["W"], arrays.get("b", 0 * norm.mean)
    scale = norm.gamma.astype(np.float64) / (norm.variance.astype(np.float64) + norm.layer.eps) ** 0.5
    shape = (-1, 1, 1, 1) if W.ndim == 4 else (1, -1)
    folded = norm.beta + (b - norm.mean.astype(np.float64)) * scale
    return {"W": (W * scale.reshape(shape)).astype(W.dtype), "b": folded.astype(W.dtype)}

"""A network for predictions alone: batch normalization becomes part of the layer before it.

In evaluation a batch normalization is a factor and a shift for each channel, which are constants. So they belong into
the filters, or the weights, and the bias of the convolution or linear layer right before it:
`gamma (W x + b - mean) / sqrt(variance + eps) + beta = (s W) x + (b - mean) s + beta`, with `s = gamma / sqrt(...)`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from .conv import Conv
from .layers import Dropout, Linear
from .model import Model
from .network import Network
from .norm import BatchNorm


def fold(network):
    """Return a new network that computes in evaluation what this one does now: sums are float64's, rounded once.

    It has no Dropout, and no BatchNorm right behind a Conv or a Linear layer. The network stays as it is.
    """
    layers, arrays = _folded(network.layers)
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
    return tuple(layers), {f"{i}.{name}": array for i, found in enumerate(own, first) for name, array in found.items()}


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

"""Where a layer stands in a network: its arrays, and what its forward pass keeps for the backward pass."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Mode:
    """What all layers of a network share in a pass: whether it trains, and what chance may depend on."""

    seed: int
    dtype: np.dtype
    training: bool = False
    step: int = 0


class Place:
    """A layer in a network. Its arrays are attributes: `W`, its gradient `dW`, and so on; see `layers`.

    path: the layer's number, and those of the layers around it, outermost first. branches: a tuple of lists, the places
    of the chains that it is made of. wants_dx: whether there are parameters before it, which need the gradient of its
    input.
    """

    def __init__(self, layer, path, engine, mode, branches, wants_dx):
        self.layer, self.path, self.engine, self.mode = layer, path, engine, mode
        self.branches, self.wants_dx = branches, wants_dx


def forward(places, x):
    """Return what the layers at `places` make of the batch x, one after another."""
    for at in places:
        x = at.layer.forward(at, x)
    return x


def backward(places, dy):
    """Let the layers write their gradients, the last one first, given that of the output.

    Return the gradient of the input, None where nobody before the first place asks for it.
    """
    for at in reversed(places):
        dy = at.layer.backward(at, dy)
        if not at.wants_dx:
            return None
    return dy

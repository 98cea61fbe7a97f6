"""A layer bound to a network: its arrays, and what its forward pass keeps for the backward pass."""

from copy import copy
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np


@dataclass
class Mode:
    """What all layers of a network have in common in one pass.

    training: dropout drops, norms use the batch's statistics; else nothing is kept for a way back, unless `tape` is
    there. step: which dropout's. tape: of a reader who wants to see more than the outputs. frozen: whether nobody asks
    for the gradients of weights, which then are left out.
    """

    seed: int
    dtype: np.dtype
    training: bool = False
    step: Any = 0
    tape: "Tape | None" = None
    frozen: bool = False


@dataclass
class Tape:
    """What a reader wants of a pass, by the paths of layers, "5.1" being layer 1 in layer 5.

    keep: whose activations `kept` will have. of: whose activations' gradients `found` will have, and "input". add: what
    is added to these gradients on the way back, by path.
    """

    keep: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    add: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)


class BoundLayer:
    """A layer in a network. Its arrays are attributes: `W`, its gradient `dW`, and so on; see `layers`.

    path: the layer's number, and those of the layers around it, outermost first. branches: a tuple of lists, the bound
    layers that it is made of. learns_before: whether there are parameters before it. lasting: the names of those of its
    attributes that last.
    """

    def __init__(self, layer, path, engine, mode, branches, learns_before):
        self.layer, self.path, self.engine, self.mode = layer, path, engine, mode
        self.branches, self.learns_before, self.lasting = branches, learns_before, set()

    @property
    def wants_dx(self):
        """Whether somebody asks for the gradient of the layer's input: parameters before it, or a reader."""
        return self.learns_before or self.mode.tape is not None

    @property
    def name(self):
        return ".".join(map(str, self.path))

    def set(self, name, array):
        """Give the layer an array that lasts."""
        setattr(self, name, array)
        self.lasting.add(name)

    def drop(self):
        """Drop what the layer has kept for the way back."""
        for name in vars(self).keys() - self.lasting - OWN:
            delattr(self, name)

    def copied(self, mode):
        """Return a bound layer with the same arrays for a pass of its own: what layers keep there is nobody else's."""
        one = copy(self)
        one.drop()
        one.mode, one.branches = mode, tuple([each.copied(mode) for each in branch] for branch in self.branches)
        return one


OWN = frozenset(vars(BoundLayer(None, (), None, None, (), False)))  # what is no array


def check_declared(layer, shapes):
    """Return a layer's arrays, a dict of shapes by name.

    Raises ValueError for a size that is none, and for a name that is none, or that its bound layer has already.
    """
    for name, shape in shapes.items():
        if not all(isinstance(size, Integral) and int(size) > 0 for size in shape):
            raise ValueError(f"{layer!r} has an array {name} of shape {shape}: sizes are whole numbers above 0.")
    for name in (names := shapes.keys()):
        gradient = name[:1] == "d" and name[1:] in names
        if gradient or name in OWN or hasattr(BoundLayer, name) or not name.isidentifier():
            raise ValueError(f"{layer!r} has an array called {name!r}, a name that is taken: choose another.")
    return shapes


def forward(layers, x):
    """Return what the layers make of the batch x, one after another."""
    for at in layers:
        x = at.layer.forward(at, x)
        if (tape := at.mode.tape) is not None:
            if at.name in tape.keep:
                tape.kept[at.name] = x
        elif not at.mode.training:
            at.drop()
    return x


def backward(layers, dy):
    """Let the layers write their gradients, the last one first, given that of the output.

    Return the gradient of the input, None where nobody before the first layer asks for it.
    """
    for at in reversed(layers):
        if (tape := at.mode.tape) is not None:
            dy = noted(tape, at.name, dy, at.engine)
        dy = at.layer.backward(at, dy)
        if not at.wants_dx:
            return None
    return dy


def noted(tape, name, dy, engine):
    """Return the gradient dy of an activation, with what a reader adds to it, and keep it, if it is asked for."""
    if name in tape.add:
        dy = engine.add(dy, tape.add[name])
    if name in tape.of:
        tape.found[name] = dy
    return dy

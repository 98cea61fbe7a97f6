"""A layer made of layers: what they compute is added to what came in, so a gradient also has a way past them.

He, Zhang, Ren and Sun (2016), "Deep residual learning for image recognition".
"""

from dataclasses import dataclass
from functools import reduce

from .bound import backward, forward
from .layers import Layer, check_layers


class Branched:
    """What layers made of chains have in common: each chain gets the layer's input, and the outputs become one."""

    def with_branches(self, *branches):
        """Return the layer with other chains."""
        return type(self)(*branches)

    def join(self, engine, outputs):
        """Return the layer's output, made of those of the chains. Nothing is kept."""
        raise NotImplementedError

    def split(self, engine, dy, shapes):
        """Return the gradient of each chain's output, whose shapes these are. Nothing is kept."""
        raise NotImplementedError

    def forward(self, at, x):
        outputs = [forward(branch, x) for branch in at.branches]
        at.shapes = [output.shape for output in outputs]
        return self.join(at.engine, outputs)

    def backward(self, at, dy):
        parts = zip(at.branches, self.split(at.engine, dy, at.shapes), strict=True)
        dx = [backward(branch, part) for branch, part in parts]
        return reduce(at.engine.add, dx) if at.wants_dx else None


@dataclass(frozen=True, repr=False)
class Residual(Branched, Layer):
    """`y = shortcut(x) + f(x)`, f being `layers` one after another; without a shortcut, `y = x + f(x)`.

    shortcut: layers for where f changes the shape, such as (Conv(64, 1, stride=2), BatchNorm()); both make one shape.
    """

    layers: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    operations = ("add",)

    def __post_init__(self):
        for name in ("layers", "shortcut"):
            object.__setattr__(self, name, check_layers(getattr(self, name)))

    def branches(self):
        return self.layers, self.shortcut

    def output(self, shape):
        out, past = shapes_of(self.branches(), shape)
        if out != past:
            shortcut = f", and its shortcut {past}" if self.shortcut else ""
            raise ValueError(f"its layers make {out} of {shape}{shortcut}: a sum needs equal shapes")
        return out

    def join(self, engine, outputs):
        return engine.add(*outputs)

    def split(self, engine, dy, shapes):
        return dy, dy


def shapes_of(branches, shape):
    """Return the shapes that chains of layers make of one. Raises ValueError where a layer does not fit."""
    found, first = [], 0
    for branch in branches:
        out = shape
        for number, inner in enumerate(branch, first):
            try:
                out = inner.output(out)
            except ValueError as error:
                raise ValueError(f"its layer {number}, {inner!r}, does not fit: {error}") from None
        first += len(branch)
        found.append(out)
    return found

"""A layer made of layers: what they compute is added to what came in, so a gradient also has a way past them.

He, Zhang, Ren and Sun (2016), "Deep residual learning for image recognition".
"""

from dataclasses import dataclass

from .layers import Layer, check_layers
from .place import backward, forward


@dataclass(frozen=True, repr=False)
class Residual(Layer):
    """`y = x + f(x)`, f being `layers` one after another, whose output must have their input's shape."""

    layers: tuple[Layer, ...]

    operations = ("add",)

    def __post_init__(self):
        object.__setattr__(self, "layers", check_layers(self.layers))

    def inside(self):
        return self.layers

    def output(self, shape):
        out = shape
        for number, inner in enumerate(self.layers):
            try:
                out = inner.output(out)
            except ValueError as error:
                raise ValueError(f"its layer {number}, {inner!r}, does not fit: {error}") from None
        if out != shape:
            raise ValueError(f"its layers make {out} of {shape}: a sum needs equal shapes")
        return shape

    def forward(self, at, x):
        return at.engine.add(x, forward(at.inside, x))

    def backward(self, at, dy):
        dx = backward(at.inside, dy)
        return at.engine.add(dy, dx) if at.wants_dx else None

"""Several chains of layers side by side: each sees the same input, and what they make is put together.

So layers far back get what came in early, untouched ("skip connection"): Ronneberger, Fischer and Brox (2015), "U-Net";
and windows of several sizes look at one image: Szegedy et al. (2015), "Going deeper with convolutions".
"""

from dataclasses import dataclass

from .layers import Layer, check_layers
from .residual import Branched, shapes_of


@dataclass(frozen=True, repr=False, init=False)
class Concat(Branched, Layer):
    """`y = [f1(x), f2(x), ...]` along axis 1: the channels of images, the features of rows.

    chains: tuples of layers, as in Concat((Conv(8, 3, padding=1), ReLU()), ()); an empty one passes x on.
    """

    chains: tuple[tuple[Layer, ...], ...]

    operations = ("concat", "concat_backward", "add")

    def __init__(self, *chains):
        if not chains:
            raise ValueError("a Concat needs at least one chain of layers: Concat((Conv(8, 3, padding=1),), ()).")
        object.__setattr__(self, "chains", tuple(map(check_layers, chains)))

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(map(repr, self.chains))})"

    def branches(self):
        return self.chains

    def output(self, shape):
        found = shapes_of(self.chains, shape)
        if len({out[1:] for out in found}) > 1:
            raise ValueError(f"its chains make {', '.join(map(str, found))} of {shape}: only the first size may differ")
        return sum(out[0] for out in found), *found[0][1:]

    def join(self, engine, outputs):
        return engine.concat(outputs)

    def split(self, engine, dy, shapes):
        return engine.concat_backward(dy, [shape[1] for shape in shapes])

"""A layer is data: it says what becomes of a shape, which arrays it has, and which operations it needs.

Its `forward` and `backward` do no arithmetic: they ask the engine for it. Both get `at`, the layer's `BoundLayer` in a
network, which holds what belongs to the run and not to the description: the layer's arrays, by the names that
`parameters` and `statistics` give them (`at.W`, and `at.dW` for the gradient), and what the backward pass will need.

Arrays begin with the batch: (n, features), or (n, channels, height, width). A name that begins with `d` is the gradient
of the loss with respect to the rest of the name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import ClassVar

import numpy as np

from mlpkit.checks import check_count, check_fraction

from .written import Written, check_settings

DEEPEST = 50  # layers in layers: each takes several of Python's calls in calls, of which there may be 1,000


@dataclass(frozen=True, repr=False)
class Layer(Written):
    """What a layer declares, for an input of `shape` (the batch left out); a layer overrides what differs for it.

    operations: the engine's functions that it calls. ones: those of its arrays that begin at 1; other vectors begin at
    0, and arrays of more dimensions are drawn.
    """

    operations: ClassVar[tuple[str, ...]] = ()
    ones: ClassVar[tuple[str, ...]] = ()

    def output(self, shape):
        """Return the shape of the output. Raises ValueError for an input that the layer can't take."""
        return shape

    def parameters(self, shape):
        """Return the shapes of the arrays that are trained, by name."""
        return {}

    def statistics(self, shape):
        """Return the shapes of the arrays that a training keeps and does not optimize, by name."""
        return {}

    def branches(self):
        """Return the chains of layers that this one is made of, each of which gets its input: a tuple of tuples."""
        return ()

    def forward(self, at, x):
        """Return the output of the batch x, and keep in `at` what `backward` will need."""
        raise NotImplementedError(f"{self!r} has no forward(at, x) yet, which returns its output.")

    def backward(self, at, dy):
        """Write the gradients of the layer's parameters and return that of its input, None where `at` asks for none."""
        raise NotImplementedError(f"{self!r} has no backward(at, dy) yet, which returns the gradient of its input.")


def check_layers(layers):
    """Return `layers` as a tuple. Raises TypeError for what are no layers."""
    if not isinstance(layers, Iterable):
        raise TypeError(f"layers must be a tuple of layers, such as (Linear(10),), not {layers!r}.")
    layers = tuple(layers)
    for one in layers:
        if not isinstance(one, Layer):
            raise TypeError(f"a model is made of layers, such as Linear(10), not of {one!r}.")
        check_settings(one)
    depth, inside = 0, {id(one): one for one in layers}
    while inside:
        if (depth := depth + 1) > DEEPEST:
            raise ValueError(f"layers may be in layers up to {DEEPEST} deep: put blocks one after another instead.")
        branches = [branch for one in inside.values() for branch in one.branches()]
        inside = {id(one): one for branch in branches for one in branch}
    return layers


@dataclass(frozen=True, repr=False)
class Linear(Layer):
    """`z = x W + b`. W (inputs, units), b (units,)."""

    units: int

    operations = ("linear", "linear_backward_weights", "linear_backward_input")
    checks = (("units", check_count),)

    def output(self, shape):
        if len(shape) != 1:
            raise ValueError(f"it takes rows of values, and gets arrays of shape {shape}: put Flatten() before it")
        return (self.units,)

    def parameters(self, shape):
        return {"W": (*shape, self.units), "b": (self.units,)}

    def forward(self, at, x):
        at.x = x
        return at.engine.linear(x, at.W, at.b)

    def backward(self, at, dz):
        if not at.mode.frozen:
            at.engine.linear_backward_weights(at.x, dz, at.dW, at.db)
        return at.engine.linear_backward_input(dz, at.W) if at.wants_dx else None


@dataclass(frozen=True, repr=False)
class ReLU(Layer):
    """`a = max(z, 0)`. Its slope at 0, where it has none, is taken as 0."""

    operations = ("relu", "relu_backward")

    def forward(self, at, z):
        at.a = at.engine.relu(z)  # where it is above 0, the slope is 1
        return at.a

    def backward(self, at, da):
        return at.engine.relu_backward(at.a, da)


@dataclass(frozen=True, repr=False)
class LeakyReLU(Layer):
    """`a = z` above 0, `slope * z` below. Maas, Hannun and Ng (2013)."""

    slope: float = 0.01

    operations = ("leaky_relu", "leaky_relu_backward")
    checks = (("slope", check_fraction),)

    def forward(self, at, z):
        at.a = at.engine.leaky_relu(z, self.slope)
        return at.a

    def backward(self, at, da):
        return at.engine.leaky_relu_backward(at.a, da, self.slope)


@dataclass(frozen=True, repr=False)
class Sigmoid(Layer):
    """`a = 1 / (1 + exp(-z))`."""

    operations = ("sigmoid", "sigmoid_backward")

    def forward(self, at, z):
        at.a = at.engine.sigmoid(z)
        return at.a

    def backward(self, at, da):
        return at.engine.sigmoid_backward(at.a, da)


@dataclass(frozen=True, repr=False)
class Tanh(Layer):
    """`a = tanh(z)`."""

    operations = ("tanh", "tanh_backward")

    def forward(self, at, z):
        at.a = at.engine.tanh(z)
        return at.a

    def backward(self, at, da):
        return at.engine.tanh_backward(at.a, da)


@dataclass(frozen=True, repr=False)
class Flatten(Layer):
    """Each example becomes one row of values."""

    def output(self, shape):
        return (prod(shape),)

    def forward(self, at, x):
        at.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, at, dy):
        return dy.reshape(at.shape)


@dataclass(frozen=True, repr=False)
class Dropout(Layer):
    """While training, each number becomes 0 with the probability `rate`; the others grow by `1 / (1 - rate)`.

    Which ones depends on the network's seed, the step and the layer's place, and on nothing else: every engine drops
    the same. The backward pass draws them again. Srivastava et al. (2014), scaled while training ("inverted").
    """

    rate: float = 0.5

    operations = ("dropout",)
    checks = (("rate", check_fraction),)

    def forward(self, at, x):
        at.chance = (self.rate, key_of(at.mode.seed, at.path), at.mode.step) if at.mode.training else None
        return x if at.chance is None else at.engine.dropout(x, *at.chance)

    def backward(self, at, dy):
        return dy if at.chance is None else at.engine.dropout(dy, *at.chance)


@cache
def key_of(seed, path):
    """Return the key of a layer's own random numbers: two integers of 64 bits, a hash of the seed and its path."""
    words = np.random.SeedSequence((seed, *path, 2)).generate_state(2, np.uint64)  # 2: no other generator's seed
    return tuple(words.tolist())

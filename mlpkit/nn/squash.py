"""Activations that other people's networks end or are bounded with: probabilities, and values between two bounds."""

from dataclasses import dataclass
from math import isfinite
from numbers import Real

from .layers import Layer


def check_bound(name, value):
    """Return `value` as a float. Raises ValueError unless it is a finite number."""
    if not isinstance(value, Real) or not isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}.")
    return float(value)


@dataclass(frozen=True, repr=False)
class Clip(Layer):
    """`a = min(max(z, low), high)`; Clip(0, 6) is "ReLU6". Its slope at the bounds, where it has none, is taken as 0."""

    low: float
    high: float

    operations = ("clip", "clip_backward")
    checks = (("low", check_bound), ("high", check_bound))

    def forward(self, at, z):
        at.a = at.engine.clip(z, self.low, self.high)
        return at.a

    def backward(self, at, da):
        return at.engine.clip_backward(at.a, da, self.low, self.high)


@dataclass(frozen=True, repr=False)
class Softmax(Layer):
    """`a = exp(z) / sum(exp(z))` along axis 1, classes or channels: logits become probabilities.

    A network that is to be trained ends without it: its loss takes logits.
    """

    operations = ("channel_softmax", "channel_softmax_backward")

    def forward(self, at, z):
        at.a = at.engine.channel_softmax(z)
        return at.a

    def backward(self, at, da):
        return at.engine.channel_softmax_backward(at.a, da)

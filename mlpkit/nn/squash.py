"""Activations that other people's networks end or are bounded with: probabilities, and values between two bounds.

They are arithmetic on arrays, NumPy's or CuPy's, that no engine does in another way.
"""

from dataclasses import dataclass

import numpy as np

from mlpkit.checks import check_number

from .layers import Layer


@dataclass(frozen=True, repr=False)
class Clip(Layer):
    """`a = min(max(z, low), high)`; Clip(0, 6) is "ReLU6". Its slope at the bounds, where it has none, counts as 0."""

    low: float
    high: float

    operations = ("multiply",)
    checks = (("low", check_number), ("high", check_number))

    def forward(self, at, z):
        at.a = z.clip(self.low, self.high)
        return at.a

    def backward(self, at, da):
        return at.engine.multiply(da, ((at.a > self.low) & (at.a < self.high)).astype(da.dtype))


@dataclass(frozen=True, repr=False)
class Softmax(Layer):
    """`a = exp(z) / sum(exp(z))` along axis 1, classes or channels: logits become probabilities.

    The maximum is subtracted first: the quotient stays, and no exponential can overflow. A network that is to be
    trained on classes ends without it: its loss takes logits.
    """

    operations = ("multiply",)

    def forward(self, at, z):
        a = np.exp(z - z.max(axis=1, keepdims=True))
        at.a = a / a.sum(axis=1, keepdims=True)
        return at.a

    def backward(self, at, da):
        weighted = at.engine.multiply(da, at.a)
        return weighted - at.engine.multiply(at.a, weighted.sum(axis=1, keepdims=True))

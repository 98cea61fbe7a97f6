"""Losses of pictures, beside the mean squared error."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from mlpkit.checks import check_positive

from .losses import MeanSquaredError, as_values, check_peak


@dataclass(frozen=True, repr=False)
class Charbonnier(MeanSquaredError):
    """`mean(sqrt((z - targets)^2 + eps^2))` over all values: mean absolute error, but smooth within some eps of 0.

    Charbonnier, Blanc-Feraud, Aubert and Barlaud (1994). uint8 targets, peak: as of `MeanSquaredError`.
    """

    eps: float = 1e-3

    operations: ClassVar[tuple[str, ...]] = ()  # type: ignore[assignment]  # mypy reads a tuple of one
    checks = (("peak", check_peak), ("eps", partial(check_positive, dtype="f4")))  # type: ignore[assignment]

    def __call__(self, at, outputs, targets):
        difference = outputs - as_values(at, targets, outputs.dtype)
        root = (difference * difference + self.eps**2) ** 0.5
        return root.mean(), difference / root / outputs.size

"""Convolutions on the GPU, rung by rung: what a rung is, what it is given, and the layers that all are timed at.

The passes, and the shapes of their arrays, are those of `mlpkit.kernels.conv`, where the kernels are, too. A rung may
store images as it likes (its `layout`), for NVIDIA's library may, too: operands are put in that order before a clock
starts. What changes the numbers is timed: to round or split them, or to transform filters. Rungs of the class "bf16"
have operands, y and dx in bfloat16, and dW in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlpkit.kernels.conv import Shape

# How far off a result may be, as a part of its norm: as float32's own sums, as 11 bits allow, and as 8.
ERRORS = {"float32": 1e-5, "tf32": 2e-3, "bf16": 1e-2}
OF_A_ROW = 2  # times as far may one row be off, of its own norm: over fewer values less of the roundings cancel


def errors_of(found, right):
    """Return how far off a result is, as a part of the right one's norm, and its worst row, as a part of that row's.

    A row is an image, or a filter's gradient. What a large value spoils in other rows is little beside its own.
    """
    rows = (found - right).reshape(len(right), -1), right.reshape(len(right), -1)
    off, norms = ((each * each).sum(1) for each in rows)
    return float((off.sum() / norms.sum()) ** 0.5), float((off / (norms + 1e-300)).max() ** 0.5)


def why_too_far(errors, precision):
    """Return why a result with such `errors_of` has no place in a class, a sentence, or None. NaN has none, either."""
    whole, row = errors
    if not whole < ERRORS[precision]:
        return f"its result is off by {whole:.1e} of its norm."
    return None if row < OF_A_ROW * ERRORS[precision] else f"a row of its result is off by {row:.1e} of its norm."


@dataclass(frozen=True)
class Prepared:
    """A pass that is ready. call(): ask for its kernels and nothing else; a graph can record it.

    result(): the last call's result as float32 in the order of `Shape`, a CuPy array. workspace: bytes of the GPU's
    memory that it takes beside its operands and its result. keeps: what must stay alive as long as it.
    """

    call: Callable[[], None]
    result: Callable[[], Any]
    workspace: int = 0
    keeps: tuple = ()


@dataclass(frozen=True)
class Rung:
    """A way to compute the passes.

    files: its kernels. precision: its class, a key of `ERRORS`. layout: how it stores images: "nchw", "nhwc" or
    "nc8hw8". prepare(shape, which, a, b): returns `Prepared` for the two operands, float32 CuPy arrays stored by rows.
    why_not(shape, which): why it can't, a sentence, or None.
    """

    label: str
    files: tuple[str, ...]
    precision: str
    layout: str
    prepare: Callable[[Shape, str, Any, Any], Prepared]
    why_not: Callable[[Shape, str], str | None] = lambda shape, which: None


LAYERS = {
    "64 to 128, 13 x 13": Shape(128, 64, 128, 13, 13, 3),
    "32 to 32, 28 x 28": Shape(128, 32, 32, 28, 28, 3, padding=1),
    "64 to 64, 14 x 14": Shape(128, 64, 64, 14, 14, 3, padding=1),
    "1 to 64, 28 x 28": Shape(128, 1, 64, 28, 28, 3),
    "256 to 256, 28 x 28": Shape(128, 256, 256, 28, 28, 3, padding=1),
}

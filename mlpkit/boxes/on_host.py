"""A detector's outputs where NumPy has them: what is above a number, and what stands at some positions."""

import numpy as np

from mlpkit.checks import check_finite

from .suppress import loops


def above(outputs, parts, least):
    """Return the positions in outputs (n, m) of logits above `least`, (k,) int64.

    parts: tuples of where a grid's numbers start in each row, how many logits there are, and how many numbers. Raises
    ValueError for outputs that are not finite.
    """
    outputs = np.ascontiguousarray(outputs)
    found, many = np.empty(len(outputs) * sum(logits for _, logits, _ in parts), np.int64), 0
    for start, logits, length in parts:
        many = loops().above(outputs, start, logits, length, least, found, many)
        if many < 0:
            check_finite("outputs", outputs)
    return found[:many]


def values(outputs, positions):
    """Return what stands at positions in outputs, in the shape of positions."""
    return outputs.reshape(-1)[positions]

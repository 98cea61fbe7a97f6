"""A detector's outputs where NumPy has them: what is above a number, and what stands at some positions."""

import numpy as np

from mlpkit.checks import check_finite

from .suppress import loops


def above(outputs, grids, classes, least):
    """Return the positions in outputs (n, m) of logits above `least`, (k,) int64. grids: see `loops.boxes.above`.

    Raises ValueError for outputs that are not finite.
    """
    outputs = np.ascontiguousarray(outputs)
    found = np.empty(len(outputs) * classes * grids[:, 1].sum(), np.int64)
    many = loops().above(outputs, grids, classes, least, found)
    if many < 0:
        check_finite("outputs", outputs)
    return found[:many]


def values(outputs, positions):
    """Return what stands at positions in outputs, in the shape of positions."""
    return outputs.reshape(-1)[positions]

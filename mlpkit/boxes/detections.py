"""From a detector's outputs to boxes: what is above a score, as boxes, without doubles."""

from math import log
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_batch, check_fraction

from . import on_host as _on_host
from .suppress import loops


class Detections(NamedTuple):
    """n boxes, picture after picture: images (n,) int64, labels (n,) int64, scores (n,), boxes (n, 4), in pixels."""

    images: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray


def detections(loss, outputs, score=0.05, threshold=0.5):
    """Return the `Detections` in a network's outputs (n, cells * (classes + 4)) of a `Detection` loss.

    outputs: NumPy's, or CuPy's: then the GPU looks for what is above the score, and only that comes to the host. score:
    the least. threshold: IoU above which the worse of two boxes of one class goes (greedy suppression); None keeps all.
    Of a picture the boxes come by class, the best first. Raises ValueError for what is no score, and for outputs of
    another shape, or that are not finite, of which nothing would be above it.
    """
    check_fraction("score", score)
    check_batch(outputs, ((loss.classes + 4) * loss.cells,), outputs.dtype)
    least = outputs.dtype.type((log(score / (1 - score)) if score else -np.inf) - loss.offset)
    there = _on_host if isinstance(outputs, np.ndarray) else _on_gpu()
    each, classes = loss.classes + 4, loss.classes
    grids = np.array([(before * each, rows * columns, columns, stride) for stride, rows, columns, before in loss.grids])
    at = there.above(outputs, grids, classes, least)
    claimed, positions = np.empty((len(at), 3), np.int64), np.empty((len(at), 5), np.int64)
    loops().claims(at, outputs.shape[1], classes, grids, claimed, positions)
    values = there.values(outputs, positions)
    order, ends = np.empty(len(at), np.int64), np.empty(len(outputs) * classes, np.int64)
    loops().in_order(claimed, values, order, ends)
    boxes, kept = np.empty((len(at), 4)), np.ones(len(at), np.bool_)
    loops().decode(claimed, values, grids, order, boxes)
    if threshold is not None:
        loops().keep_best(boxes, ends, float(threshold), kept)
    order = order[kept]
    images, labels = np.divmod(claimed[order, 0], classes)
    scores = 1 / (1 + np.exp(-(values[order, 0] + values.dtype.type(loss.offset))))
    return Detections(images, labels, scores, boxes[kept])


def _on_gpu():
    from . import on_gpu

    return on_gpu

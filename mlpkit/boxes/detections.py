"""From a detector's outputs to boxes: what is above a score, as boxes, without doubles."""

from math import log
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_batch, check_finite, check_fraction

from .suppress import by_group, loops


class Detections(NamedTuple):
    """n boxes, picture after picture: images (n,) int64, labels (n,) int64, scores (n,), boxes (n, 4), in pixels."""

    images: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray


def detections(loss, outputs, score=0.05, threshold=0.5):
    """Return the `Detections` in a network's outputs (n, cells * (classes + 4)), NumPy's, of a `Detection` loss.

    score: the least. threshold: IoU above which the worse of two boxes of one class goes (greedy suppression); None
    keeps all. Of a picture the boxes come by class, the best first. Raises ValueError for what is no score, and for
    outputs of another shape, or that are not finite, of which nothing would be above it.
    """
    check_fraction("score", score)
    check_batch(outputs, ((loss.classes + 4) * loss.cells,), outputs.dtype)
    check_finite("outputs", outputs)
    least = (log(score / (1 - score)) if score else -np.inf) - loss.offset
    parts = []
    for (stride, _, columns, _), (z, boxes) in zip(loss.grids, loss.levels(outputs), strict=True):
        image, label, cell = np.unravel_index(np.flatnonzero(z > least), z.shape)  # twice as fast as `nonzero`
        x, y, w, h = boxes[image, :, cell].T
        middle = x + cell % columns + np.float32(0.5), y + cell // columns + np.float32(0.5)
        sides = [(at + sign * np.exp(edge)) * np.float32(stride) for sign, at, edge in _sides(middle, (w, h))]
        parts.append((image, label, z[image, label, cell], np.stack(sides, axis=1)))
    images, labels, z, boxes = map(np.concatenate, zip(*parts, strict=True))
    order, ends = by_group(z, images * loss.classes + labels)
    images, labels, z, boxes = images[order], labels[order], z[order], np.ascontiguousarray(boxes[order])
    kept = np.ones(len(z), np.bool_)
    if threshold is not None:
        loops().keep_best(boxes, ends, float(threshold), kept)
    scores = 1 / (1 + np.exp(-(z[kept] + z.dtype.type(loss.offset))))
    return Detections(images[kept], labels[kept], scores, boxes[kept])


def _sides(middle, edges):
    half = np.float32(np.log(2))
    return [(sign, at, edge - half) for sign in (-1, 1) for at, edge in zip(middle, edges, strict=True)]

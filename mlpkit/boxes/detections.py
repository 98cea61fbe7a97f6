"""From a detector's outputs to boxes: what is above a score, as boxes, without doubles."""

from math import log, prod
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
    least = outputs.dtype.type((log(score / (1 - score)) if score else -np.inf) - loss.offset)
    outputs, parts = np.ascontiguousarray(outputs), []
    for (stride, _, columns, before), (z, boxes) in zip(loss.grids, loss.levels(outputs), strict=True):
        image, label, cell = _above(outputs, before * (loss.classes + 4), z.shape, least)
        at = np.stack(np.divmod(cell, columns)[::-1], axis=1)
        parts.append((image, label, z[image, label, cell], boxes[image, :, cell], at, np.full(len(cell), stride)))
    images, labels, z, boxes, cells, strides = map(np.concatenate, zip(*parts, strict=True))
    boxes = _decoded(boxes, cells, strides[:, None])
    order, ends = by_group(z, images * loss.classes + labels)
    images, labels, z, boxes = images[order], labels[order], z[order], boxes[order]
    kept = np.ones(len(z), np.bool_)
    if threshold is not None:
        loops().keep_best(boxes, ends, float(threshold), kept)
    scores = 1 / (1 + np.exp(-(z[kept] + z.dtype.type(loss.offset))))
    return Detections(images[kept], labels[kept], scores, boxes[kept])


def _above(outputs, start, shape, least):
    """Return picture, class, and cell of each logit above a number. shape: (n, classes, cells), from `start` on."""
    found = np.empty(prod(shape), np.int64)
    many = loops().above(outputs, start, shape[1] * shape[2], least, found)
    return np.unravel_index(found[:many], shape)


def _decoded(boxes, cells, strides):
    """Return boxes (n, 4) in pixels: of a middle, from its cell's, and logarithms of sides, all in cells."""
    middle, half = boxes[:, :2] + cells + np.float32(0.5), np.exp(boxes[:, 2:] - np.float32(log(2)))
    return np.concatenate([middle - half, middle + half], axis=1) * strides

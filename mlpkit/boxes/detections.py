"""From a detector's outputs to boxes: what is above a score, as boxes, without doubles."""

from math import log
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_batch, check_fraction

from .suppress import by_group, loops


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
    images, labels, z, boxes, cells, strides = _claims(loss, outputs, least)
    boxes = _decoded(boxes, cells, strides[:, None])
    order, ends = by_group(z, images * loss.classes + labels)
    images, labels, z, boxes = images[order], labels[order], z[order], boxes[order]
    kept = np.ones(len(z), np.bool_)
    if threshold is not None:
        loops().keep_best(boxes, ends, float(threshold), kept)
    scores = 1 / (1 + np.exp(-(z[kept] + z.dtype.type(loss.offset))))
    return Detections(images[kept], labels[kept], scores, boxes[kept])


def _claims(loss, outputs, least):
    """Return picture, class, logit, box (4,), cell (across, down) and its stride of each logit above a number."""
    if isinstance(outputs, np.ndarray):
        from . import on_host as there
    else:
        from . import on_gpu as there
    each = loss.classes + 4
    parts = [(before * each, rows * columns, columns, stride) for stride, rows, columns, before in loss.grids]
    at = there.above(outputs, [(start, cells * loss.classes, cells * each) for start, cells, *_ in parts], least)
    images, inside = np.divmod(at, outputs.shape[1])
    grid = np.searchsorted([start for start, *_ in parts], inside, "right") - 1
    starts, cells, columns, strides = np.array(parts)[grid].T
    labels, cell = np.divmod(inside - starts, cells)
    boxes = at - labels * cells + loss.classes * cells  # where each one's first number is
    values = there.values(outputs, np.stack([at, *(boxes + side * cells for side in range(4))], axis=1))
    return images, labels, values[:, 0], values[:, 1:], np.stack([cell % columns, cell // columns], axis=1), strides


def _decoded(boxes, cells, strides):
    """Return boxes (n, 4) in pixels: of a middle, from its cell's, and logarithms of sides, all in cells."""
    middle, half = boxes[:, :2] + cells + np.float32(0.5), np.exp(boxes[:, 2:] - np.float32(log(2)))
    return np.concatenate([middle - half, middle + half], axis=1) * strides

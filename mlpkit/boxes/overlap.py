"""Intersection over union."""

import numpy as np

from mlpkit.checks import as_array

LARGEST = 1e18  # of an edge: an area is finite then, in float32 too


def check_boxes(name, boxes):
    """Return boxes (n, 4) as floats. Raises ValueError for another shape, what is not finite, or edges swapped.

    Raises TypeError for what are no numbers.
    """
    boxes = as_array(name, boxes)
    if boxes.dtype not in (np.float32, np.float64):
        try:
            boxes = boxes.astype(np.float64, casting="unsafe" if boxes.dtype == object else "same_kind")
        except (TypeError, ValueError):
            raise TypeError(f"{name} must be numbers, and none missing, not {boxes.dtype}.") from None
    if not boxes.size:
        return boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{name} must have shape (n, 4), left, top, right, bottom, not {boxes.shape}.")
    if not (abs(boxes) <= LARGEST).all() or (boxes[:, 2:] < boxes[:, :2]).any():
        told = "left <= right and top <= bottom; (x, y, width, height) is not"
        raise ValueError(f"{name} must be finite, up to {LARGEST:g}, with {told}.")
    return boxes


def iou(boxes, others):
    """Return the intersection over the union (n, m) of boxes (n, 4) with others (m, 4); 0 where both are empty.

    Raises ValueError for what are no boxes.
    """
    boxes, others = check_boxes("boxes", boxes)[:, None], check_boxes("others", others)
    edges = np.minimum(boxes[..., 2:], others[:, 2:]) - np.maximum(boxes[..., :2], others[:, :2])
    both = np.maximum(edges, 0).prod(axis=-1)
    union = (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1) + (others[:, 2:] - others[:, :2]).prod(axis=-1) - both
    return both / np.where(union > 0, union, 1)

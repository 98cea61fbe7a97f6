"""Non-maximum suppression: several cells claim one object, and the best claim is to stay."""

from functools import cache

import numpy as np

from mlpkit.checks import as_array, check_not_negative, check_positive

from .overlap import check_boxes


@cache
def loops():
    """Return the compiled loops. Numba is imported only here: who reads a record needs none."""
    from mlpkit.engines.loops import boxes
    from mlpkit.engines.loops.compiler import compile_loops

    return compile_loops(__name__, boxes, error_model="numpy")


def nms(boxes, scores, threshold=0.5):
    """Return the numbers of the boxes (n, 4) that stay, the best first: greedy, as torchvision's rule.

    Each stays unless its IoU with a better one that stays is above the threshold. Of equal scores (n,) the first is the
    better one. Raises ValueError or TypeError for what are no boxes, no scores or no threshold.
    """
    return batched_nms(boxes, scores, np.zeros(np.shape(boxes)[:1], np.int64), threshold)


def batched_nms(boxes, scores, groups, threshold=0.5):
    """Return what `nms` does, where only boxes of one group, a class of one picture, suppress each other.

    groups (n,): integers.
    """
    boxes, scores, groups = _checked(boxes, scores, groups)
    check_not_negative("threshold", threshold)
    order, ends = by_group(scores, groups)
    kept = np.zeros(len(order), np.bool_)
    loops().keep_best(boxes[order], ends, float(threshold), kept)
    stay = np.sort(order[kept])
    return stay[np.argsort(-scores[stay], kind="stable")]


def soft_nms(boxes, scores, groups=None, sigma=0.5):
    """Return new scores (n,): who overlaps a better box is believed less, by `exp(-IoU^2 / sigma)`, and nobody goes.

    Bodla, Singh, Chellappa and Davis (2017), "Soft-NMS", equation 3. Arguments and errors as above.
    """
    boxes, scores, groups = _checked(
        boxes, scores, np.zeros(np.shape(boxes)[:1], np.int64) if groups is None else groups
    )
    check_positive("sigma", sigma)
    order, ends = by_group(scores, groups)
    found = scores[order]
    loops().decay(boxes[order], ends, float(sigma), found)
    new = np.empty_like(found)
    new[order] = found
    return new


def by_group(scores, groups):
    """Return an order in which groups follow each other, and in each the best come first; and where each ends."""
    order = np.lexsort((-scores, groups))
    groups = groups[order]
    return order, np.append(np.flatnonzero(groups[1:] != groups[:-1]) + 1, len(order)) if len(order) else order


def _checked(boxes, scores, groups):
    boxes = check_boxes("boxes", boxes)
    scores, groups = as_array("scores", scores), as_array("groups", groups)
    if scores.shape != boxes.shape[:1] or groups.shape != boxes.shape[:1]:
        raise ValueError(f"there must be a score, and a group, for each of {len(boxes)} boxes.")
    if scores.dtype.kind != "f" or not np.isfinite(scores).all():
        raise ValueError("scores must be finite numbers, as float32 or float64.")
    if groups.dtype.kind not in "biufU":
        raise TypeError(f"groups must be whole numbers, not {groups.dtype}.")
    return boxes, scores if scores.dtype in (np.float32, np.float64) else scores.astype(np.float64), groups

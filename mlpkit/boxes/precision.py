"""Average precision: how many claims are right, at each share of the objects that is to be found.

It is no accuracy: there is no number of places where nothing was to be found, so nothing to be right about there. The
rules are COCO's (Lin et al., 2014, and its evaluation code): the best 100 detections of a picture count; each claims
the object of its class that it overlaps most, if it does by the threshold, and that nobody better has claimed.
"""

import numpy as np

from mlpkit.checks import check_count, check_finite

from .detections import Detections
from .overlap import check_boxes
from .suppress import loops

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MOST = 100  # detections of a picture that count, of a class


def average_precision(found, truth, classes, thresholds=THRESHOLDS, crowds=None):
    """Return AP (thresholds, classes): the mean of 101 precisions, NaN for a class with no object.

    found: `Detections`. truth (n, k, 5): of n pictures label, left, top, right, bottom; label -1 for none. crowds
    (n, k): which of them stand for many, and are neither to be found nor a mistake. AP50 is `ap[0].mean()` over
    classes, AP50:95 `ap.mean()`, with np.nanmean. Raises ValueError for detections and truth of different pictures.
    """
    found, truth, crowds = _checked(found, truth, crowds)
    check_count("classes", classes, least=0)
    ap = np.full((len(thresholds), classes), np.nan)
    for label in range(classes):
        for t, curve in enumerate(_curves(found, truth, label, thresholds, crowds)):
            if curve is not None:
                precision, recall, _ = curve
                best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)  # at this recall, or at more
                ap[t, label] = best[np.searchsorted(recall, RECALLS)].mean()
    return ap


def precision_and_recall(found, truth, label, thresholds=THRESHOLDS[:1], crowds=None):
    """Return for each threshold arrays precision, recall, scores, after each detection of a class, the best first.

    None where there is no object. Arguments and errors as above.
    """
    found, truth, crowds = _checked(found, truth, crowds)
    return _curves(found, truth, label, thresholds, crowds)


def _checked(found, truth, crowds):
    """Return `Detections` of arrays, truth, and crowds (n, k)."""
    found, truth = Detections(*map(np.asarray, found)), np.asarray(truth)
    crowds = np.zeros(truth.shape[:2], bool) if crowds is None else np.asarray(crowds, bool)
    if truth.ndim != 3 or truth.shape[2] != 5 or crowds.shape != truth.shape[:2]:
        raise ValueError(f"truth must have shape (n, k, 5), crowds (n, k), not {truth.shape} and {crowds.shape}.")
    if found.boxes.shape != (len(found.images), 4) or len({len(each) for each in found}) > 1:
        raise ValueError("detections have a picture, a label, a score and a box (4,) each.")
    found = found._replace(boxes=check_boxes("boxes", found.boxes), scores=check_finite("scores", found.scores))
    if not found.images.size:
        found = found._replace(images=found.images.astype(np.int64))  # of none NumPy makes floats
    if found.images.dtype.kind not in "iu":
        raise TypeError(f"pictures of detections are counted in whole numbers, not {found.images.dtype}.")
    odd = found.images[(found.images < 0) | (found.images >= len(truth))]
    if odd.size:
        raise ValueError(f"there are detections of picture {odd[0]}, and truth has {len(truth)}, counted from 0.")
    return found, truth, crowds


def _curves(found, truth, label, thresholds, crowds):
    here = truth[..., 0] == label
    boxes, crowd = truth[here][:, 1:].astype(np.float64), crowds[here]
    if crowd.all():
        return [None] * len(thresholds)
    ends = here.sum(axis=1).cumsum()
    mine = np.flatnonzero(found.labels == label)
    mine = _best_of_each(mine[np.lexsort((-found.scores[mine], found.images[mine]))], found.images)
    mine = mine[np.argsort(-found.scores[mine], kind="stable")]
    image = found.images[mine]
    claims = np.empty((len(thresholds), len(mine)), np.int64)
    starts = ends[image] - here.sum(axis=1)[image]
    of = found.boxes[mine].astype(np.float64), boxes, crowd, starts, ends[image]
    loops().claim(*of, np.asarray(thresholds, np.float64), claims)
    curves = []
    for claimed in claims:
        counts = (claimed < 0) | ~crowd[claimed]
        right = (claimed >= 0)[counts].cumsum()
        precision = right / np.arange(1, len(right) + 1)
        curves.append((precision, right / (~crowd).sum(), found.scores[mine][counts]))
    return curves


def _best_of_each(order, images):
    """Return an order, pictures one after another, without what comes behind the first 100 of each."""
    images = images[order]
    first = np.searchsorted(images, images)
    return order[np.arange(len(order)) - first < MOST]

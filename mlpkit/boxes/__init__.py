"""Boxes in pictures: how much two have in common, which of many claims stay, and how good the claims are.

A box is left, top, right, bottom, in pixels, edges between pixels: its width is right - left. Detections are a
structure of arrays, see `detections`.
"""

from .detections import Detections, detections
from .overlap import iou
from .precision import average_precision, precision_and_recall
from .suppress import batched_nms, nms, soft_nms

__all__ = [
    *("Detections", "average_precision", "batched_nms", "detections", "iou", "nms", "precision_and_recall"),
    "soft_nms",
]

"""Boxes in pictures: how much two have in common, which of many claims stay, and how good the claims are.

A box is left, top, right, bottom, in pixels, edges between pixels: its width is right - left. Detections are a
structure of arrays, see `detections`.
"""

from .detections import Detections as Detections
from .detections import detections as detections
from .overlap import iou as iou
from .precision import average_precision as average_precision
from .precision import precision_and_recall as precision_and_recall
from .suppress import batched_nms as batched_nms
from .suppress import nms as nms
from .suppress import soft_nms as soft_nms

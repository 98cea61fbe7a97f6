"""Boxes as targets: each cell of a few grids says what is there, a logit a class, and where, a box.

An image of `size` has a grid for each stride: a cell is `stride` pixels wide, and speaks of the object whose middle is
near its own. "Centre-based", as in Tian et al. (2019), "FCOS", and Zhou et al. (2019), "Objects as points". The outputs
of an example are one row: for each grid (classes + 4, height, width), flattened. The four are the box's middle, from
the cell's, and the logarithms of its width and height, all in strides.
"""

from dataclasses import dataclass
from math import log

import numpy as np

from mlpkit.boxes.overlap import check_boxes
from mlpkit.checks import (
    as_array,
    check_array,
    check_count,
    check_finite,
    check_not_negative,
    check_positive,
    check_share,
    check_sizes,
)

from .losses import Loss

SEVERAL = 1000  # examples whose objects are given to cells at a time
NOBODY = np.array([[-1], [-0.5], [-0.5], [0.5], [0.5]], np.float32)  # the target of an empty cell: a box with an area


@dataclass(frozen=True, repr=False)
class Detection(Loss):
    """Focal loss of the classes of all cells, and `box_weight` times `1 - GIoU` of boxes: per cell with an object.

    classes: how many. size: height and width of images, in pixels. strides: of the grids, the finest first; an object
    whose longer edge is at most `reach` strides belongs to the first that has it, and a larger one to the last. prior:
    what an output of 0 gives to each class, so that thousands of empty cells do not begin with half a mistake each.
    """

    classes: int
    size: tuple[int, int]
    strides: tuple[int, ...] = (8, 16)
    reach: float = 4.0
    box_weight: float = 1.0
    gamma: float = 2.0
    alpha: float = 0.25
    prior: float = 0.01

    operations = ("focal", "giou", "count", "concat")
    checks = (
        *(("classes", check_count), ("reach", check_positive), ("box_weight", check_not_negative)),
        *(("gamma", check_not_negative), ("alpha", check_share), ("prior", check_share)),
    )

    def __post_init__(self):
        super().__post_init__()
        for name, least in (("size", 2), ("strides", 1)):
            object.__setattr__(self, name, check_sizes(getattr(self, name), least))

    @property
    def grids(self):
        """Tuples (stride, rows, columns, cells before): rows and columns as convolutions with a padding make them."""
        found, before = [], 0
        for stride in self.strides:
            rows, columns = (-(-edge // stride) for edge in self.size)
            found.append((stride, rows, columns, before))
            before += rows * columns
        return found

    @property
    def cells(self):
        return sum(rows * columns for _, rows, columns, _ in self.grids)

    @property
    def middles(self):
        """The middle of each cell, across and down, in pixels, and its stride: (cells, 3) float32."""
        parts = []
        for stride, rows, columns, _ in self.grids:
            down, across = np.indices((rows, columns)).reshape(2, -1)
            parts.append(np.stack([(across + 0.5) * stride, (down + 0.5) * stride, 0 * down + stride], axis=1))
        return np.concatenate(parts).astype(np.float32)

    def match(self, truth):
        """Return the targets (n, 5, cells) float32 of boxes: label, and left, top, right, bottom from the cell.

        truth (n, k, 5): label, left, top, right, bottom in pixels; label -1 for none. A cell gets the object whose
        middle is nearest, if that is less than a stride away in both directions, else the label -1. Raises ValueError
        or TypeError for what are no boxes, or another label.
        """
        truth = self._checked(truth)
        found = [self._matched(truth[i : i + SEVERAL]) for i in range(0, len(truth), SEVERAL)]
        return np.concatenate([np.empty((0, 5, self.cells), np.float32), *found])

    def _checked(self, truth):
        """Return truth with one object at least, which may be none."""
        truth = as_array("truth", truth)
        if truth.ndim != 3 or truth.shape[2] != 5:
            raise ValueError(f"truth must have shape (n, k, 5), label, left, top, right, bottom, not {truth.shape}.")
        there = check_finite("truth", truth)[truth[..., 0] >= 0]
        check_boxes("boxes of truth", there[:, 1:])
        odd = there[:, 0][(there[:, 0] >= self.classes) | (there[:, 0] % 1 > 0)]
        if odd.size:
            raise ValueError(f"labels of truth are whole numbers from 0 to {self.classes - 1}, or -1, not {odd[0]:g}.")
        return truth if truth.shape[1] else np.full((len(truth), 1, 5), -1.0)

    def _matched(self, truth):
        n, middles = len(truth), self.middles
        found = np.empty((n, 5, self.cells), np.float32)
        found[:, :] = NOBODY
        nearest = np.ones((n, self.cells), np.float32)  # how far away the middle of the cell's object is, in strides
        for label, *box in truth.astype(np.float32).transpose(1, 2, 0):  # an object of each example at a time
            box = np.stack(box, axis=1)
            for rows, cells in self._around(box, label >= 0):
                middle = (box[rows, :2] + box[rows, 2:]) / 2
                away = (np.abs(middle - middles[cells, :2]) / middles[cells, 2:]).max(axis=1)
                closer = away < nearest[rows, cells]
                rows, cells = rows[closer], cells[closer]
                nearest[rows, cells], found[rows, 0, cells] = away[closer], label[rows]
                found[rows, 1:, cells] = (box[rows] - middles[cells][:, [0, 1, 0, 1]]) / middles[cells, 2:]
        return found

    def _around(self, boxes, there):
        """Yield rows of boxes (n, 4), and for each a cell of its grid, one of the four next to the box's middle."""
        longer = np.maximum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        grid = (longer[:, None] > self.reach * np.array(self.strides)[:-1]).sum(axis=1)
        for number, (stride, height, width, before) in enumerate(self.grids):
            rows = np.flatnonzero(there & (grid == number))
            corner = np.floor((boxes[rows, :2] + boxes[rows, 2:]) / (2 * stride) - 0.5).astype(np.int64)
            for right, down in np.ndindex(2, 2):
                x, y = corner[:, 0] + right, corner[:, 1] + down
                inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
                yield rows[inside], (before + y * width + x)[inside]

    def check(self, targets, n, output, dtype):
        check_array("targets", targets)
        wanted = (n, 5, self.cells)
        if output != ((self.classes + 4) * self.cells,):
            raise ValueError(f"the outputs of {self!r} are rows of {(self.classes + 4) * self.cells}, not {output}.")
        if targets.shape != wanted or targets.dtype != np.float32:
            raise ValueError(
                f"targets must be float32 {wanted}, what the loss's match(...) makes of boxes, "
                f"not {targets.dtype} {targets.shape}."
            )

    def __call__(self, at, outputs, targets):
        share, parts, total = self._share(at, targets), [], 0
        for (*_, before), (z, boxes) in zip(self.grids, self.levels(outputs), strict=True):
            of = targets[:, :, before : before + z.shape[2]].astype(z.dtype, copy=False)
            labels = of[:, 0]
            loss, dz = at.engine.focal(z + z.dtype.type(self.offset), labels, share, self.gamma, self.alpha)
            off, d_boxes = at.engine.giou(boxes, of[:, 1:], labels >= 0, share * self.box_weight)
            total = total + loss + off
            parts += [each.reshape(len(outputs), -1) for each in (dz, d_boxes)]
        return total, at.engine.concat(parts)

    @property
    def offset(self):
        """What is added to each logit."""
        return log(self.prior / (1 - self.prior))

    def _share(self, at, targets):
        """Return 1 / the number of cells that have an object, a scalar; 1 where none has."""
        count = at.engine.count(targets[:, 0] >= 0)
        return 1.0 / (count + (count == 0))

    def levels(self, outputs):
        """Yield for each grid logits (n, classes, cells), without `offset`, and boxes (n, 4, cells): views."""
        for _, rows, columns, before in self.grids:
            each, start = self.classes + 4, before * (self.classes + 4)
            z = outputs[:, start : start + rows * columns * each].reshape(len(outputs), each, rows * columns)
            yield z[:, : self.classes], z[:, self.classes :]

"""A photograph of a digit becomes what MNIST's pictures are, step by step.

MNIST's authors scaled each digit into a box of 20 x 20 pixels, its proportions kept, and moved it in a field of 28 x 28
so that its centre of mass lies in the middle (LeCun, Bottou, Bengio and Haffner, 1998, section III). What a photograph
needs before that are a guess of ours: it has colours, a light from one side, and dark ink on paper.
"""

import numpy as np
from PIL import Image, ImageFilter

BOX, FIELD, MIDDLE = 20, 28, 14  # MNIST's; the middle is where its digits' centres of mass lie, to half a pixel
FAINT = 24  # levels of 255: what stands out less from the background is no ink
STROKE = 2.0  # pixels that a stroke is wide in the box, at least: a thin pen's would vanish when a photograph is scaled


def prepare(colours):
    """Return a photograph (height, width, 3) uint8 as MNIST has digits, (28, 28) uint8. Raises what `steps` raises."""
    return steps(colours)["centred"]


def steps(colours):
    """Return a dict of what becomes of a photograph (height, width, 3) uint8, step by step; each is uint8.

    "grey", "ink" and "strokes" are (height, width), "box" is at most (20, 20), "centred" (28, 28). Raises ValueError
    where nothing stands out from the background.
    """
    grey = one_channel(colours)
    apart = grey - background(grey)
    ink = np.maximum(apart if (apart**3).sum() > 0 else -apart, 0)  # what is far from the background is the digit
    strokes = thickened(on_black(ink))
    box = boxed(strokes)
    shown = {"grey": grey, "ink": ink, "strokes": strokes, "box": box, "centred": centred(box)}
    return {name: each.clip(0, 255).round().astype(np.uint8) for name, each in shown.items()}


def one_channel(colours):
    """Return (height, width) floats: the mix of red, green and blue that differs most in the picture.

    That is the first eigenvector of their covariance: blue ink on red paper differs, though both are as bright.
    """
    values = colours.reshape(-1, 3).astype(float)
    mix = np.linalg.eigh(np.cov(values, rowvar=False, bias=True) + 1e-6)[1][:, -1]
    mix /= mix.sum() if abs(mix.sum()) > 0.5 else 1  # of greys it is their mean
    return (values @ mix).reshape(colours.shape[:2])


def background(grey):
    """Return the plane a + b x + c y through a picture's rim, (height, width): paper that is lit from one side.

    Least squares, and again without the tenth of the rim that lies farthest from the first plane: it may be ink.
    """
    y, x = np.indices(grey.shape)
    terms = np.stack([np.ones(grey.size), x.ravel(), y.ravel()], axis=1)
    wide = max(1, min(grey.shape) // 20)
    rim = np.pad(np.zeros(np.subtract(grey.shape, 2 * wide).clip(0), bool), wide, constant_values=True)
    at = np.flatnonzero(rim[: grey.shape[0], : grey.shape[1]])
    for _ in range(2):
        plane = terms @ np.linalg.lstsq(terms[at], grey.ravel()[at])[0]
        off = abs(grey.ravel()[at] - plane[at])
        at = at[off <= np.quantile(off, 0.9)]
    return plane.reshape(grey.shape)


def threshold(values):
    """Return where Otsu (1979) parts values from 0 to 255: so that the two sides' means are far apart."""
    counts = np.bincount(values.clip(0, 255).astype(int).ravel(), minlength=256).astype(float)
    below, total = counts.cumsum(), (counts * np.arange(256)).cumsum()
    above = below[-1] - below
    apart = (total * below[-1] - total[-1] * below) ** 2 / np.maximum(below * above, 1)
    return int(apart.argmax())


def on_black(ink):
    """Return strokes from 0 to 255 where there is ink, and 0 elsewhere. Raises ValueError where there is none."""
    mask = Image.fromarray(ink > max(threshold(ink), FAINT)).convert("L")
    if min(ink.shape) > 3 * FIELD:
        mask = mask.filter(ImageFilter.MedianFilter(5))  # specks go
    found = np.asarray(mask) > 0
    if not found.any():
        raise ValueError(
            "nothing stands out from the background: take a picture of one digit, with some rim around it."
        )
    near = np.asarray(mask.filter(ImageFilter.MaxFilter(3))) > 0  # edges are grey, and belong to it
    return np.where(near, 255 * np.minimum(ink / np.median(ink[found]), 1), 0)


def thickened(strokes):
    """Return strokes that will be at least `STROKE` pixels wide in the box. A stroke's width is area over length."""
    mask = np.pad(strokes > 127, 1)
    inside = mask[1:-1, :-2] & mask[1:-1, 2:] & mask[:-2, 1:-1] & mask[2:, 1:-1]
    area, edge = mask.sum(), max(1, mask[1:-1, 1:-1].sum() - inside.sum())  # an edge on each side: twice the length
    rows, columns = _extent(strokes)
    lacking = STROKE * max(rows.stop - rows.start, columns.stop - columns.start) / BOX - 2 * area / edge
    grow = int(np.ceil(lacking / 2))
    if grow <= 0 or min(strokes.shape) <= 3 * FIELD:  # a small picture has no pixels to spare
        return strokes
    image = Image.fromarray(np.pad(strokes, grow).astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.MaxFilter(2 * grow + 1))).astype(float)


def boxed(strokes):
    """Return the strokes alone, scaled so that the longer side has 20 pixels, in levels from 0 to 255."""
    rows, columns = _extent(strokes)
    cut = Image.fromarray(strokes[rows, columns].astype(np.float32))
    scale = BOX / max(cut.size)
    size = [max(1, round(scale * each)) for each in cut.size]
    box = np.asarray(cut.resize(size, Image.Resampling.BILINEAR)).clip(0)
    return 255 * box / box.max()


def centred(box):
    """Return (28, 28), black but for the box, which lies so that its centre of mass is in the middle."""
    if not box.any():
        raise ValueError("a box without ink has no centre of mass.")
    field = np.zeros((FIELD, FIELD), box.dtype)
    corner = []
    for side, mass in zip(box.shape, (box.sum(axis=1), box.sum(axis=0)), strict=True):
        middle = (mass * np.arange(side)).sum() / mass.sum()
        corner.append(min(max(0, round(MIDDLE - middle)), FIELD - side))
    field[corner[0] : corner[0] + box.shape[0], corner[1] : corner[1] + box.shape[1]] = box
    return field


def _extent(strokes):
    """Return the rows and the columns, two slices, that have strokes."""
    there = [np.flatnonzero((strokes > 50).any(axis=axis)) for axis in (1, 0)]
    rows, columns = (slice(each[0], each[-1] + 1) for each in there)
    return rows, columns

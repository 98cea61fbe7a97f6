"""Pictures with boxes, as the Pascal VOC challenge has them: an XML file for each, and lists of which are for what.

    Annotations/NAME.xml    JPEGImages/NAME.jpg    ImageSets/Main/train.txt, val.txt, test.txt

VOC counts pixels from 1, and its edges are the outermost pixels of an object; ours lie between pixels.
"""

import warnings
from math import isfinite
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from mlpkit.checks import check_sizes
from mlpkit.data.dataset import Dataset, Split
from mlpkit.data.own.reading.listing import check_memory
from mlpkit.data.own.reading.picture import read_picture
from mlpkit.paths import check_readable, expanded
from mlpkit.words import short_sentences

PARTS = {"train": "train", "validation": "val", "test": "test"}
MOST_BYTES, MOST_OBJECTS, MOST_NAMES = 1 << 20, 1000, 100_000  # of a file, in a picture, in a list
SIDES = ("xmin", "ymin", "xmax", "ymax")


@short_sentences()
def from_voc(folder, *, size, name=None):
    """Return the `Dataset` in a folder as Pascal VOC's: X (n, 3, height, width) uint8, y (n, k, 5) float32.

    size: (height, width), to which pictures are stretched, and boxes with them. y: of each object its label, and left,
    top, right, bottom in pixels; k is the most that a picture has, and where there are fewer, labels are -1. classes:
    all names that occur, sorted. Boxes of no width or height inside of their picture are left out, with a warning that
    counts them, and objects that are marked difficult without. A part without a list is None.

    Raises OSError for files that are not there, ValueError for those that are damaged, too large, or no such files, and
    for a picture of another size than its annotation says: one that its camera turned may have boxes that are not.
    """
    folder, size = expanded(folder), check_sizes(size, least=1)
    if len(size) != 2:
        raise ValueError(f"size must be (height, width), not {size}.")
    lists = {part: folder / "ImageSets" / "Main" / f"{file}.txt" for part, file in PARTS.items()}
    check_readable(lists["train"], "the folder must hold Annotations, JPEGImages and ImageSets")
    names = {part: _names(path) for part, path in lists.items() if path.exists()}
    found = {part: [read_annotation(folder / "Annotations" / f"{one}.xml") for one in names[part]] for part in names}
    classes = sorted({label for one in found.values() for _, objects in one for label, _ in objects})
    empty: list[str] = []  # labels of boxes that are left out
    splits = {part: _split(folder, names[part], found[part], size, classes, empty) for part in names}
    if empty:
        text = f"{len(empty)} boxes without width or height were left out ({', '.join(empty[:5])})."
        warnings.warn(text, stacklevel=4)  # above this function there is the decorator's
    return Dataset(name or folder.name, splits["train"], splits.get("validation"), splits.get("test"), tuple(classes))


class _Builder(ElementTree.TreeBuilder):
    """A document type can declare entities that unfold to gigabytes, or name files: none is needed here."""

    def doctype(self, name, pubid, system):
        raise ValueError("it declares a document type, which no annotation needs")


def read_annotation(path):
    """Return (width, height) of the picture, None where that is not said, and its objects in pixels, from a file.

    objects: a list of (name, [left, top, right, bottom]). Raises OSError, and ValueError for what is no annotation,
    with more than 1 MiB, or more than 1,000 objects.
    """
    check_readable(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        root = ElementTree.fromstring(path.read_bytes(), ElementTree.XMLParser(target=_Builder()))
        objects = root.findall("object")
        if root.tag != "annotation" or len(objects) > MOST_OBJECTS:
            raise ValueError(f"it is no annotation of at most {MOST_OBJECTS:,} objects")
        sides = tuple(int(root.findtext(f"size/{side}") or 0) for side in ("width", "height"))
        found = [_object(one) for one in objects if (one.findtext("difficult") or "0").strip() != "1"]
        return sides if all(sides) else None, found
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise ValueError(f"{path} is no annotation as Pascal VOC's: {error}.") from error


def _object(one):
    name, box = " ".join((one.findtext("name") or "").split()), one.find("bndbox")
    sides = [float(box.findtext(side) or "nan") if box is not None else np.nan for side in SIDES]
    if not name or not all(isfinite(side) and abs(side) < 1e6 for side in sides):
        raise ValueError("an object needs a name, and a bndbox of xmin, ymin, xmax and ymax")
    return name, [sides[0] - 1, sides[1] - 1, *sides[2:]]


def _has_area(box):
    return box[2] - box[0] > 1 and box[3] - box[1] > 1  # where both edges are one pixel, somebody's mouse slipped


def _names(path):
    check_readable(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()[:MOST_NAMES]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: write it anew.") from error
    names = [line.split()[0] for line in lines if line.strip()]
    if odd := next((each for each in names if {*each} & {*"/\\\0"} or each.startswith(".")), None):
        raise ValueError(f"{path} lists {odd!r}, which is no file's name.")
    return names


def _split(folder, names, found, size, classes, empty):
    most = max([1, *(len(objects) for _, objects in found)])
    check_memory(3 * size[0] * size[1] * len(names), f"{len(names):,} pictures of {size}", "say a smaller size")
    images, truth = np.empty((len(names), 3, *size), np.uint8), np.full((len(names), most, 5), -1, np.float32)
    for image, rows, one, (sides, objects) in zip(images, truth, names, found, strict=True):
        path = folder / "JPEGImages" / f"{one}.jpg"
        try:
            pixels = read_picture(path, False).transpose(1, 2, 0)
        except ValueError as error:
            raise ValueError(f"{path}: {error}.") from error
        height, width = pixels.shape[:2]
        if sides not in (None, (width, height)):
            told = f"{width} x {height} pixels, and its annotation is of {sides[0]} x {sides[1]}"
            raise ValueError(f"{path} has {told}: mend one of them, or leave it out of the list.")
        stretched = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
        image[...] = np.asarray(stretched).transpose(2, 0, 1)
        scale = np.array([size[1] / width, size[0] / height] * 2)
        inside = [(classes.index(label), np.clip(box, 0, [width, height] * 2)) for label, box in objects]
        boxes = [(label, *(box * scale)) for label, box in inside if _has_area(box)]
        rows[: len(boxes)] = np.reshape(boxes, (-1, 5))
        empty += [classes[label] for label, box in inside if not _has_area(box)]
    return Split(images, truth)

"""A table of pixels, an image a row, as Kaggle has MNIST: label,pixel0,...,pixel783. NumPy's own reader is fast."""

import re
import warnings
from math import isqrt, prod

import numpy as np

from mlpkit.checks import check_sizes
from mlpkit.paths import check_readable, expanded
from mlpkit.words import short_sentences

from .arrays import from_arrays

PIXEL = re.compile(r"[a-z]*_?(\d{1,9})(?:x(\d{1,9}))?")
PACKED = (".gz", ".bz2", ".xz", ".lzma")  # what NumPy unpacks by its name
NO_TABLE = "is no table in UTF-8 text: save it as CSV, UTF-8."
LONGEST = 2**22  # bytes of a first line


@short_sentences()
def from_csv(path, test=None, *, shape=None, label="label", name=None, **options):
    """Return the `Dataset` in a table of comma-separated values: a label and the pixels of an image in each row.

    With a header or with none; without one the label is first. test: a second such table, where the labels may be
    missing, as in Kaggle's test.csv: then y of that part is None. shape: of an image, (channels, height, width);
    without it images are grey and square. label: that column's name. options: as of `from_arrays`.

    Pixels are whole numbers from 0 to 255. Raises FileNotFoundError where there is no file, ValueError that names file
    and row, not counting the header, for another table, and what `from_arrays` raises.
    """
    path = expanded(path)
    if not isinstance(label, str):
        raise TypeError(f"label must be the name of a column, a text, not {label!r}.")
    shape = shape if shape is None else _checked(shape)
    X, y, shape = _read(path, shape, label)
    if y is None:
        raise ValueError(f"{path} has no column of labels: the first table is the one to train on.")
    if test is not None:
        options["test"] = _read(expanded(test), shape, label)[:2]
    return from_arrays(X, y, name=name or path.stem, **options)


def _checked(shape):
    sizes = check_sizes(shape, least=1)
    if len(sizes) != 3:
        raise ValueError(f"shape must be (channels, height, width), not {shape!r}.")
    return sizes


def _read(path, shape, label):
    """Return X (n, channels, height, width) uint8, y (n,) int64, or None where there are no labels, and the shape."""
    check_readable(path)
    fields = _first_line(path)
    has_header = not all(re.fullmatch(r"-?[\d.]+", field) for field in fields)
    column = _label_column(path, fields, label) if has_header else None
    if not has_header:
        pixels = prod(shape) if shape else isqrt(len(fields)) ** 2
        column = 0 if len(fields) == pixels + 1 else None
    pixels = len(fields) - (column is not None)
    shape = shape or (1, isqrt(pixels), isqrt(pixels))
    if prod(shape) != pixels or not pixels:
        raise ValueError(f"{path} has {pixels} columns of pixels, which are no image {shape}: say its shape=.")
    table = _table(path, len(fields), has_header)
    y = None if column is None else table[:, column].astype(np.int64)
    X = table if column is None else np.delete(table, column, axis=1)
    if X.max() > 255:
        row, place = np.argwhere(X > 255)[0]
        raise ValueError(f"{path}, row {row + 1}: a pixel is {X[row, place]}, and the most is 255.")
    return X.astype(np.uint8).reshape(len(X), *shape), y, shape


def _first_line(path):
    with open(path, "rb") as file:
        line = file.readline(LONGEST)
    if line[:2] in (b"PK", b"\x1f\x8b") or path.suffix.lower() in PACKED:
        raise ValueError(f"{path} is packed, or named so: unpack it first, and call it .csv.")
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or len(line) == LONGEST:
        raise ValueError(f"{path} {NO_TABLE}")
    if "," not in text:
        other = next((f", not by {each!r}" for each in ";\t|" if each in text), "")
        raise ValueError(f"{path} must have columns that are separated by commas{other}.")
    return [field.strip().strip('"') for field in text.split(",")]


def _label_column(path, fields, label):
    """Return which column has the labels, None for none. Raises ValueError for one that is neither label nor pixel."""
    names, label = [field.lower() for field in fields], label.lower()
    if names.count(label) > 1:
        raise ValueError(f"{path} has {names.count(label)} columns called {label!r}: leave one.")
    places = [PIXEL.fullmatch(name) for name in names if name != label]
    for name, place in zip([name for name in fields if name.lower() != label], places, strict=True):
        if not place:
            raise ValueError(f"{path}: column {name!r} is no pixel, and not {label!r}: leave it out, or say label=.")
    order = [tuple(int(number) for number in place.groups() if number) for place in places if place]
    if order != sorted(set(order)):
        raise ValueError(f"{path} has its pixels in another order, or twice: sort the columns by their numbers.")
    return names.index(label) if label in names else None


def _table(path, columns, has_header):
    """Return all numbers, (rows, columns) uint16."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of no rows, which is told below
            table = np.loadtxt(
                path, np.uint16, None, ",", skiprows=int(has_header), ndmin=2, encoding="utf-8-sig", quotechar='"'
            )
    except UnicodeDecodeError:
        raise ValueError(f"{path} {NO_TABLE}") from None
    except ValueError as error:
        told = str(error).partition(";")[0].replace("uint16", "a whole number from 0 to 255").rstrip(".")
        if "could not convert" in told:  # here NumPy counts rows from 0 on, elsewhere from 1 on
            told = re.sub(r"at row (\d+)", lambda row: f"at row {int(row[1]) + 1}", told)
        raise ValueError(f"{path}: {told}.".replace("\n", " ")) from None
    if not table.size:
        raise ValueError(f"{path} has no rows.")
    if table.shape[1] != columns:
        raise ValueError(
            f"{path} has {columns} names in its header, and {table.shape[1]} numbers a row: mend one of them."
        )
    return table

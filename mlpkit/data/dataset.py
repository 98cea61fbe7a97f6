"""A data set is three parts, each of examples and what is to be said of them, and the names of its classes.

The folder `sets` is the list of those that have a name: a file in it is one, `fashion_mnist.py` the data set
"fashion-mnist". Such a module has `CLASSES`, the names of the classes by label, and `read()`, which finds the parts and
returns train, validation and test, each a pair (X, y). One that can be downloaded has `BYTES`, how many that are, and
`download(progress)`, which returns the paths. `TEST_ONLY = True` says that there is nothing to train on.
"""

from importlib import import_module
from math import prod
from pkgutil import iter_modules
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_array, check_choice, check_flag
from mlpkit.engines import numpy_baseline

from . import sets


class Split(NamedTuple):
    """X (n, channels, height, width) uint8, images, or (n, k), rows; y (n,) int64, labels, or what is to be learned.

    y is None where nobody has told it, as in Kaggle's test.csv.
    """

    X: np.ndarray
    y: np.ndarray


class Dataset(NamedTuple):
    """A data set in three parts: fit on `train`, choose on `validation`, read `test` once.

    A part that a reader's own data do not have is None. classes: their names by label, none where y are no labels.
    """

    name: str
    train: Split
    validation: Split | None
    test: Split | None
    classes: tuple[str, ...]


def names():
    """Return the names of all data sets that `load` knows, MNIST's first."""
    found = (module.name.replace("_", "-") for module in iter_modules(sets.__path__))
    return tuple(sorted(found, key=lambda name: (name != "mnist", name)))


def source(name):
    """Return the module in `sets` that has the data set called `name`. Raises ValueError for another name."""
    check_choice("data set", name, names())
    return import_module(f"{sets.__name__}.{name.replace('-', '_')}")


def load(name="mnist", scaled=False):
    """Return the `Dataset` called `name`: "mnist", "fashion-mnist", or another of `names()`.

    "fashion-mnist-sample" is always here: the first 2,000 of Fashion-MNIST's test images; its other parts are empty.

    X is as the files have it: images of bytes, from 0 to 255, which every network takes. scaled: X as rows of float32
    from 0 to 1, which formulas take; four times the memory.

    Raises ValueError for another name, FileNotFoundError where the files are not on this machine, and IDXError (a
    ValueError) naming the file that is damaged or is not the one it should be.
    """
    found = source(name)
    look = scale if check_flag("scaled", scaled) else np.asarray
    train, validation, test = (Split(look(X), y) for X, y in found.read())
    return Dataset(name, train, validation, test, found.CLASSES)


def download(progress=None, name="fashion-mnist"):
    """Get a data set's files from its authors, where they are not on this machine yet; return their paths.

    They are put into the first of the folders where `load` looks: each when it is whole, and has its checksum. One that
    is damaged, or another, is set aside. progress: is called with the number of bytes that have come, again and again.
    Raises OSError where no source gives a file, or it can't be written, ValueError for what is not downloaded.
    """
    get = getattr(source(name), "download", None)
    if not get:
        raise ValueError(f"{name} is not downloaded: data.load({name!r}) says where it looks for it.")
    return get(progress or (lambda count: None))


def scale(images):
    """Return uint8 images (n, ...) as float32 rows (n, pixels), divided by 255. Raises TypeError for other images."""
    check_array("images", images)
    if images.dtype != np.uint8:
        raise TypeError(f"images must be uint8, from 0 to 255, not {images.dtype}.")
    return numpy_baseline.scale(flatten(images), np.dtype(np.float32))


def flatten(images):
    """Return images (n, ...) as rows (n, pixels), in their own dtype."""
    return images.reshape(len(images), prod(images.shape[1:]))

"""Find the images on this machine, and make sure that they are the right ones.

MNIST comes with the workbook, in `data/mnist/`. Fashion-MNIST has the same format and size; it is looked for in
`fashion-mnist/` in the folder that the environment variable MLPKIT_DATA names, then where Debian's package puts it,
then in the MLPKIT_DATA folder itself; where none has it, it is downloaded once into the user's cache. Whatever the
source, the unpacked files must have the checksums below.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_choice
from mlpkit.engines import numpy_baseline

from .idx import IDXError, idx_bytes, read_idx

N_TRAIN = 55_000  # of the 60,000 training images; the other 5,000 are for validation
DIGITS = tuple("0123456789")
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
DEBIAN = Path("/usr/share/datasets")  # where the package dataset-fashion-mnist puts it
FASHION_MNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


class File(NamedTuple):
    """A file of a data set: its name unpacked, SHA-256 unpacked, and SHA-256 of the .gz file its authors publish."""

    name: str
    sha256: str
    sha256_gz: str = ""


class Split(NamedTuple):
    """X (n, 1, 28, 28) uint8, images of one channel, or (n, 784) float32, rows; y (n,) int64, the classes 0 to 9."""

    X: np.ndarray
    y: np.ndarray


class Dataset(NamedTuple):
    """A data set in three parts: fit on `train`, choose on `validation`, read `test` once."""

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]


MNIST = (
    File(
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    File(
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    File(
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    File(
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
FASHION_MNIST = (
    File(
        "train-images-idx3-ubyte",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    File(
        "train-labels-idx1-ubyte",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    File(
        "t10k-images-idx3-ubyte",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    File(
        "t10k-labels-idx1-ubyte",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
FILES = {"mnist": MNIST, "fashion-mnist": FASHION_MNIST}
CLASSES = {"mnist": DIGITS, "fashion-mnist": GARMENTS}


def load(name="mnist", scaled=False):
    """Return the `Dataset` called "mnist" or "fashion-mnist".

    X is as the files have it: images of bytes, from 0 to 255, which every network takes. scaled: X as rows of float32
    from 0 to 1, which formulas take; four times the memory.

    Raises ValueError for another name, FileNotFoundError where the files can't be had, and IDXError (a ValueError)
    naming the file that is damaged or is not the one it should be.
    """
    check_choice("data set", name, FILES)
    images, labels, test_images, test_labels = (_read(path, file) for path, file in _locate(name))
    look = scale if scaled else as_images
    X, y = look(images), labels.astype(np.int64)
    train, validation = Split(X[:N_TRAIN], y[:N_TRAIN]), Split(X[N_TRAIN:], y[N_TRAIN:])
    test = Split(look(test_images), test_labels.astype(np.int64))
    return Dataset(name, train, validation, test, CLASSES[name])


def scale(images):
    """Return uint8 images (n, ...) as float32 rows (n, pixels) in [0, 1]: divided by 255.

    Raises TypeError for images of another dtype.
    """
    if images.dtype != np.uint8:
        raise TypeError(f"images must be uint8, from 0 to 255, not {images.dtype}.")
    return numpy_baseline.scale(flatten(images), np.dtype(np.float32))


def flatten(images):
    """Return images (n, ...) as rows (n, pixels), in their own dtype."""
    return images.reshape(len(images), -1)


def as_images(images):
    """Return grey images (n, height, width) with their one channel: (n, 1, height, width)."""
    return images[:, None]


def _read(path, file):
    array = read_idx(path)
    if hashlib.sha256(idx_bytes(array)).hexdigest() != file.sha256:
        raise IDXError(f"{path}: whole, but not the original {file.name}: the SHA-256 is another.")
    return array


def _locate(name):
    """Return the (path, File) pairs of a data set, from the first folder that has all of them."""
    for folder in _folders(name):
        paths = [_in_folder(folder, file.name) for file in FILES[name]]
        if all(paths):
            return zip(paths, FILES[name], strict=True)
    if name == "fashion-mnist":
        return zip(_download(), FASHION_MNIST, strict=True)
    looked = ", ".join(str(folder) for folder in _folders(name))
    raise FileNotFoundError(
        f"the four files of {name} are not on this machine (looked in {looked}): run from a "
        "checkout of the workbook, or set MLPKIT_DATA to the folder that has them."
    )


def _folders(name):
    own = [Path(folder) for folder in (os.environ.get("MLPKIT_DATA"),) if folder]
    yield from (folder / name for folder in own)
    yield Path(__file__).resolve().parents[2] / "data" / name
    yield DEBIAN / name
    yield from own  # last: it may hold the other data set's files, which have the same names


def _in_folder(folder, name):
    found = (path for path in (folder / f"{name}.gz", folder / name) if path.is_file())
    return next(found, None)


def _download():
    import pooch  # here, because only a reader without the files needs it

    registry = {f"{file.name}.gz": file.sha256_gz for file in FASHION_MNIST}
    folder = Path(pooch.os_cache("mlpkit")) / "fashion-mnist"
    store = pooch.create(folder, FASHION_MNIST_URL, registry=registry, retry_if_failed=3)
    try:
        return [Path(store.fetch(name, progressbar=True)) for name in registry]
    except (OSError, ValueError) as error:  # no network, or a file with another checksum
        raise FileNotFoundError(
            "Fashion-MNIST is not on this machine and could not be downloaded: put its four .gz "
            f"files in a folder, and set MLPKIT_DATA to that folder ({error})."
        ) from error

"""Find the images on this machine, and make sure that they are the right ones.

MNIST comes with the workbook, in `data/mnist/`, and so does a sample of Fashion-MNIST, in `data/fashion-mnist-sample/`.
Fashion-MNIST itself has the same format and size as MNIST; it is looked for in `fashion-mnist/` in the folder that the
environment variable MLPKIT_DATA names, then in the workbook's `data/`, where Debian's package puts it, and in the
MLPKIT_DATA folder itself. Where none has it, `download` gets it, and only then is anything asked of the internet.
Whatever the source, the unpacked files must have the checksums below.
"""

import hashlib
import os
import time
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_array, check_choice, check_flag
from mlpkit.engines import numpy_baseline
from mlpkit.files import check_readable, check_writable, set_aside, write_atomically

from .idx import IDXError, parts, read_idx

N_TRAIN = 55_000  # of the 60,000 training images; the other 5,000 are for validation
DIGITS = tuple("0123456789")
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
DEBIAN = Path("/usr/share/datasets")  # where the package dataset-fashion-mnist puts it
SOURCES = (  # of Fashion-MNIST, its authors' own; the second has no https
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
SILENCE, LONGEST = 20.0, 900.0  # seconds that a server may say nothing, and that a file may take
MOST = 60_000 * 28 * 28  # bytes of the largest file's numbers


class File(NamedTuple):
    """A file of a data set: name and SHA-256 unpacked, SHA-256 and size of the .gz file that its authors publish."""

    name: str
    sha256: str
    sha256_gz: str = ""
    bytes_gz: int = 0


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


NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST_SHA256 = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION_SHA256 = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
FASHION_SHA256_GZ = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
MNIST = tuple(map(File, NAMES, MNIST_SHA256))
FASHION_MNIST = tuple(map(File, NAMES, FASHION_SHA256, FASHION_SHA256_GZ, (26_421_880, 29_515, 4_422_102, 5_148)))
FASHION_SAMPLE = (
    File("sample-images-idx3-ubyte", "862035b0a96959b614c9574f4c2b0ae9584ca234813e8d6d7adb7838b12ca46b"),
    File("sample-labels-idx1-ubyte", "aa3f574d30afaf0d4d9da084a6f8541771e20693d6a97fae6e9a4953fca8f078"),
)
FILES = {"mnist": MNIST, "fashion-mnist": FASHION_MNIST}
SAMPLES = {"fashion-mnist-sample": FASHION_SAMPLE}  # of test images alone: nothing to train on
CLASSES = {"mnist": DIGITS, "fashion-mnist": GARMENTS, "fashion-mnist-sample": GARMENTS}


def load(name="mnist", scaled=False):
    """Return the `Dataset` called "mnist" or "fashion-mnist", or "fashion-mnist-sample", which is always here.

    The sample is the first 2,000 of Fashion-MNIST's test images; its `train` and `validation` are empty.

    X is as the files have it: images of bytes, from 0 to 255, which every network takes. scaled: X as rows of float32
    from 0 to 1, which formulas take; four times the memory.

    Raises ValueError for another name, FileNotFoundError where the files are not on this machine, and IDXError (a
    ValueError) naming the file that is damaged or is not the one it should be.
    """
    check_choice("data set", name, FILES | SAMPLES)
    check_flag("scaled", scaled)
    *others, test_images, test_labels = (_read(path, file) for path, file in _locate(name))
    images, labels = others or (test_images[:0], test_labels[:0])
    look = scale if scaled else as_images
    X, y = look(images), labels.astype(np.int64)
    train, validation = Split(X[:N_TRAIN], y[:N_TRAIN]), Split(X[N_TRAIN:], y[N_TRAIN:])
    test = Split(look(test_images), test_labels.astype(np.int64))
    return Dataset(name, train, validation, test, CLASSES[name])


def scale(images):
    """Return uint8 images (n, ...) as float32 rows (n, pixels), divided by 255. Raises TypeError for other images."""
    check_array("images", images)
    if images.dtype != np.uint8:
        raise TypeError(f"images must be uint8, from 0 to 255, not {images.dtype}.")
    return numpy_baseline.scale(flatten(images), np.dtype(np.float32))


def flatten(images):
    """Return images (n, ...) as rows (n, pixels), in their own dtype."""
    return images.reshape(len(images), prod(images.shape[1:]))


def as_images(images):
    """Return grey images (n, height, width) with their one channel: (n, 1, height, width)."""
    return images[:, None]


def _read(path, file):
    array = read_idx(path, MOST)
    found = hashlib.sha256()
    for part in parts(array):
        found.update(part)
    if found.hexdigest() != file.sha256:
        raise IDXError(f"{path}: whole, but not the original {file.name}: the SHA-256 is another.")
    return array


def _locate(name):
    """Return the (path, File) pairs of a data set, from the first folder that has all of them."""
    files = (FILES | SAMPLES)[name]
    for folder in _folders(name):
        paths = [_in_folder(folder, file.name) for file in files]
        if all(paths):
            return zip(paths, files, strict=True)
    looked = ", ".join(str(folder) for folder in _folders(name))
    get_them = "run `python -m mlpkit download` once (31 MB)" if name == "fashion-mnist" else "run from a checkout"
    raise FileNotFoundError(
        f"the files of {name} are not on this machine (looked in {looked}): {get_them}, or set MLPKIT_DATA to the "
        "folder that has them."
    )


def _folders(name):
    own = [Path(os.path.expanduser(folder)) for folder in (os.environ.get("MLPKIT_DATA"),) if folder]
    yield from (folder / name for folder in own)
    yield Path(__file__).resolve().parents[2] / "data" / name
    yield DEBIAN / name
    yield from own  # last: it may hold the other data set's files, which have the same names


def _in_folder(folder, name):
    """Return where a file is, packed or not; None where it is not. Raises OSError where it can't be read."""
    for path in (folder / f"{name}.gz", folder / name):
        with suppress(FileNotFoundError):
            check_readable(path, "mend that, or set MLPKIT_DATA to another folder")
            return path


def download(progress=None):
    """Get Fashion-MNIST from its authors, 31 MB, where it is not on this machine yet; return the paths of its files.

    They are put into the first of the folders where `load` looks: each when it is whole, and has its checksum. One that
    is damaged, or another, is set aside. progress: is called with the number of bytes that have come, again and again.
    Raises OSError where no source gives a file, or it can't be written.
    """
    name, folder = "fashion-mnist", next(_folders("fashion-mnist"))
    with suppress(FileNotFoundError, IDXError):
        return [path for path, file in _locate(name) if len(_read(path, file))]  # in any folder, and all whole
    paths = [_in_folder(folder, file.name) or folder / f"{file.name}.gz" for file in FILES[name]]
    for index, file in enumerate(FILES[name]):
        with suppress(FileNotFoundError, IDXError):
            _read(paths[index], file)
            continue
        paths[index] = folder / f"{file.name}.gz"
        check_writable(paths[index])
        packed = _from_a_source(file, progress or (lambda count: None))
        set_aside(paths[index])
        write_atomically(paths[index], packed)
    return paths


def _from_a_source(file, progress):
    """Return the bytes of a .gz file from the first source that gives the right ones. Raises OSError if none does."""
    reasons = []
    for source in SOURCES:
        try:
            return _bytes_of(f"{source}{file.name}.gz", file, progress)
        except OSError as error:
            reasons.append(f"{source}: {error}".rstrip("."))
    raise OSError(
        f"{file.name}.gz could not be downloaded ({'; '.join(reasons)}): put the four .gz files of Fashion-MNIST in a "
        "folder, and set MLPKIT_DATA to that folder."
    )


def _bytes_of(url, file, progress):
    """Return what is at an address. Raises OSError unless it is the file, in time, and as soon as it is too long."""
    import requests  # here, because only a reader without the files needs it

    found, end = bytearray(), time.monotonic() + LONGEST
    with requests.get(url, stream=True, timeout=SILENCE, headers={"Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        while piece := _next_piece(answer.raw):
            found += piece
            progress(len(piece))
            if len(found) > file.bytes_gz:
                raise OSError(f"it sends more than the {file.bytes_gz:,} bytes of this file")
            if time.monotonic() > end:
                raise OSError(f"it takes more than {LONGEST / 60:.0f} minutes")
    if hashlib.sha256(found).hexdigest() != file.sha256_gz:
        raise OSError(f"it sends another file: {len(found):,} bytes, whose SHA-256 is not the original's")
    return bytes(found)


def _next_piece(answer):
    """Return what has come of an answer, without waiting for more."""
    from urllib3.exceptions import HTTPError

    try:
        return answer.read1(2**16)
    except HTTPError as error:
        raise OSError(str(error)) from error

"""Find a data set's files on this machine, and make sure that they are its authors' own.

They are in MNIST's format: images and labels to train on, images and labels to test with, four IDX files. MNIST comes
with the workbook, in `data/mnist/`, and so does a sample of Fashion-MNIST, in `data/fashion-mnist-sample/`. Any such
set is looked for in the folder of its name in the folder that the environment variable MLPKIT_DATA names, then in the
workbook's `data/`, where Debian's packages put it, and in the MLPKIT_DATA folder itself. Where none has it, `download`
gets it, if it can be, and only then is anything asked of the internet. Whatever the source, the unpacked files must
have the checksums that `sets` has.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlpkit.paths import check_readable, expanded

from .idx import IDXError, parts, read_idx

N_TRAIN = 55_000  # of the 60,000 training images; the other 5,000 are for validation
DEBIAN = Path("/usr/share/datasets")  # where the package dataset-fashion-mnist puts it
MOST = 60_000 * 28 * 28  # bytes of the largest file's elements
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class File(NamedTuple):
    """A file of a data set: name and SHA-256 unpacked, SHA-256 and size of the .gz file that its authors publish."""

    name: str
    sha256: str
    sha256_gz: str = ""
    bytes_gz: int = 0


class Originals(NamedTuple):
    """A data set's title, its files, and how one gets them. Only two files: of images to test with, and no others."""

    title: str
    files: tuple[File, ...]
    get_them: str = "run from a checkout"

    @property
    def name(self):
        return self.title.lower()

    def read(self):
        """Return train, validation and test as pairs: X (n, 1, 28, 28) uint8, grey images; y (n,) int64, labels.

        Raises FileNotFoundError where the files are not on this machine, IDXError for one that is not the original.
        """
        try:
            *others, test_images, test_labels = (read_original(path, file) for path, file in self.locate())
        except IDXError as error:
            raise IDXError(f"{str(error).rstrip('.')}; to have {self.title}'s own, {self.get_them}.") from error
        images, labels = others or (test_images[:0], test_labels[:0])
        X, y = images[:, None], labels.astype(np.int64)
        test = test_images[:, None], test_labels.astype(np.int64)
        return (X[:N_TRAIN], y[:N_TRAIN]), (X[N_TRAIN:], y[N_TRAIN:]), test

    def locate(self):
        """Return the (path, File) pairs, from the first folder that has all of them."""
        for folder in self.folders():
            paths = [in_folder(folder, file.name) for file in self.files]
            if all(paths):
                return zip(paths, self.files, strict=True)
        looked = ", ".join(str(folder) for folder in self.folders())
        raise FileNotFoundError(
            f"the files of {self.name} are not on this machine (looked in {looked}): {self.get_them}, or set "
            "MLPKIT_DATA to the folder that has them."
        )

    def folders(self):
        """Yield the folders where the files may be, the reader's own first."""
        own = [expanded(folder) for folder in (os.environ.get("MLPKIT_DATA"),) if folder]
        yield from (folder / self.name for folder in own)
        yield Path(__file__).resolve().parents[2] / "data" / self.name
        yield DEBIAN / self.name
        yield from own  # last: it may hold the other data set's files, which have the same names


def read_original(path, file):
    """Return the array of an IDX file. Raises IDXError unless it is the one with the checksum."""
    array = read_idx(path, MOST)
    found = hashlib.sha256()
    for part in parts(array):
        found.update(part)
    if found.hexdigest() != file.sha256:
        raise IDXError(f"{path}: whole, but not the original {file.name}: the SHA-256 is another.")
    return array


def in_folder(folder, name):
    """Return where a file is, packed or not; None where it is not. Raises OSError where it can't be read."""
    for path in (folder / f"{name}.gz", folder / name):
        with suppress(FileNotFoundError):
            check_readable(path, "mend that, or set MLPKIT_DATA to another folder")
            return path

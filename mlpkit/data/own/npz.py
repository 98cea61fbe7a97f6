"""An .npz file as Keras has it: x_train, y_train, x_test, y_test. None of it can run code."""

import re
import warnings
import zipfile
import zlib
from math import prod
from tokenize import TokenError

import numpy as np

from mlpkit.data.idx import DEFLATE_LIMIT
from mlpkit.paths import check_readable, expanded
from mlpkit.words import short, short_sentences

from .arrays import from_arrays
from .reading.listing import check_memory

PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
KINDS = {"x": "X", "images": "X", "y": "y", "labels": "y"}


@short_sentences()
def from_npz(path, *, name=None, **options):
    """Return the `Dataset` in an .npz file with arrays x_train, y_train, x_test, y_test, such as Keras' mnist.npz.

    Other such names do as well: train_images, train_labels, val_images. options, and what arrays may hold: as of
    `from_arrays`; `validation` and `test` are for parts that the file has not.

    Raises FileNotFoundError where there is no file, ValueError for one that is damaged, that has other arrays, or
    Python's objects, which are never unpickled, and what `from_arrays` raises.
    """
    path = expanded(path)
    check_readable(path)
    try:
        with zipfile.ZipFile(path) as file:
            headers = _headers(file)
            size = sum(member.file_size for member, *_ in headers.values())
            check_memory(size, f"the {len(headers)} arrays", "save fewer examples")
            arrays = {key: _read(file, *header) for key, header in headers.items()}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path} is damaged, or no .npz file: get it again ({error}).".replace("\n", " ")) from error
    except MemoryError:
        raise ValueError(f"{path} holds more than there is memory.") from None
    except UnicodeDecodeError as error:  # in the names of what it holds
        raise ValueError(f"{path} is damaged, or no .npz file: get it again ({error}).") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    pairs = {part: (arrays[part, "X"], arrays.get((part, "y"))) for part, kind in arrays if kind == "X"}
    return from_arrays(*pairs.pop("train"), name=name or path.stem, **options | pairs)


def _headers(file):
    """Return (member, shape, dtype, by columns) by part and kind, once all of them fit each other."""
    found = {}
    for member in file.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename!r} is packed in a way that NumPy has not: save it with np.savez.")
        words = set(re.split(r"\W|_", member.filename.removesuffix(".npy").lower()))
        part, kind = [PARTS[w] for w in words & PARTS.keys()], [KINDS[w] for w in words & KINDS.keys()]
        if len(words) != 2 or len(part) != 1 or len(kind) != 1 or (part[0], kind[0]) in found:
            raise ValueError(f"it holds {member.filename!r}, where x_train, y_train, x_test and y_test are read.")
        found[part[0], kind[0]] = (member, *_header(file, member))
    if {("train", "X"), ("train", "y")} - found.keys():
        raise ValueError("it has no x_train and y_train.")
    for (which, _), (member, shape, *_rest) in found.items():
        first = found.get((which, "X"))
        if not first or not shape or shape[:1] != first[1][:1]:
            raise ValueError(f"{member.filename} must have as many examples as its images, not the shape {shape}.")
    return found


def _header(file, member):
    """Return shape, dtype and order of an array, once it is clear that there are so many bytes."""
    with file.open(member) as opened:
        version = np.lib.format.read_magic(opened)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{member.filename} is in another version of the format, {version}.")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = _as_written(member, read, opened)
        size = member.file_size - opened.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python's objects, which could run code: save numbers, or texts.")
    if prod(shape) * dtype.itemsize != size or member.file_size > (member.compress_size + 1) * DEFLATE_LIMIT:
        raise ValueError(
            f"{member.filename} promises an array {shape} of {dtype}, which does not fit its {size} bytes."
        )
    return shape, dtype, by_columns


def _as_written(member, read, opened):
    """Return what NumPy reads of a header. Raises ValueError for whatever it raises, which is not documented."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of Python 2
            return read(opened)
    except (ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TokenError, TypeError) as error:
        raise ValueError(f"{member.filename} has no header that can be read ({short(error, 80)}).") from error


def _read(file, member, *_):
    with file.open(member) as opened:
        return np.lib.format.read_array(opened, allow_pickle=False)

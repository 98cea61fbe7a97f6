"""Named arrays in a file, as NumPy writes them: whole or not at all, and read without running what is in it."""

import io
import textwrap
import zipfile
from math import prod

import numpy as np

from .files import write_atomically
from .paths import check_readable, expanded


def save_npz(path, **arrays):
    """Write named arrays to the .npz file `path`, atomically."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getbuffer())


def load_npz(path, names):
    """Return the arrays called `names` from a file that `save_npz` wrote, as a dict. A file can't run code.

    Raises FileNotFoundError where there is no file, ValueError where it is damaged or holds other arrays. Takes no more
    memory than some copies of the file.
    """
    check_readable(path)
    with open(expanded(path), "rb") as file:
        try:
            return _arrays(file, names)
        except Exception as error:  # what zip's and NumPy's readers raise is not documented, and a list was never whole
            reason = textwrap.shorten(str(error) or type(error).__name__, 200).rstrip(".")
            message = f"{path} is damaged, or no .npz file that mlpkit has saved: choose another one ({reason})."
            raise ValueError(message) from error


def _arrays(file, names):
    """Return the arrays in an open .npz file, as a dict.

    Each member is read whole before NumPy looks at it: only then its checksum is compared. None may be packed: a
    kilobyte could become a gigabyte.
    """
    with zipfile.ZipFile(file) as packed:
        members = [member.filename for member in packed.infolist()]
        for name in names:
            if members.count(f"{name}.npy") != 1:
                raise ValueError(f"it holds other arrays: {name} is not there once")
            if packed.getinfo(f"{name}.npy").compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{name} is packed")
        return {name: _array(packed.read(f"{name}.npy")) for name in names}


def _array(data):
    """Return the array whose .npy file is `data`, bytes. What it promises is compared with what there is."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array is in another version of the format")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "biufcU" or not dtype.itemsize:
        raise ValueError(f"an array is of {dtype}, neither numbers nor text")
    if prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"an array of shape {shape} is in {len(data) - file.tell()} bytes")
    return np.ndarray(shape, dtype, data, file.tell(), order="F" if by_columns else "C").copy()

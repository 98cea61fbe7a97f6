"""Files that are either whole or not there at all, whenever the program is stopped."""

import io
import os
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np


def write_atomically(path, data):
    """Write the bytes `data` to `path`, by way of a temporary file beside it that is then renamed.

    A rename replaces the old file in one step, so there is never half a file, whenever this is killed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # on the disk before the rename is
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's own 0600 would hide the file from a class
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_writable(path):
    """Make sure that `path` can be written, before there is something to lose. Raises OSError with the reason.

    Its folder is made; a file that is there already stays as it is.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        advice = "make its folder writable, or choose another"
        raise type(error)(f"{path} can't be written ({error.strerror or error}): {advice}.") from error


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def save_npz(path, **arrays):
    """Write named arrays to the .npz file `path`, atomically."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def load_npz(path, names):
    """Return the arrays called `names` from an .npz file, as a dict. Never unpickles: a file can't run code.

    Raises FileNotFoundError where there is no file, ValueError where it is damaged or holds other arrays.
    """
    data = io.BytesIO(Path(path).read_bytes())
    try:
        with np.lib.npyio.NpzFile(data, allow_pickle=False) as file:
            return {name: _array(file, name) for name in names}
    except KeyError as error:
        raise ValueError(f"{path} holds other arrays: {error.args[0]}.") from error
    except _DAMAGE as error:
        raise ValueError(f"{path} is not a whole .npz file without pickles: {str(error).rstrip('.')}.") from error


# A header that promises more than there is memory, or than NumPy can count, is damage too.
_DAMAGE = (OSError, EOFError, RuntimeError, ValueError, OverflowError, MemoryError, zipfile.BadZipFile, zlib.error)


def _array(file, name):
    array = file[name]
    if not isinstance(array, np.ndarray):  # NumPy hands out the bytes of what does not begin as an array does
        raise ValueError(f"{name} is no array")
    return array

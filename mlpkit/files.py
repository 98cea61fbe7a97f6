"""Files that are either whole or not there at all, whenever the program is stopped."""

import errno
import glob
import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from .paths import expanded, place_of

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


def write_atomically(path, data):
    """Write the bytes `data` to `path`, by way of a temporary file beside it that is then renamed.

    A rename replaces the old file in one step, so there is never half a file, whenever this is killed. Of a link, the
    file that it leads to is written. Raises OSError, which names `path`, where that can't be.
    """
    try:
        place = place_of(path)
        with _temporary(place) as (file, name):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # on the disk before the rename is
            os.chmod(name, 0o666 & ~_umask())  # mkstemp's own 0600 would hide the file from a class
            if sys.platform == "win32":  # which renames no open file; elsewhere it is locked until it has its name
                file.close()
            os.replace(name, place)
    except OSError as error:
        raise _unwritable(path, error) from error


def check_writable(path):
    """Make sure that `path` can be written, before there is something to lose. Raises OSError with the reason.

    Its folder is made; a file that is there already stays as it is. What killed processes left of it is removed.
    """
    try:
        place = place_of(path)
        with _temporary(place):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error
    for left in place.parent.glob(glob.escape(f".{place.name}.") + f"*{TEMPORARY}"):
        with suppress(OSError):  # another process is writing it
            with open(left, "r+b") as file:
                _lock(file)
                if sys.platform != "win32":  # which removes no open file
                    left.unlink()
            left.unlink(missing_ok=True)


def set_aside(path):
    """Rename a file that is about to be replaced to `<name> <when><ending>.previous`, so that none is lost.

    Return its new path, None where there is no file. Each has its own name, by when it was written: after two runs that
    were stopped at once, the file of the one before them is still there.
    """
    path = expanded(path)
    with suppress(FileNotFoundError):  # there is none, or another run has just moved it
        when = _time_of(path.stat().st_mtime)
        names = (
            path.with_name(f"{path.stem} {when}{again}{path.suffix}.previous") for again in chain([""], count(-1, -1))
        )
        return path.replace(next(name for name in names if not name.exists()))


def _time_of(seconds):
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H.%M.%S.%f}"
    except (OSError, OverflowError, ValueError):  # as of a clock beyond the year 9999
        return f"{seconds:.0f}"


@contextmanager
def only_one(folder):
    """Keep other processes, and other calls, from doing what follows in `folder`. Raises OSError where one does it now.

    A lock ends with its process, so none outlives a kill; its file, `.lock`, is empty and stays.
    """
    try:
        file = open(place_of(Path(folder) / ".lock"), "ab")  # noqa: SIM115 (closed below)
    except OSError as error:  # such as another user's
        raise _unwritable(Path(folder) / ".lock", error) from error
    with file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):
            raise OSError(f"another run is at work in {folder}: wait for its end, or choose another folder.") from None
        except OSError:
            pass  # some file systems have no locks
        yield


TEMPORARY = ".mlpkit"  # what the names of our temporary files end in


@contextmanager
def _temporary(place):
    """Yield a new file in the folder of `place`, which is made, and the file's name; remove it, where it is left.

    As long as somebody writes it, it is locked, where the file system has locks.
    """
    if place.exists() and not os.access(place, os.W_OK):  # which a rename would not ask
        raise PermissionError(errno.EACCES, "it is write-protected")
    place.parent.mkdir(parents=True, exist_ok=True)
    file, name = _new(place)
    try:
        with file:
            yield file, name
    finally:
        Path(name).unlink(missing_ok=True)


def _new(place):
    """Return a new file beside `place`, and its name. One that is taken for a leftover before its lock is given up."""
    for _ in range(100):
        handle, name = tempfile.mkstemp(TEMPORARY, f".{place.name}.", place.parent)
        file = os.fdopen(handle, "wb")
        try:
            _lock(file)
            ours = os.path.exists(name)
        except (BlockingIOError, PermissionError):
            ours = False
        except OSError:  # some file systems have no locks
            ours = True
        if ours:
            return file, name
        file.close()
        Path(name).unlink(missing_ok=True)
    raise OSError(errno.EBUSY, "others remove what is written there")


def _lock(file):
    """Lock an open file until it is closed. Raises BlockingIOError, on Windows PermissionError, where it is locked."""
    if sys.platform == "win32":
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unwritable(path, error):
    reason, advice = error.strerror or error, "choose another place, or make room and permission there"
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason, advice = "a file stands where its folder should be", "choose another place"
    return type(error)(f"{path} can't be written ({reason}): {advice}.")


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Where a path leads: `~` is the home folder, and what is no regular file is neither read nor replaced."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path


def expanded(path):
    """Return `path`, in which `~` is the home folder, as a shell would have it, and a notebook has not."""
    return Path(os.path.expanduser(path))


def check_readable(path, advice="choose another file"):
    """Make sure that the file `path` can be read. Raises FileNotFoundError where there is none.

    Raises OSError, with the reason and the advice, for what is in its place, or in the way to it.
    """
    try:
        with open(place_of(path), "rb"):
            pass
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}: {advice}.") from error
    except OSError as error:
        raise type(error)(f"{path} can't be read ({error.strerror or error}): {advice}.") from error


def place_of(path):
    """Return where `path` leads, through all links. Raises OSError for what is there and no regular file.

    A device would be replaced by a file, and a named pipe would wait for its other end.
    """
    place = Path(os.path.realpath(expanded(path)))
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = place.stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return place

"""Files that came in, by mail or from a learning platform, go where nbgrader looks: submitted/STUDENT/LAB/LAB.ipynb."""

import errno
import filecmp
import os
import stat
import tempfile
import time
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

from mlpkit.files import write_atomically

from . import filenames
from .release import names
from .submission import LARGEST_NOTEBOOK

LARGEST_ZIP = 4 * 2**30  # bytes of what is taken out of one
ADVICE = "name the folder, or the zip file, of what came in"


def everything(folder, unread):
    """Yield what is in a folder and its folders, but nothing hidden, and nothing that only a link leads to.

    A folder that can't be read is no empty one, nor is a link to one: `unread` is called with an OSError.
    """
    for top, folders, files in os.walk(folder, onerror=unread):
        for name in sorted(folders):
            if name[0] == "." or name == "__MACOSX":  # .ipynb_checkpoints: nobody handed these in
                folders.remove(name)
            elif os.path.islink(path := os.path.join(top, name)):
                folders.remove(name)
                unread(OSError(errno.ELOOP, "it is a link to a folder", path))
        folders.sort()
        yield from (Path(top, name) for name in sorted(folders + files) if name[0] != ".")


def collect(inbox, root, pattern=None):
    """Copy what can be told apart, and return [(path, why not)] for the rest.

    inbox: a folder, or a zip file, with files such as ada_lab01.ipynb, ada/lab01.ipynb or as a learning platform names
    them (`filenames`), or as `pattern` says. Of two files of one student for one lab the newer is taken. Raises OSError
    where the inbox can't be read, or is no inbox, and ValueError for a pattern that is none.
    """
    wanted = filenames.pattern(pattern) if pattern else None
    _check(inbox, root)
    labs = names(root)
    with _opened(Path(inbox)) as (folder, left):
        found = _found(folder, root, labs, wanted, left)
        for (student, lab), files in found.items():
            _take(root / "submitted" / student / lab / f"{lab}.ipynb", max(files), left)
            _say_which(files, left)
    return [(Path(inbox) / path.relative_to(folder), why) for path, why in dict.fromkeys(left)]  # each once


def _found(inbox, root, labs, wanted, left):
    """Return {(student, lab): [(when, path)]}, and append to `left` what can't be taken, with the reason."""
    found: dict = {}
    students = {path.name.casefold(): path.name for path in (root / "submitted").glob("*")}

    def unread(error):
        left.append((Path(error.filename), f"it can't be read ({error.strerror})."))

    for path in everything(inbox, unread):
        try:
            about = path.lstat()
        except OSError as error:
            unread(error)
            continue
        if stat.S_ISDIR(about.st_mode) and path.suffix != ".ipynb":
            continue
        try:
            _must_be_notebook(path, about)
            student, lab = filenames.told(path.relative_to(inbox).as_posix(), labs, wanted)
            if (other := students.setdefault(student.casefold(), student)) != student:  # one folder, on some disks
                raise ValueError(f"there is a student {other}, too: rename it, capitals alone tell nobody apart.")
        except ValueError as why:
            left.append((path, str(why)))
        else:
            found.setdefault((student, lab), []).append((about.st_mtime_ns, path))
    return found


def _must_be_notebook(path, about):
    """Raise ValueError unless a path is a file that may be a notebook. about: what `lstat` says of it."""
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is a link, a folder or another thing that is no file.")
    if path.suffix != ".ipynb":
        unzip = ", or unzip it" if path.suffix == ".zip" else ""
        raise ValueError(f"its name should end with .ipynb{unzip}.")
    if about.st_size > LARGEST_NOTEBOOK:
        raise ValueError(f"it is larger than {LARGEST_NOTEBOOK >> 20} MB.")


def _take(goal, file, left):
    when, newest = file
    try:
        with open(os.open(newest, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            _must_be_notebook(newest, os.fstat(opened.fileno()))  # still: where others write, it may be another by now
            data = opened.read(LARGEST_NOTEBOOK)
        if goal.is_file() and goal.stat().st_mtime_ns > when and goal.read_bytes() != data:
            left.append((newest, f"{goal} is newer, as if somebody has mended it: delete that to take this one."))
            return
        write_atomically(goal, data)
        os.utime(goal, ns=(when, when))  # with its time: a file that is newer has been changed there
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None)
        left.append((newest, f"it can't be copied ({reason})." if reason else str(error)))


def _say_which(files, left):
    """Append to `left` what is as new as the file that was taken, but another: nothing tells which counts."""
    when, newest = max(files)
    for path in (path for same, path in files if same == when and path != newest):
        with suppress(OSError):  # that has been said
            if not filecmp.cmp(path, newest, shallow=False):
                left.append(
                    (path, f"{newest.name} is of the same time, and was taken: delete the one that doesn't count.")
                )


@contextmanager
def _opened(inbox):
    """Yield the inbox as a folder, and [(path, why not)]: of a zip file, a folder with what it holds."""
    left: list[tuple[Path, str]] = []
    if inbox.is_dir():
        yield inbox, left
        return
    with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(inbox) as file:
        folder = Path(name)
        for member in file.infolist():
            if member.is_dir():
                continue
            if member.file_size > LARGEST_NOTEBOOK:
                left.append((folder / member.filename, f"it is larger than {LARGEST_NOTEBOOK >> 20} MB."))
                continue
            try:
                path = file.extract(member, folder)  # never out of that folder
                when = time.mktime((*member.date_time, 0, 0, -1))
                os.utime(path, (when, when))
            except Exception as error:  # whatever a damaged, an encrypted or an odd member leads to
                left.append((folder / member.filename, f"it can't be unpacked ({error})."))
        yield folder, left


def _check(inbox, root):
    """Raise OSError unless `inbox` is a folder or zip file that can be read, and other than the one with all labs."""
    try:
        if not os.path.isfile(inbox):
            os.listdir(inbox)
        elif not zipfile.is_zipfile(inbox):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        elif (size := _unpacked(inbox)) > LARGEST_ZIP:
            raise OSError(errno.EFBIG, f"it would unpack to {size >> 20:,} MB")
    except (OSError, zipfile.BadZipFile) as error:
        why = getattr(error, "strerror", None) or error
        raise OSError(f"Nothing was graded: {inbox} can't be read ({why}), {ADVICE}.") from None
    if root.resolve().is_relative_to(Path(inbox).resolve()):
        raise OSError(f"Nothing was graded: {inbox} holds the labs themselves, {ADVICE}.")


def _unpacked(path):
    with zipfile.ZipFile(path) as file:
        return sum(member.file_size for member in file.infolist() if member.file_size <= LARGEST_NOTEBOOK)

"""Files that came in, by mail or from a learning platform, go where nbgrader looks: submitted/STUDENT/LAB/LAB.ipynb."""

import os
import re
import stat
from pathlib import Path

from mlpkit.files import write_atomically

from .release import names
from .submission import LARGEST_NOTEBOOK

STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@+-]{0,63}")


def everything(folder, unread):
    """Yield what is in a folder and its folders, but nothing hidden, and nothing that only a link leads to.

    A folder that can't be read is no empty one: `unread` is called with the OSError.
    """
    for top, folders, files in os.walk(folder, onerror=unread):
        folders[:] = sorted(name for name in folders if name[0] != ".")  # .ipynb_checkpoints: nobody handed these in
        yield from (Path(top, name) for name in sorted(folders + files) if name[0] != ".")


def collect(inbox, root):
    """Copy what can be told apart, and return [(path, why not)] for the rest.

    inbox: a folder with files such as ada_lab01.ipynb, ada/lab01.ipynb or ada/lab01/lab01.ipynb. Of two files of one
    student for one lab the newer is taken. Raises OSError where the inbox can't be read, or is no inbox.
    """
    _check(inbox, root)
    labs, left = names(root), []
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
        parts = path.relative_to(inbox).parts
        student, _, lab = path.stem.rpartition("_") if len(parts) == 1 else (parts[0], "", path.stem)
        lab = re.sub(r"( ?\(\d+\)|-Copy\d+| \d+)$", "", lab)
        if not stat.S_ISREG(about.st_mode):
            left.append((path, "it is a link, a folder or another thing that is no file."))
        elif path.suffix != ".ipynb":
            left.append((path, "its name should end with .ipynb."))
        elif about.st_size > LARGEST_NOTEBOOK:
            left.append((path, f"it is larger than {LARGEST_NOTEBOOK >> 20} MB."))
        elif lab not in labs:
            left.append((path, f"its name should end with one of {', '.join(labs)}."))
        elif not STUDENT.fullmatch(student):
            left.append((path, "its name should begin with the student's: letters, digits and . @ + - only."))
        elif (other := students.setdefault(student.casefold(), student)) != student:  # one folder, on some disks
            left.append((path, f"there is a student {other}, too: rename it, capitals alone tell nobody apart."))
        else:
            found.setdefault((student, lab), []).append((about.st_mtime_ns, path))
    for (student, lab), files in found.items():
        when, newest = max(files)
        goal = root / "submitted" / student / lab / f"{lab}.ipynb"
        try:
            data = newest.read_bytes()
            if goal.is_file() and goal.stat().st_mtime_ns > when and goal.read_bytes() != data:
                left.append((newest, f"{goal} is newer, as if somebody has mended it: delete that to take this one."))
                continue
            write_atomically(goal, data)
            os.utime(goal, ns=(when, when))  # with its time: a file that is newer has been changed there
        except OSError as error:
            left.append((newest, f"it can't be copied ({error.strerror})." if error.strerror else str(error)))
    return list(dict.fromkeys(left))  # each once


def _check(inbox, root):
    """Raise OSError unless `inbox` is a folder that can be read, and other than the one with all the labs."""
    advice = "name the folder of the files that came in"
    try:
        os.listdir(inbox)
    except OSError as error:
        raise OSError(f"Nothing was graded: {inbox} can't be read ({error.strerror}), {advice}.") from None
    if root.resolve().is_relative_to(inbox.resolve()):
        raise OSError(f"Nothing was graded: {inbox} holds the labs themselves, {advice}.")

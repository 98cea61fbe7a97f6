"""Files that came in, by mail or from a learning platform, go where nbgrader looks: submitted/STUDENT/LAB/LAB.ipynb."""

import re
import shutil

from .release import names

STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@+-]{0,63}")


def collect(inbox, root):
    """Copy what can be told apart, and return [(path, why not)] for the rest.

    inbox: a folder with files such as ada_lab01.ipynb, ada/lab01.ipynb or ada/lab01/lab01.ipynb. Of two files of one
    student for one lab the newer is taken.
    """
    labs, left = names(root), []
    found: dict = {}
    for path in sorted(inbox.rglob("*")):
        parts = path.relative_to(inbox).parts
        if any(part.startswith(".") for part in parts):  # .ipynb_checkpoints, .DS_Store: nobody handed these in
            continue
        if path.suffix != ".ipynb":
            if not path.is_dir():
                left.append((path, "its name should end with .ipynb."))
            continue
        student, _, lab = path.stem.rpartition("_") if len(parts) == 1 else (parts[0], "", path.stem)
        lab = re.sub(r"( ?\(\d+\)|-Copy\d+| \d+)$", "", lab)
        if path.is_symlink() or not path.is_file():
            left.append((path, "it is a link, a folder or another thing that is no file."))
        elif lab not in labs:
            left.append((path, f"its name should end with one of {', '.join(labs)}."))
        elif not STUDENT.fullmatch(student):
            left.append((path, "its name should begin with the student's: letters, digits and . @ + - only."))
        else:
            found.setdefault((student, lab), []).append(path)
    for (student, lab), paths in found.items():
        newest = max(paths, key=lambda path: path.stat().st_mtime)
        goal = root / "submitted" / student / lab / f"{lab}.ipynb"
        try:
            goal.parent.mkdir(parents=True, exist_ok=True)
            if _mended(goal, newest):
                left.append((newest, f"{goal} is newer, as if somebody has mended it: delete that to take this one."))
                continue
            shutil.copy2(newest, goal)  # with its time: a file that is newer has been changed there
        except OSError as error:
            left.append((newest, f"it can't be copied to {goal} ({error.strerror or error})."))
    return left


def _mended(goal, newest):
    """Return whether the file that was collected has been changed since, and is not the one that came in."""
    return goal.is_file() and goal.stat().st_mtime > newest.stat().st_mtime and goal.read_bytes() != newest.read_bytes()

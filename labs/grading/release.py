"""Make the student versions: `labs/source/` without solutions and hidden tests goes to `labs/release/`, by nbgrader.

The same step enters each lab, its cells and points into nbgrader's gradebook, `labs/gradebook.db`.
"""

import os
import re
import shutil
import sys
from pathlib import Path

from traitlets.config.loader import PyFileConfigLoader

from . import command

LABS = Path(__file__).resolve().parents[1]
FORBIDDEN = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS")


def settings(root):
    """Return nbgrader's configuration for a folder of labs."""
    from .judge import EMPTY  # here, as below: Ctrl-C while it loads is met by `command`

    config = PyFileConfigLoader("nbgrader_config.py", str(LABS)).load_config()
    config.CourseDirectory.root = str(root)
    if config.ClearSolutions.text_stub != EMPTY:
        raise RuntimeError(f"nbgrader_config.py must leave {EMPTY!r} for an answer in words.")
    return config


def find_alembic():
    """Let nbgrader find the program that makes its gradebook, and that program read the path of these labs.

    It is asked for by name, and PATH may lack this venv. Where the locale is C, Python writes UTF-8, and that program
    would read ASCII.
    """
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    if sys.flags.utf8_mode:
        os.environ["LC_ALL"] = "C.UTF-8"


def names(root=LABS):
    """Return the names of the labs that there is a source of. Raises OSError where there is none."""
    found = sorted(path.stem for path in (root / "source").glob("*/*.ipynb") if path.stem == path.parent.name)
    if not found:
        raise OSError(f"there is no lab in {root / 'source'}, or it can't be read: get the workbook's labs again.")
    return found


def release(root=LABS):
    """Write `release/` and the gradebook's entries, and return the labs' names. Raises RuntimeError if one fails."""
    from nbgrader.apps import NbGraderAPI

    find_alembic()
    api = NbGraderAPI(config=settings(root))
    for name in names(root):
        shutil.rmtree(root / "release" / name, ignore_errors=True)
        result = api.generate_assignment(name, force=True)
        path = root / "release" / name / f"{name}.ipynb"
        if not result["success"] or not path.is_file():
            raise RuntimeError(f"nbgrader could not make {name}: {_reason(result)}")
        text = path.read_text(encoding="utf-8")
        left = [mark for mark in FORBIDDEN if mark in text]
        if left:
            path.unlink()
            raise RuntimeError(f"{name} still had {left[0]!r} in it, and was not released.")
    return names(root)


def _reason(result):
    """Return the error that nbgrader's log tells of, with no lines of a traceback; its own has none."""
    said = f"{result.get('log', '')}\n{result.get('error', '')}"
    errors = re.findall(r"^ *[\w.]*?(\w+Error: .+)", said, re.MULTILINE)
    return errors[-1] if errors else " ".join(said.split())[-300:]


def main(say):
    made = release()
    say(f"{len(made)} labs in {LABS.name}/release: {', '.join(made)}")


if __name__ == "__main__":
    sys.exit(command.run(main, "make them again, before you hand out a lab."))

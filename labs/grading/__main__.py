"""Collect, grade every submission in a box of its own, and write a table: `python -m labs.grading [INBOX]`."""

import argparse
import sys
from pathlib import Path

from . import box, table
from .collect import collect
from .release import LABS


def main():
    parser = argparse.ArgumentParser(prog="python -m labs.grading", description=__doc__)
    parser.add_argument("inbox", nargs="?", type=Path, help="a folder of files STUDENT_LAB.ipynb, or STUDENT/LAB.ipynb")
    parser.add_argument("--labs", type=Path, default=LABS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        box.require()
    except box.NoBox as error:
        print(f"Nothing was graded, because submissions run only in a box, and {error}", file=sys.stderr)
        return 1
    if options.inbox:
        if not options.inbox.is_dir():
            print(f"Nothing was graded: there is no folder {options.inbox}.", file=sys.stderr)
            return 1
        for path, why in collect(options.inbox, options.labs):
            print(f"{path}: look by hand, {why}", file=sys.stderr)
    rows = table.grade_all(options.labs)
    if not rows:
        print(f"Nothing to grade in {options.labs / 'submitted'}: see labs/INSTRUCTORS.md.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Collect, grade every submission in a box of its own, and write a table: `python -m labs.grading [INBOX]`."""

import argparse
import logging
import sys
from pathlib import Path

from . import command

KEPT = "each table and page is whole, new or as it was, and points that a person gave are kept; run it again for more."


def main():
    parser = argparse.ArgumentParser(prog="python -m labs.grading", description=__doc__)
    parser.add_argument("inbox", nargs="?", type=Path, help="a folder, or a zip file, of what came in")
    parser.add_argument("--pattern", help="how files are called there, such as '{lab}/* - {student} - */*.ipynb'")
    parser.add_argument("--labs", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    return command.run(lambda say: grade(options, say), KEPT)


def grade(options, say):
    """Collect from the inbox, if there is one, and grade; return 1 where nothing was graded. say: takes each line."""
    from . import box, table  # here, so that Ctrl-C while they load ends in a sentence, too
    from .collect import collect
    from .release import LABS

    logging.disable()  # nbgrader logs a traceback for what a line of `table` says
    root = options.labs or LABS
    try:
        box.require()
    except box.NoBox as error:
        say.error(f"Nothing was graded, because submissions run only in a box, and {error}")
        return 1
    try:
        left = collect(options.inbox, root, options.pattern) if options.inbox else ()
    except ValueError as error:
        say.error(f"Nothing was graded: {error}")
        return 1
    for path, why in left:
        say.error(f"{path}: look by hand, {why}")
    if not table.grade_all(root, say):
        say.error(f"Nothing to grade in {root / 'submitted'}: see labs/INSTRUCTORS.md.")
        return 1


if __name__ == "__main__":
    sys.exit(main())

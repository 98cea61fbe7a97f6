"""Lay out one submission for nbgrader's Formgrader: `python -m labs.grading.layout RELEASED SUBMISSION LAID_OUT`.

What is laid out is ours, but for the student's words and code, which are made inert. Standard input is JSON, {cell:
sentence}; the output is {"notebook": text, "lapsed": [cell, ...]} or {"error": sentence}. Nothing is written: a file
that came in is read here, in a process with limits, and not by the one that has the gradebook.
"""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

import nbformat

from mlpkit.words import printable

from . import box, inert, submission
from .judge import merge, name_of, role

SHOWN = 50_000  # characters of a student's cells, of which Formgrader shows some 10,000 a second


def lay_out(released, path, earlier, says):
    """Return {"notebook", "lapsed"}: the text of a notebook, and the cells whose points by hand count no more.

    released, path, earlier: the lab's student version, a submission, and what was laid out before, if it is there.
    says: {cell: sentence}. Raises RuntimeError where a file of ours is damaged.
    """
    notebook = ours(released)
    before = _digests(ours(earlier)) if earlier.exists() else {}
    graded = {name_of(cell): role(cell) for cell in notebook.cells if role(cell) in ("test", "written")}
    with contextlib.suppress(submission.NotALab):
        notebook.cells = merge(notebook, submission.read(path))
    now, left = _digests(notebook), SHOWN
    for number, cell in enumerate(notebook.cells):
        mine = role(cell) in (None, "solution", "written")
        if mine and role(cell):
            cell.metadata["mlpkit"] = {"answer": now[name_of(cell)]}
        cell.id = f"cell-{number}"
        length = len(cell.source)
        if mine:
            _show(cell, left)
            left -= min(length, left, inert.LONGEST)
        if cell.cell_type == "code":  # what a submission says it printed is not evidence
            said = printable(says.get(name_of(cell), "")) if role(cell) else ""
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=said)] if said else []
    changed = [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]
    lapsed = [name for name, kind in graded.items() if (changed if kind == "test" else name in changed)]
    return {"notebook": nbformat.writes(notebook), "lapsed": lapsed}


def ours(path):
    """Return a notebook of ours. Raises RuntimeError where it is damaged."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # whatever a damaged file leads to
        raise RuntimeError(f"{path}: the file is no notebook ({type(error).__name__}).") from None


def _show(cell, left):
    """Make a student's cell inert; no more than `left` characters of it are shown."""
    pictures = cell.pop("attachments", {})
    if not left and cell.source:
        cell.source = f"[{len(cell.source):,} characters that are not shown]"
    source = cell.source[: max(left, 100)]
    if cell.cell_type == "code":
        cell.source = inert.code(source)
        return
    cell.source = inert.markdown(source, pictures) if cell.cell_type == "markdown" else inert.text(source)
    cell.cell_type = "markdown"


def _digests(notebook):
    """Return {cell: what tells its text from any other} of the cells that a student fills in."""
    found = {}
    for cell in notebook.cells:
        if role(cell) in ("solution", "written"):
            words = cell.source + str(cell.get("attachments") or "")  # another picture is another answer
            digest = hashlib.sha256(words.encode()).hexdigest()
            found[name_of(cell)] = cell.metadata.get("mlpkit", {}).get("answer", digest)
    return found


def main(released, path, earlier):
    box.limit_this_process(submission.MEMORY)
    try:
        made = lay_out(Path(released), Path(path), Path(earlier), json.load(sys.stdin))
    except RuntimeError as error:
        made = {"error": str(error)}
    sys.stdout.write(json.dumps(made))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

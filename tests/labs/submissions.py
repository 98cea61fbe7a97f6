"""Submissions made from the labs' sources: solved, empty, with one answer replaced, or with a cell that does harm."""

from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
LABS = ROOT / "labs"
MISTAKES = Path(__file__).parent / "mistakes"  # one file a lab
NAMES = sorted(path.stem for path in (LABS / "source").glob("*/*.ipynb"))


def source(lab):
    return LABS / "source" / lab / f"{lab}.ipynb"


def solved(lab):
    return nbformat.read(source(lab), as_version=4)


def visible(lab):
    """Return the lab with its solutions, and of its tests only what a student sees."""
    notebook = solved(lab)
    for made in notebook.cells:
        made.source = made.source.partition("### BEGIN HIDDEN TESTS")[0]
    return notebook


def cell(notebook, name):
    (found,) = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == name]
    return found


def answer(notebook, name, text):
    """Put another answer into a solution cell, and return the notebook."""
    cell(notebook, name).source = text
    return notebook

"""Write the chapters for Colab, which gets one file and nothing else, into `colab/`.

A first cell fetches the workbook and what it imports, links lead to where the files are on the web, and outputs are
left out. The chapters in `notebooks/` stay as they are. The address is the one setting in `conf.py`.
"""

import re
import sys
from pathlib import Path

import nbformat

import conf
from build import LINK, ROOT, find_chapters

FOLDER = ROOT / "colab"
COLAB = "https://colab.research.google.com"
FIRST = """\
# Only in Colab: this fetches the workbook and what it imports, in a minute or two.
!test -d /content/mlpkit || git clone --quiet --depth 1 {repository} /content/mlpkit
%cd -q /content/mlpkit/notebooks
%run ../tools/set_up_colab.py"""


def main():
    if not conf.repository:
        sys.exit("Colab gets the workbook from the web: set `repository` in site/conf.py to its address there first.")
    FOLDER.mkdir(exist_ok=True)
    made = notebooks(conf.repository)
    for path in FOLDER.glob("*.ipynb"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{FOLDER}: {len(made)} chapters; commit them, for the site's Colab buttons lead there.")


def notebooks(repository):
    """Return {name: text} of all chapters as they are in Colab. repository: its address on GitHub."""
    return {Path(name).name: for_colab(ROOT / name, repository) for names in find_chapters() for name in names}


def for_colab(path, repository):
    """Return a chapter's text with the first cell, links to the web, and no outputs."""
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        else:
            cell.source = LINK.sub(lambda found: to_web(found, path.parent, repository), cell.source)
    first = nbformat.v4.new_code_cell(FIRST.format(repository=repository), id="colab")
    notebook.cells.insert(0, first)
    return nbformat.writes(notebook) + "\n"


def to_web(found, folder, repository):
    """Return a link of the workbook's as one to the web: a chapter opens in Colab, another file where it is stored."""
    path = (folder / found[1]).resolve()
    if not path.exists():  # no link, but what looks like one
        return found[0]
    inside = path.relative_to(ROOT).as_posix()
    if re.fullmatch(r"notebooks/\w+\.ipynb", inside):
        target = f"{COLAB}/github/{repository.partition('github.com/')[2]}/blob/main/colab/{path.name}"
    else:
        target = f"{repository}/{'tree' if path.is_dir() else 'blob'}/main/{inside}"
    return found[0].replace(found[1], target, 1)


if __name__ == "__main__":
    main()

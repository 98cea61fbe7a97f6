"""Run notebooks from top to bottom and store what their cells put out.

A stored page is read on GitHub and compared by nbval, so it keeps what a reader sees and drops what
differs from run to run. A notebook's file is replaced whole, and only after its last cell has run.
"""

import argparse
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from nbformat.reader import NotJSONError
from tqdm import tqdm

FOLDER = Path(__file__).parents[1] / "notebooks"
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def main(paths: list[Path]) -> None:
    notebooks = [(path, read(path)) for path in paths]
    cells = sum(runs(cell) for _, notebook in notebooks for cell in notebook.cells)
    with tqdm(total=cells, unit="cell", dynamic_ncols=True) as progress:
        for path, notebook in notebooks:
            execute(path, notebook, progress)
            clean(notebook)
            write(path, notebook)


def read(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, nbformat.NO_CONVERT)
    except (OSError, ValueError, NotJSONError) as error:
        sys.exit(f"{path} can't be read as a notebook ({type(error).__name__}); none was run.")


def runs(cell: NotebookNode) -> bool:
    return bool(cell.cell_type == "code" and cell.source.strip())


def execute(path: Path, notebook: NotebookNode, progress: tqdm) -> None:
    """Run a notebook's cells in its own folder, or exit naming the cell that failed."""
    where = path.name

    def started(cell: NotebookNode, cell_index: int) -> None:
        nonlocal where
        where = f"{path.name}, cell {cell_index + 1} (id {cell.get('id')})"
        progress.set_description(where)

    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name=KERNEL["name"],
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--log-level=ERROR"],  # its warnings would tear the progress bar
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,  # where a stream is cut into messages differs from run to run
        on_cell_start=started,
        on_cell_executed=lambda **_: progress.update(),
    )
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        progress.close()
        sys.exit(f"{error}\n{where} failed; {path} is left as it was.")


def clean(notebook: NotebookNode) -> None:
    """Drop what would differ on the next run or machine, or show as an error on a stored page."""
    notebook.metadata["kernelspec"] = KERNEL
    notebook.metadata.get("language_info", {}).pop("version", None)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            # No kernel, no widget: its other forms (html, png, text) are what a page can show.
            output.get("data", {}).pop(WIDGET_VIEW, None)


def write(path: Path, notebook: NotebookNode) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        nbformat.write(notebook, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of notebooks/")
    try:
        main(parser.parse_args().notebooks or sorted(FOLDER.glob("*.ipynb")))
    except OSError as error:
        sys.exit(f"{error}: this notebook, and those after it, are left as they were.")
    except KeyboardInterrupt:
        sys.exit("interrupted: the notebook that was run, and those after it, are left as they were.")

"""For nbgrader, here and in JupyterLab started in this folder: the course, and what stands in an empty cell."""

import sys
from pathlib import Path

from nbconvert.exporters import NotebookExporter


class OnlyInABox(NotebookExporter):
    """Ends nbgrader's own Autograde, a lightning bolt in the formgrader, before it has touched anything."""

    def __init__(self, *args, **options):
        raise RuntimeError("Autograde would run a submission outside of a box, and as you: use `make grade` instead.")


c = get_config()  # type: ignore[name-defined]  # noqa: F821 (nbgrader defines it)
c.CourseDirectory.course_id = "mlpkit"
c.ClearSolutions.code_stub = {"python": "# Your code here.\npass"}
c.ClearSolutions.text_stub = "*Your answer, in words.*"
c.Autograde.exporter_class = OnlyInABox

if "nbgrader.server_extensions.formgrader.handlers" in sys.modules:  # in a server that shows what students wrote
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from labs.grading import formgrader

    formgrader.guard()

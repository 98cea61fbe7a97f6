"""Judging a notebook as `make grade` does, in processes of its own."""

import json
import shutil
import subprocess
import sys

import nbformat
import pytest
from submissions import LABS, ROOT, source

sys.path.append(str(ROOT))  # for `import labs`


@pytest.fixture
def earned(tmp_path):
    """Return a function: a notebook of a lab, judged in a process of its own, as {cell: (points, sentence)}.

    tests: the notebook whose tests are run, the lab's source where there is none.
    """

    def judge(lab, notebook, tests=None):
        path, with_tests = tmp_path / f"{lab}.ipynb", source(lab)
        if isinstance(notebook, bytes):
            path.write_bytes(notebook)
        else:
            nbformat.write(notebook, path)
        if tests is not None:
            with_tests = tmp_path / "tests.ipynb"
            nbformat.write(tests, with_tests)
        line = [sys.executable, "-m", "labs.grading.judge", str(with_tests), str(path)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert not done.returncode, done.stderr
        return {c["name"]: (c["points"], c["says"]) for c in json.loads(done.stdout)["cells"]}

    return judge


@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    """Return a folder with one lab, its student version, and an answer of one student. Tests take copies of it."""
    from labs.grading import release

    root = tmp_path_factory.mktemp("begun")
    shutil.copytree(LABS / "source" / "lab00", root / "source" / "lab00")
    shutil.copy(LABS / "nbgrader_config.py", root)
    release.release(root)
    shutil.copytree(root / "release" / "lab00", root / "submitted" / "ada" / "lab00")
    return root


@pytest.fixture
def course(begun, tmp_path):
    """Return a copy of that folder, of the test's own."""
    return shutil.copytree(begun, tmp_path / "course")


@pytest.fixture(scope="session", autouse=True)
def box_or_skip():
    """Nothing can be graded, and so nothing of grading tested, where boxes don't work: that has a test of its own."""
    from labs.grading import box

    try:
        box.require()
    except box.NoBox as why:
        pytest.skip(str(why))

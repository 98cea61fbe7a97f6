"""What a person has graded stays, and counts."""

import csv
import shutil

import nbformat
import pytest
from submissions import LABS, answer

pytest.importorskip("nbgrader", reason="`make test-labs` adds what these tests need")
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI

from labs.grading import judge, release, table


@pytest.fixture
def course(tmp_path):
    """Return a folder with one lab, its student version, and an answer of one student."""
    shutil.copytree(LABS / "source" / "lab00", tmp_path / "source" / "lab00")
    shutil.copy(LABS / "nbgrader_config.py", tmp_path)
    release.release(tmp_path)
    shutil.copytree(tmp_path / "release" / "lab00", tmp_path / "submitted" / "ada" / "lab00")
    return tmp_path


def row(course):
    with open(course / "grades" / "lab00.csv", newline="", encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    return found


def write(course, name, text):
    path = course / "submitted" / "ada" / "lab00" / "lab00.ipynb"
    nbformat.write(answer(nbformat.read(path, as_version=4), name, text), path)


def grade(course):
    table.grade_all(course, show=lambda line: None)
    return row(course)["explain"], row(course)[judge.BY_HAND]


def graded_by_hand(course, points):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "mlpkit") as book:
        grade = book.find_grade("explain", "lab00", "lab00", "ada")
        assert grade.needs_manual_grade
        grade.manual_score, grade.needs_manual_grade = points, False
        book.db.commit()


def test_points_that_a_person_gave_count_until_that_answer_changes(course):
    write(course, "explain", "One answer.")
    assert grade(course) == (judge.BY_HAND, "3")
    graded_by_hand(course, 2)
    write(course, "shape", "def shape(*_):\n    return None")
    assert grade(course) == ("2", "0")
    assert "graded by a person" in (course / "feedback" / "ada" / "lab00.md").read_text()
    write(course, "explain", "Another answer.")
    assert grade(course) == (judge.BY_HAND, "3")


def test_a_table_is_written_without_a_gradebook_too(course):
    write(course, "explain", "An answer.")
    (course / "gradebook.db").unlink()
    said = []
    table.grade_all(course, show=said.append)
    assert row(course)["explain"] == judge.BY_HAND
    assert "not in nbgrader's gradebook" in said[-1]


def test_autograde_of_nbgrader_runs_nothing(course):
    """It would run a submission without a box; and what was graded stays as it was."""
    write(course, "shape", "open('ran', 'w')")
    grade(course)
    api = NbGraderAPI(config=release.settings(course))
    tried = api.autograde("lab00", "ada")
    assert not tried["success"]
    assert "use `make grade` instead" in tried["error"]
    assert (course / "autograded" / "ada" / "lab00" / "lab00.ipynb").is_file()

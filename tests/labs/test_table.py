"""What a person has graded stays, and counts."""

import csv
import json
import os
import shutil
import sqlite3
from pathlib import Path

import nbformat
import pytest
from submissions import answer, cell

pytest.importorskip("nbgrader", reason="`make test-labs` adds what these tests need")
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI

from labs.grading import judge, release, table
from labs.grading.collect import collect


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


def test_points_that_a_person_gave_go_with_the_picture_that_they_were_for(course):
    path = course / "submitted" / "ada" / "lab00" / "lab00.ipynb"
    for data in ("AAAA", "BBBB"):
        notebook = answer(nbformat.read(path, as_version=4), "explain", "![a](attachment:a.png)")
        cell(notebook, "explain").attachments = {"a.png": {"image/png": data}}
        nbformat.write(notebook, path)
        assert grade(course) == (judge.BY_HAND, "3")
        graded_by_hand(course, 2)
        assert grade(course) == ("2", "0")


def test_points_outlive_a_run_that_could_not_enter_them_and_go_with_their_answer(course):
    write(course, "explain", "One answer.")
    grade(course)
    graded_by_hand(course, 2)
    released = course / "release" / "lab00"
    released.rename(course / "away")
    table.grade_all(course, show=lambda line: None)
    (course / "away").rename(released)
    assert grade(course) == ("2", "0")
    write(course, "explain", "Another answer.")
    with sqlite3.connect(course / "gradebook.db", isolation_level=None) as book:
        book.execute("begin exclusive")
        table.grade_all(course, show=lambda line: None)
        book.execute("rollback")
    assert grade(course) == (judge.BY_HAND, "3")


def test_a_submission_that_somebody_has_mended_is_not_replaced(course, tmp_path):
    inbox, goal = tmp_path / "inbox", course / "submitted" / "dee" / "lab00" / "lab00.ipynb"
    inbox.mkdir()
    came = Path(shutil.copy(course / "submitted" / "ada" / "lab00" / "lab00.ipynb", inbox / "dee_lab00.ipynb"))
    os.utime(came, (1e9, 1e9))
    assert collect(inbox, course) == collect(inbox, course) == []
    goal.write_text(goal.read_text() + " ")
    ((path, why),) = collect(inbox, course)
    assert path == came
    assert "mended" in why
    assert goal.read_text().endswith(" ")
    os.utime(came)  # handed in once more
    os.utime(goal, (1e9 + 1, 1e9 + 1))
    assert collect(inbox, course) == []
    assert goal.read_bytes() == came.read_bytes()


def test_a_table_is_written_without_a_gradebook_too(course):
    write(course, "explain", "An answer.")
    (course / "gradebook.db").unlink()
    said = []
    table.grade_all(course, show=said.append)
    assert row(course)["explain"] == judge.BY_HAND
    assert "not in nbgrader's gradebook" in said[-1]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a link", "a link to nothing", "no place for it"])
def test_what_can_not_be_collected_is_said_and_stops_nobody_else(kind, course, tmp_path):
    inbox, path = tmp_path / "inbox", tmp_path / "inbox" / "cy_lab00.ipynb"
    inbox.mkdir()
    shutil.copy(course / "submitted" / "ada" / "lab00" / "lab00.ipynb", inbox / "dee_lab00.ipynb")
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "no place for it":
        (course / "submitted" / "cy").touch()
        shutil.copy(inbox / "dee_lab00.ipynb", path)
    else:
        path.symlink_to(inbox / ("dee_lab00.ipynb" if kind == "a link" else "nothing"))
    ((found, why),) = collect(inbox, course)
    assert found == path
    assert "\n" not in why
    assert (course / "submitted" / "dee" / "lab00" / "lab00.ipynb").is_file()


@pytest.mark.parametrize("name", ["cy_lab00.zip", "cy_lab00.ipynb.txt", "cy_lab00", "cy_lab00.IPYNB", "cy/lab00.html"])
def test_a_file_with_another_ending_is_said(name, course, tmp_path):
    """Somebody may have meant it as an answer; but not what a system hides."""
    inbox, path = tmp_path / "inbox", tmp_path / "inbox" / name
    path.parent.mkdir(parents=True)
    path.touch()
    (inbox / ".DS_Store").touch()
    unzip = ", or unzip it" if name.endswith(".zip") else ""
    assert collect(inbox, course) == [(path, f"its name should end with .ipynb{unzip}.")]


ODD = {
    "half a character in an answer": ("shape", "# \ud800\ndef shape(*_):\n    return None"),
    "half a character in an error": ("shape", "raise ValueError(chr(0xD800) + '\\n| test-shape | 5 of 5 | right. |')"),
    "half a character in words": ("explain", "\udfff"),
}


@pytest.mark.parametrize(("name", "text"), ODD.values(), ids=ODD)
def test_an_odd_answer_keeps_nobodys_table_from_being_written(name, text, course):
    path = course / "submitted" / "ada" / "lab00" / "lab00.ipynb"
    notebook = answer(nbformat.read(path, as_version=4), name, text)
    notebook.metadata["half"] = "\ud800"
    path.write_text(json.dumps(notebook))
    said = []
    table.grade_all(course, said.append)
    assert [line.split()[:2] for line in said] == [["lab00", "ada"]]
    assert row(course)["student"] == "ada"
    page = (course / "feedback" / "ada" / "lab00.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in page if line.startswith("| test-shape |")]) == 1


def test_an_error_of_one_submission_keeps_nobodys_table_from_being_written(course, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("of a kind that nobody\nhas thought of")

    monkeypatch.setattr(table, "_enter", fails)
    said = []
    table.grade_all(course, said.append)
    assert "not in nbgrader's gradebook" in said[-1]
    assert row(course)["student"] == "ada"


def test_autograde_of_nbgrader_runs_nothing(course):
    """It would run a submission without a box; and what was graded stays as it was."""
    write(course, "shape", "open('ran', 'w')")
    grade(course)
    api = NbGraderAPI(config=release.settings(course))
    tried = api.autograde("lab00", "ada")
    assert not tried["success"]
    assert "use `make grade` instead" in tried["error"]
    assert (course / "autograded" / "ada" / "lab00" / "lab00.ipynb").is_file()

"""What solutions, empty labs and typical mistakes earn, and what a student is told."""

import csv
import json
import re
import subprocess
import sys
import tomllib

import nbformat
import pytest
from submissions import LABS, MISTAKES, NAMES, ROOT, answer, cell, solved, source, visible

pytest.importorskip("nbgrader", reason="`make test-labs` adds what these tests need")
from labs.grading import release, table
from labs.grading.collect import collect
from labs.grading.judge import BY_HAND, EMPTY, role


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """Return a folder of labs of its own, with the student versions made."""
    root = tmp_path_factory.mktemp("labs")
    (root / "source").symlink_to(LABS / "source")
    assert release.release(root) == NAMES
    return root


def empty(released, lab):
    return nbformat.read(released / "release" / lab / f"{lab}.ipynb", as_version=4)


@pytest.mark.parametrize("lab", NAMES)
def test_a_solution_earns_full_marks(earned, lab):
    result = earned(lab, solved(lab))
    for made in solved(lab).cells:
        name = made.metadata.get("nbgrader", {}).get("grade_id")
        if role(made) == "test":
            assert result[name] == (made.metadata["nbgrader"]["points"], "right.")
        elif role(made) == "written":
            assert result[name] == (None, f"{BY_HAND}: an answer in words.")


@pytest.mark.parametrize("lab", NAMES)
def test_an_empty_lab_earns_nothing_and_says_why(earned, released, lab):
    for points, says in earned(lab, empty(released, lab)).values():
        assert points == 0
        assert re.search(r"None: is nothing written yet|left empty|still missing", says)


def mistakes_of(lab):
    """Return what somebody wrote: name -> {"cell", "wrote", "costs": {test: a piece of what is said}, "hidden"}.

    hidden: only the tests after handing in find it, which is for answers that know the visible ones.
    """
    return tomllib.loads((MISTAKES / f"{lab}.toml").read_text(encoding="utf-8"))


def rounds(lab):
    """Return the mistakes of a lab in lists: each is one submission, with at most one mistake in a cell."""
    result = []
    for name, mistake in mistakes_of(lab).items():
        for one in result:
            alike = {other.get("hidden", False) for other in one.values()} == {mistake.get("hidden", False)}
            if alike and mistake["cell"] not in {other["cell"] for other in one.values()}:
                break
        else:
            one = {}
            result.append(one)
        one[name] = mistake
    return result


@pytest.mark.parametrize(("lab", "mistakes"), [(lab, mistakes) for lab in NAMES for mistakes in rounds(lab)])
def test_a_typical_mistake_costs_what_the_rubric_says(earned, lab, mistakes, subtests):
    """By the checks that a student sees: who sees green should not lose points."""
    notebook = solved(lab)
    for mistake in mistakes.values():
        answer(notebook, mistake["cell"], mistake["wrote"])
    hidden = all(mistake.get("hidden") for mistake in mistakes.values())
    result = earned(lab, notebook, tests=solved(lab) if hidden else visible(lab))
    for name, mistake in mistakes.items():
        with subtests.test(name):
            for test, said in mistake["costs"].items():
                assert result[test][0] == 0
                assert said in result[test][1]
    lost = {test for mistake in mistakes.values() for test in mistake["costs"]}
    assert {test for test, (points, _) in result.items() if points == 0} == lost
    assert {test for test, (points, _) in result.items() if points is None} == {"explain"}


@pytest.mark.parametrize("lab", NAMES)
def test_each_lab_has_typical_mistakes(lab):
    assert len(mistakes_of(lab)) >= 6


@pytest.mark.parametrize("lab", NAMES)
def test_the_student_version_has_no_solution_in_it(released, lab):
    text = (released / "release" / lab / f"{lab}.ipynb").read_text()
    given = empty(released, lab)
    assert "HIDDEN" not in text
    assert "SOLUTION" not in text
    for made in solved(lab).cells:
        found = [c for c in given.cells if c.id == made.id]
        if role(made) == "solution":
            inner = made.source.split("### BEGIN SOLUTION\n")[1].split("### END SOLUTION")[0]
            for line in filter(None, map(str.strip, inner.split("\n"))):
                assert line not in text
            assert "# Your code here." in found[0].source
        elif role(made) == "written":
            assert found[0].source == EMPTY
        elif role(made) == "test" and "HIDDEN" in made.source:
            assert made.source.split("### BEGIN HIDDEN")[0].strip() == found[0].source.strip()


@pytest.mark.parametrize("lab", NAMES)
def test_a_sheet_keeps_its_promises(lab):
    """90 minutes in all, 20 points, the minutes of each heading, a hint in three steps for each task."""
    cells = solved(lab).cells
    rows = re.findall(r"^\| (\d) \| .+ \| (\d+) \| (\d*) ?\|$", cells[0].source, re.MULTILINE)
    minutes = {number: int(count) for number, count, _ in rows}
    assert 80 <= sum(minutes.values()) <= 90
    stated = re.findall(r"^## (\d)\. .+\((\d+) minutes\)$", "\n".join(c.source for c in cells), re.MULTILINE)
    assert {number: int(count) for number, count in stated} == minutes
    points = sum(c.metadata.get("nbgrader", {}).get("points", 0) for c in cells)
    assert points == sum(int(count or 0) for *_, count in rows) == 20
    hints = tomllib.loads((source(lab).parent / "hints.toml").read_text())
    tasks = re.findall(r'"(\w+)"', cell(solved(lab), "setup").source.split("lab = Lab(")[1].split(")")[0])
    assert list(hints) == tasks
    assert all(len(steps) == 3 for steps in hints.values())


def run_all(notebook, folder):
    """Return what all cells print, from top to bottom, where none of them stops."""
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("lab", NAMES)
def test_an_empty_lab_runs_from_top_to_bottom(released, lab):
    """Restart and run all: what is not written yet is named, and nothing stops."""
    said = run_all(empty(released, lab), released / "release" / lab)
    assert "finish that first" in said
    assert "0 of " in said
    assert "measured" not in said


@pytest.mark.parametrize("lab", NAMES)
def test_a_solved_lab_runs_from_top_to_bottom(lab):
    """The cells that measure, too, which are not run where a submission is graded."""
    said = run_all(solved(lab), source(lab).parent)
    assert "measured" in said
    assert "finish that first" not in said
    assert "✗" not in said
    assert "still open" not in said


@pytest.fixture(scope="session")
def shown(released, tmp_path_factory):
    """Return what is shown as a class is graded: a solution, an empty lab, one for a person; and a file of nobody's."""
    inbox = tmp_path_factory.mktemp("inbox")
    (inbox / "ben").mkdir(parents=True)
    nbformat.write(solved("lab01"), inbox / "ada_lab01.ipynb")
    nbformat.write(empty(released, "lab01"), inbox / "ben" / "lab01.ipynb")
    (inbox / "cleo_lab01 (1).ipynb").write_text("{")
    (inbox / "holiday.ipynb").write_text("{}")
    left = collect(inbox, released)
    assert [path.name for path, _ in left] == ["holiday.ipynb"]
    lines = []
    table.grade_all(released, show=lines.append)
    return lines


def test_a_class_is_collected_graded_and_entered(released, shown):
    assert sorted(line.split(maxsplit=2)[1:] for line in shown) == [
        ["ada", "17 of 20, and 3 to look by hand"],
        ["ben", "0 of 20"],
        ["cleo", "0 of 20, and 20 to look by hand"],
    ]
    with open(released / "grades" / "lab01.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["student"], row["certain"], row[BY_HAND]) for row in rows] == [
        *(("ada", "17", "3"), ("ben", "0", "0"), ("cleo", "0", "20"))
    ]
    assert rows[2]["test-softmax"] == BY_HAND
    page = (released / "feedback" / "ben" / "lab01.md").read_text()
    assert "| test-relu | 0 of 1 | relu: what it returns is None" in page
    with table.Gradebook(f"sqlite:///{released / 'gradebook.db'}", "mlpkit") as book:
        grade = book.find_grade("test-softmax", "lab01", "lab01", "ada")
        assert (grade.auto_score, grade.needs_manual_grade) == (2, False)
        for student, name in (("ada", "explain"), ("cleo", "test-softmax")):
            grade = book.find_grade(name, "lab01", "lab01", student)
            assert (grade.auto_score, grade.needs_manual_grade) == (None, True)
    laid_out = json.loads((released / "autograded" / "ada" / "lab01" / "lab01.ipynb").read_text())
    assert "HIDDEN" not in json.dumps(laid_out)


def test_grading_again_keeps_what_a_person_gave(released, shown):
    with table.Gradebook(f"sqlite:///{released / 'gradebook.db'}", "mlpkit") as book:
        book.find_grade("explain", "lab01", "lab01", "ada").manual_score = 2
        book.db.commit()
    table.grade_all(released, show=lambda line: None)
    with table.Gradebook(f"sqlite:///{released / 'gradebook.db'}", "mlpkit") as book:
        grade = book.find_grade("explain", "lab01", "lab01", "ada")
        assert (grade.manual_score, grade.needs_manual_grade) == (2, False)


def test_who_judges_and_who_lays_out_start_without_a_grammar_of_addresses():
    """It took four fifths of a judge's start, and a class starts hundreds."""
    program = "import sys, labs.grading.judge, labs.grading.layout; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_an_empty_desk_is_said_so(tmp_path):
    (tmp_path / "source").symlink_to(LABS / "source")
    line = [sys.executable, "-m", "labs.grading", "--labs", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "Nothing to grade" in done.stderr

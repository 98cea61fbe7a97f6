"""Grade all that was submitted, and say so: a table, a page for each student, and nbgrader's gradebook."""

import csv
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import nbformat
from nbgrader.api import Gradebook

from mlpkit.files import write_atomically

from . import box, judge

SECONDS = box.SECONDS + 60  # and then the judge itself is stuck


def grade_all(root, show=print):
    """Grade each submitted/STUDENT/LAB/LAB.ipynb, as many at once as there are cores, and return the table's rows."""
    jobs = []
    for path in sorted((root / "submitted").glob("*/*/*.ipynb")):
        lab, student = path.parent.name, path.parent.parent.name
        if path.stem == lab and (root / "source" / lab / f"{lab}.ipynb").is_file():
            jobs.append((student, lab, root / "source" / lab / f"{lab}.ipynb", path))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda job: _one(job, show), jobs))
    rows = [(student, lab, result) for (student, lab, *_), result in zip(jobs, results, strict=True)]
    for job, result in zip(jobs, results, strict=True):
        try:
            _enter(root, *job, result)
        except Exception as error:  # the gradebook's, or what an odd file leads to: the table counts without it
            why = " ".join(str(error).split())[:200]
            show(f"{job[1]}  {job[0]:<24} not in nbgrader's gradebook, so points given by hand are left out: {why}")
    for lab in sorted({lab for _, lab, _ in rows}):
        _write_table(root, lab, [(student, result) for student, which, result in rows if which == lab])
    for student, lab, result in rows:
        _write_page(root, student, lab, result)
    return rows


def total(result):
    """Return (points that are certain, most, points that a person must give)."""
    cells = result["cells"]
    open_points = sum(cell["most"] for cell in cells if cell["points"] is None)
    return sum(cell["points"] or 0 for cell in cells), sum(cell["most"] for cell in cells), open_points


def score(result):
    """Return the total as text, which never hides that a person must look."""
    points, most, open_points = total(result)
    return f"{points:g} of {most:g}" + (f", and {open_points:g} to {judge.BY_HAND}" if open_points else "")


def _one(job, show):
    student, lab, source, path = job
    line = [sys.executable, "-m", "labs.grading.judge", str(source), str(path)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(box.ROOT)}
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=box.ROOT)
        result = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        said = done.stderr.strip().splitlines()[-1:] if isinstance(error, ValueError) else ["it took too long"]
        result = _none_graded(source, f"{judge.BY_HAND}: the judge ended ({' '.join(said)[:200]}).")
    show(f"{lab}  {student:<24} {score(result)}")
    return result


def _none_graded(source, why):
    cells = [cell for cell in nbformat.read(source, as_version=4).cells if judge.role(cell) in ("test", "written")]
    rows = [(judge.name_of(cell), cell.metadata["nbgrader"]["points"]) for cell in cells]
    return {"lab": source.stem, "cells": [dict(name=n, points=None, most=m, says=why) for n, m in rows], "output": ""}


def _write_table(root, lab, rows):
    folder = root / "grades"
    folder.mkdir(exist_ok=True)
    with open(folder / f"{lab}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [cell["name"] for cell in rows[0][1]["cells"]]
        writer.writerow(["student", *names, "certain", "most", judge.BY_HAND])
        for student, result in rows:
            cells = [judge.BY_HAND if c["points"] is None else f"{c['points']:g}" for c in result["cells"]]
            writer.writerow([student, *cells, *(f"{number:g}" for number in total(result))])


def _write_page(root, student, lab, result):
    """Write a page for the student: points, and each test's sentence. Hidden tests are not on it."""
    lines = [f"# {lab}, {student}", "", f"**{score(result)} points**", "", "| task | points | what was found |"]
    lines += ["|---|---:|---|"]
    for cell in result["cells"]:
        points = "–" if cell["points"] is None else f"{cell['points']:g}"
        says = cell["says"].replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {cell['name']} | {points} of {cell['most']:g} | {says} |")
    path = root / "feedback" / student / f"{lab}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _enter(root, student, lab, source, path, result):
    """Enter the points into nbgrader's gradebook, and lay out the notebook for `nbgrader formgrader`.

    Points that a person has given there count, until the answer that they were given for changes.
    """
    folder = root / "autograded" / student / lab
    before = _answers(folder / f"{lab}.ipynb")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        notebook = judge.read(path)
        released = nbformat.read(root / "release" / lab / f"{lab}.ipynb", as_version=4)
        notebook.cells = judge.merge(released, notebook)
    except judge.NotALab:
        notebook = nbformat.read(root / "release" / lab / f"{lab}.ipynb", as_version=4)
    says = {cell["name"]: cell["says"] for cell in result["cells"]}
    tests = {judge.name_of(cell) for cell in notebook.cells if judge.role(cell) == "test"}
    for cell in notebook.cells:
        if cell.cell_type == "code":  # what a submission says it printed is not evidence, and may be a script
            text = says.get(judge.name_of(cell)) if judge.role(cell) else None
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
    now = _answers_of(notebook)
    # nbgrader makes SQLAlchemy warn of the order in which it adds its own rows.
    with warnings.catch_warnings(action="ignore"), Gradebook(f"sqlite:///{root / 'gradebook.db'}", "mlpkit") as book:
        book.update_or_create_student(student)
        book.update_or_create_submission(lab, student)
        for cell in result["cells"]:
            grade = book.find_grade(cell["name"], lab, lab, student)
            grade.auto_score = cell["points"]
            same = now == before if cell["name"] in tests else now.get(cell["name"]) == before.get(cell["name"])
            if not same:
                grade.manual_score = None
            grade.needs_manual_grade = cell["points"] is None and grade.manual_score is None
            if grade.manual_score is not None:
                cell |= {"points": grade.manual_score, "says": "graded by a person."}
        book.db.commit()
    # Only now: what is laid out tells the next time which answer the points were given for.
    write_atomically(folder / f"{lab}.ipynb", nbformat.writes(notebook).encode())


def _answers(path):
    """Return {name: text} of the cells that a student fills in, of a notebook as it was laid out; {} for none."""
    if not path.is_file():
        return {}
    return _answers_of(nbformat.read(path, as_version=4))


def _answers_of(notebook):
    cells = notebook.cells
    return {judge.name_of(cell): cell.source for cell in cells if judge.role(cell) in ("solution", "written")}

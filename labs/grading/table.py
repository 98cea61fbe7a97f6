"""Grade all that was submitted, and say so: a table, a page for each student, and nbgrader's gradebook."""

import csv
import html
import io
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress

from nbgrader.api import Gradebook

from mlpkit.files import check_writable, only_one, write_atomically
from mlpkit.words import printable

from . import box, judge, layout
from .collect import everything
from .filenames import plain
from .release import names

SECONDS = box.SECONDS + 60  # and then the judge itself is stuck
ENVIRONMENT = os.environ | {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(box.ROOT), os.environ.get("PYTHONPATH")])),
}


def grade_all(root, show=print):
    """Grade each submitted/STUDENT/LAB/LAB.ipynb, as many at once as there are cores, and return the table's rows.

    Raises OSError where a table or a page can't be written: before anything is graded, if it is known then, or when all
    others are. Ctrl-C ends the judges. Whatever happens, each file is whole, the new one or the one before.
    """
    jobs = _jobs(root, show)
    for student, lab, *_ in jobs:
        check_writable(_table(root, lab))
        check_writable(_page(root, student, lab))
    if not jobs:
        return []
    results: list = [None] * len(jobs)
    with only_one(root / "grades"), closing(_judged(root, jobs, show)) as judged:
        for place, result, made in judged:
            student, lab, *_ = jobs[place]
            results[place] = (student, lab, result)
            try:
                _enter(root, student, lab, result, made)
            except Exception as error:  # the gradebook's, or what an odd file leads to: the table counts without it
                why = " ".join(str(error).split())[:200]
                show(f"{lab}  {student:<24} not in nbgrader's gradebook, so points given by hand are left out: {why}")
        _write_all(root, results)
    return results


def _judged(root, jobs, show):
    """Yield (number of a job, its result, what `layout` makes of it) as they are done; none of them is kept here.

    Each thread, and all that it starts, has a core of its own: forty processes in one box slow no other box. No judge
    outlives this, however it ends.
    """
    stop, cores = threading.Event(), list(os.sched_getaffinity(0))

    def take_a_core():
        with suppress(OSError):  # a system may forbid it
            os.sched_setaffinity(0, {cores.pop()})  # this thread's

    def work(job):
        result = _one(job, show, stop)
        return result, None if stop.is_set() else _laid_out(root, job, result, stop)

    with ThreadPoolExecutor(len(cores), initializer=take_a_core) as pool:
        try:
            places = {pool.submit(work, job): place for place, job in enumerate(jobs)}
            for done in as_completed(list(places)):
                yield places.pop(done), *done.result()
        finally:
            stop.set()


def _jobs(root, show):
    """Return [(student, lab, source, submission)], and name what lies among the submissions and is none."""
    folder, labs, jobs = root / "submitted", names(root), []

    def unread(error):
        show(f"{error.filename}: look by hand, it can't be read ({error.strerror}).")

    for path in everything(folder, unread) if folder.is_dir() else ():
        if path.suffix != ".ipynb":
            continue
        parts, lab = path.relative_to(folder).parts, path.stem
        if parts[1:] != (lab, path.name) or lab not in labs:
            show(f"{path}: look by hand, it is graded as STUDENT/LAB/LAB.ipynb, and LAB is one of {', '.join(labs)}.")
            continue
        try:
            plain(parts[0])
        except ValueError as why:
            show(f"{path}: look by hand, {why}")
        else:
            jobs.append((parts[0], lab, root / "source" / lab / path.name, path))
    return jobs


def total(result):
    """Return (points that are certain, most, points that a person must give)."""
    cells = result["cells"]
    open_points = sum(cell["most"] for cell in cells if cell["points"] is None)
    return sum(cell["points"] or 0 for cell in cells), sum(cell["most"] for cell in cells), open_points


def score(result):
    """Return the total as text, which never hides that a person must look."""
    points, most, open_points = total(result)
    return f"{points:g} of {most:g}" + (f", and {open_points:g} to {judge.BY_HAND}" if open_points else "")


def _one(job, show, stop):
    student, lab, source, path = job
    if stop.is_set():
        return None
    line = [sys.executable, "-m", "labs.grading.judge", str(source), str(path)]
    with box.started(line, env=ENVIRONMENT, cwd=box.ROOT) as judging:
        printed, said = _end_of(judging, stop)
    if stop.is_set():
        return None
    try:
        result = json.loads(printed)
    except ValueError:
        result = _none_graded(source, f"{judge.BY_HAND}: the judge ended ({_last_line(said)}).")
    show(f"{lab}  {student:<24} {score(result)}")
    return result


def _last_line(text):
    return printable(" ".join(text.strip().splitlines()[-1:])[:200])


def _end_of(process, stop, told=None):
    """Return what a process, which is told a text, printed, and its errors. At `stop`, or late, nobody waits for it."""
    for _ in range(5 * SECONDS):
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(told, timeout=0.2)
        told = None  # it is being written
        if stop.is_set():
            break
    return "", "it took too long"


def _none_graded(source, why):
    cells = [cell for cell in layout.ours(source).cells if judge.role(cell) in ("test", "written")]
    rows = [(judge.name_of(cell), cell.metadata["nbgrader"]["points"]) for cell in cells]
    return {"lab": source.stem, "cells": [dict(name=n, points=None, most=m, says=why) for n, m in rows], "output": ""}


def _table(root, lab):
    return root / "grades" / f"{lab}.csv"


def _page(root, student, lab):
    return root / "feedback" / student / f"{lab}.md"


def _table_text(rows):
    file = io.StringIO()
    writer = csv.writer(file)
    tasks = [cell["name"] for cell in rows[0][2]["cells"]]
    writer.writerow(["student", *tasks, "certain", "most", judge.BY_HAND])
    for student, _, result in rows:
        cells = [judge.BY_HAND if c["points"] is None else f"{c['points']:g}" for c in result["cells"]]
        writer.writerow([student, *cells, *(f"{number:g}" for number in total(result))])
    return file.getvalue()


def _page_text(student, lab, result):
    """Return a page for the student: points, and each test's sentence. Hidden tests are not on it."""
    lines = [f"# {lab}, {_escaped(student)}", "", f"**{score(result)} points**", ""]
    lines += ["| task | points | what was found |", "|---|---:|---|"]
    for cell in result["cells"]:
        points = "–" if cell["points"] is None else f"{cell['points']:g}"
        lines.append(f"| {cell['name']} | {points} of {cell['most']:g} | {_escaped(cell['says'])} |")
    return "\n".join(lines) + "\n"


def _escaped(text):
    """Return text as Markdown that shows it as it is: a student's own error may stand in it."""
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(text, quote=False))


def _write_all(root, rows):
    """Write the tables and the pages. Raises OSError for the first that can't be written, when all have been tried."""
    labs = sorted({lab for _, lab, _ in rows})
    texts = {_table(root, lab): _table_text([row for row in rows if row[1] == lab]) for lab in labs}
    texts |= {_page(root, student, lab): _page_text(student, lab, result) for student, lab, result in rows}
    failed = []
    for path, text in texts.items():
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            failed.append(error)
    if failed:
        more = f" So it is with {len(failed) - 1} more files." if failed[1:] else ""
        raise OSError(f"{failed[0]}{more}")


def _enter(root, student, lab, result, made):
    """Enter the points into nbgrader's gradebook, and lay out the notebook for `nbgrader formgrader`.

    Points that a person has given there count, until the answer that they were given for changes. made: what
    `_laid_out` returned.
    """
    if "error" in made:
        raise RuntimeError(made["error"])
    # nbgrader makes SQLAlchemy warn of the order in which it adds its own rows.
    with warnings.catch_warnings(action="ignore"), Gradebook(f"sqlite:///{root / 'gradebook.db'}", "mlpkit") as book:
        book.update_or_create_student(student)
        book.update_or_create_submission(lab, student)
        for cell in result["cells"]:
            grade = book.find_grade(cell["name"], lab, lab, student)
            grade.auto_score = cell["points"]
            if cell["name"] in made["lapsed"]:
                grade.manual_score = None
            grade.needs_manual_grade = cell["points"] is None and grade.manual_score is None
            if grade.manual_score is not None:
                cell |= {"points": grade.manual_score, "says": "graded by a person."}
        book.db.commit()
    # Only now: what is laid out tells the next time which answer the points were given for.
    path = _place(root, student, lab)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, made["notebook"].encode())


def _place(root, student, lab):
    return root / "autograded" / student / lab / f"{lab}.ipynb"


def _laid_out(root, job, result, stop):
    """Return what `layout` makes, in a process of its own, or {"error": sentence}."""
    student, lab, _, path = job
    paths = (root / "release" / lab / f"{lab}.ipynb", path, _place(root, student, lab))
    line = [sys.executable, "-m", "labs.grading.layout", *map(str, paths)]
    says = json.dumps({cell["name"]: cell["says"] for cell in result["cells"]})
    try:
        with box.started(line, env=ENVIRONMENT, cwd=box.ROOT, stdin=subprocess.PIPE) as laying:
            printed, errors = _end_of(laying, stop, says)
            return json.loads(printed)
    except ValueError:
        return {"error": f"it could not be laid out ({_last_line(errors)})."}
    except OSError as error:
        return {"error": f"it could not be laid out ({error.strerror})."}

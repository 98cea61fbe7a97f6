"""Judge one submission: its cells run in a box, the lab's tests run here, beside the reference.

A test is an ordinary cell of the lab's source. Where it names something that a solution cell defines, it finds the
student's: a function that is called over a pipe, or a value that has come over it. All the rest, NumPy and the checks
included, is ours. `python -m labs.grading.judge SOURCE SUBMISSION` prints the result as JSON.
"""

import ast
import contextlib
import io
import json
import os
import sys
from pathlib import Path

import nbformat

from mlpkit.course.values import message
from mlpkit.words import printable

from . import box, wire
from .submission import NotALab, read

CELL_SECONDS = 20  # a cell, and a call of a function
MEMORY = 6 * 2**30  # bytes of addresses of this process, which reads a student's file and answers
LONGEST_ERROR = 100  # characters that an exception brings out of the box: it may hold a hidden test's numbers
LONGEST = 1000  # characters of a sentence, in which a submission's own error may stand
BY_HAND = "look by hand"
EMPTY = "*Your answer, in words.*"  # what stands in the cell for one


def role(cell):
    """Return what a cell is for: "solution", "test", "written" (in words), "given", or None: it is the student's."""
    about = cell.metadata.get("nbgrader", {})
    if not about.get("grade_id"):
        return None
    if about.get("solution"):
        return "written" if about.get("grade") else "solution"
    return "test" if about.get("grade") else "given"


def name_of(cell):
    return cell.metadata["nbgrader"]["grade_id"]


def merge(source, submission):
    """Return the cells to run: the source's, with the student's text in solution cells, and the student's own between.

    A cell of the student's stands behind the cell of the lab that it was put behind, and is nothing else, whatever it
    is marked as: a test would run out of the box. A changed or deleted cell that was given, or a test, is the source's
    again. Raises NotALab where a solution cell is missing, or there twice.
    """
    own: dict = {}
    behind: dict = {None: []}
    last = None
    known = {name_of(cell): role(cell) for cell in source.cells if role(cell)}
    for cell in submission.cells:
        about = str(cell.metadata.pop("nbgrader", {}).get("grade_id"))
        if about not in known:
            behind.setdefault(last, []).append(cell)
            continue
        last = about
        if known[about] in ("solution", "written"):
            if about in own and own[about].source != cell.source:
                raise NotALab(f"the cell {about!r} is there twice, with different answers.")
            own[about] = cell
    missing = [name for name, what in known.items() if what in ("solution", "written") and name not in own]
    if missing:
        raise NotALab(f"the cell {missing[0]!r} is missing, or lost its mark; in all {len(missing)} of them.")
    merged = list(behind[None])
    for cell in source.cells:
        if not role(cell):
            continue
        name = name_of(cell)
        mine = nbformat.from_dict(cell)
        if name in own:
            mine.source = own[name].source
            mine.update({key: own[name][key] for key in own[name] if key == "attachments"})
        merged += [mine, *(cell for cell in behind.get(name, []))]
    return merged


def defined(code):
    """Return the names that a cell assigns at its top level."""
    names = []
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return names


def said(reply):
    """Return the type and the text of an exception in the box, as much of them as comes out."""
    parts = [str(part) for part in reply["error"]] if isinstance(reply["error"], list | tuple) else []
    kind, text = (*parts, "", "")[:2]
    text = message(Exception(text)).removeprefix("Exception").removeprefix(": ")
    return kind[:40], text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR].rpartition(" ")[0] + " ..."


class Theirs:
    """A student's function: called here, run in the box. Arguments that it changes are changed here, too."""

    def __init__(self, name, ask):
        self.name, self.ask = name, ask

    def __call__(self, *args, **kwargs):
        request = {"do": "call", "source": f"{self.name}(*_args, **_kwargs)", "back": ["_args"]}
        reply = self.ask(request | {"bound": {"_args": args, "_kwargs": kwargs}})
        if "error" in reply:
            kind, text = said(reply)
            raise type("".join(filter(str.isidentifier, kind)) or "Exception", (Exception,), {})(text)
        for before, after in zip(args, reply["bound"]["_args"], strict=True):
            _write_back(before, after)
        return reply["value"]


def _write_back(before, after):
    if isinstance(before, list) and isinstance(after, list):
        for pair in zip(before, after, strict=False):
            _write_back(*pair)
    elif hasattr(before, "dtype") and hasattr(after, "dtype"):
        if before.shape != after.shape or before.dtype != after.dtype:
            before.shape = (*before.shape, 1)  # changed: that is all that is asked
        else:
            before[...] = after


class Judge:
    """The lab's source, run step by step beside a submission."""

    def __init__(self, source, running):
        self.space: dict = {"__name__": "__main__"}
        self.names: dict = {}  # names that solution cells define, and which
        self.stopped = {}  # cells that ended with an exception, and what it said
        self.running, self.ended = running, None
        self.released = {name_of(cell): cell for cell in source.cells if role(cell)}

    def _ask(self, request):
        if self.ended:
            raise wire.Ended(self.ended)
        try:
            reply = self.running.ask(request, CELL_SECONDS)
            if not isinstance(reply, dict) or not ({"value", "error"} & reply.keys()):
                raise wire.Ended("it sent what is no answer")
            return reply
        except wire.Ended as end:
            self.ended = f"{request.get('cell') or 'a call'}: {end}"
            raise wire.Ended(self.ended) from None

    def run(self, cell):
        """Run a cell that is no test: the submission's in the box, the source's here."""
        name = name_of(cell) if role(cell) else "a cell of their own"
        if not self.ended:
            with contextlib.suppress(wire.Ended):
                reply = self._ask({"do": "run", "source": cell.source, "cell": name})
                if "error" in reply:
                    self.stopped[name] = ": ".join(filter(None, said(reply)))
        if role(cell):
            ours = self.released[name]
            exec(compile(ours.source, f"<{name}>", "exec"), self.space)
            if "lab" in self.space:  # a measurement is for the student to see: it is not made again
                self.space["lab"].ready = lambda *tasks: False
            for found in defined(ours.source):
                if role(cell) == "solution":
                    self.names[found] = name
                elif callable(self.space.get(found)):
                    with contextlib.suppress(AttributeError):  # the box has it under the same name
                        self.space[found].named = True

    def test(self, cell):
        """Return (points or None, sentence): None where a person must look."""
        try:
            mixed = dict(self.space)
            for name in self.names:
                mixed[name] = self._theirs(name)
            lab = self.space["lab"]
            before = len(lab.verdicts)
            exec(compile(cell.source, f"<{name_of(cell)}>", "exec"), mixed)
        except AssertionError as error:
            return self._wrong(cell, str(error) or "a test says no.")
        except wire.Ended as end:
            return None, f"{BY_HAND}: {end}."
        except Exception as error:
            return None, f"{BY_HAND}: the test could not judge this ({type(error).__name__}: {error})."
        wrong = [verdict.sentence for _, verdict in lab.verdicts[before:] if not verdict]
        return self._wrong(cell, wrong[0]) if wrong else (cell.metadata["nbgrader"]["points"], "right.")

    def _wrong(self, cell, sentence):
        """A wrong answer earns nothing; one that ended its box before it could answer is looked at."""
        if self.ended:
            return None, f"{BY_HAND}: {self.ended}."
        words = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
        for name in dict.fromkeys(self.names[word] for word in self.names if word in words):
            if name in self.stopped:
                sentence += f" (Its cell stopped: {self.stopped[name]}.)"
        return 0, sentence

    def _theirs(self, name):
        if callable(self.space[name]):
            reply = self._ask({"do": "call", "source": f"callable({name})", "bound": {}, "back": []})
            return Theirs(name, self._ask) if reply.get("value") is True else None
        return self._ask({"do": "call", "source": name, "bound": {}, "back": []}).get("value")


def written(cell):
    """Return (points or None, sentence) for an answer in words: nothing where nothing was written."""
    text = cell.source.strip()
    return (0, "left empty.") if text in ("", EMPTY) else (None, f"{BY_HAND}: an answer in words.")


def grade(source_path, submission_path):
    """Return {"lab", "cells": [{"name", "points", "most", "says"}], "output"} for one submission.

    points is None where a person must look: then `says` begins with "look by hand". A submission's fault never raises.
    """
    source_path, submission_path = Path(source_path), Path(submission_path)
    source = nbformat.read(source_path, as_version=4)
    graded = [cell for cell in source.cells if role(cell) in ("test", "written")]
    found, output = {}, ""
    try:
        cells = merge(source, read(submission_path))
    except NotALab as why:
        found = {name_of(cell): (None, f"{BY_HAND}: {why}") for cell in graded}
    else:
        os.chdir(source_path.parent)  # the lab reads its hints
        with box.Box() as running:
            judge = Judge(source, running)
            for cell in cells:
                if role(cell) == "written":
                    found[name_of(cell)] = written(cell)
                elif cell.cell_type == "code":
                    with contextlib.redirect_stdout(io.StringIO()):
                        if role(cell) == "test":
                            found[name_of(cell)] = judge.test(cell)
                        else:
                            judge.run(cell)
        output = running.output.decode(errors="replace")
    rows = []
    for cell in graded:
        points, says = found[name_of(cell)]
        says = printable(" ".join(says.split()))[:LONGEST]
        rows.append(
            {"name": name_of(cell), "points": points, "most": cell.metadata["nbgrader"]["points"], "says": says}
        )
    return {"lab": source_path.stem, "cells": rows, "output": output[: box.OUTPUT]}


if __name__ == "__main__":
    box.limit_this_process(MEMORY)
    result = json.dumps(grade(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
    sys.stdout.write(result)
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads

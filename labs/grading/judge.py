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
import numpy as np

from mlpkit.course.values import message
from mlpkit.words import printable

from . import box, wire
from .cells import EMPTY as EMPTY
from .cells import merge as merge
from .cells import name_of as name_of
from .cells import role as role
from .submission import NotALab, read

CELL_SECONDS = 20  # a cell, and a call of a function
MEMORY = 6 * 2**30  # bytes of addresses of this process, which reads a student's file and answers
LONGEST_ERROR = 120  # characters that an exception brings out of the box: it may hold a hidden test's numbers
LONGEST = 1000  # characters of a sentence, in which a submission's own error may stand
BY_HAND = "look by hand"


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
    begin = text[:LONGEST_ERROR]
    return kind[:40], text if text == begin else f"{begin.rpartition(' ')[0] or begin} ..."


class Theirs:
    """A student's function: called here, run in the box. Arguments that it changes are changed here, too."""

    def __init__(self, name, call):
        self.name, self.call = name, call

    def __call__(self, *args, **kwargs):
        reply = self.call(self.name, args, kwargs)
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
        self.missing: set = set()  # solution cells that are
        self.cells: dict = {}  # number -> the student's cells that ran
        self.early: list[int] = []  # numbers of those that stopped for want of a name
        self.wrong: list = []  # (test, the space it ran in)
        self.late: dict = {}  # function -> the answer of a call that took too long: it is not called again
        self.lacked = None  # what a call in the present test stopped at, and perhaps would not at home
        self.running, self.ended = running, None
        self.released = {name_of(cell): cell for cell in source.cells if role(cell)}

    def _ask(self, request):
        if self.ended:
            raise wire.Ended(self.ended)
        try:
            reply = self.running.ask(request | {"seconds": CELL_SECONDS - 2}, CELL_SECONDS)  # then it ends by itself
            if not isinstance(reply, dict) or not ({"value", "error"} & reply.keys()):
                raise wire.Ended("it sent what is no answer")
        except wire.Ended as end:
            self.ended = f"{self._called(request.get('cell'))}: {end}"
            raise wire.Ended(self.ended) from None
        return reply

    def _call(self, name, args, kwargs):
        ignored = {kind: how for kind, how in np.geterr().items() if how == "ignore"}  # by the test, as in a notebook
        request = {"do": "call", "source": f"{name}(*_args, **_kwargs)", "back": ["_args"], "errors": ignored}
        reply = self.late.get(name) or self._ask(request | {"bound": {"_args": args, "_kwargs": kwargs}})
        if reply.get("lacking") is True:
            self.lacked = _stop(reply)
        if reply.get("late") is True:
            self.late[name] = reply
        return reply

    def _called(self, number):
        """Return what to call a cell; a number of none is that of a call."""
        cell = self.cells.get(number)
        if cell is None:
            return "a call"
        return name_of(cell) if role(cell) else "a cell of their own"

    def run(self, cell):
        """Run a cell that is no test: the submission's in the box, the source's here."""
        self._run_theirs(len(self.cells), cell)
        if not role(cell):
            return
        name = name_of(cell)
        if "missing" in cell.metadata:
            self.missing.add(name)
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

    def _run_theirs(self, number, cell):
        self.cells[number] = cell
        with contextlib.suppress(wire.Ended):
            reply = self._ask({"do": "run", "source": cell.source, "cell": number})
            if "error" in reply and _stop(reply).startswith("NameError"):
                self.early.append(number)

    def test(self, cell):
        """Return (points or None, sentence): None where a person must look."""
        points, says = self._test(cell, self.space)
        if points == 0:
            self.wrong.append((cell, dict(self.space)))
        return points, says

    def again(self):
        """Return {test: (points or None, sentence)} for those that are right once all of the submission has run.

        A cell may need what a later one defines, as where cells were run in another order, and an answer may stand
        below its test.
        """
        for number in self.early[:] if self.wrong else ():  # a name may be missing still
            self._run_theirs(number, self.cells[number])
        found = {name_of(cell): self._test(cell, space) for cell, space in self.wrong if not self.ended}
        return {name: verdict for name, verdict in found.items() if verdict[0]}

    def _test(self, cell, space):
        self.lacked = None
        try:
            mixed = dict(space)
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
        """A wrong answer earns nothing; one that may be right elsewhere, or in another cell, is looked at."""
        lacked = self.lacked
        words = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
        names = [name for name in self.names if name in words]
        stops = self._stops(names)
        if self.ended:
            return None, f"{BY_HAND}: {self.ended}."
        for name in dict.fromkeys(self.names[name] for name in names):
            if name in self.missing:
                return None, f"{BY_HAND}: the cell {name!r} is missing, or lost its mark. {sentence}"
        for number, stopped, lacking in stops:
            which = "Its cell" if role(self.cells.get(number, cell)) else "A cell of their own"
            sentence += f" ({which} stopped: {stopped}.)"
            ran = self.cells.get(number, cell).metadata.get("ran")  # at home, with more cores, or a newer Python
            lacked = lacked or ((lacking or ran) and stopped)
        return (None, f"{BY_HAND}, perhaps it runs elsewhere ({lacked}): {sentence}") if lacked else (0, sentence)

    def _stops(self, names):
        """Return [(number, what stopped it, may it be the box's fault)] of the cells that some names depend on."""
        with contextlib.suppress(wire.Ended, TypeError, ArithmeticError, ValueError, LookupError):
            found = self._ask({"do": "why", "names": names})["value"]
            return [(int(number), _stop(stopped), stopped["lacking"] is True) for number, stopped in found]
        return []

    def _theirs(self, name):
        if callable(self.space[name]):
            reply = self._ask({"do": "call", "source": f"callable({name})", "bound": {}, "back": []})
            return Theirs(name, self._call) if reply.get("value") is True else None
        return self._ask({"do": "call", "source": name, "bound": {}, "back": []}).get("value")


def _stop(reply):
    """Return what stopped a cell or a call, as the box says it."""
    return ": ".join(filter(None, said(reply)))


def written(cell):
    """Return (points or None, sentence) for an answer in words: nothing where nothing was written."""
    if "missing" in cell.metadata:
        return None, f"{BY_HAND}: the cell {name_of(cell)!r} is missing, or lost its mark."
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
            with contextlib.redirect_stdout(io.StringIO()):
                found |= judge.again()
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

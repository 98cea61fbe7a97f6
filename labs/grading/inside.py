"""What runs in the box: IPython, as behind JupyterLab, runs a submission's cells; what they define is called as asked.

Everything here may be changed by the submission that it runs. It decides nothing: it answers with plain numbers.
"""

import ast
import asyncio
import bdb
import os
import re
import signal
import sys

import wire
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from numpy import errstate
from traitlets.config import Config

os.environ |= {"PIP_NO_INDEX": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # the latter as there
SETTINGS = {
    "HistoryManager": {"enabled": False},
    "DisplayFormatter": {"active_types": ["text/plain"]},
    "InteractiveShell": {"xmode": "Minimal", "colors": "nocolor"},
}


class TooLong(BaseException):
    """Raised in a cell, or in a call, that takes too long."""


# What may be the box's fault: no network, few files, not all packages and their magics, nobody who types, and less time
# than at home.
LACKING = (OSError, ImportError, UsageError, EOFError, bdb.BdbQuit, TooLong)


class Shell(InteractiveShell):
    """IPython, without what it has for its user. A line for it that doesn't work here costs no other line."""

    def run_line_magic(self, magic_name, line, _stack_depth=1):
        if magic_name == "timeit" and "-r" not in line:
            line = f"-r1 {line}"  # once will do: nobody reads the time
        try:
            return super().run_line_magic(magic_name, line, _stack_depth=_stack_depth + 1)
        except (UsageError, ImportError) as error:
            print(error)

    def run_cell_magic(self, magic_name, line, cell):
        if magic_name == "timeit" and "-r" not in line:
            line = f"-r1 {line}"
        return super().run_cell_magic(magic_name, line, cell)

    def enable_gui(self, gui=None):
        """There is no window to attend to."""

    def enable_matplotlib(self, gui=None):
        """Whatever a figure was to be shown in, here it is a picture."""
        return super().enable_matplotlib("inline")

    def ask_exit(self):
        """A lab goes on after exit()."""


def too_long(*_):
    raise TooLong("it takes longer than there is time for")


def text_of(error):
    try:
        return type(error).__name__[:60], " ".join(str(error).split())[:300]
    except BaseException:
        return type(error).__name__[:60], ""


def reply_to(error):
    cause = BaseException.__dict__["__cause__"].__get__(error)  # of `%run nosuch.py`, an OSError
    lacking = issubclass(type(error), LACKING) or issubclass(type(cause), LACKING)
    return {"error": text_of(error), "lacking": lacking, "late": type(error) is TooLong}


def names_in(source, shell):
    """Return the names that a cell binds, and those that it uses; of a cell that is no Python, all words as both."""
    try:
        nodes = list(ast.walk(ast.parse(shell.transform_cell(source))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the latter two where it is too deep
        words = set(re.findall(r"[^\W\d]\w*", source))
        return words, words
    bound: set = set()
    used: set = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("run_line_magic", "run_cell_magic"):
            for text in node.args[1:]:  # such as `x = 1` of `%time x = 1`
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    more = names_in(text.value, shell)
                    bound, used = bound | more[0], used | more[1]
    return bound, used


class Submission:
    """What has run of a submission, and how it ended."""

    def __init__(self):
        self.shell = Shell.instance(config=Config(SETTINGS))
        self.cells: dict = {}  # number -> (names that it binds, that it uses, None or what stopped it)

    async def run(self, request):
        source = request["source"]
        try:
            ready = {"transformed_cell": self.shell.transform_cell(source)}
        except Exception:
            ready = {"transformed_cell": source, "preprocessing_exc_tuple": sys.exc_info()}
        result = await self.shell.run_cell_async(source, store_history=True, **ready)
        error = result.error_before_exec or result.error_in_exec
        stopped = error and reply_to(error)
        self.cells[request["cell"]] = (*names_in(source, self.shell), stopped)
        return stopped or {"value": None}

    async def call(self, request):
        space = self.shell.user_ns
        bound = {name: find(value, space) for name, value in request["bound"].items()}
        with errstate(**request.get("errors", {})):
            value = eval(request["source"], space, bound)
        return {"value": value, "bound": {name: bound[name] for name in request["back"]}}

    async def why(self, request):
        """Return what stopped the cells that some names come from, and that these need, and so on."""
        names, found, before = set(request["names"]), {}, -1
        while len(names) > before:
            before = len(names)
            for number, (bound, used, stopped) in self.cells.items():
                if bound & names:
                    names |= used
                    found[number] = stopped
        return {"value": [[number, stopped] for number, stopped in sorted(found.items()) if stopped]}

    async def answer(self, request):
        signal.setitimer(signal.ITIMER_REAL, request.get("seconds", 0))
        try:
            return await getattr(self, request["do"])(request)
        except BaseException as error:  # a lab goes on, after exit() too
            return reply_to(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def find(value, space):
    """Return an argument, with names replaced by what the submission has under them."""
    if type(value) is wire.Name:
        return space[str(value)]
    if type(value) in (list, tuple):
        return type(value)(find(item, space) for item in value)
    return {key: find(item, space) for key, item in value.items()} if type(value) is dict else value


def no_measurements():
    """A measurement is for the student to see: it is not made again."""
    from mlpkit.course import Lab

    setattr(Lab, "ready", lambda self, *tasks: False)  # noqa: B010


async def main(requests, answers):
    signal.signal(signal.SIGALRM, too_long)
    sys.path[0] = ""  # as in a notebook, where a file beside it can be imported
    no_measurements()
    submission, process = Submission(), os.getpid()
    while True:
        try:
            request = wire.receive(requests)
        except wire.Ended:
            return
        reply = await submission.answer(request)
        if os.getpid() != process:
            os._exit(0)  # a cell has forked: one answer is enough
        try:
            wire.send(answers, reply)
        except wire.Ended:
            return
        except BaseException as error:
            wire.send(answers, {"error": text_of(error)})


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
    os._exit(0)

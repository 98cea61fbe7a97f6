"""Measure in a process of one's own: what is chosen when a library loads, or once is warm, can't be undone in this one.

A module that is asked so prints its answer as JSON, in a line, when it is run: `python -m mlpkit.<module>`. Lines that
are no JSON are a library's, which says something of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

from mlpkit.machine import ROOT

READY = "ready"
ODD = "replace"  # what is said in another encoding must not hide what is said in ours


class Failed(RuntimeError):
    """The process ended without an answer; the text says why, in a sentence."""


def ask(module, *arguments, env=None):
    """Return what `python -m module arguments` prints, as JSON has it. env: its environment, this process's if None.

    Raises Failed with the process's last error, or with its exit code where it has said nothing, and where it ends
    without an answer. Ctrl-C ends it, and what it has started.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, errors=ODD, env=env, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            answer, said = process.communicate()
        except BaseException:
            _kill_all(process)
            raise
    if process.returncode:
        raise Failed(_last_error(said) or f"the process ended with code {process.returncode}")
    lines = answer.splitlines()
    with suppress(StopIteration):
        return _answer(reversed(lines))
    raise Failed("the process ended without an answer" + (f"; it said {lines[-1][:80]!r}" if lines else ""))


def _answer(lines):
    """Return the first of the lines that is JSON. Raises StopIteration where none is."""
    while True:
        line = next(lines)
        with suppress(ValueError, RecursionError):
            return json.loads(line)


def _kill_all(process):
    """Kill a process that leads a session, and all others in it: libraries start some of their own."""
    if os.name == "nt":
        process.kill()
    else:
        with suppress(ProcessLookupError):  # all have ended by themselves
            os.killpg(process.pid, signal.SIGKILL)


class Waiting:
    """A process that prepares itself, says so with a line, waits for one, and prints its answer, as JSON has it.

    So several can prepare side by side, and measure one after another: `ready()` of each, then `answer()` of each. Both
    raise Failed as `ask` does. A context manager, which ends the process and what it has started. seconds: after which
    it is ended, if it is not prepared by then.
    """

    def __init__(self, module, *arguments, env=None, seconds=None):
        command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
        self.said = tempfile.TemporaryFile("w+", errors=ODD)  # noqa: SIM115  (a pipe that nobody reads would fill up)
        pipes: dict = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.said}
        self.process = subprocess.Popen(
            command, text=True, errors=ODD, env=env, cwd=ROOT, start_new_session=True, **pipes
        )
        self.limit = threading.Timer(seconds or 0, _kill_all, [self.process])
        if seconds:
            self.limit.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.limit.cancel()
        if self.said.closed:  # it was ended before, and others may have its number
            return
        _kill_all(self.process)
        self.process.communicate()
        self.said.close()

    def ready(self):
        """Return when the process is prepared."""
        while self._line().strip() != READY:
            pass
        self.limit.cancel()

    def answer(self):
        """Return what the process prints when it is asked to go on."""
        with suppress(BrokenPipeError):
            print(file=self.process.stdin, flush=True)
        return _answer(iter(self._line, None))

    def _line(self):
        assert self.process.stdout
        if line := self.process.stdout.readline():
            return line
        code = self.process.wait()
        self.said.seek(0)
        raise Failed(_last_error(self.said.read()) or f"the process ended with code {code}")


def wait_to_be_asked():
    """Say that this process is ready, and return when it is asked: the other side of `Waiting`.

    It ends here where whoever would ask has ended, in whatever way.
    """
    print(READY, flush=True)
    if not sys.stdin.readline():
        sys.exit()


def _last_error(said):
    """Return the last line that begins like an exception, else the last line; "" of nothing."""
    lines = said.strip().splitlines() or [""]
    return next((line for line in reversed(lines) if re.match(r"[\w.]+: ", line)), lines[-1])


@contextmanager
def busy_programs(n, seconds=60):
    """Run `n` programs beside this one that do nothing but compute; they end by themselves after so many seconds."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    running: list[subprocess.Popen] = []
    try:
        while len(running) < n:
            running.append(subprocess.Popen([sys.executable, "-c", code]))
        time.sleep(0.2 if n else 0)  # until they are at it
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()

"""Measure in a process of one's own: what is chosen when a library loads, or once is warm, can't be undone in this one.

A module that is asked so prints its answer as JSON, and nothing else, when it is run: `python -m mlpkit.<module>`.
"""

import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager

from .machine import ROOT


class Failed(RuntimeError):
    """The process ended without an answer; the text says why, in a sentence."""


def ask(module, *arguments, env=None):
    """Return what `python -m module arguments` prints, as JSON has it. env: its environment, this process's if None.

    Raises Failed with the process's last error, or with its exit code where it has said nothing.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    if done.returncode:
        raise Failed(_last_error(done.stderr) or f"the process ended with code {done.returncode}")
    return json.loads(done.stdout)


def _last_error(said):
    """Return the last line that begins like an exception, else the last line; "" of nothing."""
    lines = said.strip().splitlines() or [""]
    return next((line for line in reversed(lines) if re.match(r"[\w.]+: ", line)), lines[-1])


@contextmanager
def busy_programs(n, seconds=60):
    """Run `n` programs beside this one that do nothing but compute; they end by themselves after so many seconds."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(n)]
    try:
        time.sleep(0.2 if n else 0)  # until they are at it
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()

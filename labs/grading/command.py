"""How a command of the labs speaks and ends: one line at a time, whatever a file is called and whoever reads it."""

import os
import signal
import sys

from mlpkit import interrupts
from mlpkit.words import printable


class Say:
    """Print lines. One that can't be printed stops nobody's work: `failed` keeps the OSError, for the end."""

    failed = None

    def __call__(self, line, stream=None):
        try:
            print(printable(line), file=stream, flush=True)
        except OSError as error:  # the disk is full, or nobody reads on
            self.failed = self.failed or error
            os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())

    def error(self, line):
        self(line, sys.stderr)


def run(work, interrupted):
    """Do `work(say)`, and return how the program ends, with one sentence where it can't go on.

    0 or what the work returns; 1 for an error; 130 for Ctrl-C, where `interrupted` says what is kept; 141 where nobody
    reads the output any more: the work was done all the same.
    """
    say = Say()
    try:
        with interrupts.heeded():
            code = work(say) or 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to end but this
        say.error(f"Interrupted: {interrupted}")
        return 130
    except (OSError, RuntimeError, ImportError) as error:
        say.error(error)
        code = 1
    if code or not say.failed:
        return code
    if isinstance(say.failed, BrokenPipeError):
        return 141
    say.error(f"All was done, but not every line of it could be shown ({say.failed.strerror}).")
    return 1

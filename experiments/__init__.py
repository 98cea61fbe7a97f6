"""A record is made by the experiment of the same name, and this folder is the list of them.

What they measure with, and how records are kept and read, is in `lab`.

An experiment is a package, or a module of a few lines where it only varies another one:

    __init__.py   asks the question, in its docstring, and exports the names below
    measure.py    makes the record; it needs the machine that the question is about
    read.py       says what a record means, on any machine, from the record alone

`measure(save=results.save_part, progress=print, plan=USUAL)` returns the record. It calls `save(record)` whenever
something was added, so that Ctrl-C costs no more than what was being measured, and `progress(text)` with what comes
next. `plan` says how much to measure; an experiment that takes longer for a published record exports such a plan as
THOROUGH. Some take their data as one more argument, None for MNIST's. Raises `engines.EngineUnavailable` where nothing
of it can be measured, and KeyboardInterrupt after Ctrl-C: part of a training is no evidence (see `bench.whole`).

`table(record)` returns the record as text for the terminal, an unfinished one's too.

Neither importing an experiment nor reading its record takes Numba, CuPy or a GPU.
"""

import pkgutil
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from mlpkit.checks import check_choice


def names():
    """Return the names of all experiments. None of them is imported."""
    beside = ("__main__", "lab")
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name not in beside))


def question(name):
    """Return what an experiment asks: the first sentence of its docstring. It is read and not imported."""
    spec = find_spec(f"{__name__}.{name}")
    text = Path((spec and spec.origin) or "").read_text(encoding="utf-8")
    return re.sub(r'(?s).*?"""(.*?[.?])(\s.*|""".*)', r"\1", text, count=1)


def load(name):
    """Import the experiment called `name`, and no other, and return it: see above what it has.

    Raises ValueError for a name that none has.
    """
    check_choice("experiment", name, names())
    return import_module(f"{__name__}.{name}")

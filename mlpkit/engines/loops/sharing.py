"""Functions whose turns Numba's threads share out, kept from ending the process: Numba finds too late what goes wrong.

Where the threads are GNU's OpenMP's, as usual on Linux, a process that was forked from one that had them can't have
any. Where Numba has only its own, "workqueue", two Python threads can't use them at once, and so they take turns.
(Numba's documentation, "The Threading Layers".)
"""

import os
import sys
import threading
from contextlib import nullcontext
from types import ModuleType

import numba
from numba.core.registry import CPUDispatcher

from mlpkit.engines import EngineUnavailable


class Shared(CPUDispatcher):  # type: ignore[misc]  # Numba has no types
    """A function whose turns Numba's threads share out, or one that calls such a one."""

    forked, turn = False, threading.RLock()  # of this process

    def __call__(self, *arguments, **named):
        if self.forked:
            raise EngineUnavailable(
                "this process was forked from one that has used Numba's threads, and so can have none: begin it by "
                'multiprocessing.get_context("spawn"), or take another engine, such as numba_serial.'
            )
        with nullcontext() if layer() in ("omp", "tbb") else self.turn:
            return super().__call__(*arguments, **named)


def make_shared(dispatcher):
    """Make a `Shared` of a compiled function that is parallel, or calls one that is, by its name or its module's."""
    function = dispatcher.py_func
    names = function.__code__.co_names
    called = [function.__globals__.get(name) for name in names]
    called += [getattr(module, name, None) for module in called if isinstance(module, ModuleType) for name in names]
    if dispatcher.targetoptions.get("parallel") or any(isinstance(each, Shared) for each in called):
        dispatcher.__class__ = Shared


def layer():
    """Return the name of what Numba's threads are made of; None before there are any."""
    try:
        return numba.threading_layer()
    except ValueError:
        return None


def _begin_in_child():
    Shared.forked = Shared.forked or (layer() == "omp" and sys.platform == "linux")
    Shared.turn = threading.RLock()  # the other one's owner may be no more


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)

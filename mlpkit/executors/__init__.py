"""What runs a whole model on an engine: a step after another, an epoch, a data set, or a prediction.

An engine is arithmetic on arrays; an executor stands above it, and knows layers, networks and optimizers. `plain` asks
the engine for an operation at a time, and works for each. Where there is a faster way, as a graph of a whole step or
one kernel for an epoch, a module here has the engine's name, and takes over from `plain` what it does not change:

    why_not(model, optimizer, batch_size)  None, or the sentence that says why it can't train so
    Trainer, Evaluation, Prediction        see `protocol`
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from . import plain


def of(engine):
    """Return what runs models on an engine: the module of its name in this folder, else `plain`.

    A reader's own engine may bring an `executor` with it, with the same names.
    """
    return getattr(engine, "executor", None) or _named(engine.__name__.rpartition(".")[2])


@cache
def _named(name):
    found = "_" in name and find_spec(f"{__name__}.{name}")
    return import_module(f"{__name__}.{name}") if found else plain


def check_trains(network, optimizer, batch_size):
    """Raise ValueError, with its sentence, where the engine's executor can't train such a network in such a way."""
    if reason := of(network.engine).why_not(network.model, optimizer, batch_size):
        raise ValueError(reason)


def trainer_of(network, optimizer, X, y, batch_size):
    """Return what trains `network`, see `protocol.Trainer`. Raises ValueError where the engine can't train so."""
    check_trains(network, optimizer, batch_size)
    return of(network.engine).Trainer(network, optimizer, X, y, batch_size)

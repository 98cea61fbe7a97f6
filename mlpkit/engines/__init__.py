"""An engine is a module that does the arithmetic of training, in one particular way.

Its name says library and approach: `numba_hybrid`. Engines export the same functions, so that two of them can be read
side by side and swapped without a change anywhere else; `protocol` lists those that everybody has. An engine knows
arrays, and no network: whole epochs are `mlpkit.executors`'. `numpy_baseline` defines what each function must compute:
the tests hold the others to it, in operations and in runs of steps.

This folder is the list of the engines: a file in it is one. The first words of its docstring, up to a colon, are its
label. One that takes all but a few operations from another, as they are, names those few in `OWN`: for a model that
needs none of them it is the other engine again, and nobody need measure it twice. One that takes all of them, such as
`cuda_graph_epoch`, stands for the executor of its name, which runs whole epochs in its own way.
"""

import ast
import pkgutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .protocol import Engine as Engine

BASELINE = "numpy_baseline"
LIBRARIES = ("numpy", "python", "numba", "cupy", "cuda")  # in the order of the chapters


class EngineUnavailable(RuntimeError):
    """This machine lacks what an engine needs; the message says what, and how to get it."""


def names(operations: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names of all engines, by library in the order of the chapters, then by the alphabet.

    operations: names of functions, such as `MLP.operations`: without the engines that take all of these from another.
    """
    found = [module.name for module in pkgutil.iter_modules(__path__) if "_" in module.name and not module.ispkg]
    if operations is not None:
        wanted = set(operations)
        found = [name for name in found if (own := own_operations(name)) is None or wanted & own]
    return tuple(sorted(found, key=lambda name: ([*LIBRARIES, library(name)].index(library(name)), name)))


def library(name: str) -> str:
    """Return the first word of an engine's name, which is that of the library it stands on."""
    return name.partition("_")[0]


def interpreted(name: str) -> bool:
    """Say whether Python computes number by number: an epoch takes hours."""
    return library(name) == "python"


def on_gpu(name: str) -> bool:
    """Say whether an engine needs an NVIDIA GPU."""
    return library(name) in ("cupy", "cuda")


def label(name: str) -> str:
    """Return an engine's label: its module's docstring up to the first colon. The module is read and not imported.

    Of a module that is no Python, as while it is being written, it is the name.
    """
    if find_spec(f"{__name__}.{name}") is None:
        return name.replace("_", " ")
    return (ast.get_docstring(_read(name)) or name).partition(":")[0]


def own_operations(name: str) -> set[str] | None:
    """Return the operations in which an engine differs from the one that it stands on: its module's tuple `OWN`.

    None where it has none: the engine may differ in all. The module is read and not imported.
    """
    for node in _read(name).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OWN":
            with suppress(ValueError, TypeError):  # no tuple of words
                return set(ast.literal_eval(node.value))
    return None


def _read(name: str) -> ast.Module:
    """Return an engine's module, parsed; an empty one where there is none, or no Python in it."""
    spec = find_spec(f"{__name__}.{name}")
    try:
        return _parsed(Path((spec and spec.origin) or "").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


@cache
def _parsed(source: str) -> ast.Module:
    """Return a module's source, parsed; once, as `names` asks all engines each time."""
    return ast.parse(source)


def load(name: str) -> "Engine":
    """Import and return the engine called `name`.

    Raises TypeError for what is no text, ValueError for a name that no engine has, and EngineUnavailable where this
    machine can't run it: an engine says so by raising ImportError as it is imported, as `gpu.require()` does where CuPy
    finds no GPU. What else is raised there is its reason too.
    """
    if not isinstance(name, str):
        raise TypeError(f"an engine is loaded by its name, a text, not by {name!r}.")
    is_loaded = "_" in name and f"{__name__}.{name}" in sys.modules  # known without a look into the folder
    if not is_loaded and name not in names():
        raise ValueError(f"there is no engine {name!r}; the engines are {', '.join(names())}.")
    try:
        return cast("Engine", import_module(f"{__name__}.{name}"))
    except (Exception, SystemExit) as error:  # also a broken library, or a variable that it can't make sense of
        needs_gpu = on_gpu(name) or getattr(error, "name", None) == "cupy"
        said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        reason = (needs_gpu and _no_gpu()) or " ".join(said.split())
        raise EngineUnavailable(f"engine {name} can't run on this machine: {reason}") from error


def _no_gpu() -> str | None:
    from mlpkit.kernels import gpu  # who needs no GPU need not read what finds one

    return gpu.why_not()


def available() -> dict[str, str | None]:
    """Return each engine's name with None, or with the reason why this machine can't run it."""
    return {name: _why_unavailable(name) for name in names()}


def _why_unavailable(name: str) -> str | None:
    try:
        load(name)
    except EngineUnavailable as error:
        return str(error)
    return None

"""Layers, losses and schedules from text, and to text.

Reading runs no code: a name is looked for among the kinds that are known, and its settings are numbers and texts.
"""

import ast
import pkgutil
from contextlib import suppress
from dataclasses import fields
from importlib import import_module

from mlpkit.checks import check_choice

from .written import Written


def text_of(one):
    """Return a layer or a loss as it is written. Raises ValueError for one that would not be read as what it is."""
    text, found = repr(one), None
    with suppress(TypeError, SyntaxError, ValueError):
        found = read(text)
    if not isinstance(found, Written) or (repr(found), _origins(found)) != (text, _origins(one)):
        raise ValueError(f"{text} can't be written: it has another layer's name, or a setting that is no number.")
    return text


def read(text):
    """Return the layer or the loss that a text writes down. Raises ValueError, TypeError or SyntaxError for others."""
    return _read(ast.parse(text, mode="eval").body)


def loss_text(text):
    """Return a loss as it is written now, of a text that may be version 0.2's, such as "softmax_cross_entropy"."""
    return text if "(" in text else text.title().replace("_", "") + "()"


def _origins(one):
    """Return the modules of the classes of what is written, and of what is written in it."""
    if isinstance(one, tuple):
        return [*map(_origins, one)]
    inside = [getattr(one, field.name) for field in fields(one)] if isinstance(one, Written) else []
    return [type(one).__module__, *map(_origins, inside)]


def _read(node):
    """Return the layer or loss, the tuple of them or the number that a piece of parsed text writes down."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {str(word.arg): _read(word.value) for word in node.keywords}
        return _kind(node.func.id)(*map(_read, node.args), **named)
    if isinstance(node, ast.Tuple):
        return tuple(map(_read, node.elts))
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} is no layer, and no number of one, as in Linear(10).") from None


def _kind(name):
    """Return the kind of that name: of two ours, else the one that was made last. Ours are imported to be found."""
    kinds = _known()
    if name not in kinds:
        for module in pkgutil.iter_modules(import_module(__package__).__path__):
            import_module(f"{__package__}.{module.name}")
        kinds = _known()
    check_choice("layer, loss or schedule", name, kinds)
    return kinds[name]


def _known():
    known = [kind for base in Written.__subclasses__() for kind in _kinds(base)]  # a Layer by itself is none
    known.sort(key=lambda kind: kind.__module__.startswith(f"{__package__}."))
    return {kind.__name__: kind for kind in known}


def _kinds(kind):
    """Yield all kinds that are known here, a reader's own too."""
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)

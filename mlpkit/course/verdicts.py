"""A student's function is called with copies, and what comes of it is held against what should."""

from dataclasses import dataclass, field

import numpy as np

from .differences import difference
from .values import is_one_of, line_of, message, type_name


@dataclass(frozen=True)
class Verdict:
    """Right or not, and a sentence about it."""

    right: bool
    sentence: str

    def __bool__(self):
        return self.right

    def _ipython_display_(self):
        """Show nothing where a check is a cell's last line: it has said its sentence."""


@dataclass(frozen=True, eq=False)
class Case:
    """What goes in and what should come out; `case` makes one."""

    arguments: tuple
    gives: object
    note: str = ""
    may_change: tuple = ()
    close: dict = field(default_factory=dict)


def case(*arguments, gives, note="", may_change=(), **close):
    """Return a Case: a function that is called with these arguments should give this.

    gives: numbers, or a tuple of them where several are returned. note: what the case is about, such as "large logits",
    said where it fails. may_change: the positions of arguments that the function is meant to write into. close: rtol,
    atol, same_dtype, for `difference`.
    """
    return Case(arguments, gives, note, tuple(may_change), close)


def judge(name, function, cases):
    """Return the Verdict on a function: right where it is in every case.

    name: how the sentence calls it. function: any object at all. What it raises becomes a sentence, Ctrl-C excepted.
    """
    if function is None or function is ...:
        return Verdict(False, f"{name} is not written yet.")
    for one in cases:
        trouble = _trouble(function, one)
        if trouble:
            about = f" ({one.note})" if one.note else ""
            return Verdict(False, f"{name}{about}: {trouble}")
    return Verdict(True, f"{name}: right.")


def judge_value(name, value, expected, **close):
    """Return the Verdict on a value, which may be any object at all; `close` as for `difference`."""
    trouble = difference(value, expected, **close)
    return Verdict(False, f"{name}: it {trouble}") if trouble else Verdict(True, f"{name}: right.")


def _trouble(function, one):
    given = [_copy(argument) for argument in one.arguments]
    try:
        result = function(*given)
    except NotImplementedError:
        return "it is not written yet."
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a lab goes on
        said = message(error)
        line = "" if "Numba" in said else line_of(error)  # what called it is not what can't be compiled
        return f"it raised {said}" + (f", in the line `{line}`" if line else "")
    for position, (before, after) in enumerate(zip(one.arguments, given, strict=True)):
        if position not in one.may_change and _changed(before, after):
            return f"it changed its argument number {position + 1}, {_how(before, after)}"
    if type(one.gives) is not tuple:
        trouble = difference(result, one.gives, **one.close)
        return trouble and f"what it returns {trouble}"
    several = is_one_of(result, tuple, list) or (is_one_of(result, np.ndarray) and result.ndim > 0)
    if not several or len(result) != len(one.gives):
        have = f"{len(result)} things." if several else f"one {type_name(result)}."
        if result is None:
            have = "None: is nothing written yet, or is a `return` missing?"
        return f"it should return {len(one.gives)} things, and returns {have}"
    for position, (value, wanted) in enumerate(zip(result, one.gives, strict=True)):
        trouble = difference(value, wanted, **one.close)
        if trouble:
            return f"what it returns as number {position + 1} {trouble}"
    return None


def _copy(argument):
    if type(argument) in (list, tuple):
        return type(argument)(_copy(item) for item in argument)
    return argument.copy() if type(argument) is np.ndarray else argument


def _changed(before, after):
    if type(before) is not type(after):  # something else was put into a list
        return True
    if type(before) in (list, tuple):
        return len(before) != len(after) or any(_changed(*pair) for pair in zip(before, after, strict=True))
    if type(before) is not np.ndarray:
        return before is not after and before != after
    # Of another shape or dtype, where a function sets them; the numbers bit by bit, so that NaN is equal to NaN.
    return before.shape != after.shape or before.dtype != after.dtype or before.tobytes() != after.tobytes()


def _how(before, after):
    """Return what to say of an argument that changed: was it meant to be put back, and only rounding is left?"""
    alike = type(before) is np.ndarray and before.dtype.kind == "f"
    if alike and before.shape == after.shape and before.dtype == after.dtype:
        with np.errstate(all="ignore"):
            off = np.abs(after - before).max()
            if 0 < off <= 8 * np.finfo(before.dtype).eps * np.abs(before).max():
                return f"by {off:.2g}: x + h - h need not be x. Put back the number that was there, or change a copy."
    return "which is the caller's: it should make a new array."

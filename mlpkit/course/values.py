"""A student's object, looked at without asking it anything: numbers come out, or a sentence that says why not.

`isinstance`, `==`, `repr`, `len` and `np.asarray` may all run code of the object, or of its type's type. `type(value)`
and `is` run none, and the methods of NumPy's and Python's own types are taken from those types, not from the object.
"""

import linecache
from types import BuiltinFunctionType, FunctionType, GeneratorType, LambdaType, MethodType

import numpy as np

NUMBERS = {id(kind) for kind in (bool, int, float, complex, *np.sctypeDict.values())}  # by id: see above
FUNCTIONS = (FunctionType, LambdaType, MethodType, BuiltinFunctionType)
LARGEST_LIST = 100_000  # numbers
DEEPEST_LIST = 8
LARGEST_INT = 2**63
NUMBA = "Failed in nopython mode pipeline (step: "


class NotNumbers(Exception):
    """The object holds no numbers that can be compared; the message is the end of a sentence that begins with "it"."""


def is_one_of(value, *kinds):
    """Return whether an object's type is one of these; a type derived from one is not."""
    return any(type(value) is kind for kind in kinds)


def _derives_from(value, base):
    return any(kind is base for kind in type.__dict__["__mro__"].__get__(type(value)))


def type_name(value):
    """Return the name of an object's type, as Python itself knows it."""
    return str(type.__dict__["__name__"].__get__(type(value)))[:60]


def message(error):
    """Return "ValueError: ..." in one line of some 200 characters, whatever the exception's own methods do.

    Of what Numba says, which goes on with files, lines and candidates, only the beginning is left.
    """
    try:
        text = " ".join(str(error).split())
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = ""
    if text.startswith(NUMBA):
        text = "Numba can't compile this: " + text[len(NUMBA) :].partition(") ")[2]
        for rest in (' File "', " During: ", " There are ", ", defined at "):
            text = text.partition(rest)[0]
    if text.endswith("required for linear algebra"):  # Numba asks SciPy for `@` and `np.dot`
        text = "Numba doesn't compile a product of whole arrays here: write it as a loop"
    if len(text) > 200:
        text = text[:200].rpartition(" ")[0] + " ..."
    return type_name(error) + (f": {text}" if text else "")


def line_of(error):
    """Return the innermost line of a notebook's cell in which an exception was raised, "" where there is none.

    A line that only raises says what the message says: the line that led to it counts.
    """
    found, trace = "", BaseException.__dict__["__traceback__"].__get__(error)
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith("<") or "ipykernel" in name:
            line = linecache.getline(name, trace.tb_lineno).strip()
            found = line if line and not line.startswith("raise ") else found
        trace = trace.tb_next
    return found if len(found) <= 80 else found[:80].rpartition(" ")[0] + " ..."


def numbers(value):
    """Return `value` as a plain array of bool, int, float or complex, 0 to any number of axes; it may be a view.

    value: any object at all. Raises NotNumbers, with a reason, for all but numbers, arrays, and lists and tuples of
    numbers that are rows of equal length.
    """
    if value is None:
        raise NotNumbers("is None: is nothing written yet, or is a `return` missing?")
    if value is ...:
        raise NotNumbers("is still `...`: not written yet.")
    if is_one_of(value, *FUNCTIONS):
        raise NotNumbers("is a function: has it been called, with ()?")
    if is_one_of(value, GeneratorType):
        raise NotNumbers("is a generator, which has numbers only while it runs: make an array.")
    if id(type(value)) in NUMBERS:
        return _array_of(value)
    if _derives_from(value, np.ndarray):
        return _array(value)
    if is_one_of(value, list, tuple):
        _count_numbers(value)
        return _array_of(value)
    raise NotNumbers(f"is an object of type {type_name(value)}, not numbers.")


def _array(value):
    if _derives_from(value, np.ma.MaskedArray):
        raise NotNumbers("is a masked array: make an ordinary one.")
    plain = np.ndarray.view(value, np.ndarray)
    if plain.dtype.kind not in "biufc":
        raise NotNumbers(f"is an array of {plain.dtype.name}, not of numbers.")
    return plain


def _array_of(value):
    try:
        return _array(np.array(value))
    except (ValueError, OverflowError):
        raise NotNumbers("is a list whose rows differ in length: every row needs as many numbers.") from None


def _count_numbers(rows, depth=1, counted=0):
    """Return how many numbers a list has. Raises NotNumbers where there is anything else, or no end to it."""
    if depth > DEEPEST_LIST:
        raise NotNumbers(f"is a list in a list, more than {DEEPEST_LIST} deep.")
    iterate = list.__iter__ if is_one_of(rows, list) else tuple.__iter__
    for item in iterate(rows):
        if is_one_of(item, list, tuple):
            counted = _count_numbers(item, depth + 1, counted)
        elif is_one_of(item, int) and not -LARGEST_INT <= item < LARGEST_INT:
            raise NotNumbers("has a whole number of more than 64 bits in it.")
        elif id(type(item)) in NUMBERS:
            counted += 1
        elif is_one_of(item, np.ndarray):
            counted += _array(item).size
        else:
            raise NotNumbers(
                f"is a {type_name(rows)} with an object of type {type_name(item)} in it, not only numbers."
            )
        if counted > LARGEST_LIST:
            raise NotNumbers(f"is a list of more than {LARGEST_LIST:,} numbers: make an array.")
    return counted

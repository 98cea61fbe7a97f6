"""Two sets of numbers that should be equal: the first thing that is wrong, in a sentence that names the symptom."""

from math import isfinite

import numpy as np

from .values import NotNumbers, numbers

WORDS = {"b": "True or False", "i": "whole numbers", "u": "whole numbers", "f": "fractions", "c": "complex numbers"}


def difference(value, expected, rtol=1e-6, atol=1e-9, same_dtype=False):
    """Return what is wrong with `value`, as the end of a sentence that begins with "it"; None where nothing is.

    value: any object at all. expected: a number, array or list of numbers; it may hold NaN and inf, which then are
    asked for. rtol, atol: `|value - expected|` may be up to `atol + rtol |expected|`. same_dtype: float64 in place of
    float32 is wrong, too. No method of `value` is called.
    """
    wanted = numbers(expected)
    try:
        given = numbers(value)
    except NotNumbers as why:
        return str(why)
    if given.shape != wanted.shape:
        return _shape(given.shape, wanted.shape)
    return _dtype(given, wanted, same_dtype) or _numbers(given, wanted, rtol, atol)


def _shape(given, wanted):
    """Return a sentence about a wrong shape, with what such a shape usually comes from."""
    said = f"has the shape {given}, and should have {wanted}"
    if [n for n in given if n != 1] == [n for n in wanted if n != 1]:
        return f"{said}: an axis of length 1 is there too often, or missing."
    if given == wanted[::-1]:
        return f"{said}: rows and columns are exchanged."
    if len(given) != len(wanted):
        return f"{said}: over which axis is something added up, or not?"
    off = [axis for axis, (n, m) in enumerate(zip(given, wanted, strict=True)) if n != m]
    if len(off) == 1 and abs(given[off[0]] - wanted[off[0]]) == 1:
        amount = "few" if given[off[0]] < wanted[off[0]] else "many"
        return f"{said}: one too {amount} along axis {off[0]}. Where does the counting begin, and where does it end?"
    return f"{said}."


def _dtype(given, wanted, same_dtype):
    have, want = given.dtype, wanted.dtype
    same_kind = WORDS[have.kind] == WORDS[want.kind]
    if have.kind == "c" and want.kind != "c":
        return "has complex numbers: was a root or a logarithm taken of something negative?"
    if not same_kind and not (given.ndim == 0 and have.kind in "iu" and want.kind == "f"):
        return f"has the dtype {have}: {WORDS[want.kind]} are asked for, such as {want}."
    if same_dtype and have != want:
        return f"has the dtype {have}, and should have {want}, as what went in has."
    return None


def _numbers(given, wanted, rtol, atol):
    if not given.size:
        return None
    if given.dtype.kind in "iub":
        wrong = given != wanted
    else:
        given = given.astype(np.complex128 if given.dtype.kind == "c" else np.float64)
        with np.errstate(all="ignore"):
            close = np.abs(given - wanted) <= atol + rtol * np.abs(wanted)
            close &= np.isfinite(wanted)
            wrong = ~(close | (given == wanted) | (np.isnan(given) & np.isnan(wanted)))
    if not wrong.any():
        return None
    odd = ~np.isfinite(given) & wrong
    if odd.any():
        first = _first(odd)
        what = "NaN (0/0, or inf - inf, or a NaN that came in)" if np.isnan(given[first]) else "infinite"
        return f"has {_count(odd)} that should be finite and {_are(odd)} not: {_at(first)} {_is(given)} {what}."
    first = _first(wrong)
    said = "is {}, and should be {}".format(*_apart(given[first], wanted[first])) + _ended(_pattern(given, wanted))
    return f"has {_count(wrong)} wrong: {_at(first)} it {said}" if given.ndim else said


def _pattern(given, wanted):
    """Return what all the numbers have in common, where it is something that mistakes have in common."""
    if given.dtype.kind not in "iuf":
        return ""
    counts = given.dtype.kind in "iu"
    given, wanted = given.astype(np.float64), wanted.astype(np.float64)

    def same(a, b):
        return a.shape == b.shape and a.size > 0 and np.allclose(a, b, rtol=1e-5, atol=1e-12)

    with np.errstate(all="ignore"):
        if same(given, -wanted):
            return ". Everything has the other sign"
        if not given.any() and given.ndim:
            return ". Everything is 0"
        for axis in range(given.ndim):
            if given.shape[axis] > 2:
                a, b = np.moveaxis(given, axis, 0), np.moveaxis(wanted, axis, 0)
                if np.ptp(wanted) and (same(a[1:], b[:-1]) or same(a[:-1], b[1:])):
                    return f". Everything is moved by one along axis {axis}: where does the counting begin?"
        if given.ndim == 2 and same(given.T, wanted):
            return ". Rows and columns are exchanged"
        ratios = given[wanted != 0] / wanted[wanted != 0]
        off = ratios.size and isfinite(ratios[0]) and isfinite(1 / ratios[0]) and abs(ratios[0] - 1) > 1e-5
        if off and same(given, ratios[0] * wanted):
            ratio = float(ratios[0])
            if given.size > 1 or any(abs(r - round(r)) < 1e-6 and round(r) > 1 for r in (ratio, 1 / ratio)):
                why = "is something counted twice, or left out?" if counts else "is a factor missing, or there twice?"
                return f". {'Everything' if given.ndim else 'That'} is {_times(ratio)}: {why}"
        shift = given.ravel()[0] - wanted.ravel()[0]
        if given.size > 2 and same(given - shift, wanted):
            return f". Everything is {_show(abs(shift))} too {'large' if shift > 0 else 'small'}"
    return ""


def _ended(text):
    return text if text.endswith("?") else f"{text}."


def _times(ratio):
    return f"{ratio:.6g} times what it should be" if abs(ratio) >= 1 else f"1/{1 / ratio:.6g} of what it should be"


def _count(which):
    return f"{int(which.sum()):,} of {which.size:,} numbers"


def _are(which):
    return "is" if which.sum() == 1 else "are"


def _is(array):
    return "it is" if array.ndim else "is"


def _first(which):
    return tuple(int(i) for i in np.argwhere(which)[0])


def _at(index):
    return f"at [{', '.join(map(str, index))}]" if index else "it"


def _apart(given, wanted):
    """Return two numbers that differ as they are shown: in more than six digits where these are equal."""
    both = _show(given), _show(wanted)
    return both if both[0] != both[1] else (repr(float(given)), repr(float(wanted)))


def _show(number):
    return f"{number:.6g}" if np.asarray(number).dtype.kind in "f" else str(number)

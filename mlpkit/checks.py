"""Bad input is met at the door, with one sentence that says what is wrong and what would be right."""

import math
import operator
from collections.abc import Iterable
from math import prod
from numbers import Real

import numpy as np

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def check_count(name, value, least=1):
    """Return `value` as an int. Raises TypeError unless it is a whole number, ValueError below `least`."""
    try:
        count = int(operator.index(value))  # the index of True is True
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}.") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, not {count}.")
    return count


def check_steps(name, value):
    """Return `value` as an int, as `check_count` does. Raises ValueError beyond what NumPy counts in 64 bits, too."""
    count = check_count(name, value)
    if count > 2**62:
        raise ValueError(f"a schedule's {name} must be at most {2**62}, not {count}: train for fewer epochs.")
    return count


def check_flag(name, value):
    """Return `value` as a bool. Raises TypeError unless it is True or False: a text, "no" too, would count as yes."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, not {value!r}.")
    return bool(value)


def check_array(name, value):
    """Raise TypeError unless `value` is an array as NumPy's and CuPy's are: a list is none, nor a column of pandas."""
    if type(value) is np.ndarray:  # as nearly always; what follows takes longer than a small network's prediction may
        return
    check_unmasked(name, value)
    is_array = hasattr(type(value), "__array_interface__") or hasattr(type(value), "__cuda_array_interface__")
    if not is_array or not isinstance(value.dtype, np.dtype) or isinstance(value, np.matrix):  # which multiplies anew
        raise TypeError(f"{name} must be an array, not {type(value).__name__}: convert them with np.asarray.")


def as_array(name, value):
    """Return `value` as an array: as it is, where it is one. Raises TypeError for what NumPy makes no array of."""
    if hasattr(type(check_unmasked(name, value)), "__cuda_array_interface__") and hasattr(value, "ndim"):
        return value
    try:
        return np.asarray(value)
    except Exception as error:  # whatever another library raises where it is asked for an array
        reason = " ".join(str(error).split()).rstrip(".")
        raise TypeError(f"{name} must be an array, and NumPy can't make one of it: {reason}.") from error


def check_unmasked(name, value):
    """Return `value`. Raises TypeError for a masked array, or a list with one in it, which an engine's array drops."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must have no mask, which would be lost: leave out what is masked.")
    for each in value if isinstance(value, list | tuple) else ():
        if isinstance(each, list | tuple | np.ma.MaskedArray):  # a call for each number would take long
            check_unmasked(name, each)
    return value


def check_positive(name, value, dtype=np.float64):
    """Return `value` as a float. Raises ValueError unless it is finite and above zero, in a network's dtype too."""
    number = _number(value)
    with np.errstate(over="ignore"):
        if not 0 < np.dtype(dtype).type(number) < math.inf:
            there = f" in {np.dtype(dtype)}" if 0 < number < math.inf else ""
            raise ValueError(f"{name} must be a finite number above 0{there}, not {value!r}.")
    return float(value)


def check_not_negative(name, value):
    """Return `value` as a float. Raises ValueError unless it is finite and at least zero."""
    if not 0 <= _number(value) < math.inf:
        raise ValueError(f"{name} must be a finite number, 0 or above, not {value!r}.")
    return float(value)


def check_fraction(name, value):
    """Return `value` as a float. Raises ValueError unless 0 <= value < 1."""
    if not 0 <= _number(value) < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, not {value!r}.")
    return float(value)


def check_number(name, value):
    """Return `value` as a float. Raises ValueError unless it is a finite number."""
    if not math.isfinite(_number(value)):
        raise ValueError(f"{name} must be a finite number, not {value!r}.")
    return float(value)


def check_share(name, value):
    """Return `value` as a float. Raises ValueError unless 0 < value < 1."""
    if not 0 < _number(value) < 1:
        raise ValueError(f"{name} must be above 0 and below 1, not {value!r}.")
    return float(value)


def _number(value):
    """Return `value` as a float; NaN, which is in no range, for what is no number."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # an int beyond all floats
        return math.inf


def check_choice(what, value, choices):
    """Raise ValueError unless `value` is one of the `choices`, which are texts. what: they are, for the message."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"there is no {what} {value!r}; choose from {', '.join(choices)}.")


def check_sizes(sizes, least=2):
    """Return sizes, such as those of layers, as a tuple of ints. ValueError for fewer than `least`, or below 1."""
    if not isinstance(sizes, Iterable):
        raise TypeError(f"sizes must be a list of whole numbers, inputs first, not {sizes!r}.")
    sizes = tuple(check_count("each size", size) for size in sizes)
    if len(sizes) < least:
        wanted = "at least two sizes, inputs and classes" if least == 2 else f"at least {least} size"
        raise ValueError(f"a network needs {wanted}, not {sizes}.")
    return sizes


def check_dtype(dtype):
    """Return `dtype` as a NumPy dtype. Raises ValueError unless it is float32 or float64."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = dtype
    if dtype is None or found not in DTYPES:  # NumPy takes None for float64
        raise ValueError(f"a network computes in float32 or float64, not {found if dtype else dtype}.")
    return found


def check_batch(x, shape, dtype):
    """Check that `x` is (n, *shape), or rows of as many numbers, n at least 1, of the given dtype or uint8; return n.

    Cheap, as it runs at every step: no number is looked at. Images are welcome where rows are wanted, but not in
    another order of axes. Raises ValueError for another shape, TypeError for another dtype, or for what is no array.
    """
    check_array("inputs", x)
    whole, found = tuple(shape), x.shape
    fits = found[1:] == whole or found[1:] == (prod(whole),) or (len(whole) == 1 and prod(found[1:]) == whole[0])
    if not fits or len(found) < 2 or not found[0]:
        each_of = dict.fromkeys([whole, (prod(whole),)])
        wanted = " or ".join(str(("n", *each)).replace("'", "") for each in each_of)
        none = "" if found and found[0] else ": there are no examples"
        raise ValueError(f"inputs must have shape {wanted} with n at least 1, not {found}{none}.")
    if x.dtype not in (dtype, np.uint8):
        raise TypeError(f"inputs are {x.dtype} but the network computes in {dtype}: {way_to_dtype(x.dtype, dtype)}.")
    return found[0]


def way_to_dtype(found, wanted):
    """Return what to do about inputs or targets of a dtype, where the network's is wanted."""
    if found.kind == "b":
        return "give them times np.uint8(255), if True is white"
    as_floats = f"astype(np.{wanted})"
    if found.kind in "iu":
        return f"give pixels, from 0 to 255, as astype(np.uint8), others as {as_floats}"
    return f"give {as_floats}" if found.kind == "f" else f"give numbers, with none missing, as {as_floats}"


def check_finite(name, array):
    """Return `array`. Raises ValueError where numbers are NaN or infinite: it shows in the extremes, at no memory."""
    if array.dtype == np.uint8 or not array.size:
        return array
    lowest, highest = float(array.min()), float(array.max())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise ValueError(f"{name} must be finite numbers, but these go from {lowest:g} to {highest:g}.")
    return array


def check_labels(labels, n, classes):
    """Check that `labels` are `n` integers in [0, classes).

    Raises ValueError for another shape or a label out of range, TypeError for labels that are no integers.
    """
    check_labels_form(labels, (n,), classes)
    check_label_values(labels, classes)


def check_label_values(labels, classes):
    """Raise ValueError unless all labels are in [0, classes)."""
    if labels.size and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise ValueError(f"labels must be from 0 to {classes - 1}, but these go from {labels.min()} to {labels.max()}.")


def check_labels_form(labels, shape, classes):
    """Check that `labels` are integers of a shape; no number is looked at. Raises what `check_labels` raises."""
    check_array("labels", labels)
    if labels.shape != shape:
        raise ValueError(
            f"labels must have shape {shape}, not {labels.shape}{way_to_shape(labels.shape, shape, classes)}."
        )
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels must be integers, not {labels.dtype}.")
    if not labels.dtype.isnative:  # as read from an IDX file: compiled loops can't use them
        raise TypeError(f"labels must have this machine's byte order, not {labels.dtype}: convert them to int64.")


def way_to_shape(found, wanted, classes=None):
    """Return what to do about labels or targets of another shape, where it is clear what they are, else nothing."""
    if [size for size in found if size != 1] == [size for size in wanted if size != 1]:
        return f": give np.reshape of them, to {wanted}"
    if found[:1] != wanted[:1]:
        return ": there must be as many as inputs"
    if len(found) == len(wanted) + 1 and found == (*wanted[:1], classes, *wanted[1:]):
        return "; of one-hot rows take argmax(axis=1)"
    return ""

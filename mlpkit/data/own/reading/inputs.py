"""Numbers that are pixels become bytes, and others float32: a network divides bytes by 255, and floats by nothing."""

from contextlib import suppress

import numpy as np

from mlpkit.checks import as_array, check_finite

AT_ONCE = 1000  # examples that are looked at together


def as_inputs(X, said):
    """Return X as `from_arrays` says, checked. said: a list, which gets sentences on what was done.

    Raises ValueError for numbers out of range, or another shape, TypeError for what are no numbers.
    """
    X = as_array("X", X)
    if X.dtype.kind == "O" and X.ndim > 1:
        with np.errstate(all="ignore"):
            X = _values(X)
    if X.ndim < 2 or not X.size:
        raise ValueError(f"X must be images (n, channels, height, width), or rows (n, k), not {X.shape}.")
    if X.dtype.kind == "b":
        raise TypeError("X are True and False: give X * np.uint8(255), which are black and white.")
    if X.dtype.kind not in "iuf":
        raise TypeError(f"X must be numbers, not {X.dtype}.")
    X = _channels_first(X, said)
    return _of_integers(X, said) if X.dtype.kind in "iu" else _of_floats(X, said)


def _values(X):
    """Return an array of Python's objects as one of numbers, as a table of pandas may need it."""
    try:
        with suppress(OverflowError):  # where one is too large for a whole number, or infinite
            whole = X.astype(np.int64)
            return whole if (whole == X).all() else X.astype(np.float64)
        return X.astype(np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(f"X must be numbers, and none missing ({error}).".replace("\n", " ")) from None


def _channels_first(X, said):
    """Return images with their channels where a network has them, before height and width."""
    if X.ndim == 3:
        return X[:, None]
    if X.ndim != 4 or X.shape[1] in (1, 3):
        return X
    if X.shape[3] == 4:
        raise ValueError(f"X {X.shape} have four channels, colours and transparency: give X[..., :3].")
    if X.shape[3] not in (1, 3):
        return X
    moved = np.ascontiguousarray(np.moveaxis(X, 3, 1))
    said.append(f"X had its channels last, each {X.shape[1:]}, and now has them where networks do, {moved.shape[1:]}.")
    return moved


def _of_integers(X, said):
    lowest, highest = int(X.min()), int(X.max())
    if lowest < 0 or highest > 255:
        raise ValueError(
            f"X are whole numbers from {lowest} to {highest}, and pixels are from 0 to 255: divide what are no pixels "
            "by something, so that they are around 1, and give them as float32."
        )
    if highest <= 1:
        said.append("X hold only 0 and 1, and a network divides bytes by 255: give X * np.uint8(255), if 1 is white.")
    return np.ascontiguousarray(X, np.uint8)


def _of_floats(X, said):
    check_finite("X", X)
    lowest, highest = float(X.min()), float(X.max())
    are_images, like_pixels = X.ndim > 2, lowest >= 0 and 1 < highest <= 255
    if like_pixels and all(_whole(X[start : start + AT_ONCE]) for start in range(0, len(X), AT_ONCE)):
        said.append(
            f"X are {X.dtype}, but whole numbers from 0 to 255: they are now bytes, which a network divides by 255."
        )
        return X.astype(np.uint8)
    if are_images and like_pixels:
        said.append(f"X go from {lowest:g} to {highest:g}: as pixels they were divided by 255.")
        return (X / X.dtype.type(255)).astype(np.float32, copy=False)
    if are_images and max(highest, -lowest) > 255:
        raise ValueError(f"X go from {lowest:g} to {highest:g}: scale images so that they go from 0 to 1.")
    with np.errstate(over="ignore"):
        return check_finite("X as float32", np.ascontiguousarray(X, np.float32))


def _whole(part):
    return bool((part == np.rint(part)).all())

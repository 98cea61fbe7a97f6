"""What is to be learned: labels of any kind become numbers from 0 on, and of each class a share is drawn."""

from collections.abc import Iterable, Mapping, Set
from numbers import Integral

import numpy as np

from mlpkit.checks import as_array, check_count, check_finite, check_fraction, check_labels


def as_targets(parts, classes, said):
    """Return the targets by part, and the names of the classes; none where they are no labels.

    parts: (y, n) by part, for as many examples; y is None where nobody has told it. classes: names, or None for what
    is found. said: a list, which gets sentences on what was done. Raises ValueError or TypeError for what is no target.
    """
    classes = classes if classes is None else _checked_classes(classes)
    found = {part: y if y is None else _as_array(y, n) for part, (y, n) in parts.items()}
    known = {part: y for part, y in found.items() if y is not None}
    if "train" not in known:
        raise TypeError("y must be an array of labels or targets, not None.")
    if len({(y.dtype.kind.replace("u", "i"), y.shape[1:]) for y in known.values()}) > 1:
        kinds = ", ".join(f"{y.dtype} {y.shape}" for y in known.values())
        raise ValueError(f"y of all parts must be alike, not {kinds}.")
    if known["train"].ndim > 1:
        return found, tuple(map(str, classes or ()))
    numbered, classes = _numbered(known, classes, said)
    return found | numbered, classes


def _checked_classes(classes):
    """Return the names of classes as a tuple of texts. TypeError for what are none, ValueError for equal ones."""
    if isinstance(classes, str | bytes | Mapping | Set) or not isinstance(classes, Iterable):  # a set has no order
        raise TypeError(f"classes must be a tuple of names, such as ('cat', 'dog'), not {classes!r}.")
    names = tuple(map(str, classes))
    if len(set(names)) < len(names):
        raise ValueError(f"classes must have a name each, but two are called {max(names, key=names.count)!r}.")
    return names


def _as_array(y, n):
    """Return labels (n,), whole numbers or texts, or targets (n, ...)."""
    y = as_array("y", y)
    if y.dtype.kind in "OT":
        y = _of_objects(y.astype(object))
    if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind != "f":
        y = y[:, 0]  # as Keras has them
    if not y.ndim or len(y) != n:
        raise ValueError(f"y must be as many as X, {n}, but has shape {y.shape}.")
    if y.dtype.kind == "f":
        if y.ndim == 1:
            whole = np.isfinite(y).all() and (y == np.rint(y)).all()
            way = "y.astype(int)" if whole else "leave out what is missing"
            raise TypeError(f"labels must be whole numbers, not {y.dtype}: {way}; of measurements give y[:, None].")
        with np.errstate(over="ignore"):
            return check_finite("y", y.astype(np.float32, copy=False))
    if y.dtype.kind not in "iubU":
        raise TypeError(f"labels must be whole numbers or texts, not {y.dtype}.")
    if y.ndim > 2 and y.dtype.kind == "U":
        raise TypeError(f"maps {y.shape} must be of whole numbers, not of texts.")
    if y.ndim == 2:
        one_hot = ((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all()
        way = (
            "take argmax(axis=1) of these one-hot rows" if one_hot else "give numbers to predict as astype(np.float32)"
        )
        raise ValueError(f"labels must have shape ({n},), not {y.shape}: {way}.")
    return _of_64_bits(y) if y.dtype == np.uint64 else y


def _of_64_bits(y):
    """Return whole numbers as int64: beside it, NumPy would make floats of uint64. Raises ValueError beyond it."""
    if any(not -(2**63) <= value < 2**63 for value in (y.min(), y.max())):
        raise ValueError("labels must be whole numbers from -2**63 to 2**63 - 1: give larger ones as texts.")
    return y.astype(np.int64)


def _of_objects(y):
    """Return an array of Python's objects as one of texts or whole numbers, such as of a column of pandas."""
    for kind in (str, Integral):
        odd = [value for value in y.flat if not isinstance(value, kind)]
        if not odd:
            return y.astype(str) if kind is str else _of_64_bits(y)
        if len(odd) < y.size:
            break
    raise TypeError(f"labels must be texts, or whole numbers, and none missing, but one is {odd[0]!r}.")


def _numbered(known, classes, said):
    """Return labels as numbers from 0 on, int64, by part, and the names of the classes."""
    values = np.unique(np.concatenate(list(known.values())))
    if len(values) < 2:
        raise ValueError(f"all labels are {values[0]}: with one class there is nothing to tell apart.")
    if missing := set(values.tolist()) - set(known["train"].tolist()):
        raise ValueError(f"there are no examples of {min(missing)} to train on, only others.")
    if classes is None:
        classes, place = tuple(map(str, values.tolist())), np.arange(len(values))
        if values.dtype.kind in "iu" and not np.array_equal(values, place):
            said.append(
                f"the {len(values)} labels from {values[0]} to {values[-1]} are now from 0 to {len(values) - 1}: "
                "`classes` of the data set says which was which."
            )
    elif values.dtype.kind in "iu":
        check_labels(values, len(values), len(classes))
        place = values.astype(np.int64)
    else:
        if strange := [str(value) for value in values if str(value) not in classes]:
            raise ValueError(f"y has {strange[0]!r}, which is none of the classes {', '.join(classes)}.")
        place = np.array([classes.index(str(value)) for value in values])
    return {part: place[np.searchsorted(values, y)] for part, y in known.items()}, tuple(map(str, classes))


def check_shares(shares):
    """Raise ValueError unless the shares, by part, are from 0 on and leave something."""
    for part, share in shares.items():
        check_fraction(f"the share for {part}", share)
    if sum(shares.values()) >= 1:
        raise ValueError(f"the shares {' and '.join(map(str, shares.values()))} leave nothing to train on.")


def drawn(y, shares, seed):
    """Return by part the rows of what is left, "train", and those of each share, ascending, as drawn from the seed.

    shares: by part; those of 0 are left out, and where none is left, nothing is drawn, and nothing returned.
    Of labels (n,) each class has its share, to the nearest whole number, and keeps one at least. Raises ValueError for
    a share that has nothing.
    """
    shares, seed = {part: float(share) for part, share in shares.items() if share}, check_count("seed", seed, least=0)
    if not shares:
        return {}
    rng = np.random.default_rng((seed, 0, 2))  # others draw weights, order and changes
    order = np.arange(len(y)) if y.ndim > 1 else np.argsort(y, kind="stable")
    groups = [order] if y.ndim > 1 else np.split(order, np.flatnonzero(np.diff(y[order])) + 1)
    pieces = []
    for group in groups:
        ends = np.minimum(np.rint(np.cumsum([*shares.values()]) * len(group)).astype(int), len(group) - 1)
        pieces.append(np.split(rng.permutation(group), ends))
    *parts, left = (np.sort(np.concatenate(piece)) for piece in zip(*pieces, strict=True))
    for share, part in zip(shares.values(), parts, strict=True):
        if not len(part):
            raise ValueError(f"a share of {share} of each class is nothing here: choose a larger one, or 0.")
    return {"train": left, **dict(zip(shares, parts, strict=True))}

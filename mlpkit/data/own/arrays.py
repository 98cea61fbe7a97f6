"""Arrays that are in memory: pixels of any type, and labels of any kind."""

import warnings
from numbers import Real

from mlpkit.data.dataset import Dataset, Split
from mlpkit.words import short_sentences

from .reading.inputs import as_inputs
from .reading.targets import as_targets, check_shares, drawn


@short_sentences()
def from_arrays(X, y, *, validation=0.1, test=0.0, seed=0, classes=None, name="arrays"):
    """Return the `Dataset` of arrays X and y.

    X: images (n, height, width), (n, channels, height, width) or, with 1 or 3 channels, (n, height, width, channels);
    or rows (n, k). Whole numbers from 0 to 255 are pixels and become uint8; floats become float32. Images of floats are
    taken as they are where they end at 1, and divided by 255 where they end at 255.
    y: labels (n,) or (n, 1), whole numbers or texts: `classes` of the result says which one became which number. Or
    targets: floats (n, ...), or images and maps of integers (n, ..., height, width).
    validation, test: each a pair (X, y) of its own, or a share of X and y, of each class as large a one, drawn from the
    seed; of 0 the part is None. y of a pair may be None. classes: names, in the order in which they are numbered, for
    labels that are these names, or whole numbers from 0 on.

    A warning says what was done with numbers that could have been meant otherwise. Raises ValueError or TypeError,
    with what would be right, for others.
    """
    given = {"train": (X, y)} | {part: pair for part, pair in _named(validation, test) if _is_pair(part, pair)}
    shares = {part: share for part, share in _named(validation, test) if part not in given}
    check_shares(shares)
    said: list[str] = []  # on what was done
    inputs = {part: as_inputs(pair[0], said) for part, pair in given.items()}
    for part, found in inputs.items():
        if (found.shape[1:], found.dtype) != (inputs["train"].shape[1:], inputs["train"].dtype):
            wanted = inputs["train"]
            raise ValueError(
                f"X of {part} must be like those to train on, {wanted.dtype} (n, *{wanted.shape[1:]}), "
                f"not {found.dtype} {found.shape}."
            )
    targets, classes = as_targets({part: (pair[1], len(inputs[part])) for part, pair in given.items()}, classes, said)
    parts = {part: Split(inputs[part], targets[part]) for part in given}
    X, y = parts["train"]
    parts |= {part: Split(X[rows], y[rows]) for part, rows in drawn(y, shares, seed).items()}
    for sentence in dict.fromkeys(said):  # each once
        warnings.warn(sentence, UserWarning, stacklevel=3)
    return Dataset(name, parts["train"], parts.get("validation"), parts.get("test"), classes)


def _named(validation, test):
    return ("validation", validation), ("test", test)


def _is_pair(part, value):
    if isinstance(value, Real):
        return False
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{part} must be a share, such as 0.1, or a pair (X, y), not {type(value).__name__}.")
    return True

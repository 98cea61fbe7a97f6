"""Is a network right as often as it is sure? Temperature scaling (Guo, Pleiss, Sun and Weinberger, 2017) mends it."""

from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_labels, check_positive


class Bin(NamedTuple):
    """Examples of about one confidence: how many images, their mean confidence, and which share of them is right."""

    images: int
    confidence: float
    accuracy: float


@np.errstate(invalid="ignore")  # it shows in what is returned
def probabilities(outputs, temperature=1.0):
    """Return softmax(outputs / temperature), (n, classes) float64. The order of the classes stays as it is.

    Of outputs that are not finite they are NaN.
    """
    z = np.asarray(outputs, np.float64) / check_positive("temperature", temperature)
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def temperature(outputs, labels, steps=60):
    """Return the temperature at which the cross-entropy of held-out outputs (n, classes) is least, from 1/20 to 20.

    In b = 1 / temperature it is convex, and its slope is mean(sum(p z) - z[label]): we halve an interval around its
    zero. Raises what `check_labels` raises.
    """
    check_labels(labels, len(outputs), outputs.shape[1])
    z = np.asarray(outputs, np.float64)
    low, high = 1 / 20, 20.0
    right = z[np.arange(len(z)), labels].mean()
    for _ in range(steps):
        b = np.sqrt(low * high)
        slope = (probabilities(z, 1 / b) * z).sum(axis=1).mean() - right
        low, high = (low, b) if slope > 0 else (b, high)
    return float(1 / np.sqrt(low * high))


def reliability(found, labels, bins=10):
    """Return a list of `Bin`s, equally wide in confidence, those with examples. found: probabilities (n, classes)."""
    sure, right = found.max(axis=1), found.argmax(axis=1) == labels
    which = np.minimum((sure * bins).astype(int), bins - 1)
    masks = (which == number for number in range(bins))
    return [Bin(int(m.sum()), float(sure[m].mean()), float(right[m].mean())) for m in masks if m.any()]


def calibration_error(found, labels, bins=10):
    """Return the mean distance of confidence and accuracy over bins, each weighed by its examples (ECE)."""
    rows = reliability(found, labels, bins)
    return sum(row.images * abs(row.confidence - row.accuracy) for row in rows) / len(labels)

"""In which order an epoch visits the examples, and how that order is cut into batches."""

from functools import lru_cache

import numpy as np

from mlpkit.checks import as_array, check_count, check_labels


def one_hot(labels, classes=10):
    """Return float32 rows (n, classes): 1 in the column of each label, 0 elsewhere. labels (n,): integers.

    Raises ValueError or TypeError for what is no label.
    """
    labels = as_array("labels", labels)
    check_labels(labels, len(labels) if labels.ndim else 0, check_count("classes", classes))
    return np.eye(classes, dtype=np.float32)[labels]


def epoch_order(n, seed, epoch):
    """Return the order (n,) int64 in which epoch number `epoch`, from 0 on, visits the examples.

    It depends on the seed and the epoch alone, so training can be taken up again at any epoch. The last ones are
    remembered, as several engines train in one order, and to draw one takes the time of a hundred of a GPU's steps.
    """
    return _drawn(n, seed, epoch).copy()


@lru_cache(maxsize=16)
def _drawn(n, seed, epoch):
    seeds = check_count("seed", seed, least=0), 1 + check_count("epoch", epoch, least=0)  # (seed, 0) drew the weights
    return np.random.default_rng(seeds).permutation(check_count("n", n, least=0))


def batches(order, batch_size):
    """Yield `order` in pieces of `batch_size`; the last one is shorter where they don't divide evenly."""
    batch_size = check_count("batch_size", batch_size)
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]

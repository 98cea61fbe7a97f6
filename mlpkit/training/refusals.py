"""What can't be trained is refused before the first step, with one sentence."""

from functools import partial
from math import prod
from os import PathLike

import numpy as np

from mlpkit.checks import as_array, check_batch, check_count, check_finite, check_flag
from mlpkit.nn.network import in_range, warn_of_range
from mlpkit.nn.norm import BatchNorm


def data_of(network, train, validation, batch_size):
    """Return both pairs on the network's engine, once they are checked; validation: None where there is none."""
    train = _arrays(network, train, "train")
    check_norms(network.model, len(train[1]), batch_size)
    validation = None if validation is None else _arrays(network, validation, "validation")
    _check_values(network, [train, validation] if validation else [train])
    return train, validation


def _arrays(network, pair, name):
    """Return the arrays of a pair (X, y) on the network's engine. Raises ValueError or TypeError for what is none."""
    try:
        X, y = pair
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (X, y), such as data.load().{name}.") from None
    X, y = (network.engine.asarray(as_array(f"{part} of {name}", array)) for part, array in (("X", X), ("y", y)))
    check_batch(X, network.model.input, network.dtype)
    network.model.loss.check(y, len(X), network.model.output, network.dtype)
    return X, y


def _check_values(network, pairs):
    """Raise ValueError for parameters, inputs or targets that are not as they should be.

    A GPU is asked about all of them, and waited for once; what is wrong is looked at again, for the sentence.
    """
    engine = network.engine
    checks = [(engine.all_finite(network.theta), _refuse_parameters)]
    for X, y in pairs:
        if X.dtype != np.uint8:
            checks.append((engine.all_finite(X), partial(check_finite, "inputs", X)))
        loss, output = network.model.loss, network.model.output
        checks.append((loss.valid(engine, y, output), partial(loss.check_values, y, output)))
    for passed, (_, check) in zip(engine.fetch(*(passed for passed, _ in checks))(), checks, strict=True):
        if not passed:
            check()
    if not in_range(network, pairs[0][0]):
        warn_of_range(pairs[0][0])


def _refuse_parameters():
    raise ValueError("the network's parameters are no longer finite: make a new network, and a new optimizer.")


def check_network(network, optimizer):
    """Raise TypeError or ValueError unless `optimizer` was made for `network`, and has something to train."""
    if not hasattr(optimizer, "network"):
        raise TypeError(f"optimizer must be an optimizer, such as SGD(network, 0.1), not {optimizer!r}.")
    if optimizer.network is not network:
        raise ValueError("this optimizer was made for another network: make a new one for this network.")
    if not len(network.theta):
        raise ValueError("this model has no parameters, so there is nothing to train: give it a layer such as Linear.")


def check_norms(model, examples, batch_size, ranks=1):
    """Raise ValueError where a channel has one value in a rank's share of some batch: it is its own mean."""
    smallest = max(1, min(examples, batch_size, examples % batch_size or batch_size) // ranks)
    row = "a batch of one row" if ranks == 1 else "one row, as a rank would have"
    for _, layer, shape, _ in model.walk:
        if isinstance(layer, BatchNorm) and smallest * prod(shape[1:]) == 1:
            if min(examples, batch_size) < 2 * ranks:
                raise ValueError(f"a BatchNorm learns nothing from {row}: train on batches of at least {2 * ranks}.")
            raise ValueError(
                f"a BatchNorm learns nothing from {row}, which is in the last batch of "
                f"{examples:,} examples in batches of {batch_size}: take another batch_size."
            )


def check_options(epochs, batch_size, seed, patience, validation, checkpoints, resume, on_epoch, augment):
    """Raise TypeError or ValueError for what `fit` can't do with its options: see there for each."""
    check_count("epochs", epochs, least=0)
    check_count("batch_size", batch_size)
    check_count("seed", seed, least=0)
    if patience is not None:
        check_count("patience", patience)
        if validation is None:
            raise ValueError("patience waits for the validation loss: give fit a validation set too.")
    if on_epoch is not None and not callable(on_epoch):
        raise TypeError(f"on_epoch must be a function of the history, not {on_epoch!r}.")
    if augment is not None and not callable(augment):
        raise TypeError(f"augment must be such as Augmentation, (images, targets, seed, epoch), not {augment!r}.")
    check_flag("resume", resume)
    if resume and checkpoints is None:
        raise ValueError("to resume, name the folder of the checkpoints.")
    if checkpoints is not None and not (isinstance(checkpoints, str | PathLike) and checkpoints != ""):
        raise ValueError(f"checkpoints names no folder, but is {checkpoints!r}; for this one, give '.'.")

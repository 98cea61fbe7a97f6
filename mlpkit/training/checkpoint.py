"""A checkpoint is everything that a run needs to go on as if it had never stopped.

That is: the parameters and the running statistics, those of the best epoch so far, the optimizer's state and its count
of steps, the history, and the settings that must stay the same, the data among them. The order of the examples needs no
saving: see `data.epoch_order`; nor does dropout, which depends on a seed and the count of steps.
"""

import hashlib
import json
import math
import re

import numpy as np

from mlpkit.checks import check_count, check_finite
from mlpkit.nn.layers import Dropout
from mlpkit.nn.network import check_vector
from mlpkit.npz import load_npz, save_npz
from mlpkit.words import short_sentences

from .history import History

VECTORS = ("theta", "statistics", "best_theta", "best_statistics")
NAMES = (*VECTORS, "steps", "history", "settings")


def save_checkpoint(path, network, optimizer, history, best, settings):
    """Write a checkpoint to `path`, atomically.

    best: the best epoch's parameters and statistics, NumPy arrays. settings: a dict that JSON can hold.
    """
    vectors = [network.engine.to_numpy(vector) for vector in (network.theta, network.statistics)]
    state = {name: network.engine.to_numpy(vector) for name, vector in optimizer.state.items()}
    save_npz(
        path,
        **dict(zip(VECTORS, (*vectors, *best), strict=True)),
        steps=optimizer.steps,
        history=history.to_json(),
        settings=json.dumps(_all_settings(network, optimizer, settings)),
        **state,
    )


def fingerprint(*arrays):
    """Return a short text that tells NumPy's arrays apart by their elements."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data.cast("B"))
    return digest.hexdigest()[:16]


@short_sentences()
def load_checkpoint(path, network, optimizer, settings):
    """Bring `network` and `optimizer` to the state in `path`.

    Return the history, and the best epoch's parameters and statistics. Raises FileNotFoundError where there is no
    checkpoint, ValueError where it is damaged or of another run.
    """
    arrays = load_npz(path, NAMES)
    try:
        saved, history = dict(json.loads(str(arrays["settings"]))), History.from_json(str(arrays["history"]))
        steps = check_count("steps", arrays["steps"].item(), least=len(history.loss))
        _check_history(history, saved["examples"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise ValueError(f"{path} is no checkpoint that this version can resume ({reason}).") from error
    _check_same(path, saved, _all_settings(network, optimizer, settings))
    _check_rates(path, history, steps, optimizer.schedule)
    arrays |= load_npz(path, optimizer.state_names)  # which depend on what the settings have just agreed on
    _check_vectors(path, arrays, optimizer.state_names, network)
    network.set_theta(arrays["theta"])  # nothing is changed before all has been checked
    network.set_statistics(arrays["statistics"])
    for name, vector in optimizer.state.items():
        vector[:] = network.engine.asarray(arrays[name])
    optimizer.steps = steps
    return history, (arrays["best_theta"], arrays["best_statistics"])


def _all_settings(network, optimizer, settings):
    drops = any(isinstance(layer, Dropout) for _, layer, *_ in network.model.walk)
    found = {
        "model": network.model.to_dict(),
        "dtype": str(network.dtype),
        "optimizer": optimizer.describe(),
        "seed of dropout": network.mode.seed if drops else None,
        **settings,
    }
    where = re.compile(r" at 0x\w+")  # in memory a function lies, which is no setting
    return {name: where.sub("", value) if isinstance(value, str) else value for name, value in found.items()}


def _check_same(path, saved, wanted):
    """Raise ValueError where a setting changed. One that is None, as of a run without validation, goes with any."""
    for name, value in wanted.items():
        found = saved.get(name, "None")
        if None not in (value, found) and value != found:
            raise ValueError(f"{path} can't be resumed: it was written with {name} {found}, this run has {value}.")


def _check_history(history, examples):
    """Raise ValueError or TypeError for what is not the history of some whole epochs with finite losses."""
    values = [*history.loss, *history.seconds]
    for epoch in history.epochs:
        values += [epoch.lr, epoch.train_loss, epoch.seconds, *dict(epoch.validation).values()]
    for number in values:
        if type(number) not in (int, float) or not abs(number) < 1e308:
            raise ValueError(f"{number!r} is in its history")
    if any(epoch.validation and "loss" not in epoch.validation for epoch in history.epochs):
        raise ValueError("a validation without a loss is in its history")
    for count in history.samples:
        check_count("samples", count)
    steps, epochs = len(history.loss), len(history.epochs)
    whole = steps == len(history.seconds) == len(history.samples) and sum(history.samples) == epochs * examples
    if not whole or not 0 < epochs <= steps or steps % epochs:
        raise ValueError("not each step of each epoch is in its history")


def _check_rates(path, history, steps, schedule):
    """Raise ValueError unless the schedule gives the rates at which the epochs ended: its name alone may deceive."""
    start, each = steps - len(history.loss), len(history.loss) // len(history.epochs)
    for number, epoch in enumerate(history.epochs, start=1):
        rate = schedule(start + number * each - 1)
        if not math.isclose(rate, epoch.lr, rel_tol=1e-9):
            raise ValueError(
                f"{path} can't be resumed: its epoch {number} ended at a learning rate of {epoch.lr}, this run's would "
                f"at {rate}."
            )


def _check_vectors(path, arrays, state_names, network):
    try:
        for name in (*VECTORS, *state_names):
            layout = network.model.statistics if name in ("statistics", "best_statistics") else network.layout
            check_vector(name, arrays[name], layout)
            if arrays[name].dtype != network.dtype:
                raise ValueError(f"its {name} is {arrays[name].dtype}, and the network computes in {network.dtype}.")
            check_finite(name, arrays[name])
    except ValueError as error:
        raise ValueError(f"{path} can't be resumed: {error}") from error

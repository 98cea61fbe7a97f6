"""What all ways to feed share: the images on the host, room for a batch, and a step that is recorded as a graph.

The step is the engine's. It reads its batch from arrays that are always the same: a way to feed fills them, or lets the
graph do it. All ways train on the same examples in the same order.
"""

from typing import Any

import numpy as np

from mlpkit import executors
from mlpkit.data import epoch_order
from mlpkit.engines import numpy_baseline
from mlpkit.nn.models import MLP

ENGINE = "cuda_graph"  # whose kernels are a step, and whose way of feeding is the last
PIXELS, CLASS = MLP.sizes()[0], np.dtype(np.int64)


class Images:
    """The training set on the host: labels y (n,) int64, and X (n, 784) in both types.

    pixels: uint8, of any shape (n, ...).
    """

    def __init__(self, pixels, y):
        pixels, self.y = pixels.reshape(len(y), PIXELS), y
        self.X = {"uint8": pixels, "float32": numpy_baseline.scale(pixels, np.dtype(np.float32))}

    def full_batches(self, recipe, epoch=0):
        """Return an epoch's order, without the short batch at its end."""
        order = epoch_order(len(self.y), recipe.seed, epoch)
        return order[: len(order) // recipe.batch_size * recipe.batch_size]


def synchronize():
    """Wait for all of the GPU's work, on every stream."""
    import cupy as cp

    cp.cuda.Device().synchronize()


def graph_of(work, pool):
    """Return the kernels that `work` asks for as a graph; the first time they run, and are compiled."""
    from mlpkit.executors.cuda.graph import recorded

    work()
    return recorded(work, pool)


class Step:
    """A network on the GPU, and its step as a graph that reads a batch from arrays which are always the same."""

    def __init__(self, recipe, steps):
        import cupy as cp

        self.network = recipe.make_network(ENGINE)
        self.engine: Any = self.network.engine
        self.optimizer = recipe.make_optimizer(self.network, recipe.batch_size)
        self.first = self.engine.to_numpy(self.network.theta).copy()
        self.losses, self.number = cp.zeros(steps, np.float32), cp.zeros((), np.int32)
        self.rate = cp.full(1, recipe.lr, np.float32)
        self.pool = cp.cuda.MemoryPool()  # what a recorded step uses must be given to nobody else
        self.kept: list[Any] = []  # for the same reason: a graph knows addresses, and no arrays

    def gradient(self, x, labels):
        """Return a function that asks for the gradient of the batch x (n, 784), labels (n,), both on the GPU."""
        executor: Any = executors.of(self.engine)
        gradient = executor.Gradient(self.network, len(x))
        self.kept += [x, labels, gradient]
        return lambda: gradient(x, labels, self.losses, self.number)

    def graph(self, x, labels, before=lambda: None):
        """Return the graph of one step on x (n, 784), labels (n,), both on the GPU; `before` comes first."""
        gradient = self.gradient(x, labels)
        self.kept.append(before)

        def work():
            before()
            gradient()
            self.optimizer.apply(self.rate, 1)

        return graph_of(work, self.pool)

    def restart(self):
        """Return to the first parameters."""
        self.network.set_theta(self.first)
        self.number[...] = 0
        synchronize()


class Batch:
    """Room for a batch in one piece of memory, so that one copy carries labels and pixels."""

    def __init__(self, n, dtype, empty):
        self.memory = empty(n * (CLASS.itemsize + PIXELS * np.dtype(dtype).itemsize), np.uint8)
        self.labels = self.memory[: n * CLASS.itemsize].view(CLASS)
        self.x = self.memory[n * CLASS.itemsize :].view(dtype).reshape(n, PIXELS)

    def gather(self, X, y, index):
        """Copy the rows that `index` names. (With mode="raise", `take` would copy through a buffer of its own.)"""
        np.take(X, index, axis=0, out=self.x, mode="clip")
        np.take(y, index, out=self.labels, mode="clip")

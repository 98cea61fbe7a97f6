"""A step is recorded once, as a graph of kernels, and replayed: Python no longer launches the kernels one by one.

A graph repeats the same kernels with the same arguments. So whatever changes from step to step is read from the GPU's
memory: the number of the step, the order of the examples, and the rates of all of the epoch's steps.
"""

from functools import partial
from weakref import WeakKeyDictionary

import cupy as cp
import numpy as np

from mlpkit.checks import check_batch, check_labels

from .kernel import C_TYPES, kernel

epochs: WeakKeyDictionary = WeakKeyDictionary()  # of each network: the last one


def step_by_step(gradient):
    """Return a `train_epoch` (see `train`) that replays one step at a time, with gradients from `gradient`.

    gradient: as `cupy_fused.gradient`.
    """
    return _train_epoch(gradient, steps_a_graph=1)


def whole(gradient):
    """Return a `train_epoch` that replays all steps with a full batch as one graph."""
    return _train_epoch(gradient, steps_a_graph=None)


def recorded(work, pool):
    """Return the kernels that `work` asks for as a graph; arrays that it makes on the way come from `pool`."""
    stream = cp.cuda.Stream(non_blocking=True)
    with cp.cuda.using_allocator(pool.malloc), stream:
        stream.begin_capture()
        work()
        return stream.end_capture()


def _train_epoch(gradient, steps_a_graph):
    def train_epoch(network, optimizer, X, y, order, batch_size):
        """Train on the rows of X that `order` names; see `train`. X: as the network computes, or uint8 pixels."""
        check_batch(X, network.sizes[0], network.dtype)
        epoch = epochs.get(network)
        if epoch is None or not epoch.fits(optimizer, X, y, order, batch_size):
            check_labels(y, len(X), network.sizes[-1])
            epoch = epochs[network] = Epoch(gradient, network, optimizer, X, y, order, batch_size)
        return epoch.run(network, optimizer, order, steps_a_graph)

    return train_epoch


class Epoch:
    """An epoch's steps, and the arrays that they read: for one network, optimizer, data set and batch size."""

    def __init__(self, gradient, network, optimizer, X, y, order, batch_size):
        self.key, self.gradient = self.key_of(optimizer, X, y, batch_size), gradient
        self.X, self.y, self.batch_size = X, y.astype(np.int64, copy=False), batch_size
        self.keep = y  # where it is is in the key: no other labels must get its address
        steps = -(-len(order) // batch_size)
        self.order, self.step = cp.empty(len(order), np.int64), cp.zeros((), np.int32)
        self.rates, self.first_t = cp.empty(steps), cp.empty((), np.int64)
        self.rate, self.t = cp.empty(1, network.dtype), cp.empty(1, network.dtype)
        self.losses = cp.empty(steps, network.dtype)
        self.next_batch = kernel("layers", "next_batch", network.dtype, PIXEL=C_TYPES[X.dtype])
        self.pool = cp.cuda.MemoryPool()  # what a recorded step uses must be given to nobody else
        self.graphs = {}

    @staticmethod
    def key_of(optimizer, X, y, batch_size):
        """Return all that is recorded for good: where the arrays are, and the optimizer's settings."""
        arrays = (X, y, *optimizer.state.values())
        places = ((array.data.ptr, array.dtype, array.shape) for array in arrays)
        return batch_size, optimizer.describe(), *places

    def fits(self, optimizer, X, y, order, batch_size):
        """Say whether what is recorded will do for such an epoch."""
        return len(order) <= len(self.order) and self.key == self.key_of(optimizer, X, y, batch_size)

    def run(self, network, optimizer, order, steps_a_graph):
        """Train on the examples in `order` and return the losses, one a step."""
        full, rest = divmod(len(order), self.batch_size)
        steps, first = full + (rest > 0), optimizer.steps
        self.order[: len(order)], self.step[...] = order, 0
        self.rates[:steps] = cp.asarray([optimizer.schedule(first + i) for i in range(steps)])
        self.first_t[...] = first + 1
        size = min(steps_a_graph or full, full)
        for _ in range(full // size if full else 0):
            self.graph(network, optimizer, size, self.batch_size).launch()
        if rest:
            self.graph(network, optimizer, 1, rest).launch()
        optimizer.steps += steps
        return self.losses[:steps].copy()

    def graph(self, network, optimizer, count, n):
        """Return the graph of `count` steps with batches of n, recorded the first time that it is asked for."""
        if (count, n) not in self.graphs:
            one = partial(self.enqueue, network, optimizer, n)
            self.graphs[count, n] = recorded(lambda: [one() for _ in range(count)], self.pool)
        return self.graphs[count, n]

    def enqueue(self, network, optimizer, n):
        """Ask for one step: the kernels run when the GPU comes to them."""
        x, labels = cp.empty((n, network.sizes[0]), network.dtype), cp.empty(n, np.int64)
        constants = np.int32(self.batch_size), np.int32(network.sizes[0])
        pointers = self.X, self.y, self.order, self.step
        rates = self.rates, self.first_t, self.rate, self.t
        self.next_batch((n,), (256,), (*pointers, *constants, x, labels, *rates))
        self.gradient(network, x, labels, self.losses, self.step)
        optimizer.apply(self.rate, self.t)

"""A graph of three kernels a step: one for each time that a step has to wait for the whole batch.

See `kernels/three_kernels.cu` for the kernels, and `_graph` for how steps are recorded and replayed.
"""

from itertools import pairwise
from weakref import WeakKeyDictionary

import cupy as cp
import numpy as np

from mlpkit.checks import check_batch, check_labels

from .cuda.graph import Epoch
from .cuda.kernel import C_TYPES, kernel
from .cuda.rates import check_optimizer, mean_losses, rates, settings
from .cupy_fused import *

WARPS, ROWS, TILE, EDGE = 16, 2, (8, 16), 32  # as in three_kernels.cu

_epochs: WeakKeyDictionary = WeakKeyDictionary()  # of each network: the last one


def train_epoch(network, optimizer, X, y, order, batch_size):
    """Train on the rows of X that `order` names; see `train`. X: as the network computes, or uint8 pixels.

    Raises ValueError for an optimizer other than SGD, Adam and AdamW, and for layers too wide for shared memory.
    """
    check_optimizer(optimizer, "cuda_three_kernels")
    check_batch(X, network.sizes[0], network.dtype)
    epoch = _epochs.get(network)
    if epoch is None or not epoch.fits(optimizer, X, y, order, batch_size):
        check_labels(y, len(X), network.sizes[-1])
        epoch = _epochs[network] = _ThreeKernels(None, network, optimizer, X, y, order, batch_size)
    return epoch.run(network, optimizer, order, steps_a_graph=None)


class _ThreeKernels(Epoch):
    """An epoch's steps (see `_graph`), each of them three kernels, of which the last is the update: no `gradient`."""

    def __init__(self, gradient, network, optimizer, X, y, order, batch_size):
        super().__init__(gradient, network, optimizer, X, y, order, batch_size)
        macros = {"PIXEL": C_TYPES[X.dtype], "SIZES": ",".join(map(str, network.sizes))}
        self.kernels = [kernel("three_kernels", n, network.dtype, **macros) for n in ("first_layer", "rows", "update")]
        self.shared_bytes = self.set_shared_bytes(network)
        steps, outputs = len(self.losses), sum(network.sizes[1:])
        self.steps = cp.zeros(2, np.int32)
        self.rates = cp.empty((steps, 3))
        self.row_losses = cp.empty((steps, batch_size), network.dtype)
        self.outputs, self.gradients = (cp.empty(batch_size * outputs, network.dtype) for _ in range(2))

    def set_shared_bytes(self, network):
        """Return the bytes of shared memory that the first two kernels need, and allow them to ask for so much.

        Raises ValueError where the GPU has less.
        """
        widest, layers = max(network.sizes[1:]), len(network.sizes) - 1
        numbers = (
            max(network.sizes[0] * (TILE[0] + 4), 2 * WARPS * TILE[0] * TILE[1]),
            ROWS * widest * (2 * layers + WARPS),
        )
        found = [count * network.dtype.itemsize for count in numbers]
        if max(found) > (most := cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]):
            raise ValueError(
                f"cuda_three_kernels needs {-(-max(found) >> 10)} KiB of a multiprocessor's shared memory for sizes "
                f"{network.sizes}, and this GPU gives a block {most >> 10}: take another engine."
            )
        for function, size in zip(self.kernels[:2], found, strict=True):
            function.max_dynamic_shared_size_bytes = size
        return found

    def run(self, network, optimizer, order, steps_a_graph):
        """Train on the examples in `order` and return the losses, one a step."""
        full, rest = divmod(len(order), self.batch_size)
        steps, size = full + (rest > 0), min(steps_a_graph or full, full)
        self.order[: len(order)], self.steps[...] = order, 0
        self.rates[:steps] = cp.asarray(rates(optimizer, steps))
        for _ in range(full // size if full else 0):
            self.graph(network, optimizer, size, self.batch_size).launch()
        if rest:
            self.graph(network, optimizer, 1, rest).launch()
        optimizer.steps += steps
        return mean_losses(self.row_losses[:steps], rest)

    def enqueue(self, network, optimizer, n):
        """Ask for one step: the kernels run when the GPU comes to them."""
        first_layer, rows, update = self.kernels
        sizes = network.sizes
        batch = np.int32(self.batch_size), np.int32(n)
        grid = -(-sizes[1] // TILE[1]), -(-n // TILE[0])
        images = self.X, self.order, self.steps
        forward = *images, *batch, network.theta, self.outputs
        first_layer(grid, (32 * WARPS,), forward, shared_mem=self.shared_bytes[0])
        results = self.outputs, self.gradients, self.row_losses
        through = self.y, self.order, self.steps, *batch, network.theta, *results
        rows((-(-n // ROWS),), (32 * WARPS,), through, shared_mem=self.shared_bytes[1])
        tiles = sum(-(-inputs // EDGE) * -(-columns // EDGE) for inputs, columns in pairwise(sizes))
        m, v = optimizer.state.values() or (0, 0)
        arrays = *images, *batch, self.outputs, self.gradients, network.theta, m, v, self.rates
        update((tiles,), (EDGE * EDGE // 4,), (*arrays, *settings(optimizer)))

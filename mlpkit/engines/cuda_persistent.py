"""A whole epoch in one launch: blocks that stay until it is over, keep what they own, and hand each other numbers.

See `kernels/persistent.cu` for how. The kernel is built for networks like the workbook's: float32, three hidden layers
of at most 128 units, at most 16 classes, batches of at most 256. Smaller layers are filled up: see `_held`.
"""

from functools import cache, partial
from weakref import WeakKeyDictionary

import cupy as cp
import numpy as np

from mlpkit import kernels
from mlpkit.checks import check_batch, check_labels
from mlpkit.kernels import gpu

from .cuda.held import as_bytes, check_network, held_sizes, hold, macros_for, marks_in, take_back
from .cuda.rates import check_optimizer, mean_losses, rates, settings
from .cupy_fused import *

gpu.require_capability(9.0)

NAME = "cuda_persistent"
BATCHES, COLUMN_BLOCKS = (32, 64, 128, 256), 64  # as in persistent.cu

_marks: dict[str, int] = {}  # macros of a kernel that writes down its times, for `persistence`
marked, macros_of = partial(marks_in, _marks), partial(macros_for, BATCHES, _marks)

_epochs: WeakKeyDictionary = WeakKeyDictionary()  # of each network: the last one


def train_epoch(network, optimizer, X, y, order, batch_size):
    """Train on the rows of X that `order` names; see `train`. X: uint8 pixels, or float32 that are pixels / 255.

    Raises ValueError for an optimizer, a network, a batch size, images or a GPU that the kernel is not made for.
    """
    check_optimizer(optimizer, NAME)
    check_batch(X, network.sizes[0], network.dtype)
    epoch = _epochs.get(network)
    if epoch is None or not epoch.fits(X, y, batch_size):
        check_labels(y, len(X), network.sizes[-1])
        epoch = _epochs[network] = _Epoch(network, X, y, batch_size)
    return epoch.run(optimizer, order)


class _Epoch:
    """What the epochs of a network on a data set share: the compiled kernels, and where the blocks exchange numbers."""

    def __init__(self, network, X, y, batch_size):
        check_network(network, batch_size, BATCHES[-1], NAME)
        self.sizes, self.batch_size, self.key = network.sizes, batch_size, self.key_of(X, y, batch_size)
        self.pixels = as_bytes(X, held_sizes(self.sizes)[0], NAME)
        self.keep = X, y  # so that no other array gets their addresses
        self.labels = y.astype(np.int64, copy=False)

    @staticmethod
    def key_of(X, y, batch_size):
        """Return what the kernels are told of the data: where they are, and how large a batch is."""
        return batch_size, *((array.data.ptr, array.dtype, array.shape) for array in (X, y))

    def fits(self, X, y, batch_size):
        """Say whether this is an epoch of such data."""
        return self.key == self.key_of(X, y, batch_size)

    def run(self, optimizer, order):
        """Train on the examples in `order` and return the losses, one a step."""
        steps = -(-len(order) // self.batch_size)
        macros = macros_of(self.sizes, optimizer, self.batch_size)
        train, exchange_bytes, shared_bytes, blocks, threads = compiled(**macros)
        row_losses = cp.empty((steps, self.batch_size), np.float32)
        exchange = cp.zeros(exchange_bytes, np.uint8)
        table = cp.asarray(rates(optimizer, steps), np.float32)
        vectors = [optimizer.network.theta, *optimizer.state.values()]
        held = [hold(vector, self.sizes) for vector in vectors]
        m, v = held[1:] or (0, 0)
        batches = self.pixels, self.labels, order.astype(np.int64, copy=False), np.int32(len(order))
        arguments = *batches, np.int32(self.batch_size), row_losses, exchange, held[0], m, v, table
        train((blocks,), (threads,), (*arguments, *settings(optimizer)), shared_mem=shared_bytes)
        for vector, copy in zip(vectors, held, strict=True):
            take_back(vector, copy, self.sizes)
        optimizer.steps += steps
        return mean_losses(row_losses, len(order) % self.batch_size)


@cache
def compiled(**macros):
    """Return the kernel, the bytes of its exchange and of a block's shared memory, and how many blocks and threads."""
    module = kernels.load("persistent", **macros)
    answer = cp.empty(4, np.int32)
    module.get_function("requirements")((1,), (1,), (answer,))
    exchange_bytes, shared_bytes, blocks, threads = answer.tolist()
    here = cp.cuda.Device().attributes
    if blocks > here["MultiProcessorCount"] or shared_bytes > here["MaxSharedMemoryPerBlockOptin"]:
        raise ValueError(
            f"{NAME} needs {blocks} multiprocessors with {-(-shared_bytes >> 10)} KiB of shared memory each here, "
            f"but this GPU has {here['MultiProcessorCount']} with {here['MaxSharedMemoryPerBlockOptin'] >> 10} KiB."
        )
    train = module.get_function("train")
    train.max_dynamic_shared_size_bytes = shared_bytes
    return train, exchange_bytes, shared_bytes, blocks, threads

"""a network on eight multiprocessors: an epoch of several networks in one launch, each in a cluster of eight blocks.

See `kernels/mlp/cluster.cu` for how. One network leaves most of a GPU idle, so fifteen of them, with other first
weights and other orders of the examples, take little more time than one: `Together`. The kernel is built for networks
like the workbook's: float32, three hidden layers of at most 128 units, at most 16 classes, batches of at most 128.
"""

from itertools import chain

import cupy as cp
import numpy as np

from mlpkit.kernels import gpu

from .cuda.padded import Padded, as_bytes, check_dtype, macros_for, why_not_padded
from .cuda.rates import rates, settings
from .cuda.transfers import Feed, RowLosses, as_labels
from .cuda.waiting import compiled
from .cupy_fused import Evaluation as Evaluation
from .cupy_fused import Prediction as Prediction

NAME = "cuda_cluster"
BLOCKS, THREADS, BATCHES = 8, 512, (64, 128)  # as in cluster.cu


def why_not(model, optimizer, batch_size):
    """Return None, or what the kernel is not made for, in one sentence."""
    return why_not_padded(model, optimizer, batch_size, BATCHES[-1], NAME)


class Together:
    """Trains several networks of the same sizes, all of them with one launch an epoch.

    Each has an optimizer; these are of one kind, and may differ in their settings. X: uint8 pixels, or float32 that are
    pixels / 255. y: integers from 0 to classes - 1, which is not looked at. macros: of the kernel, beside its own.
    Raises ValueError for networks, optimizers, a batch size, images or a GPU that the kernel is not made for.
    """

    def __init__(self, networks, optimizers, X, y, batch_size, **macros):
        _check(networks, optimizers, batch_size)
        self.optimizers, self.batch_size = optimizers, batch_size
        self.macros = macros_for(BATCHES, networks[0], optimizers[0], batch_size) | macros
        self.kernel, exchange_bytes, self.shared_bytes = _compiled(self.macros)
        self.pixels, self.labels = as_bytes(X, self.macros["INPUTS"], NAME), as_labels(y)
        count, steps = len(networks), -(-len(y) // batch_size)
        self.losses = RowLosses(count * steps, batch_size, np.float32)
        self.exchange = cp.empty(count * exchange_bytes, np.uint8)
        self.feed = Feed(rates=(count * steps * 3, np.float32), orders=(count * len(y), np.int64))
        self.vectors = [_padded(optimizer) for optimizer in optimizers]
        told = cp.asarray(np.array([settings(optimizer) for optimizer in optimizers]))
        self.arguments = self.losses.rows, self.exchange, _addresses(self.vectors), self.feed["rates"], told

    def epoch(self, orders):
        """Train each network on the rows of X that its row of `orders` (networks, n) names.

        Return the losses, (networks, steps). Raises ValueError for another number of orders than of networks.
        """
        (count, n), batch_size = orders.shape, self.batch_size
        if count != len(self.optimizers):
            raise ValueError(
                f"{NAME} needs an order for each of its networks: it trains {len(self.optimizers)} here, not {count}."
            )
        steps = -(-n // batch_size)
        self.feed.send(rates=np.stack([rates(optimizer, steps) for optimizer in self.optimizers]), orders=orders)
        for vector in chain(*self.vectors):
            vector.put()
        batches = self.pixels, self.labels, self.feed["orders"], np.int32(n), np.int32(batch_size)
        self.kernel((BLOCKS * count,), (THREADS,), (*batches, *self.arguments), shared_mem=self.shared_bytes)
        for vector in chain(*self.vectors):
            vector.take()
        return self.losses.means((count, steps), n)

    def close(self):
        """Wait for all that was asked for."""
        self.feed.close()


class Trainer(Together):
    """Trains one network. See `executors.protocol.Trainer`, and `Together` for what it raises."""

    def __init__(self, network, optimizer, X, y, batch_size, **macros):
        super().__init__([network], [optimizer], X, y, batch_size, **macros)

    def epoch(self, order):
        """Train on the rows of X that `order` (n,) names, and return the losses, one a step."""
        return super().epoch(order[None])[0]


def _check(networks, optimizers, batch_size):
    if len(set(map(id, networks))) < len(networks) or [id(each.network) for each in optimizers] != [*map(id, networks)]:
        raise ValueError(f"{NAME} needs an optimizer for each network, in the same order, and each network once.")
    for network, optimizer in zip(networks, optimizers, strict=True):
        if reason := why_not(network.model, optimizer, batch_size):
            raise ValueError(reason)
        check_dtype(network, NAME)
    if len({network.model.sizes() for network in networks}) > 1 or len({bool(each.state) for each in optimizers}) > 1:
        raise ValueError(f"{NAME} trains networks of one size, all with SGD or all with Adam: take several launches.")


def _padded(optimizer):
    return [Padded(vector, optimizer.network) for vector in (optimizer.network.theta, *optimizer.state.values())]


def _addresses(vectors):
    """Return an array (networks, 3) on the GPU: where each network's theta, m and v are, as far as it has them."""
    addresses = np.zeros((len(vectors), 3), np.int64)
    for row, own in zip(addresses, vectors, strict=True):
        row[: len(own)] = [vector.array.data.ptr for vector in own]
    return cp.asarray(addresses)


def _compiled(macros):
    """Return the kernel, the bytes of an exchange, and those of a block's shared memory."""
    train, exchange_bytes, shared_bytes, *_ = compiled("cluster", **macros)
    there = gpu.shared_memory()
    if shared_bytes > there:
        raise ValueError(
            f"{NAME} needs {-(-shared_bytes >> 10)} KiB of shared memory on each multiprocessor here, "
            f"but this GPU has {there >> 10} KiB: take the engine cuda_graph."
        )
    train.max_dynamic_shared_size_bytes = shared_bytes
    return train, exchange_bytes, shared_bytes

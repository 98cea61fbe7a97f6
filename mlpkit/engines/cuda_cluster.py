"""Several networks at once: an epoch of each of them in one launch, each in a cluster of eight blocks.

See `kernels/cluster.cu` for how. One network leaves most of a GPU idle, so fifteen of them, with other first weights
and other orders of the examples, take little more time than one: `train_together`. The kernel is built for networks
like the workbook's: float32, three hidden layers of at most 128 units, at most 16 classes, batches of at most 128.
"""

from functools import cache, partial
from itertools import chain
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

NAME = "cuda_cluster"
BLOCKS, THREADS, BATCHES = 8, 512, (64, 128)  # as in cluster.cu

_marks: dict[str, int] = {}  # macros of a kernel that writes down its times, for `seeds`
marked, macros_of = partial(marks_in, _marks), partial(macros_for, BATCHES, _marks)

_images: WeakKeyDictionary = WeakKeyDictionary()  # of each network, the last ones


def train_epoch(network, optimizer, X, y, order, batch_size):
    """Train on the rows of X that `order` names; see `train`. X: uint8 pixels, or float32 that are pixels / 255.

    Raises ValueError for an optimizer, a network, a batch size, images or a GPU that the kernel is not made for.
    """
    return train_together([network], [optimizer], X, y, order[None], batch_size)[0]


def train_together(networks, optimizers, X, y, orders, batch_size):
    """Train each network on the rows of X that its row of `orders` (networks, n) names.

    Returns the losses (networks, steps). All networks have the same sizes, and optimizers of one kind, whose settings
    may differ. Raises ValueError as `train_epoch` does.
    """
    _check(networks, optimizers, orders, batch_size)
    sizes, n = networks[0].sizes, orders.shape[1]
    steps = -(-n // batch_size)
    train, exchange_bytes, shared_bytes = compiled(**macros_of(sizes, optimizers[0], batch_size))
    pixels, labels = _images_of(networks[0], X, y)
    vectors = [[optimizer.network.theta, *optimizer.state.values()] for optimizer in optimizers]
    held = [[hold(vector, sizes) for vector in own] for own in vectors]
    row_losses = cp.empty((len(networks), steps, batch_size), np.float32)
    exchange = cp.empty((len(networks), exchange_bytes), np.uint8)
    batches = pixels, labels, cp.ascontiguousarray(orders, np.int64), np.int32(n), np.int32(batch_size)
    table = cp.asarray(np.stack([rates(optimizer, steps) for optimizer in optimizers]), np.float32)
    told = cp.asarray(np.array([settings(optimizer) for optimizer in optimizers]))
    arguments = *batches, row_losses, exchange, _addresses(held), table, told
    train((BLOCKS * len(networks),), (THREADS,), arguments, shared_mem=shared_bytes)
    for vector, copy in zip(chain(*vectors), chain(*held), strict=True):
        take_back(vector, copy, sizes)
    for optimizer in optimizers:
        optimizer.steps += steps
    return mean_losses(row_losses, n % batch_size)


def _check(networks, optimizers, orders, batch_size):
    for network, optimizer in zip(networks, optimizers, strict=True):
        check_optimizer(optimizer, NAME)
        check_network(network, batch_size, BATCHES[-1], NAME)
    if len({network.sizes for network in networks}) > 1 or len({bool(each.state) for each in optimizers}) > 1:
        raise ValueError(f"{NAME} trains networks of one size, all with SGD or all with Adam: take several launches.")
    mine = all(optimizer.network is network for network, optimizer in zip(networks, optimizers, strict=True))
    if len(set(map(id, networks))) < len(networks) or not mine or len(orders) != len(networks):
        raise ValueError(f"{NAME} needs an optimizer and an order for each network, and each network once.")


def _images_of(network, X, y):
    """Return X as bytes and y as int64, checked; the same arrays as the last time, where X and y are."""
    key = [(array.data.ptr, array.dtype, array.shape) for array in (X, y)]
    if network not in _images or _images[network][0] != key:
        check_batch(X, network.sizes[0], network.dtype)
        check_labels(y, len(X), network.sizes[-1])
        arrays = as_bytes(X, held_sizes(network.sizes)[0], NAME), y.astype(np.int64, copy=False)
        _images[network] = key, arrays, (X, y)  # X and y, so that no other array gets their addresses
    return _images[network][1]


def _addresses(vectors):
    """Return an array (networks, 3) on the GPU: where each network's theta, m and v are, as far as it has them."""
    addresses = np.zeros((len(vectors), 3), np.int64)
    for row, own in zip(addresses, vectors, strict=True):
        row[: len(own)] = [vector.data.ptr for vector in own]
    return cp.asarray(addresses)


@cache
def compiled(**macros):
    """Return the kernel, the bytes of an exchange, and those of a block's shared memory."""
    module = kernels.load("cluster", **macros)
    answer = cp.empty(2, np.int32)
    module.get_function("requirements")((1,), (1,), (answer,))
    exchange_bytes, shared_bytes = answer.tolist()
    there = cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    if shared_bytes > there:
        raise ValueError(
            f"{NAME} needs {-(-shared_bytes >> 10)} KiB of shared memory on each multiprocessor here, "
            f"but this GPU has {there >> 10} KiB."
        )
    train = module.get_function("train")
    train.max_dynamic_shared_size_bytes = shared_bytes
    return train, exchange_bytes, shared_bytes

"""A whole epoch in one launch: blocks that stay until it is over, keep what they own, and hand each other numbers.

See `kernels/persistent.cu` for how. The kernel is built for networks like the workbook's: float32, three hidden layers
of at most 128 units, at most 16 classes, batches of at most 256. Smaller layers are filled up with units that stay
exactly zero: their weights are zero, so nothing flows through them.
"""

from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from weakref import WeakKeyDictionary

import cupy as cp
import numpy as np

from .. import kernels
from ..checks import check_batch, check_labels
from ._rates import check_optimizer, mean_losses, rates, settings
from .cupy_fused import *

WIDTH, MOST_CLASSES, BATCHES, COLUMN_BLOCKS = 128, 16, (32, 64, 128, 256), 64  # as in persistent.cu

_marks: dict[str, int] = {}  # macros of a kernel that writes down its times

_epochs: WeakKeyDictionary = WeakKeyDictionary()  # of each network: the last one


def train_epoch(network, optimizer, X, y, order, batch_size):
    """Train on the rows of X that `order` names; see `train`. X: uint8 pixels, or float32 that are pixels / 255.

    Raises ValueError for an optimizer, a network, a batch size, images or a GPU that the kernel is not made for.
    """
    check_optimizer(optimizer, "cuda_persistent")
    check_batch(X, network.sizes[0], network.dtype)
    epoch = _epochs.get(network)
    if epoch is None or not epoch.fits(X, y, batch_size):
        check_labels(y, len(X), network.sizes[-1])
        epoch = _epochs[network] = _Epoch(network, X, y, batch_size)
    return epoch.run(optimizer, order)


class _Epoch:
    """What the epochs of a network on a data set share: the compiled kernels, and where the blocks exchange numbers."""

    def __init__(self, network, X, y, batch_size):
        check_network(network, batch_size)
        self.sizes, self.batch_size, self.key = network.sizes, batch_size, self.key_of(X, y, batch_size)
        self.held_sizes = (held_inputs(network.sizes), WIDTH, WIDTH, WIDTH, network.sizes[-1])
        self.pixels = as_bytes(X, self.held_sizes[0])
        self.keep = X, y  # so that no other array gets their addresses
        self.labels = y.astype(np.int64, copy=False)

    @staticmethod
    def key_of(X, y, batch_size):
        return batch_size, *((array.data.ptr, array.dtype, array.shape) for array in (X, y))

    def fits(self, X, y, batch_size):
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
        held = [self.hold(vector) for vector in vectors]
        m, v = held[1:] or (0, 0)
        batches = self.pixels, self.labels, order.astype(np.int64, copy=False), np.int32(len(order))
        arguments = *batches, np.int32(self.batch_size), row_losses, exchange, held[0], m, v, table
        train((blocks,), (threads,), (*arguments, *settings(optimizer)), shared_mem=shared_bytes)
        for vector, copy in zip(vectors, held, strict=True):
            self.take_back(vector, copy)
        optimizer.steps += steps
        return mean_losses(row_losses, len(order) % self.batch_size)

    def hold(self, vector):
        """Return a vector laid out for the sizes that the kernel holds: itself, where they are the network's."""
        if self.held_sizes == self.sizes:
            return vector
        held = cp.zeros(sum((inputs + 1) * outputs for inputs, outputs in pairwise(self.held_sizes)), vector.dtype)
        for part, whole in self.parts(vector, held):
            whole[...] = part
        return held

    def take_back(self, vector, held):
        """Copy what the kernel has made of a vector."""
        if held is not vector:
            for part, whole in self.parts(vector, held):
                part[...] = whole

    def parts(self, vector, held):
        """Yield each array of a vector, with the part of the held vector that stands for it."""
        for (W, b), (held_W, held_b) in zip(views(vector, self.sizes), views(held, self.held_sizes), strict=True):
            yield W, held_W[: W.shape[0], : W.shape[1]]
            yield b, held_b[: len(b)]


def views(vector, sizes):
    """Return one (W, b) pair of views a layer, as `Network.views`."""
    pairs, w, b = [], 0, sum(inputs * outputs for inputs, outputs in pairwise(sizes))
    for inputs, outputs in pairwise(sizes):
        pairs.append((vector[w : w + inputs * outputs].reshape(inputs, outputs), vector[b : b + outputs]))
        w, b = w + inputs * outputs, b + outputs
    return pairs


def check_network(network, batch_size):
    """Raise ValueError for what the kernel is not made for, in one sentence."""
    hidden = network.sizes[1:-1]
    if len(hidden) != 3 or max(hidden) > WIDTH or network.sizes[-1] > MOST_CLASSES:
        raise ValueError(
            f"cuda_persistent holds three hidden layers of at most {WIDTH} units and at most {MOST_CLASSES} classes, "
            f"not a network of sizes {network.sizes}: take another engine."
        )
    if network.dtype != np.float32:
        raise ValueError(f"cuda_persistent computes in float32, not {network.dtype}: take another engine.")
    if batch_size > BATCHES[-1]:
        raise ValueError(f"cuda_persistent takes batches of at most {BATCHES[-1]}, not {batch_size}.")


def as_bytes(X, inputs):
    """Return images as uint8, rows filled up to `inputs` pixels. Raises ValueError where they are not bytes / 255."""
    pixels = X if X.dtype == np.uint8 else cp.rint(X * 255).astype(np.uint8)
    if X.dtype != np.uint8 and not bool((pixels.astype(np.float32) / np.float32(255) == X).all()):
        raise ValueError("cuda_persistent multiplies with bytes: give it uint8 pixels, or such pixels divided by 255.")
    if X.shape[1] < inputs:
        pixels = cp.pad(pixels, ((0, 0), (0, inputs - X.shape[1])))
    return cp.ascontiguousarray(pixels)


def held_inputs(sizes):
    return -(-sizes[0] // 16) * 16


def macros_of(sizes, optimizer, batch_size):
    """Return the macros that the kernel is compiled with."""
    rows = next(rows for rows in BATCHES if rows >= batch_size)
    has_state = bool(optimizer.state)
    return {"INPUTS": held_inputs(sizes), "CLASSES": sizes[-1], "BATCH": rows, "ADAM": int(has_state)} | _marks


@contextmanager
def marked(steps):
    """Within this context the kernel writes down the times of so many steps, after the first 100, for `persistence`."""
    _marks["MARKED_STEPS"] = steps
    try:
        yield
    finally:
        _marks.clear()


@cache
def compiled(**macros):
    """Return the kernel, the bytes of its exchange and of a block's shared memory, and the numbers of blocks and threads."""
    if int(cp.cuda.Device().compute_capability) < 90:
        raise ValueError("cuda_persistent needs a GPU of compute capability 9.0 (Hopper) or newer: take another engine.")
    module = kernels.load("persistent", **macros)
    answer = cp.empty(4, np.int32)
    module.get_function("requirements")((1,), (1,), (answer,))
    exchange_bytes, shared_bytes, blocks, threads = answer.tolist()
    gpu = cp.cuda.Device().attributes
    if blocks > gpu["MultiProcessorCount"] or shared_bytes > gpu["MaxSharedMemoryPerBlockOptin"]:
        raise ValueError(
            f"cuda_persistent needs {blocks} multiprocessors with {shared_bytes >> 10} KiB of shared memory each here, "
            f"but this GPU has {gpu['MultiProcessorCount']} with {gpu['MaxSharedMemoryPerBlockOptin'] >> 10} KiB."
        )
    train = module.get_function("train")
    train.max_dynamic_shared_size_bytes = shared_bytes
    return train, exchange_bytes, shared_bytes, blocks, threads

"""one persistent CUDA kernel: its blocks stay for an epoch, keep what they own, and hand each other numbers.

See `kernels/mlp/persistent.cu` for how. The kernel is built for networks like the workbook's: float32, three hidden
layers of at most 128 units, at most 16 classes, batches of at most 256. Smaller layers are filled up: see `cuda/held`.
All blocks are on the GPU at once, each on a multiprocessor of its own: it needs at least 128 of them (96 for batches of
at most 32), and nothing else may hold them meanwhile. The launch is a cooperative one, which CUDA refuses where they
don't fit; and a block that waits in vain says so, for the host to raise.
"""

from functools import cache

import cupy as cp
import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu

from .cuda.held import Held, as_bytes, as_labels, check_dtype, macros_for, why_not_held
from .cuda.rates import rates, settings
from .cuda.transfers import Feed, RowLosses
from .cuda.uninterrupted import uninterrupted
from .cuda.waiting import WaitingTrainer
from .cupy_fused import *

gpu.require_capability(9.0)

NAME = "cuda_persistent"
BATCHES, COLUMN_BLOCKS, STAGES = (32, 64, 128, 256), 64, 12  # as in persistent.cu
AWAITED = ("images", "a1", "a2", "a3", "dz1", "dz2", "dz3", "dz4", "W2", "W3", "W4", "dW1")  # as in patience.cuh


def why_not(model, optimizer, batch_size):
    """Return None, or what the kernel is not made for, in one sentence."""
    return why_not_held(model, optimizer, batch_size, BATCHES[-1], NAME) or _too_small(batch_size)


def _too_small(batch_size):
    blocks = COLUMN_BLOCKS + min(64, next(rows for rows in BATCHES if rows >= batch_size))
    found = cp.cuda.Device().attributes["MultiProcessorCount"]
    if blocks > found:
        return f"{NAME} needs at least {blocks} multiprocessors, and this GPU has {found}: take another engine."
    return None


class Trainer(WaitingTrainer):
    """Trains a network with one launch an epoch. See `protocol.Trainer`.

    X: uint8 pixels, or float32 that are pixels / 255. stamped_steps: steps of each epoch, after the first 100, in which
    the blocks write down the time at each stage: see `stamps`.
    Raises ValueError for images, a dtype or a GPU that the kernel is not made for. `epoch` and `close` raise
    RuntimeError where a block of an epoch before waited in vain: that epoch has left a NaN in theta.
    """

    engine, file, awaited, stages = NAME, "persistent", AWAITED, STAGES

    def __init__(self, network, optimizer, X, y, batch_size, stamped_steps=0):
        check_dtype(network, NAME)
        self.optimizer, self.batch_size, self.stamped_steps = optimizer, batch_size, stamped_steps
        self.macros = macros_for(BATCHES, network, optimizer, batch_size, stamped_steps)
        self.kernel, exchange_bytes, self.shared_bytes, self.blocks, self.threads = compiled(**self.macros)
        self.pixels, self.labels = as_bytes(X, self.macros["INPUTS"], NAME), as_labels(y)
        steps = -(-len(y) // batch_size)
        self.losses = RowLosses(steps, batch_size, np.float32)
        self.exchange = cp.empty(exchange_bytes, np.uint8)
        self.feed = Feed(rates=(3 * steps, np.float32), order=(len(y), np.int64))
        self.vectors = [Held(vector, network) for vector in (network.theta, *optimizer.state.values())]
        m, v = [vector.array for vector in self.vectors[1:]] or (0, 0)
        super().__init__()
        place = self.losses.rows, self.failed, self.exchange, self.vectors[0].array, m, v, self.feed["rates"]
        self.arguments = *place, *settings(optimizer)

    def epoch(self, order):
        """Train on the rows of X that `order` (n,) names, and return the losses, one a step."""
        self.check()
        n, batch_size = len(order), self.batch_size
        steps = -(-n // batch_size)
        arguments = self.pixels, self.labels, self.feed["order"], np.int32(n), np.int32(batch_size), *self.arguments
        with uninterrupted():  # so that theta and the optimizer's count of steps are of one epoch
            self.exchange.fill(0)
            self.feed.send(rates=rates(self.optimizer, steps), order=order)
            for vector in self.vectors:
                vector.put()
            self.launch(arguments)
            for vector in self.vectors:
                vector.take()
        return self.losses.means((steps,), n)


@cache
def compiled(**macros):
    """Return the kernel, the bytes of its exchange and of a block's shared memory, and how many blocks and threads."""
    module = kernels.load("persistent", **macros)
    answer = cp.empty(4, np.int32)
    module.get_function("requirements")((1,), (1,), (answer,))
    exchange_bytes, shared_bytes, blocks, threads = answer.tolist()
    here = cp.cuda.Device().attributes
    train = module.get_function("train")
    fits = shared_bytes <= here["MaxSharedMemoryPerBlockOptin"]
    if fits:
        train.max_dynamic_shared_size_bytes = shared_bytes
        each = cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(train.kernel.ptr, threads, shared_bytes)
        fits = blocks <= each * here["MultiProcessorCount"]
    if not fits:
        raise ValueError(
            f"{NAME} needs at least {blocks} multiprocessors with {-(-shared_bytes >> 10)} KiB of shared memory each "
            f"here, but this GPU has {here['MultiProcessorCount']} with "
            f"{here['MaxSharedMemoryPerBlockOptin'] >> 10} KiB."
        )
    return train.kernel, exchange_bytes, shared_bytes, blocks, threads

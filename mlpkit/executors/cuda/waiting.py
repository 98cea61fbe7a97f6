"""A kernel that trains for an epoch, whose blocks wait for each other, and say so where one waits in vain.

`kernels/watch.cuh` is the other side: a block that waits too long leaves a word, (what << 48 | block << 32 | step), and
all give up. The word comes back with the epoch; the host reads it before the next one, so that nobody waits for it.

A GPU that also draws a screen stands still meanwhile, and some systems end a kernel after two seconds. So a long epoch
is several launches.
"""

from functools import cache

import cupy as cp
import cupyx
import numpy as np

from mlpkit import kernels
from mlpkit.interrupts import put_off
from mlpkit.kernels import gpu
from mlpkit.kernels.ranks import argument, struct

from .rates import rates, settings
from .transfers import Feed, RowLosses, as_labels

MOST_STEPS = 512  # of a launch: less than a quarter of a second, even where a step takes 0.4 ms


class WaitingTrainer:
    """What trainers have in common whose kernel stays for an epoch. See `executors.protocol.Trainer`.

    engine: the engine's name; file: its kernel's; awaited: what a block waits for, in the kernel's order. macros: of
    the kernel. X: rows as it reads them. vectors: theta, and the optimizer's state. `epoch` and `close` raise
    RuntimeError where a block of an epoch before waited in vain: that epoch has left a NaN in theta.
    """

    engine: str
    file: str
    awaited: tuple[str, ...]

    def __init__(self, macros, optimizer, X, y, batch_size, vectors):
        self.optimizer, self.batch_size, self.ranks = optimizer, batch_size, Ranks(optimizer.reduce)
        self.macros, steps = macros | self.ranks.macros, -(-len(y) // batch_size)
        self.losses = RowLosses(steps, batch_size, np.float32)  # first: its kernel is compiled beside the other one
        self.kernel, exchange_bytes, self.shared_bytes, self.blocks, self.threads, slots = compiled(
            self.file, **self.macros
        )
        self.check_all_run()
        self.ranks.open(slots)
        self.exchange = cp.empty(exchange_bytes, np.uint8)
        self.feed = Feed(rates=(3 * steps, np.float32), order=(len(y), np.int64))
        self.failed, self.found = cp.zeros(1, np.uint64), cupyx.empty_pinned(1, np.uint64)
        self.found[:] = 0
        self.examples, (theta, *state) = (X, as_labels(y), self.feed["order"]), vectors
        lasting = self.losses.rows, self.failed, self.exchange
        self.arguments = *lasting, theta, *(state or (0, 0)), self.feed["rates"]

    def check_all_run(self):
        """Raise ValueError where not all blocks are on this GPU at once: those that are would wait for the others."""
        found, there = gpu.multiprocessors(), gpu.shared_memory()
        if fits := self.shared_bytes <= there:
            self.kernel.max_dynamic_shared_size_bytes = self.shared_bytes
            of = self.kernel.kernel.ptr, self.threads, self.shared_bytes
            fits = self.blocks <= found * cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(*of)
        if not fits:
            raise ValueError(
                f"{self.engine} keeps {self.blocks} blocks with {-(-self.shared_bytes >> 10)} KiB of shared memory "
                f"each on the GPU, and this one has {found} multiprocessors with {there >> 10} KiB: take cuda_graph "
                "or, for images, cuda_conv_graph."
            )

    def epoch(self, order):
        """Train on the rows of X that `order` (n,) names, and return the losses, one a step."""
        self.check()
        n, steps = len(order), -(-len(order) // self.batch_size)
        with put_off():  # so that theta and the optimizer's count of steps are of one epoch
            self.feed.send(rates=rates(self.optimizer, steps), order=order)
            for first in range(0, steps, MOST_STEPS):
                self.exchange.fill(0)
                self.launch(first, np.int32(min(n - first * self.batch_size, MOST_STEPS * self.batch_size)))
                self.ranks.count(min(steps - first, MOST_STEPS))
        return self.losses.means((steps,), n)

    def launch(self, first, *sizes):
        """Start the kernel, with all its blocks on the GPU at once, and send for the word that it leaves.

        first: the epoch's step that it begins with.
        """
        (*examples, order), (rows, *others, every_rate) = self.examples, self.arguments
        row = first * self.batch_size
        part = *examples, order[row:], *sizes, rows[row:], *others, every_rate[3 * first :]
        arguments = *part, *settings(self.optimizer), self.ranks.argument()
        size = {"shared_mem": self.shared_bytes, "enable_cooperative_groups": True}
        self.kernel.kernel((self.blocks,), (self.threads,), arguments, **size)
        self.failed.data.copy_to_host_async(self.found.ctypes.data, self.found.nbytes)

    def check(self):
        """Raise RuntimeError for a block that waited in vain, in one of the epochs that the GPU is done with."""
        word = int(self.found[0])
        if word:
            self.found[:] = 0
            self.failed.fill(0)
            block, what, step = word >> 32 & 0xFFFF, self.awaited[(word >> 48) - 1], word & 0xFFFFFFFF
            raise RuntimeError(
                f"{self.engine} stood still: block {block} waited in vain for {what} of step {step}, so that epoch is "
                f"lost: begin again from the parameters before it, and if that fails too, take another engine."
            )

    def close(self):
        """Wait for all that was asked for."""
        self.feed.close()
        self.check()


class Ranks:
    """The GPUs that add up gradients while their kernels run, as `kernels/ranks.cuh` has them: this one alone, or more.

    reduce: the optimizer's, None or a `parallel.nvlink.NvlinkReduction`. macros: that a kernel needs for it.
    """

    def __init__(self, reduce):
        self.reduce, count = reduce, reduce.ranks if reduce else 1
        self.macros = {"RANKS": count} if reduce else {}
        self.struct = struct(count)

    def open(self, slots):
        """Take memory on each GPU for what so many numbers are sent with, a step."""
        if self.reduce:
            self.memory = self.reduce.mailboxes(2 * self.reduce.ranks * slots * 8)
            self.struct["boxes"], self.struct["slots"], self.struct["rank"] = (
                self.memory.addresses, slots, self.reduce.rank,
            )  # fmt: skip

    def argument(self):
        """Return the kernel's last argument for the launch that is next, a struct."""
        if self.reduce:
            self.struct["weight"] = self.reduce.weight
        return argument(self.struct)

    def count(self, steps):
        """Say that so many steps were asked for: each step of all launches has a tag of its own."""
        self.struct["before"] += np.uint32(steps)


@cache
def compiled(file, **macros):
    """Return a file's kernel `train`, and what its `requirements` are.

    They are the bytes of its exchange and of a block's shared memory; of a kernel that stays, also its blocks and
    threads, and how many numbers it sends to other GPUs in a step, else anything.
    """
    module, found = kernels.load(file, **macros), cp.zeros(5, np.int32)
    train, requirements = map(module.get_function, ("train", "requirements"))  # compiled side by side
    requirements((1,), (1,), (found,))
    return train, *found.tolist()

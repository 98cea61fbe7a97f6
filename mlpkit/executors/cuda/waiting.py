"""A kernel that trains for an epoch, whose blocks wait for each other, and say so where one waits in vain.

`kernels/watch.cuh` is the other side: a block that waits too long leaves a word, (what << 48 | block << 32 | step), and
all give up. The word comes back with the epoch; the host reads it before the next one, so that nobody waits for it.
"""

from typing import Any

import cupy as cp
import cupyx
import numpy as np

from mlpkit import kernels


class WaitingTrainer:
    """What trainers have in common whose kernel stays for an epoch. Those under it make the kernel's arguments.

    engine: the engine's name; file: its kernel's; awaited: what a block waits for, in the kernel's order; stages: how
    many of them it stamps. `__init__` sets kernel, macros, blocks, threads, shared_bytes, stamped_steps and feed.
    """

    engine: str
    file: str
    awaited: tuple[str, ...]
    stages: int
    kernel: Any
    macros: dict
    blocks: int
    threads: int
    shared_bytes: int
    stamped_steps: int
    feed: Any

    def __init__(self):
        self.failed, self.found = cp.zeros(1, np.uint64), cupyx.empty_pinned(1, np.uint64)
        self.found[:] = 0

    def launch(self, arguments):
        """Start the kernel, with all its blocks on the GPU at once, and send for the word that it leaves."""
        size = {"shared_mem": self.shared_bytes, "enable_cooperative_groups": True}
        self.kernel((self.blocks,), (self.threads,), arguments, **size)
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

    def stamps(self):
        """Return when each block came to each stage of the steps that were stamped last, (blocks, steps, stages).

        A NumPy array of int64, the GPU's time in nanoseconds.
        """
        memory = kernels.load(self.file, **self.macros).get_global("stamps")
        return cp.ndarray((self.blocks, self.stamped_steps, self.stages), np.int64, memory).get()

    def close(self):
        """Wait for all that was asked for."""
        self.feed.close()
        self.check()

"""All-reduce over NVLink by kernels of our own: each GPU reaches the others' memory, and a graph records the launch.

NCCL's all-reduce is made for any number of machines and any size. Here all GPUs are in one host, and the vector is one
network's gradient: some megabytes, of which latency is a large part. See `kernels/parallel/all_reduce.cu`, and for
kernels that stay for an epoch `kernels/ranks.cuh`.
"""

from types import SimpleNamespace

import numpy as np

from mlpkit import kernels

from .ring import RankLost
from .shares import Reduction

THREADS = 512


class NvlinkReduction(Reduction):
    """A `Reduction` between GPUs that reach each other's memory; one of float64 is left to NCCL."""

    def __init__(self, communicator, network):
        import cupy as cp

        super().__init__(communicator, network)
        self.vector, self.failure = network.grad, cp.zeros(1, np.uint32)
        if self.dtype == np.float32:
            most = cp.cuda.Device().attributes["MultiProcessorCount"]
            self.blocks = min(most, -(-self.vector.size // (4 * self.ranks * THREADS)))
            self.turns, flags = cp.zeros(self.blocks, np.uint32), cp.zeros(2 * self.ranks * self.blocks, np.uint32)
            self.lasting = [self.vector, flags]
            table = np.concatenate([communicator.addresses(array) for array in self.lasting])
            self.table = table.view(f"V{table.nbytes}")  # a struct
            self.kernel = kernels.load("all_reduce", RANKS=self.ranks, BLOCK_THREADS=THREADS).get_function("all_reduce")
            self(self.vector)  # so that it is compiled

    def __call__(self, grad):
        if self.dtype != np.float32:
            super().__call__(grad)
            return
        arguments = self.table, np.int32(self.rank), np.int32(grad.size), self.weights, self.turns, self.failure
        self.kernel((self.blocks,), (THREADS,), arguments)

    def mailboxes(self, size):
        """Return `memory`, so many bytes of zeros that all can write to, and the `addresses` of all ranks' (ranks,)."""
        import cupy as cp

        memory = cp.zeros(size, np.uint8)
        return SimpleNamespace(memory=memory, addresses=self.communicator.addresses(memory))

    def check(self):
        if word := int(self.failure[0]):
            raise RankLost(f"rank {word - 1} did not come to add up gradients: resume the training.")

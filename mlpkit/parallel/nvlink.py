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
EARLY_BLOCKS = 16  # of what goes on beside other kernels, which need the multiprocessors
LEAST_EARLY = 1 << 16  # floats: fewer are not worth a kernel of their own


class NvlinkReduction(Reduction):
    """A `Reduction` between GPUs that reach each other's memory; one of float64 is left to NCCL."""

    def __init__(self, communicator, network):
        import cupy as cp
        import cupyx

        super().__init__(communicator, network)
        self.failed = cupyx.empty_pinned(1, np.uint32)  # which the GPU writes itself
        self.failed[:] = 0
        self.vector, self.n_weights = network.grad, network.n_weights
        self.early, self.beside = (0, 0), cp.cuda.Stream(non_blocking=True, priority=-1)
        if self.dtype == np.float32:
            most = cp.cuda.Device().attributes["MultiProcessorCount"]
            self.kernel = kernels.load("all_reduce", RANKS=self.ranks, BLOCK_THREADS=THREADS).get_function("all_reduce")
            self.places = communicator.addresses(self.vector)
            self.sums = [self._sums(min(most, -(-self.vector.size // (4 * self.ranks * THREADS))))]
            self.sums.append(self._sums(EARLY_BLOCKS))
            self(self.vector)  # so that it is compiled

    def _sums(self, blocks):
        """Return a function that sums up a part of all vectors, by so many blocks, which have flags of their own."""
        import cupy as cp

        turns, flags = cp.zeros(blocks, np.uint32), cp.zeros(2 * self.ranks * blocks, np.uint32)
        table = np.concatenate([self.places, self.communicator.addresses(flags)])
        peers, rank = table.view(f"V{table.nbytes}"), np.int32(self.rank)
        failed = np.uint64(self.failed.ctypes.data)

        def sums(*part, _lasting=flags):
            numbers = np.array(part, np.int32)
            arguments = peers, rank, numbers.view(f"V{numbers.nbytes}"), self.weights, turns, failed
            self.kernel((blocks,), (THREADS,), arguments)

        return sums

    def begin(self, dW):
        """Ask for the sum of the weights' gradients from `dW` on, beside what is asked for before the next call."""
        import cupy as cp

        first, last = -(-(dW.data.ptr - self.vector.data.ptr) // 16), self.n_weights // 4
        if self.dtype == np.float32 and 4 * (last - first) >= LEAST_EARLY:
            self.early = first, last
            self.beside.wait_event(cp.cuda.get_current_stream().record())
            with self.beside:
                self.sums[1](first, last - first, 0, 0, 0)

    def __call__(self, grad):
        import cupy as cp

        if self.dtype != np.float32:
            super().__call__(grad)
            return
        (first, last), self.early = self.early, (0, 0)
        self.sums[0](0, grad.size // 4 - (last - first), first, last - first, grad.size % 4)
        if last:
            cp.cuda.get_current_stream().wait_event(self.beside.record())

    def mailboxes(self, size):
        """Return `memory`, so many bytes of zeros that all can write to, and the `addresses` of all ranks' (ranks,)."""
        import cupy as cp

        memory = cp.zeros(size, np.uint8)
        return SimpleNamespace(memory=memory, addresses=self.communicator.addresses(memory))

    def check(self, wait=False):
        import cupy as cp

        if wait:
            cp.cuda.Device().synchronize()
        if word := int(self.failed[0]):
            raise RankLost(f"rank {word - 1} did not come to add up gradients: resume the training.")

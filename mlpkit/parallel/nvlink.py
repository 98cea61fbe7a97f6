"""All-reduce over NVLink by a kernel of our own: each GPU writes into the memory of all others, and graphs record it.

NCCL's all-reduce is made for any number of machines and any size. Here all GPUs are in one host, and the vector is one
network's gradient: some megabytes, of which latency is a large part. See `kernels/parallel/all_reduce.cu`, and for
kernels that stay for an epoch `kernels/ranks.cuh`.
"""

from types import SimpleNamespace

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.ranks import argument, struct

from .ring import RankLost
from .shares import Reduction

THREADS = 512
MOST_FLOATS = 1 << 19  # floats that go as flagged messages: more are quicker by NCCL
LEAST_EARLY = 1 << 16  # floats: fewer are not worth a copy


class NvlinkReduction(Reduction):
    """A `Reduction` between GPUs that reach each other's memory; one of float64, or a long one, is left to NCCL."""

    def __init__(self, communicator, network):
        import cupy as cp
        import cupyx

        super().__init__(communicator, network)
        self.vector, self.n_weights, self.n = network.grad, network.n_weights, network.grad.size
        self.early, self.beside = (0, 0), [cp.cuda.Stream(non_blocking=True) for _ in range(self.ranks)]
        self.failed, self.found = cp.zeros(1, np.uint64), cupyx.empty_pinned(1, np.uint64)
        self.found[:] = 0
        if self.dtype != np.float32:
            return
        self.blocks = min(cp.cuda.Device().attributes["MultiProcessorCount"], -(-self.n // THREADS))
        load = kernels.load("all_reduce", RANKS=self.ranks)
        self.kernel, self.count = load.get_function("all_reduce"), load.get_function("count_early")
        self.turns, self.sent = cp.zeros(2 * self.blocks, np.uint32), cp.zeros(1, np.uint32)
        self.came = cp.empty((self.ranks, -(-self.n // 4) * 4), np.float32)  # rows that fours of floats begin
        self.times, self.consumed = (cp.zeros(count * self.ranks, np.uint32) for count in (2, 1))
        self.theirs = [communicator.addresses(array) for array in (self.came, self.times, self.consumed)]
        slots = min(self.n, MOST_FLOATS)
        self.boxes = self.mailboxes(2 * self.ranks * slots * 8)
        among = struct(self.ranks)
        among["boxes"], among["slots"], among["rank"] = self.boxes.addresses, slots, self.rank
        self.among = argument(among)
        self(self.vector[:THREADS])  # so that it is compiled

    def begin(self, dW):
        """Send the weights' gradients from `dW` on to the others, beside what is asked for before the next call."""
        import cupy as cp

        first, last = -(-(dW.data.ptr - self.vector.data.ptr) // 16), self.n_weights // 4
        size = 4 * (last - first)
        if self.is_apart or self.dtype != np.float32 or size < LEAST_EARLY or self.n - size > MOST_FLOATS:
            return
        self.early = first, last - first
        copy, first_stream = cp.cuda.runtime.memcpyAsync, self.beside[self.rank]
        first_stream.wait_event(cp.cuda.get_current_stream().record())
        with first_stream:
            sizes = np.int32(self.blocks), np.int32(self.rank)
            self.count((1,), (32,), (self.sent, self.consumed, *sizes, self.failed), shared_mem=1024)
        counted = first_stream.record()
        for other, stream in enumerate(self.beside):  # a copy engine for each
            if other != self.rank:
                came, times, _ = (int(each[other]) for each in self.theirs)
                stream.wait_event(counted)
                copy(
                    came + self.came.strides[0] * self.rank, self.vector.data.ptr + 16 * first, 4 * size, 4, stream.ptr
                )
                copy(times + 4 * self.rank, self.sent.data.ptr, 4, 4, stream.ptr)
                copy(self.times.data.ptr + 4 * (self.ranks + other), self.sent.data.ptr, 4, 4, stream.ptr)

    def __call__(self, grad):
        import cupy as cp

        if self.is_apart:
            return
        (first, count), self.early = self.early, (0, 0)
        if self.dtype != np.float32 or grad.size - 4 * count > MOST_FLOATS:
            super().__call__(grad)
            return
        early = np.zeros(1, early_struct(self.ranks))
        early["of"] = self.came.data.ptr + self.came.strides[0] * np.arange(self.ranks)
        early["times"], early["consumed"] = self.times.data.ptr, self.theirs[2]
        early["first"], early["count"] = first, count
        size = np.int32(grad.size)
        arguments = grad, size, argument(early), self.weights, self.turns, self.failed, self.among
        self.kernel((self.blocks,), (THREADS,), arguments, shared_mem=1024)
        for stream in self.beside if count else ():  # whose copies are done: who records a step wants to see that
            cp.cuda.get_current_stream().wait_event(stream.record())

    def mailboxes(self, size):
        """Return `memory`, so many bytes of zeros that all can write to, and the `addresses` of all ranks' (ranks,)."""
        import cupy as cp

        memory = cp.zeros(size, np.uint8)
        return SimpleNamespace(memory=memory, addresses=self.communicator.addresses(memory))

    def check(self, wait=False):
        import cupy as cp

        self.failed.data.copy_to_host_async(self.found.ctypes.data, self.found.nbytes)
        if wait:
            cp.cuda.Device().synchronize()
        if self.found[0]:
            raise RankLost("another GPU did not come to add up gradients: resume the training.")


def early_struct(ranks):
    """Return the dtype of `Early` in `kernels/parallel/all_reduce.cu`."""
    pointers = ("of", np.uint64, ranks), ("times", np.uint64), ("consumed", np.uint64, ranks)
    return np.dtype([*pointers, ("first", np.int32), ("count", np.int32)], align=True)

"""All-reduce over NVLink by a kernel of our own: each GPU writes into the memory of all others, and graphs record it.

NCCL's all-reduce is made for any number of machines and any size. Here all GPUs are in one host, and the vector is one
network's gradient: some megabytes, of which latency is a large part. See `kernels/parallel/all_reduce.cu`, and for
kernels that stay for an epoch `kernels/ranks.cuh`.
"""

from types import SimpleNamespace

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import overlap
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
        self.others = [rank for rank in range(self.ranks) if rank != self.rank]
        self.early, self.beside = slice(0, 0), [cp.cuda.Stream(non_blocking=True) for _ in self.others[1:]]
        self.failed, self.found = cp.zeros(1, np.uint64), cupyx.empty_pinned(1, np.uint64)
        self.found[:] = 0
        if self.dtype != np.float32:
            return
        self.blocks = min(cp.cuda.Device().attributes["MultiProcessorCount"], -(-self.n // THREADS))
        load = kernels.load("all_reduce", RANKS=self.ranks)
        self.meeting, *found = map(load.get_function, ("meet_others", "add_up", "all_reduce"))
        self.add_up, self.kernel = map(overlap.InTurn, found)
        self.meeting.preferred_shared_memory_carveout = 100  # as of those that it runs beside
        self.times, self.met = cp.zeros(self.blocks, np.uint32), cp.zeros(1, np.uint32)
        self.whole = self.ranks == 2  # a GPU adds up all of it itself, which takes one copy and no second one
        row = self.n if self.whole else -(-self.n // self.ranks) + 4
        self.came = cp.empty((self.ranks, -(-row // 4) * 4), np.float32)  # rows that fours of floats begin
        self.meetings = cp.zeros(self.ranks, np.uint32)
        self.rows, self.vectors, theirs = map(communicator.addresses, (self.came, self.vector, self.meetings))
        self.rows += np.uint64(self.came.strides[0] * self.rank)  # this GPU's own of each
        self.told = argument(theirs)
        slots = min(self.n, MOST_FLOATS)
        self.boxes = self.mailboxes(2 * self.ranks * slots * 8)
        among = struct(self.ranks)
        among["boxes"], among["slots"], among["rank"] = self.boxes.addresses, slots, self.rank
        self.among = argument(among)
        self(self.vector[:THREADS])  # so that all are compiled, and on the GPU
        self.meet()
        self.add(self.vector[:0])

    def begin(self, dW):
        """Add up the weights' gradients from `dW` on, on the current stream, which others need not wait for."""
        first, last = -(-(dW.data.ptr - self.vector.data.ptr) // 16) * 4, self.n_weights // 4 * 4
        size = last - first
        if self.is_apart or self.dtype != np.float32 or size < LEAST_EARLY or self.n - size > MOST_FLOATS:
            return
        self.early = slice(first, last)
        share = size if self.whole else -(-size // (4 * self.ranks)) * 4  # of a GPU
        parts = [slice(at, min(at + share, last)) for at in (first + rank * share % size for rank in range(self.ranks))]
        own = self.vector[parts[self.rank]]
        self.copy(self.rows, parts)
        self.add(own)
        if self.whole:
            self.meet()  # who comes has read what came
        else:
            self.copy(self.vectors + np.uint64(own.data.ptr - self.vector.data.ptr), [parts[self.rank]] * self.ranks)

    def copy(self, to, parts):
        """Copy a part of the vector to a place of each other GPU, by a copy engine for each, and let all meet."""
        import cupy as cp

        here = cp.cuda.get_current_stream()
        began = here.record()
        for other, stream in zip(self.others, (here, *self.beside), strict=False):
            part = self.vector[parts[other]]
            stream.wait_event(began)
            cp.cuda.runtime.memcpyAsync(int(to[other]), part.data.ptr, part.nbytes, 4, stream.ptr)
            here.wait_event(stream.record())
        self.meet()

    def add(self, own):
        """Add what came from others to a part of the vector, in the order of the ranks."""
        row, count, here = map(np.int32, (self.came.shape[1] // 4, own.size // 4, self.rank))
        arguments = own, self.came, row, count, self.weights, here
        self.add_up((max(1, -(-own.size // (4 * THREADS))),), (THREADS,), arguments)

    def meet(self):
        """Let the current stream wait until those of all GPUs have come so far."""
        self.meeting((1,), (32,), (self.met, self.told, np.int32(self.rank), self.failed), shared_mem=1024)

    def __call__(self, grad):
        if self.is_apart:
            return
        early, self.early = self.early, slice(0, 0)
        size = early.stop - early.start
        if self.dtype != np.float32 or grad.size - size > MOST_FLOATS:
            super().__call__(grad)
            return
        sizes = map(np.int32, (grad.size, early.start, size))
        arguments = grad, *sizes, self.weights, self.times, self.failed, self.among
        self.kernel((self.blocks,), (THREADS,), arguments, shared_mem=1024)

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

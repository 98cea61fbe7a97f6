"""All-reduce over NVLink by a kernel of our own: each GPU writes into the memory of all others, and graphs record it.

NCCL's all-reduce is made for any number of machines and any size. Here all GPUs are in one host, and the vector is one
network's gradient: some megabytes, of which latency is a large part. Copy engines send a long part of it while others
are still computed. See `kernels/parallel/all_reduce.cu`, and for kernels that stay for an epoch `kernels/ranks.cuh`.
"""

from types import SimpleNamespace

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import overlap
from mlpkit.kernels.cnn.updates import NO_UPDATE, Update
from mlpkit.kernels.ranks import argument, struct

from .ring import RankLost
from .shares import Reduction

THREADS = 512
MOST_FLOATS = 1 << 19  # floats that go as flagged messages: more are quicker by NCCL
LEAST_EARLY, MOST_EARLY = 1 << 16, 1 << 24  # floats: fewer are not worth a copy, and more would take much memory


def early_of(ranks):
    """Return an array of one struct `Early` of the kernels, all zeros."""
    of_all = [(name, "u8", ranks) for name in ("sums", "acked")]
    own = [(name, "u8") for name in ("vector", "came", "arrived", "number")]
    return np.zeros(1, np.dtype([*of_all, *own, *((name, "i4") for name in ("row", "first", "size"))], align=True))


class NvlinkReduction(Reduction):
    """A `Reduction` between GPUs that reach each other's memory; one of float64, or a long one, is left to NCCL."""

    def __init__(self, communicator, network):
        import cupy as cp
        import cupyx

        super().__init__(communicator, network)
        self.vector, self.n_weights, self.n = network.grad, network.n_weights, network.grad.size
        self.early, self.begun, self.beside = slice(0, 0), 0, cp.cuda.Stream(non_blocking=True)
        self.failed, self.found = cp.zeros(1, np.uint64), cupyx.empty_pinned(1, np.uint64)
        self.found[:] = 0
        if self.dtype != np.float32:
            return
        self.blocks = min(cp.cuda.Device().attributes["MultiProcessorCount"], -(-self.n // THREADS))
        load = kernels.load("all_reduce", RANKS=self.ranks)
        names = "all_reduce", "all_reduce_sgd", "all_reduce_adam"
        self.kernels = [overlap.InTurn(load.get_function(name)) for name in names]
        self.times, self.number = cp.zeros((2, self.blocks), np.uint32), cp.asarray(np.ones(1, np.uint32))
        self.shares = 1 if self.ranks == 2 else self.ranks  # two add up all that comes early, more a share each
        early = min(self.n, MOST_EARLY) if LEAST_EARLY <= self.n <= MOST_EARLY + MOST_FLOATS else 0
        row = max(1, -(-early // (4 * self.shares))) * 4
        self.came = cp.empty((2, self.ranks, row), np.float32)  # of steps in turn
        self.sums = cp.asarray(np.full((2, self.ranks, row if self.shares > 1 else 4), -0.0, np.float32))
        self.arrived, self.acked = (cp.zeros(self.ranks, np.uint32) for _ in range(2))
        asked = self.came, self.arrived, self.sums, self.acked
        self.rows, self.flags, *of_all = map(communicator.addresses, asked)
        self.rows += np.uint64(self.came.strides[1] * self.rank)  # this GPU's own of each
        self.flags += np.uint64(self.arrived.strides[0] * self.rank)
        own = (each.data.ptr for each in (self.vector, self.came, self.arrived, self.number))
        self.about = early_of(self.ranks)
        self.about[0] = *of_all, *own, row, 0, 0
        slots = min(self.n, MOST_FLOATS)
        self.boxes = self.mailboxes(2 * self.ranks * slots * 8)
        among = struct(self.ranks)
        among["boxes"], among["slots"], among["rank"] = self.boxes.addresses, slots, self.rank
        self.among = argument(among)
        self.try_all()

    def try_all(self):
        """Launch each kernel, so that all are compiled, and on the GPU."""
        import cupy as cp

        self.few, zero = cp.zeros(min(self.n, THREADS), np.float32), cp.zeros(1, np.float32)
        theta, m, v = cp.zeros((3, self.few.size), np.float32)  # whose values do not matter
        for update in (None, Update(theta, self.few, zero), Update(theta, self.few, zero, m, v, zero)):
            self.add_up(self.few, update)

    def begin(self, dW):
        """Send others the weights' gradients from `dW` on, while the current stream goes on to the sum's kernel.

        They must not change until that has ended.
        """
        import cupy as cp

        if self.is_apart or self.dtype != np.float32:
            return
        first, last = -(-(dW.data.ptr - self.vector.data.ptr) // 16) * 4, self.n_weights // 4 * 4
        size = last - first
        if not LEAST_EARLY <= size <= MOST_EARLY or self.n - size > MOST_FLOATS:
            return
        self.early, self.begun = slice(first, last), self.begun + 1
        self.beside.wait_event(cp.cuda.get_current_stream().record())
        share = -(-size // (4 * self.shares)) * 4
        for other in range(self.ranks):
            at = first + share * (other if self.shares > 1 else 0)
            part, there = self.vector[at : min(at + share, last)], int(self.rows[other]) + self.place
            for to, what in ((there, part), (int(self.flags[other]), self.number)):
                if other != self.rank:
                    cp.cuda.runtime.memcpyAsync(to, what.data.ptr, what.nbytes, 4, self.beside.ptr)

    def join(self):
        """Let the current stream wait for what was sent, after the last step of a graph, or CUDA would refuse that.

        Kernels that wait for a copy engine begin microseconds late, so none of a step does. The next graph begins with
        the same place as this one, which all must have read then.
        """
        import cupy as cp

        if self.begun:
            cp.cuda.get_current_stream().wait_event(self.beside.record())
        if self.begun % 2:
            self.add_up(self.few)  # who gets past it knows that all others have
        self.begun = 0

    @property
    def place(self):
        """Where a step's copies go to in `came`, in bytes: to one half or the other, in turn."""
        return self.begun % 2 * self.came.strides[0]

    def argument(self):
        """Return the kernels' argument `Early`."""
        self.about["first"], self.about["size"] = self.early.start, self.early.stop - self.early.start
        self.about["came"] = self.came.data.ptr + self.place
        return argument(self.about.copy())

    def __call__(self, grad):
        if not self.is_apart and not self.add_up(grad):
            super().__call__(grad)

    def step(self, update):
        """Take an optimizer's step, a `kernels.cnn.updates.Update`, of the sum, which is not kept; or return False."""
        return not self.is_apart and self.add_up(self.vector, update)

    def add_up(self, grad, update=None):
        """Replace a gradient by the weighted sum of all ranks', or take a step of it; return whether that is done."""
        size = self.early.stop - self.early.start
        if self.dtype != np.float32 or grad.size - size > MOST_FLOATS:
            return False
        about = grad, np.int32(grad.size), self.argument()
        arguments = *about, self.weights, self.times, self.failed, self.among
        kernel, step = (self.kernels[update.kind], update.argument()) if update else (self.kernels[0], NO_UPDATE)
        kernel((self.blocks,), (THREADS,), (*arguments, step), shared_mem=1024)
        self.early = slice(0, 0)
        return True

    def mailboxes(self, size):
        """Return `memory`, so many bytes of zeros that all can write to, and the `addresses` of all ranks' (ranks,)."""
        import cupy as cp

        memory = cp.zeros(size, np.uint8)
        return SimpleNamespace(memory=memory, addresses=self.communicator.addresses(memory))

    def mark(self, losses):
        losses /= self.failed == 0  # infinite, if what was added up means nothing

    def check(self, wait=False):
        import cupy as cp

        self.failed.data.copy_to_host_async(self.found.ctypes.data, self.found.nbytes)
        if wait:
            cp.cuda.Device().synchronize()
        if self.found[0]:
            raise RankLost("another GPU did not come to add up gradients: resume the training.")

"""A ring all-reduce: each rank talks to its neighbour alone, and sends at most twice the vector, however many ranks.

The vector is cut into as many chunks as there are ranks. In the first half each chunk travels once around the ring, and
every rank adds its own values to it: then each rank has the whole sum of one chunk. In the second half these sums
travel around. See Patarasuk and Yuan (2009), "Bandwidth optimal all-reduce algorithms for clusters of workstations".
"""

from multiprocessing.shared_memory import SharedMemory
from typing import cast

import numpy as np

from .shares import Reduction


class RankLost(ChildProcessError):
    """A rank has ended before the training has."""


class Ring:
    """The ranks of this machine, each with a mailbox in shared memory that its neighbour reads.

    rank: of this process. memory: a shared memory of `ranks` mailboxes, each for a chunk of the longest vector.
    barrier: where all ranks meet, twice a step, without limit: a laptop may sleep. Who started them sees a dead one.
    """

    Reduction = Reduction

    def __init__(self, rank, ranks, memory, barrier):
        self.rank, self.ranks, self.barrier = rank, ranks, barrier
        self.memory = SharedMemory(memory) if isinstance(memory, str) else memory
        size, buffer = self.memory.size // ranks, cast(memoryview, self.memory.buf)
        self.boxes = [buffer[size * one : size * (one + 1)] for one in range(ranks)]

    def sum(self, vector):
        """Add the vectors of all ranks, in place: each has the same bits then. vector (n,): NumPy's, of one dtype."""
        chunks, before = np.array_split(vector, self.ranks), (self.rank - 1) % self.ranks
        for step in range(self.ranks - 1):
            put, take = chunks[self.rank - step], chunks[before - step]
            take += self._passed(put, take, before)
        for step in range(self.ranks - 1):
            put, take = chunks[(self.rank + 1 - step) % self.ranks], chunks[(before + 1 - step) % self.ranks]
            take[:] = self._passed(put, take, before)

    def _passed(self, put, take, before):
        """Put a chunk into this rank's mailbox, and return what the rank before it has put into its own."""
        self.barrier.wait()  # all have read what was there
        np.frombuffer(self.boxes[self.rank], put.dtype, len(put))[:] = put
        self.barrier.wait()
        return np.frombuffer(self.boxes[before], take.dtype, len(take))

    def close(self):
        """Give the memory back."""
        self.boxes.clear()
        self.memory.close()

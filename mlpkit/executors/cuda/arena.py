"""Memory that is planned before the first step: when is each array needed, and who may lie where another one was?

A training step makes the same arrays in the same order each time. So one step is watched: `Recorder` hands out memory
from CuPy's pool, and notes when each piece was asked for and when the last reference to it was gone; Python counts
references, so that is the same moment each time. Of these intervals `lifetimes.plan` makes places in one piece of
memory: pieces that are never there at the same time may overlap. From then on `Arena` hands out these places, in the
same order. So every array lies where it lay in the step before, and kernels can be recorded with its address.

The arrays must be used on one stream, in the order of the calls: then nobody writes to a place before its last reader
is done.
"""

from contextlib import contextmanager

import cupy as cp

from .lifetimes import ALIGNMENT, Interval, plan


class _Lease:
    """Belongs to the arrays of a piece; when the last one is gone, it says so."""

    def __init__(self, release, number, memory=None):
        self.release, self.number, self.memory = release, number, memory

    def __del__(self):
        self.release(self.number)


def _pointer(address, size, lease):
    """Return what CuPy makes an array of: some bytes that are there as long as the lease is."""
    memory = cp.cuda.UnownedMemory(address, size, lease, cp.cuda.Device().id)
    return cp.cuda.MemoryPointer(memory, 0)


def _pool_freed(ask, size):
    """Return ask(size); where there is no room, once more, without what CuPy's pool keeps and nobody has."""
    try:
        return ask(size)
    except (cp.cuda.memory.OutOfMemoryError, cp.cuda.runtime.CUDARuntimeError):
        cp.get_default_memory_pool().free_all_blocks()
        return ask(size)


class Recorder:
    """Watches a step. Use it as `with recorder.watching(): step()`, and then `recorder.plan()`."""

    def __init__(self):
        self.pool = cp.cuda.MemoryPool()
        self.clock, self.pieces = 0, []  # of each piece: size, start, end

    @contextmanager
    def watching(self):
        """Return a context in which this thread's arrays come from here."""
        try:
            with cp.cuda.using_allocator(self.malloc):
                yield
        finally:
            self.pool.free_all_blocks()  # CuPy never frees what a pool keeps when the pool itself is gone

    def malloc(self, size):
        self.pieces.append([size, self.clock, None])
        self.clock += 1
        memory = _pool_freed(self.pool.malloc, size)
        return _pointer(memory.ptr, size, _Lease(self.release, len(self.pieces) - 1, memory))

    def release(self, number):
        self.pieces[number][2] = self.clock
        self.clock += 1

    def plan(self):
        """Return the `Plan` of what was watched.

        Raises RuntimeError where an array is still there after the step: it would lie where the next step writes.
        """
        kept = [size for size, _, end in self.pieces if end is None]
        if kept:
            raise RuntimeError(
                f"a step leaves {len(kept)} of its arrays behind, the first of {kept[0]} bytes: whatever lasts from "
                "step to step has to be made before the first one."
            )
        return plan([Interval(*piece) for piece in self.pieces])


class Arena:
    """Hands out the places of a `Plan`, step after step. Use it as `with arena.step(): step()`.

    memory: that of another arena, if it is large enough: for steps that are never under way at the same time. `memory`
    lasts as long as the arena, and as long as whatever was recorded with its addresses needs it.
    """

    def __init__(self, found, memory=None):
        self.plan = found
        enough = memory is not None and memory.mem.size >= found.bytes
        bytes_at_least = max(found.bytes, ALIGNMENT)
        self.memory = memory if enough else cp.cuda.MemoryPointer(_pool_freed(cp.cuda.Memory, bytes_at_least), 0)
        self.next, self.living = 0, {}
        self.conflicts = _conflicts(found.intervals)

    @contextmanager
    def step(self):
        """Return a context in which this thread's arrays are the step's. Raises RuntimeError where a step is another.

        At its end, too: then arrays of this step are left, or some were not asked for.
        """
        self.next = 0
        with cp.cuda.using_allocator(self.malloc):
            yield
        if self.next != len(self.plan.intervals):
            raise RuntimeError(f"a step made {self.next} arrays, and {len(self.plan.intervals)} were planned.")

    def malloc(self, size):
        number = self.next
        if number >= len(self.plan.intervals) or self.plan.intervals[number].size != size:
            planned = self.plan.intervals[number].size if number < len(self.plan.intervals) else None
            raise RuntimeError(
                f"a step asks for {size} bytes as its array number {number}, and {planned} are planned: a step must "
                "make the same arrays in the same order each time."
            )
        for other in self.conflicts[number]:
            if self.living.get(other):
                raise RuntimeError(
                    f"array number {number} of a step lies where number {other} is, which is still in use: it must be "
                    "dropped as early as in the step that was watched."
                )
        self.next += 1
        self.living[number] = self.living.get(number, 0) + 1
        address = self.memory.ptr + self.plan.intervals[number].offset
        return _pointer(address, size, _Lease(self.release, number, self.memory))

    def release(self, number):
        self.living[number] -= 1


def _conflicts(intervals):
    """Return for each piece the numbers of those whose places have bytes in common with its own, itself among them."""
    return [[j for j, other in enumerate(intervals) if one.overlaps(other)] for one in intervals]

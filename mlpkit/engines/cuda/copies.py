"""Copies from the GPU to pinned memory, for which nobody has to wait at once."""

from contextlib import suppress

import cupy as cp
import cupyx


class Copies:
    """Copies of arrays that a stream has been asked for; called, it waits for them and returns them, NumPy's.

    What a copy reads and writes is nobody else's until it is over, even where nobody waits for it, as after a training
    that diverged: its pinned memory would be given to the next order of examples, and then be written to. So is what
    the stream's kernels ahead of it use: maker, an object that has it.
    """

    def __init__(self, stream, arrays, maker=None):
        self.done = cp.cuda.Event(disable_timing=True)
        self.kept, self.hosts = (arrays, maker), [cupyx.empty_pinned(array.shape, array.dtype) for array in arrays]
        for array, host in zip(arrays, self.hosts, strict=True):
            array.get(stream, out=host, blocking=False)
        self.done.record(stream)

    def __call__(self):
        self.done.synchronize()
        self.kept = [], None
        return self.hosts

    def __del__(self):
        with suppress(cp.cuda.runtime.CUDARuntimeError):  # then there are no copies either
            self.done.synchronize()

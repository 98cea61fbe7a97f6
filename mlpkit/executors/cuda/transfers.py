"""What crosses between the host and the GPU in an epoch: the order and the rates one way, the losses the other.

Nobody waits for it. The host writes into pinned memory, which is copied to the GPU beside the epoch before, on a stream
of its own; the losses stay on the GPU until somebody reads them.
"""

from itertools import cycle

import cupy as cp
import cupyx
import numpy as np

from mlpkit import kernels
from mlpkit.engines.cuda.kernel import C_TYPES

ALIGNMENT = 256  # bytes, as CuPy's own arrays have it


class Feed:
    """Vectors on the GPU that are filled before each epoch. `feed[name]` is one of them, always in the same place.

    beside: whether they come to the GPU beside the epoch before, to wait there in memory that is as large again; else
    they come behind it. fields: (elements, dtype) by name.
    """

    def __init__(self, beside=True, **fields):
        size = sum(_aligned(count * np.dtype(dtype).itemsize) for count, dtype in fields.values())
        self.memory = cp.empty(size, np.uint8)
        self.vectors = _cut(self.memory, fields)
        self.pieces = [_Piece(size, fields) for _ in range(2)]
        self.there = cp.empty(size, np.uint8) if beside else None
        self.used = cp.cuda.Event(disable_timing=True)
        self.turns, self.copies = cycle(self.pieces), cp.cuda.Stream(non_blocking=True)
        self.used.record()  # who had this memory before may still read it

    def __getitem__(self, name):
        return self.vectors[name]

    def send(self, **values):
        """Fill the vectors of these names, each from its beginning.

        values: arrays of any shape, of as many elements as the vector has or fewer, on the host or on the GPU.
        """
        on_gpu = {name: value for name, value in values.items() if isinstance(value, cp.ndarray)}
        on_host = {name: value for name, value in values.items() if name not in on_gpu}
        if on_host:
            self.copy(next(self.turns), on_host)
        for name, value in on_gpu.items():
            self.vectors[name][: value.size] = value.reshape(-1)

    def copy(self, piece, values):
        """Copy values to the vectors once the current stream comes to that, and until then, if beside, to `there`."""
        end, stream = piece.fill(values), cp.cuda.get_current_stream()
        if self.there is None:
            self.memory.data.copy_from_host_async(piece.address, end, stream)
            piece.arrived.record(stream)
            return
        self.copies.wait_event(self.used)  # until then the epoch before has not taken its own
        self.there.data.copy_from_host_async(piece.address, end, self.copies)
        piece.arrived.record(self.copies)
        stream.wait_event(piece.arrived)
        self.memory.data.copy_from_device_async(self.there.data, end, stream)
        self.used.record(stream)

    def close(self):
        """Wait for all that was asked for, evaluations too: then what it reads and writes may be given to others."""
        cp.cuda.runtime.deviceSynchronize()


class _Piece:
    """Buffers for the vectors on the host, pinned, and how far the copy of them is."""

    def __init__(self, size, fields):
        self.memory = cupyx.empty_pinned(size, np.uint8)
        self.address, self.vectors = self.memory.ctypes.data, _cut(self.memory, fields)
        self.arrived = cp.cuda.Event(disable_timing=True)

    def fill(self, values):
        """Write values of some names here, and return how many bytes there are up to the end of the last one."""
        self.arrived.synchronize()  # the last copy but one, which is over where somebody reads the losses
        end = 0
        for name, value in values.items():
            vector = self.vectors[name][: value.size]
            vector[:] = value.reshape(-1)
            end = max(end, vector.ctypes.data + vector.nbytes - self.address)
        return end


class RowLosses:
    """The loss of each example of an epoch, `rows`, which a kernel writes batch after batch, and the batches' means."""

    def __init__(self, batches, batch_size, dtype):
        self.rows, self.batch_size = cp.empty(batches * batch_size, dtype), batch_size
        self.mean = kernels.load("mean_losses", REAL=C_TYPES[self.rows.dtype]).get_function("mean_losses")

    def means(self, shape, examples):
        """Return a new array of `shape` (..., steps): the mean loss of each batch, which may be computed later.

        In an epoch of so many examples the last batch may be short; what lies beyond it is not read.
        """
        losses, steps = cp.empty(shape, self.rows.dtype), shape[-1]
        counts = losses.size, steps, self.batch_size, examples - (steps - 1) * self.batch_size
        self.mean((-(-losses.size // 8),), (256,), (self.rows, losses, *map(np.int32, counts)))
        return losses


def _cut(memory, fields):
    """Return views of a piece of memory, by name, one after another."""
    vectors, start = {}, 0
    for name, (count, dtype) in fields.items():
        size = count * np.dtype(dtype).itemsize
        vectors[name] = memory[start : start + size].view(dtype)
        start += _aligned(size)
    return vectors


def as_labels(y):
    """Return labels (n,) of any integer type, however they lie, as a kernel reads them: int64, one after another."""
    return cp.ascontiguousarray(y.astype(np.int64, copy=False))


def _aligned(size):
    return -(-size // ALIGNMENT) * ALIGNMENT

"""A network's predictions, compiled for batches of n: the forward pass as a graph of few kernels.

Parameters and running statistics are taken as they are when it is made: normalizations become part of filters, see
`nn.fold`, and filters are put into the order in which products read them, once. After more training it has to be made
again.

For rows on the host there is one more graph, which brings them to the GPU and the outputs back: to ask for two copies
and a graph, one by one, takes the host longer than a single image takes the GPU.
"""

from functools import cache
from math import gcd

import cupy as cp
import cupyx
import numpy as np

from mlpkit.checks import check_batch, check_count, check_finite

from ..plain import check_fits, check_rows
from . import prediction_blocks
from .arena import Arena
from .blocks import Value, pipeline
from .graph import recorded
from .matches import matches_for, mode_for
from .plan import watched


class Prediction:
    """See `executors.protocol.Prediction`. A subclass names its precision, one of `blocks.MODES`.

    whole: a function (x, z) that asks for the kernels of the whole network, where there is one: from x (n, *shape),
    uint8 or the network's type, to its outputs z.
    """

    precision = "float32"

    def __init__(self, network, n, precision=None, calibration=None, whole=None):
        if precision not in (None, str(network.dtype)) or calibration is not None:
            raise ValueError(f"predictions of graphs are in {network.dtype}: for integers take the engine cuda_int8.")
        self.n, self.engine, self.dtype = check_count("n", n), network.engine, np.dtype(network.dtype)
        self.input, self.output = network.model.input, network.model.output
        layers, mode = prediction_blocks.layers_of(network), mode_for(self.precision)
        ours = matches_for(self.dtype) != ()
        self.whole, match = whole, prediction_blocks.match if ours else prediction_blocks.layer
        self.pipeline = pipeline([] if whole else layers, self.input, n, mode, (match,))
        self.batches: dict = {}

    def __call__(self, x):
        check_batch(x, self.input, self.dtype)
        check_fits(x, self.n)
        check_finite("inputs", x)  # of NaN the largest output is the first one: it would pass for a prediction
        batch = self.batch(x.dtype)
        if isinstance(x, np.ndarray):
            return batch.there_and_back(x, self)
        batch.put(x)
        batch.replay()
        return batch.z[: len(x)].copy()

    def batch(self, dtype):
        """Return the `Batch` for uint8 pixels, or for values of the network's type."""
        dtype = np.dtype(dtype)
        if dtype not in (np.uint8, self.dtype):
            raise TypeError(f"inputs are uint8 or {self.dtype}, not {dtype}: convert them.")
        if dtype not in self.batches:
            self.batches[dtype] = Batch(self, dtype)
        return self.batches[dtype]

    def enqueue(self, x, z):
        """Ask for the kernels between a batch and its outputs."""
        if self.whole:
            self.whole(x, z)
            return
        first, last = self.pipeline.blocks[0], self.pipeline.blocks[-1]
        if x.dtype == np.uint8 and not getattr(first, "takes_pixels", False):
            x = self.engine.scale(x, self.dtype)
        if hasattr(last, "into"):
            last.into = z
        found = self.pipeline.forward(Value(x, "nchw", x.shape[1])).array
        if found is not z:
            z[...] = found


class Batch:
    """Where a batch lies, x (n, *input), its outputs z (n, *output), and what makes the ones of the other: `replay()`.

    Both are the engine's arrays, and stay where they are. Whoever writes x himself and replays gets z as it is then.
    """

    def __init__(self, prediction, dtype):
        n = prediction.n
        self.reads = prediction.whole, prediction.pipeline  # a graph keeps no array alive
        self.x = cp.zeros((n, *prediction.input), dtype)
        self.z = cp.empty((n, *prediction.output), prediction.dtype)
        self.filled = 0  # rows that are not zeros
        self.host, self.copied = None, cp.cuda.Event(disable_timing=True)
        self.arena = Arena(watched(lambda: prediction.enqueue(self.x, self.z)))
        self.graph = recorded(lambda: self.enqueue(prediction), self.arena)
        self.trip: Trip | None = None

    def enqueue(self, prediction):
        with self.arena.step():
            prediction.enqueue(self.x, self.z)

    def replay(self):
        """Ask for the outputs of what lies in x: the GPU writes them into z when it comes to that."""
        self.graph.launch()

    def there_and_back(self, x, prediction):
        """Return the outputs of m <= n rows of NumPy's that are known to fit, as NumPy has them."""
        if self.trip is None:
            self.trip = Trip(self, prediction)
        self.filled = len(x)
        return self.trip(x)

    def fill(self, x):
        """Copy m <= n rows into x, of NumPy or of the engine; what lies behind them becomes zeros.

        Raises ValueError or TypeError for rows of another shape or type, and for more than n.
        """
        check_rows(x, self.x)
        self.put(x)

    def put(self, x):
        """Do what `fill` does, of rows that are known to fit."""
        m, rows = len(x), self.x[: len(x)]
        if isinstance(x, np.ndarray):
            self.send(x.reshape(rows.shape), rows)
        else:
            rows[...] = x.reshape(rows.shape)
        if m < self.filled:
            self.x[m : self.filled] = 0  # others' rows must not change anything, not even a scale of fp16
        self.filled = m

    def send(self, x, rows):
        """Copy rows from the host, through memory that the GPU reads while the host goes on."""
        if self.host is None:
            self.host = cupyx.empty_pinned(self.x.shape, self.x.dtype)
        self.copied.synchronize()  # the copy before this one has left that memory
        self.host[: len(x)] = x
        stream = cp.cuda.get_current_stream()
        rows.data.copy_from_host_async(self.host.ctypes.data, rows.nbytes, stream)
        self.copied.record(stream)


class Trip:
    """The way of a batch from the host and back, one graph: it brings all n rows, computes, and brings the outputs.

    Kernels do that, which read and write the host's memory: copies are for another unit of the GPU, to which the work
    would have to be handed, and back.
    """

    def __init__(self, batch, prediction):
        (self.x, x), (self.z, z) = (pinned(array.shape, array.dtype) for array in (batch.x, batch.z))
        self.filled = 0  # rows that are not zeros

        def work():
            carry(x, batch.x)
            batch.enqueue(prediction)
            carry(batch.z, z)

        carry(x, batch.x), carry(z, batch.z)  # they are compiled before they are recorded
        self.graph = recorded(work, batch.arena)

    def __call__(self, x):
        """Return the outputs of x: see `Batch.there_and_back`."""
        m = len(x)
        self.x[:m] = x.reshape(m, *self.x.shape[1:])
        if m < self.filled:
            self.x[m : self.filled] = 0  # as in `Batch.put`
        self.filled = m
        self.graph.launch()
        cp.cuda.get_current_stream().synchronize()
        return self.z[:m].copy()


def pinned(shape, dtype):
    """Return zeros on the host, NumPy's, and the same memory as an array of the GPU's, which reaches it itself."""
    host = cupyx.zeros_pinned(shape, dtype)
    memory = cp.cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, cp.cuda.Device().id)
    return host, cp.ndarray(shape, dtype, cp.cuda.MemoryPointer(memory, 0))


def carry(source, target):
    """Copy an array into another one of its shape and type with a kernel, of which a thread takes up to 8 bytes."""
    pieces = f"u{gcd(source.nbytes, 8)}"
    _carry()(source.reshape(-1).view(pieces), target.reshape(-1).view(pieces))


@cache
def _carry():
    return cp.ElementwiseKernel("T source", "T target", "target = source", "carry")

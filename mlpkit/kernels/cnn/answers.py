"""The end of a network of which only the answers are wanted, in two kernels: see `answers.cu`."""

from functools import cache

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.conv.planes import as_bf16, padded

from . import dense

TILE, DEPTH, MULTIPLIERS, THREADS, STAGES = 64, 64, 128, 256, 4  # as in answers.cu
SHARED = STAGES * 2 * TILE * (DEPTH + 8) * 2  # bytes, of pairs of tiles
BLOCKS = 132  # of which the first layer's slices make about so many
ROOM = 48 << 10  # bytes that a block with examples may have
LAYER = np.dtype([("pointers", np.uint64, 2), ("sizes", np.int32, 2)])
NETWORK = np.dtype([("layers", LAYER, dense.MOST_LAYERS), ("numbers", np.int32, 4)])

why_not = dense.why_not


class End:
    """Linear layers with ReLU between them, for batches of n: call it with x, and where the outputs go.

    layers: (W, b) of each, float32 on the GPU, W (inputs, units); it reads them again in each call. precision:
    "float32" or "tf32" for x (n, inputs), float32; or "bf16", for planes (n, channels / 8, ..., 8) of bfloat16, as
    uint16. Then channels: of these planes, without those that were added; and the first layer's weights are those of
    now. Its arrays come from `cupy.empty`, nothing waits, and a graph can record it.
    """

    def __init__(self, n, layers, precision, channels=None):
        self.n, self.layers, self.precision = n, layers, precision
        self.sizes = dense.Sizes(n, (len(layers[0][0]), *(W.shape[1] for W, _ in layers)))
        self.rows = rows_of(n, max(self.sizes.sizes[1:]))
        self.weights = in_order(layers[0][0], channels) if precision == "bf16" else None

    def __call__(self, x, out):
        parts = self.parts(x)
        widest = max(self.sizes.sizes[1:])
        network = np.zeros(1, NETWORK)
        for layer, (W, b) in zip(network["layers"][0], self.layers, strict=False):
            layer["pointers"], layer["sizes"] = (W.data.ptr, b.data.ptr), W.shape
        network["numbers"] = len(self.layers), self.n, len(parts), widest
        arguments = network.view(f"V{NETWORK.itemsize}"), parts, out
        shared = 4 * self.rows * (2 * widest + max(THREADS, widest))
        _kernel("answers", ROWS=self.rows)((-(-self.n // self.rows),), (THREADS,), arguments, shared_mem=shared)

    def parts(self, x):
        """Return the first layer's sums over slices of its inputs: (slices, n, units)."""
        import cupy

        if self.weights is None:
            layers = [(W, b, None, None) for W, b in self.layers]
            return dense.forward(self.sizes, layers, x.reshape(self.n, -1), self.precision)[0]
        inputs, units = self.weights.shape[1], self.sizes.sizes[1]
        slice_, slices = cut(self.n, inputs, units)
        parts = cupy.empty((slices, self.n, units), np.float32)
        blocks = slices * -(-self.n // TILE) * -(-units // TILE)
        arguments = x, self.weights, parts, *map(np.int32, (self.n, inputs, units, slice_))
        _kernel("parts")((blocks,), (MULTIPLIERS,), arguments, shared_mem=SHARED)
        return parts


def rows_of(n, widest):
    """Return how many examples a block takes: more where there are many, so that weights are read less often."""
    fit = [rows for rows in (1, 2, 4, 8) if 4 * rows * (2 * widest + max(THREADS, widest)) <= ROOM]
    return next((rows for rows in fit if n <= 4 * BLOCKS * rows), fit[-1])


def cut(n, inputs, units):
    """Return how many inputs a slice of the first layer's sums has, a multiple of DEPTH, and how many slices."""
    tiles = -(-n // TILE) * -(-units // TILE)
    of_slice = padded(-(-inputs // max(1, BLOCKS // tiles)), DEPTH)
    return of_slice, -(-inputs // of_slice)


def in_order(W, channels):
    """Return weights (inputs, units) as bfloat16 (units rounded up to TILE, inputs) in the order of planes' numbers."""
    import cupy

    W = W.reshape(channels, -1, W.shape[1])
    zeros = padded(channels) - channels, padded(W.shape[2], TILE) - W.shape[2]
    W = cupy.pad(W, ((0, zeros[0]), (0, 0), (0, zeros[1])))
    W = W.reshape(-1, 8, *W.shape[1:]).transpose(3, 0, 2, 1)
    return cupy.ascontiguousarray(as_bf16(W.reshape(len(W), -1)))


@cache
def _kernel(name, **macros):
    found = kernels.load("answers", **macros).get_function(name)
    found.max_dynamic_shared_size_bytes = max(SHARED, ROOM)
    return found

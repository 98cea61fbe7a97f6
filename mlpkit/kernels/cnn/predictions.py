"""The end of a network of which only the outputs are wanted, in two kernels: see `predictions.cu`."""

from functools import cache

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap
from mlpkit.kernels.conv.blocked import as_bf16, groups_of, padded

from . import dense

TILE, DEPTH, THREADS, STAGES = 64, 64, 256, 4  # as in predictions.cu
BLOCKS = 132  # of which the first layer's slices make about so many
MANY = 512  # examples, from which on tiles are twice as tall
ALONE = 116 << 10  # bytes of shared memory with which a block has a multiprocessor for itself
BLOCK_BYTES = 96 << 10  # that a block with examples may have, half of them of weights

why_not = dense.why_not


class End:
    """Linear layers with ReLU between them, for batches of n: call it with x, and where the outputs go.

    layers: (W, b) of each, float32 on the GPU, W (inputs, units); it reads them again in each call. precision:
    "float32" or "tf32" for x (n, inputs), float32; or "bf16", for blocked bfloat16 (n, channels / 8, ..., 8), as
    uint16. Then channels: of these blocks, without those that were added; and the first layer's weights are those of
    now. overlaps: whether its kernels begin before those before them have ended. Its arrays come from `cupy.empty`,
    nothing waits, and a graph can record it.
    """

    def __init__(self, n, layers, precision, channels=None, overlaps=False):
        self.macros = {"OVERLAPS": 1} if overlaps else {}
        self.n, self.layers, self.precision = n, layers, precision
        self.sizes = dense.Sizes(n, (len(layers[0][0]), *(W.shape[1] for W, _ in layers)))
        self.rows = rows_of(n, max(self.sizes.sizes[1:]))
        self.weights = in_order(layers[0][0], channels) if precision == "bf16" else None

    def __call__(self, x, out):
        parts, units = self.parts(x), self.sizes.sizes[1:]
        pointers = np.zeros((2, dense.MOST_LAYERS), np.uint64)
        pointers[:, : len(units)] = np.transpose([(W.data.ptr, b.data.ptr) for W, b in self.layers])
        resident = sum(padded(W.size, 4) for W, _ in self.layers[1:])
        resident = resident if 4 * resident <= _block_bytes() // 2 else 0
        macros = {
            "SIZES": ",".join(map(str, units)),
            "SLICES": len(parts),
            "RESIDENT": int(resident > 0),
            "ROWS": self.rows,
        }
        shared = 4 * (3 * self.rows * padded(max(THREADS, *units), 4) + resident)
        arguments = pointers.reshape(-1).view(f"V{pointers.nbytes}"), parts, out, np.int32(self.n)
        kernel = _kernel("predictions", **macros, **self.macros)
        kernel((-(-self.n // self.rows),), (THREADS,), arguments, shared_mem=shared)

    def parts(self, x):
        """Return the first layer's sums over slices of its inputs: (slices, n, units)."""
        import cupy

        if self.weights is None:
            layers = [(W, b, None, None) for W, b in self.layers]
            of = self.sizes, layers, x.reshape(self.n, -1), self.precision
            return dense.forward(*of, overlaps="OVERLAPS" in self.macros)[0]
        inputs, units = self.weights.shape[1], self.sizes.sizes[1]
        slice_, slices = cut(self.n, inputs, units)
        parts = cupy.empty((slices, self.n, units), np.float32)
        tall = tall_of(self.n)
        blocks = slices * -(-self.n // tall) * -(-units // TILE)
        arguments = x, self.weights, parts, *map(np.int32, (self.n, inputs, units, slice_))
        shared = max(STAGES * (tall + TILE) * (DEPTH + 8) * 2, ALONE if tall > TILE else 0)
        _kernel("parts", TALL=tall, **self.macros)((blocks,), (2 * tall,), arguments, shared_mem=shared)
        return parts


def rows_of(n, widest):
    """Return how many examples a block takes: more where there are many, so that weights are read less often."""
    fit = [rows for rows in (1, 2, 4, 8) if 4 * rows * 3 * padded(max(THREADS, widest), 4) <= _block_bytes() // 2]
    return next((rows for rows in fit if n <= 4 * BLOCKS * rows), fit[-1])


def tall_of(n):
    """Return how many examples a block of the first layer's sums has."""
    return TILE if n < MANY or gpu.shared_memory() < ALONE else 2 * TILE


def _block_bytes():
    return min(BLOCK_BYTES, gpu.shared_memory())


def cut(n, inputs, units):
    """Return how many inputs a slice of the first layer's sums has, a multiple of DEPTH, and how many slices."""
    tiles = -(-n // tall_of(n)) * -(-units // TILE)
    of_slice = padded(-(-inputs // max(1, BLOCKS // tiles)), DEPTH)
    return of_slice, -(-inputs // of_slice)


def in_order(W, channels):
    """Return weights (inputs, units) as bfloat16 (units rounded up to TILE, inputs) in the order of blocked x."""
    import cupy

    W = W.reshape(channels, -1, W.shape[1])
    zeros = 8 * groups_of(channels) - channels, padded(W.shape[2], TILE) - W.shape[2]
    W = cupy.pad(W, ((0, zeros[0]), (0, 0), (0, zeros[1])))
    W = W.reshape(-1, 8, *W.shape[1:]).transpose(3, 0, 2, 1)
    return cupy.ascontiguousarray(as_bf16(W.reshape(len(W), -1)))


@cache
def _kernel(name, **macros):
    found = gpu.with_shared_memory(kernels.load("predictions", **macros).get_function(name), max(ALONE, BLOCK_BYTES))
    return overlap.Overlapping(found) if "OVERLAPS" in macros else found

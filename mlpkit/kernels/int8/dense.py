"""Linear layers of bytes at the end of a network, in two kernels: see `int8_dense.cu`."""

from math import inf

import numpy as np

from mlpkit.kernels import gpu
from mlpkit.kernels.conv.blocked import padded

from . import Back, in_order, in_pieces, kernel, struct, windows_in_pieces

UNITS, DEPTH, PITCH, STAGES = 64, 128, 144, 4  # as in int8_dense.cu
BLOCKS = 132  # of which the first layer's slices make about so many
MOST_ROWS = 128  # examples of a block
MOST_LAYERS, MOST_BYTES = 6, 48 << 10  # of shared memory that activations have


class End:
    """Linear layers with ReLU between them, of n examples: call it with rows of bytes, and where the outputs go.

    layers: an `IntegerOperation` each; x (n, bytes), bytes a multiple of 16: values and zeros, or blocked images of the
    shape `flat`. A graph can record a call.
    """

    def __init__(self, layers, n, flat=None):
        import cupy

        first, *others = layers
        self.layers, self.n, self.reads, self.name = layers, n, first.of.inputs, layers[-1].of.name
        self.backs = [Back(each) for each in layers]
        pieces = in_pieces(first.W, flat) if flat else windows_in_pieces(first.W)
        self.inputs, self.first = 16 * pieces.shape[1], cupy.asarray(in_order(pieces))
        wide = [np.pad(each.W, ((0, 0), (0, -each.W.shape[1] % 4))) for each in others]
        self.later = [cupy.ascontiguousarray(cupy.asarray(W)) for W in wide]

    def __call__(self, x, out):
        import cupy

        n, units = self.n, padded(len(self.layers[0].W), UNITS)
        rows = next(rows for rows in (16, 32, 64, 128) if n <= rows or _bytes(2 * rows) > gpu.shared_memory())
        slice_, slices = cut(n, rows, self.inputs, units)
        parts = cupy.empty((slices, n, units), np.int32)
        sizes = struct("<5i", n, self.inputs, self.first.shape[1], units, slice_)
        blocks, threads = slices * -(-n // rows) * (units // UNITS), 64 * max(1, rows // 32)
        add_up = kernel("int8_dense", "parts", EXAMPLES=rows, ROWS=1)
        add_up((blocks,), (threads,), (x, self.first, parts, sizes), shared_mem=_bytes(rows, slice_ // DEPTH))
        rows = rows_of(n, wide(self.layers))
        ends = kernel("int8_dense", "ends", EXAMPLES=128, ROWS=rows)
        arguments = self.told(slices, units), parts, out, np.int32(n)
        ends((-(-n // rows),), (256,), arguments, shared_mem=8 * rows * wide(self.layers))

    def told(self, slices, units):
        """Return the kernel's `Layers`."""
        fields, words = [], [None, *self.later]
        for each, back, W in zip(self.layers, self.backs, words, strict=True):
            fields += [W, back.struct.tobytes(), 0 if W is None else W.shape[1] // 4, len(each.W)]
        empty = 48 * (MOST_LAYERS - len(self.layers))
        layout = "<" + "Q32s2i" * len(self.layers) + f"{empty}xQ4i"
        return struct(layout, *fields, self.backs[-1].scale, len(self.layers), slices, units, wide(self.layers))


def _bytes(rows, stages=STAGES):
    """Return the bytes of shared memory of a block with so many examples; infinity for more than there can be."""
    return min(STAGES, stages) * (rows * PITCH + UNITS * DEPTH) if rows <= MOST_ROWS else inf


def why_not(layers):
    """Return why these kernels can't do linear layers, a sentence, or None."""
    if len(layers) > MOST_LAYERS or 8 * wide(layers) > MOST_BYTES:
        return f"at the end there are at most {MOST_LAYERS} linear layers of at most {MOST_BYTES // 2} units."
    return None


def wide(layers):
    """Return how many words an example's activations have, at most."""
    return max(-(-len(each.W) // 4) for each in layers)


def rows_of(n, words):
    """Return how many examples a block takes: more where there are many, so that weights are read less often."""
    fit = [rows for rows in (1, 2, 4, 8) if 8 * rows * words <= MOST_BYTES]
    return next((rows for rows in fit if n <= 4 * BLOCKS * rows), fit[-1])


def cut(n, rows, inputs, units):
    """Return how many inputs a slice of the first layer's sums has, a multiple of DEPTH, and how many slices."""
    tiles = -(-n // rows) * (units // UNITS)
    of_slice = padded(-(-inputs // max(1, BLOCKS // tiles)), DEPTH)
    return of_slice, -(-inputs // of_slice)

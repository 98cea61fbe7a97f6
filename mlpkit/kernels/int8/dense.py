"""Linear layers of bytes at the end of a network, in two kernels: see `int8_dense.cu`."""

import numpy as np

from mlpkit.kernels import gpu
from mlpkit.kernels.conv.blocked import padded

from . import Back, in_order, in_pieces, kernel, struct

UNITS, DEPTH, PITCH, STAGES, THREADS = 64, 128, 144, 4, 256  # as in int8_dense.cu
BLOCKS = 132  # of which the first layer's slices make about so many
EXAMPLES = 16, 32, 64, 128  # that a block of these may have
MOST_LAYERS, MOST_BYTES = 6, 48 << 10  # of shared memory that activations have


class End:
    """Linear layers with ReLU between them, of n examples: call it with rows of bytes, and where the outputs go.

    layers: an `IntegerOperation` each. x (n, bytes), bytes a multiple of 16: values and zeros, or blocked images of
    `area` pixels. A graph can record a call.
    """

    def __init__(self, layers, n, area=1):
        import cupy

        self.n, self.reads, self.name = n, layers[0].of.inputs, layers[-1].of.name
        self.units, self.backs = [len(each.W) for each in layers], [Back(each) for each in layers]
        self.first, self.wide = cupy.asarray(in_order(in_pieces(layers[0].W, area))), _wide(layers)
        self.inputs = 16 * in_pieces(layers[0].W, area).shape[1]
        later = [np.pad(each.W, ((0, 0), (0, -each.W.shape[1] % 4))) for each in layers[1:]]
        self.later = [cupy.asarray(np.ascontiguousarray(W)) for W in later]

    def __call__(self, x, out):
        self.ends(self.parts(x), out)

    def parts(self, x):
        """Return the first layer's sums over slices of its inputs: (slices, n, units rounded up)."""
        import cupy

        n, units, most = self.n, padded(self.units[0], UNITS), gpu.shared_memory()
        fit = [rows for rows in EXAMPLES if _bytes(rows) <= most]
        rows = next((rows for rows in fit if n <= rows), fit[-1])
        slice_, slices = cut(n, rows, self.inputs, units)
        parts = cupy.empty((slices, n, units), np.int32)
        sizes = struct("<5i", n, self.inputs, self.first.shape[1], units, slice_)
        blocks, threads = slices * -(-n // rows) * (units // UNITS), 64 * max(1, rows // 32)
        add_up = kernel("int8_dense", "parts", EXAMPLES=rows)
        add_up((blocks,), (threads,), (x, self.first, parts, sizes), shared_mem=_bytes(rows, slice_ // DEPTH))
        return parts

    def ends(self, parts, out):
        """Add up slices, and go on to the outputs."""
        (slices, n, padded_units), count = parts.shape, len(self.units)
        fields = []
        for units, back, W in zip(self.units, self.backs, [None, *self.later], strict=True):
            fields += [W, back.struct, 0 if W is None else W.shape[1] // 4, units]
        layout = "<" + count * "Q32s2i" + f"{48 * (MOST_LAYERS - count)}xQ4i"
        net = struct(layout, *fields, self.backs[-1].scale, count, slices, padded_units, self.wide)
        rows = rows_of(n, self.wide)
        ends = kernel("int8_dense", "ends", ROWS=rows)
        ends((-(-n // rows),), (THREADS,), (net, parts, out, np.int32(n)), shared_mem=8 * rows * self.wide)


def _bytes(rows, stages=STAGES):
    return min(STAGES, stages) * (rows * PITCH + UNITS * DEPTH)


def _wide(layers):
    return max(-(-len(each.W) // 4) for each in layers)


def why_not(layers):
    """Return why these kernels can't do what follows from a linear layer on, a sentence without its end, or None."""
    if not all(np.ndim(each.W) == 2 for each in layers):
        return f"{layers[0].of.layer!r} is not at the end"
    if len(layers) > MOST_LAYERS or 8 * _wide(layers) > MOST_BYTES:
        return f"at the end there are at most {MOST_LAYERS} linear layers of at most {MOST_BYTES // 2} units"
    return None


def rows_of(n, words):
    """Return how many examples a block takes: more where there are many, so that weights are read less often."""
    fit = [rows for rows in (1, 2, 4, 8) if 8 * rows * words <= MOST_BYTES]
    return next((rows for rows in fit if n <= 4 * BLOCKS * rows), fit[-1])


def cut(n, rows, inputs, units):
    """Return how many inputs a slice of the first layer's sums has, a multiple of DEPTH, and how many slices."""
    tiles = -(-n // rows) * (units // UNITS)
    of_slice = padded(-(-inputs // max(1, BLOCKS // tiles)), DEPTH)
    return of_slice, -(-inputs // of_slice)

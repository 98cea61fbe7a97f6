"""Linear layers of bytes at the end of a network, in two kernels: see `int8_dense.cu`."""

import numpy as np

from mlpkit.kernels import gpu
from mlpkit.kernels.conv.blocked import padded

from . import half_of, in_order, in_pieces, kernel, struct

UNITS, DEPTH, PITCH, STAGES, THREADS = 64, 128, 144, 4, 256  # as in int8_dense.cu
BLOCKS = (
    264  # of which the first layer's slices make about so many: two a multiprocessor, which hide each other's waits
)
EXAMPLES = 16, 32, 64, 128  # that a block of these may have
MOST_LAYERS, MOST_BYTES = 6, 48 << 10  # of shared memory that activations have, and no more have weights
UNIT = np.dtype([("more", "<i8"), ("multiplier", "<i4"), ("scale", "<f4")])  # as in int8_dense.cu


class End:
    """Linear layers with ReLU between them, of n examples: call it with rows of bytes, and where the outputs go.

    layers: an `IntegerOperation` each. x (n, bytes), bytes a multiple of 16: values and zeros, or blocked images of
    `area` pixels. A graph can record a call.
    """

    def __init__(self, layers, n, area=1):
        import cupy

        self.n, self.reads, self.name = n, layers[0].of.inputs, layers[-1].of.name
        self.units, self.wide = [len(each.W) for each in layers], _wide(layers)
        self.weights = cupy.asarray(in_order(in_pieces(layers[0].W, area)))
        self.inputs = 16 * in_pieces(layers[0].W, area).shape[1]
        self.first, later = cupy.asarray(units_of(layers[0])), [each for one in layers[1:] for each in _later(one)]
        self.later = cupy.asarray(np.concatenate([np.zeros(0, np.uint8), *later]))
        pairs = np.array([(each.shift, each.low) for each in layers], np.int32)
        self.back = np.pad(pairs, ((0, MOST_LAYERS - len(pairs)), (0, 0))).reshape(-1).view("V48")

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
        sizes = struct("<5i", n, self.inputs, self.weights.shape[1], units, slice_)
        blocks, threads = slices * -(-n // rows) * (units // UNITS), 64 * max(1, rows // 32)
        add_up = kernel("int8_dense", "parts", EXAMPLES=rows)
        add_up((blocks,), (threads,), (x, self.weights, parts, sizes), shared_mem=_bytes(rows, slice_ // DEPTH))
        return parts

    def ends(self, parts, out):
        """Add up slices, and go on to the outputs."""
        rows, units = rows_of(self.n, self.wide), ",".join(map(str, self.units))
        resident = self.later.nbytes if self.later.nbytes <= min(MOST_BYTES, gpu.shared_memory() // 4) else 0
        macros = {"SIZES": units, "SLICES": len(parts), "ROWS": rows, "RESIDENT": int(resident > 0)}
        arguments = struct("<2Q48s", self.first, self.later, self.back), parts, out, np.int32(self.n)
        shared = resident + 8 * rows * self.wide
        kernel("int8_dense", "ends", **macros)((-(-self.n // rows),), (THREADS,), arguments, shared_mem=shared)


def units_of(each):
    """Return what leads on the sums of an `IntegerOperation`'s units, as bytes: see `Unit` in int8_dense.cu."""
    found = np.zeros(len(each.bias), UNIT)
    if each.y:
        multiplier = found["multiplier"] = each.multiplier
        found["more"] = each.bias * multiplier.astype(np.int64) + half_of(each)
    else:
        found["more"], found["scale"] = each.bias, each.scale
    return found.view(np.uint8)


def _later(each):
    """Return the bytes of a layer behind the first one: its units, and its weights, an odd number of words a unit."""
    inputs = each.W.shape[1]
    W = np.pad(each.W, ((0, 0), (0, 4 * (-(-inputs // 4) | 1) - inputs))).reshape(-1)
    return units_of(each), np.pad(W, (0, -W.size % 16)).view(np.uint8)


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

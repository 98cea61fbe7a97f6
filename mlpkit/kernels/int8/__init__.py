"""Products of bytes on tensor cores, for predictions in integers: layouts, and what all their kernels are told.

Images lie in NC/16HW16, as bytes: see `bytes.cuh`. A product of 8 x 8 windows and 32 values takes an instruction since
Ampere (`mma.sync` m16n8k32), and four since Turing (m8n8k16). Sums have 32 bits, the way back to bytes is a product of
64: so all chips give the same bits, and those are `nn.quantize`'s.
"""

from struct import pack

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap

LANES = 32
MOST = 2**31 - 1  # bytes of a tensor: the kernels count in 32 bits


def groups_of(channels):
    """Return how many times sixteen channels are stored of so many: the last ones may be zeros."""
    return -(-channels // 16)


def in_order(pieces):
    """Return weights (units, pieces, 16), int8, as the kernels' lanes have them: (units / 16, steps, 32 lanes, 16).

    Units are rounded up to 64, pieces to 2. A lane has four words: of unit 4 (lane / 4) + 2 t and the next one, for
    tile t of two, four inputs from 4 (lane % 4) on of the first piece, and the same of the second one.
    """
    units, count, _ = pieces.shape
    padded = np.pad(pieces, ((0, -units % 64), (0, count % 2), (0, 0)))
    parts = padded.reshape(-1, 8, 2, 2, (count + 1) // 2, 2, 4, 4)  # 32 units: lane, tile, unit; step, piece, lane, byte
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 1, 6, 5, 3, 7)).reshape(-1, (count + 1) // 2, LANES, 16)


def in_pieces(W, shape):
    """Return weights (units, inputs) of images (c, h, w) that became rows, as (units, pieces, 16): in blocked order."""
    channels = np.pad(W.reshape(len(W), shape[0], -1), ((0, 0), (0, -shape[0] % 16), (0, 0)))
    return channels.reshape(len(W), -1, 16, channels.shape[2]).transpose(0, 1, 3, 2).reshape(len(W), -1, 16)


def filters_in_pieces(W):
    """Return filters (o, c, k, k) as (o, pieces, 16), a tap after the other."""
    o, c, k, _ = W.shape
    W = np.pad(W, ((0, 0), (0, -c % 16), (0, 0), (0, 0))).transpose(0, 2, 3, 1)
    return W.reshape(o, k * k * groups_of(c), 16)


def windows_in_pieces(W):
    """Return filters (o, c, k, k) as (o, pieces, 16), for windows whose values lie one after the other."""
    rows = W.reshape(len(W), -1)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 16))).reshape(len(W), -1, 16)


class Back:
    """The way of an `nn.quantize.IntegerOperation`'s sums back to bytes, or to float32: arrays on the GPU.

    struct: what a kernel is told, `Back` in bytes.cuh. scale: (units,), or None where there is a way back to bytes.
    """

    def __init__(self, each):
        import cupy

        def padded(values, dtype):
            return cupy.asarray(np.pad(np.asarray(values).astype(dtype), (0, -len(values) % 128)))

        multiplier = each.multiplier if each.y else np.zeros(len(each.bias))
        zero = each.y.zero_point if each.y else 0
        more = each.bias.astype(np.int64) * np.asarray(multiplier, np.int64) + (1 << each.shift - 1) + (zero << each.shift)
        self.bias, self.multiplier = padded(each.bias, np.int32), padded(multiplier, np.int32)
        self.more, self.scale = padded(more, np.int64), None if each.y else padded(each.scale, np.float32)
        self.struct = struct("<3Q2i", self.bias, self.multiplier, self.more, each.shift, each.low)


def struct(layout, *values):
    """Return the bytes of a kernel's struct, an array of one item. values: numbers, bytes, arrays on the GPU, or None.

    layout: as Python's `struct` has it.
    """
    fields = [0 if value is None else getattr(getattr(value, "data", None), "ptr", value) for value in values]
    packed = pack(layout, *fields)
    return np.frombuffer(packed, f"V{len(packed)}")


def kernel(name, function, most=None, **macros):
    """Return a kernel for this GPU, one that begins before the one before it has ended where that is possible."""
    overlaps = {"OVERLAPS": 1} if overlap.is_possible() else {}
    found = gpu.with_shared_memory(kernels.load(name, **macros, **overlaps).get_function(function), most)
    return overlap.Overlapping(found) if overlaps else found

"""Products of bytes on tensor cores, for predictions in integers: layouts, and what all their kernels are told.

Images lie in NC/16HW16, as bytes: see `bytes.cuh`. Products of 16 channels, 32 inputs and 8 windows are one instruction
since Ampere (`mma.sync` m16n8k32), and four on Turing (m8n8k16). Sums have 32 bits, the way back to bytes is a product
of 64: so all chips give the same bits, and those are `nn.quantize`'s.
"""

from struct import pack

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap

MULTIPLE = 128  # of the units that kernels have the weights of: as many as a block takes
MOST = 2**31 - 1  # bytes of a tensor: the kernels count in 32 bits


def blocked_shape(n, output):
    """Return the shape of n images' bytes: output is (c, h, w). The last ones of sixteen channels may be none."""
    return (n, -(-output[0] // 16), *output[1:], 16)


def in_order(pieces):
    """Return weights (units, pieces, 16), int8, as the kernels' lanes have them: (units / 16, steps, 32 lanes, 16).

    Units are rounded up to MULTIPLE, pieces to 2. A lane has four words: of unit 4 (lane / 4) + 2 t and the next one,
    for tile t of two, four inputs from 4 (lane % 4) on of the first piece, and the same of the second one.
    """
    units, count, _ = pieces.shape
    padded = np.pad(pieces, ((0, -units % MULTIPLE), (0, count % 2), (0, 0)))
    steps = padded.shape[1] // 2
    parts = padded.reshape(-1, 8, 2, 2, steps, 2, 4, 4)  # lane / 4, tile, unit; step, piece, lane % 4, byte
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 1, 6, 5, 3, 7)).reshape(-1, steps, 32, 16)


def in_pieces(W, area=1):
    """Return weights (units, inputs) as (units, pieces, 16). area: of the images, pixels, that became the inputs."""
    W = W.reshape(len(W), -1, area)
    W = np.pad(W, ((0, 0), (0, -W.shape[1] % 16), (0, 0)))
    return W.reshape(len(W), -1, 16, area).transpose(0, 1, 3, 2).reshape(len(W), -1, 16)


def filters_in_pieces(W):
    """Return filters (o, c, k, k) as (o, pieces, 16), a tap after the other."""
    W = np.pad(W, ((0, 0), (0, -W.shape[1] % 16), (0, 0), (0, 0))).transpose(0, 2, 3, 1)
    return W.reshape(len(W), -1, 16)


class Back:
    """The way of an `nn.quantize.IntegerOperation`'s sums back to bytes, or to float32: arrays on the GPU.

    struct: `Back` in bytes.cuh. scale: (units,), or None where there is a way back to bytes.
    """

    def __init__(self, each):
        import cupy

        def padded(values, dtype):
            return cupy.asarray(np.pad(np.asarray(values, dtype), (0, -len(values) % MULTIPLE)))

        multiplier = each.multiplier if each.y else np.zeros(len(each.bias), np.int32)
        self.bias, self.multiplier = padded(each.bias, np.int32), padded(multiplier, np.int32)
        self.more = padded(each.bias * multiplier.astype(np.int64) + half_of(each), np.int64)
        self.scale = None if each.y else padded(each.scale, np.float32)
        self.struct = struct("<3Q2i", self.bias, self.multiplier, self.more, each.shift, each.low)


def half_of(each):
    """Return what is added before the shift: half of what it cuts off, and the zero point."""
    return (1 << each.shift - 1) + ((each.y.zero_point if each.y else 0) << each.shift)


def struct(layout, *values):
    """Return a kernel's struct, an array of one item. layout: Python's. values: numbers, structs, GPU arrays, None."""
    fields = [0 if value is None else getattr(getattr(value, "data", None), "ptr", value) for value in values]
    packed = pack(layout, *(each.tobytes() if isinstance(each, np.ndarray) else each for each in fields))
    return np.frombuffer(packed, f"V{len(packed)}").copy()


def kernel(name, function, **macros):
    """Return a kernel for this GPU, one that begins before the one before it has ended where that is possible."""
    overlaps = {"OVERLAPS": 1} if overlap.is_possible() else {}
    found = gpu.with_shared_memory(kernels.load(name, **macros, **overlaps).get_function(function))
    return overlap.Overlapping(found) if overlaps else found

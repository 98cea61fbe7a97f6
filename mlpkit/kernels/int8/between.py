"""Bytes that no product makes: what pixels become, and what residuals add up. See `int8_between.cu`."""

from math import prod

import numpy as np

from . import groups_of, kernel, struct
from .conv import NAMES, entry

THREADS = 256


class Enter:
    """Pixels (n, *input), uint8 or float32, as blocked bytes. rows: whether they are read as values, not as an image.

    x: their `Quantization`; table: uint8 (256,) on the GPU, what pixels become.
    """

    reads, name = ("input",), "input"

    def __init__(self, x, table, n, input, rows):
        self.x, self.table, self.n = x, table, n
        self.channels, self.area = (prod(input), 1) if rows else (input[0], prod(input[1:]))

    @property
    def shape(self):
        return (self.n, groups_of(self.channels), self.area, 16)

    def __call__(self, x, y):
        arguments = x, y, struct("<Q2f", *entry(self.x, self.table)), *map(np.int32, (self.n, self.channels, self.area))
        blocks = -(-prod(self.shape[:3]) // THREADS)
        kernel("int8_between", "enter", PIXEL=NAMES[x.dtype])((blocks,), (THREADS,), arguments)


class Sum:
    """What an `IntegerOperation` without weights makes of blocked bytes, of one or of two."""

    def __init__(self, each, n):
        self.each, self.n, self.reads, self.name = each, n, each.of.inputs, each.of.name

    @property
    def shape(self):
        c, h, w = self.each.of.output
        return (self.n, groups_of(c), h, w, 16)

    def __call__(self, a, *rest):
        each, (b, y) = self.each, rest if len(rest) == 2 else (None, *rest)
        (of_a, of_b), (x, other) = (*each.multiplier, 0)[:2], (*each.x, each.x[0])[:2]
        half = (1 << each.shift - 1) + (each.y.zero_point << each.shift)
        multipliers = int(of_a), int(of_b), x.zero_point, other.zero_point if b is not None else 0
        added = struct("<2Q4iq2i", a, b, *multipliers, half, each.shift, each.low)
        (_, h, w), (c, down, across) = each.of.shape, each.of.output
        pool = each.of.pool
        size, stride = (pool.size, pool.stride or pool.size) if pool else (1, 1)
        images = struct("<7i", self.n * groups_of(c), w, h * w, down, across, size, stride)
        blocks = -(-prod(self.shape[:4]) // THREADS)
        kernel("int8_between", "add")((blocks,), (THREADS,), (added, y, images))

"""Bytes that no product makes: what pixels become, and what residuals add up. See `int8_between.cu`."""

from math import prod

import numpy as np

from . import blocked_shape, half_of, kernel, struct
from .conv import NAMES, entry


class Enter:
    """Pixels (n, c, h, w), uint8 or float32, as blocked bytes.

    x: their `Quantization`; table: uint8 (256,) on the GPU, what bytes become; input: (c, h, w), or (values, 1, 1).
    """

    reads, name = ("input",), "input"

    def __init__(self, x, table, n, input):
        self.about, self.shape = (x, table), blocked_shape(n, input)
        self.sizes = [np.int32(size) for size in (n, input[0], prod(input[1:]))]

    def __call__(self, x, y):
        blocks = -(-prod(self.shape[:-1]) // 256)
        enter = kernel("int8_between", "enter", PIXEL=NAMES[x.dtype])
        enter((blocks,), (256,), (x, y, entry(*self.about), *self.sizes))


def why_not(each):
    """Return why no kernel makes an `IntegerOperation`'s tensor, a sentence without its end, or None."""
    return None if len(each.of.output) == 3 else f"{each.of.name} is a row, and no linear layer at the end makes it"


class Sum:
    """What an `IntegerOperation` without weights makes of blocked bytes, of one or of two."""

    def __init__(self, each, n):
        self.each, self.reads, self.name = each, each.of.inputs, each.of.name
        self.shape = blocked_shape(n, each.of.output)

    def __call__(self, *arrays):
        (*x, y), each, pool = arrays, self.each, self.each.of.pool
        of = [*map(int, each.multiplier), 0][:2]
        zeros = [*(each.zero_point for each in each.x), 0][:2]
        added = struct("<2Q4iq2i", *[*x, None][:2], *of, *zeros, half_of(each), each.shift, each.low)
        (_, h, w), (n, groups, down, across, _) = each.of.shape, self.shape
        size, stride = (pool.size, pool.stride or pool.size) if pool else (1, 1)
        images = struct("<7i", n * groups, w, h * w, down, across, size, stride)
        blocks = -(-prod(self.shape[:-1]) // 256)
        kernel("int8_between", "add")((blocks,), (256,), (added, y, images))

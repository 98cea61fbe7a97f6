"""A network in integers as a graph of few kernels: what it gives is, bit for bit, what `nn.quantize` says.

Each `IntegerOperation` becomes a block: a first convolution and the next one are one kernel, convolutions are one each,
the linear layers at the end are two. A block has `reads`, the names of the tensors that it is called with, and `name`,
of the one that it writes, blocked bytes of `shape`; the last one writes the outputs, float32.
"""

from math import prod
from typing import Any

import cupy as cp
import numpy as np

from mlpkit.kernels.int8 import MOST, between, conv, dense
from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Linear


class Integers:
    """A `Quantized` on the GPU, for batches of n: call it with pixels, uint8 or float32, and where the outputs go.

    Raises ValueError, a sentence, for an operation that no kernel of bytes does.
    """

    def __init__(self, integers, n):
        table, left = cp.asarray(integers.pixels()), list(integers.operations)
        first = _pair(left, n, table)
        rows = all(isinstance(each.of.layer, Linear) for each in left if "input" in each.of.inputs)
        shape = (prod(integers.input), 1, 1) if rows else integers.input
        self.blocks: list[Any] = [first or between.Enter(integers.tensors["input"], table, n, shape)]
        while left:
            self.blocks.append(_block(left, n, rows))
        if max((prod(block.shape) for block in self.blocks[:-1]), default=0) > MOST:
            raise ValueError(f"these kernels count in 32 bits: compile it for fewer than {n} rows.")

    def __call__(self, x, z):
        found = {"input": x}
        for i, block in enumerate(self.blocks):
            y = z if i + 1 == len(self.blocks) else cp.empty(block.shape, np.uint8)
            block(*(found[name] for name in block.reads), y)
            found[block.name] = y
            for name in found.keys() - {name for later in self.blocks[i + 1 :] for name in later.reads}:
                del found[name]


def _pair(left, n, table):
    """Return the block of the first two convolutions, and take them from `left`; None where these are no two."""
    names = [name for each in left for name in each.of.inputs]
    first, second = (*left[:2], left[0])[:2]
    if not all(isinstance(each.of.layer, Conv) for each in (first, second)) or second.of.inputs != (first.of.name,):
        return None
    if names.count("input") + names.count(first.of.name) > 2 or conv.why_not(second, first, n):
        return None  # somebody else reads one of these tensors, or there is no room
    del left[:2]
    return conv.Conv(second, n, first, table)


def _block(left, n, rows):
    """Return the block of the first operations of `left`, and take these. rows: whether inputs are read as rows."""
    each, count = left[0], 1
    if isinstance(each.of.layer, Linear):
        flat = None if rows and "input" in each.of.inputs else each.of.flat
        reason, count, area = dense.why_not(left), len(left), prod(flat[1:]) if flat else 1
    else:
        reason = between.why_not(each) if each.W is None else conv.why_not(each, None, n)
    if reason:
        raise ValueError(f"{reason}: for these integers take the engine numba_conv.")
    taken, left[:count] = left[:count], []
    if isinstance(each.of.layer, Linear):
        return dense.End(taken, n, area)
    return between.Sum(each, n) if each.W is None else conv.Conv(each, n)

"""A network in integers as a graph of few kernels: what it gives is, bit for bit, what `nn.quantize` says.

Each `IntegerOperation` becomes a block: a first convolution and the next one are one kernel, convolutions are one each,
the linear layers at the end are two. A block has `reads`, the names of the tensors that it is called with, and `name`,
of the one that it writes, blocked bytes of `shape`; the last one writes the outputs, float32.
"""

from dataclasses import replace
from math import prod

import cupy as cp
import numpy as np

from mlpkit.kernels.int8 import MOST, between, conv, dense
from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Linear


class Integers:
    """A `Quantized` on the GPU, for batches of n: call it with pixels, uint8 or float32, and where the outputs go."""

    def __init__(self, integers, n):
        self.blocks = blocks_of(integers, n)

    def __call__(self, x, z):
        found = {"input": x}
        for i, block in enumerate(self.blocks):
            last = i + 1 == len(self.blocks)
            y = z if last else cp.empty(block.shape, np.uint8)
            block(*map(found.pop if last else found.get, block.reads), y)
            found[block.name] = y
            for name in found.keys() - {name for later in self.blocks[i + 1 :] for name in later.reads}:
                del found[name]


def blocks_of(integers, n):
    """Return the blocks of a `Quantized` for batches of n. Raises ValueError, a sentence, where there is none."""
    table, left = cp.asarray(integers.pixels()), list(integers.operations)
    found = _pair(left, n, table)
    if found is None:
        rows = all(isinstance(each.of.layer, Linear) for each in left if "input" in each.of.inputs)
        found = [between.Enter(integers.tensors["input"], table, n, integers.input, rows)]
        left = [replace(each, of=replace(each.of, flat=None)) if rows and "input" in each.of.inputs else each for each in left]
    while left:
        found.append(_block(left, n))
    for block in found[:-1]:
        if prod(block.shape) > MOST:
            raise ValueError(f"these kernels count in 32 bits: compile it for fewer than {n} rows.")
    return found


def _pair(left, n, table):
    """Return a list of the block of the first two convolutions, and take them from `left`; None where it is none."""
    if len(left) < 2 or not all(isinstance(each.of.layer, Conv) for each in left[:2]):
        return None
    (first, second), names = left[:2], [name for each in left for name in each.of.inputs]
    if second.of.inputs != (first.of.name,) or names.count(first.of.name) > 1 or names.count("input") > 1:
        return None
    if conv.why_not(second, first, n):
        return None
    del left[:2]
    return [conv.Conv(second, n, first, table)]


def _block(left, n):
    """Return the block of the first operations of a list, and take them from it."""
    each = left[0]
    if isinstance(each.of.layer, Linear):
        end, reason = list(left), dense.why_not(left) if all(isinstance(one.of.layer, Linear) for one in left) else ""
        if reason is not None:
            raise ValueError(reason or f"{each.of.layer!r} is not at the end: take the engine numba_int8.")
        left.clear()
        return dense.End(end, n, each.of.flat)
    if len(each.of.output) != 3:
        raise ValueError(f"{each.of.name} adds rows, which no kernel of bytes does: take the engine numba_int8.")
    del left[0]
    if each.W is None:
        return between.Sum(each, n)
    if reason := conv.why_not(each, None, n):
        raise ValueError(reason)
    return conv.Conv(each, n)

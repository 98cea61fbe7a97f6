"""Two convolutions with what follows them in one kernel, in bfloat16: see `conv_pair.cu`."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.conv import blocked

from . import first_bf16
from .between import Pooled

MODE = blocked.MODES["bf16"]
CHUNKS = (16, 32, 64)  # channels between the two, with those that are added
MOST_TAPS = 25


@dataclass(frozen=True)
class Layer:
    """A convolution, a `Shape`, and what follows it; W (o, c, k, k) and b (o,) or None: float32 on the GPU."""

    shape: Any
    about: Pooled
    W: Any
    b: Any


def why_not(first, second):
    """Return why this kernel can't do two convolutions, a sentence, or None. Both are pairs (shape, about)."""
    (one, pooled), (two, about) = first, second
    if reason := first_bf16.why_not(one, pooled):
        return reason
    if (two.height, two.width) != (pooled.down, pooled.across) or two.padding or two.stride != 1:
        return "the second convolution must have a stride of 1, and no padding."
    if about.pool != 2:
        return "a pool of 2 x 2 must follow the second convolution."
    if blocked.padded(two.channels) not in CHUNKS or two.kernel**2 > MOST_TAPS or width(two, about) is None:
        return f"the second convolution must be of at most {CHUNKS[-1]} channels and small images."
    if shared(one, pooled, two, about, 1) > blocked.SHARED - blocked.BARRIERS:
        return "the second convolution's filters and images do not fit into shared memory."
    return None


def width(shape, about):
    """Return how many windows a product has: all of an image's, with those between the rows; None for too many."""
    windows = (about.height - 1) * pitch(shape) + about.width
    return next((each for each in blocked.WIDTHS if each >= windows), None)


def pitch(shape):
    """Return how many pixels lie between those of two rows: an even number."""
    return blocked.padded(shape.width, 2)


def shared(one, pooled, two, about, heights):
    """Return the bytes of shared memory that a block takes."""
    channels = blocked.padded(two.channels)
    images = 2 * channels // 8 * blocked.padded(two.height * pitch(two), 8) * 16
    filters = two.kernel**2 * heights * 64 * channels * 2
    return images + filters + first_bf16.shared(one, pooled)


class Pair:
    """Two `Layer`s, for batches of n: call it with images, (n, c, h, w), bytes or float32; it returns the result.

    It returns blocked bfloat16, from `cupy.empty`. bytes_, overlaps: as for `first_bf16.First`. heights: how many times
    64 filters a block has. stems: warps that compute the first convolution.
    """

    def __init__(self, first, second, bytes_, overlaps=False, heights=None, stems=None):
        import cupy

        self.first = first_bf16.First(first.shape, first.about, first.W, first.b, bytes_)
        self.shape, self.about = second.shape, second.about
        both = (first.shape, first.about, second.shape, second.about)
        most = -(-second.about.groups // 8)
        fits = [
            count for count in (1, 2) if count <= most and shared(*both, count) <= blocked.SHARED - blocked.BARRIERS
        ]
        few = second.about.images * most <= blocked.multiprocessors()
        self.heights = heights or (1 if few else fits[-1])
        self.shared, stems = shared(*both, self.heights), stems or (8 if self.heights == 1 else 4)
        chunk = blocked.padded(second.shape.channels)
        tiling = blocked.Tiling(width(second.shape, second.about), 1, self.heights, chunk)
        self.filters = cupy.ascontiguousarray(blocked.filters_in_order(second.W, MODE, tiling))
        self.bias = second.b
        macros = {"MODE": MODE.number, "CHUNK": chunk, "WIDTH": tiling.width, "HEIGHTS": self.heights}
        macros |= {"SIDE_TAPS": second.shape.kernel, "STEMS": stems, "FIRST_PITCH": pitch(second.shape)}
        macros |= second.about.macros
        self.macros = macros | self.first.first_macros | ({"OVERLAPS": 1} if overlaps else {})
        self.threads = 128 * self.heights + 32 * stems + 32

    def __call__(self, x):
        about = self.about
        y = blocked.empty_blocked(MODE, about.images, about.channels, about.down, about.across)
        heights = -(-8 * about.groups // (64 * self.heights))
        blocks = min(about.images, blocked.multiprocessors() // heights) * heights
        addresses = [each.data.ptr for each in (x, self.first.filters, self.first.bias)]
        stem = np.array(addresses, np.uint64).view("V24")
        bias = np.uintp(0 if self.bias is None else self.bias.data.ptr)
        arguments = stem, self.filters, bias, y, about.sizes
        _kernel(**self.macros)((blocks,), (self.threads,), arguments, shared_mem=self.shared)
        return y


@cache
def _kernel(**macros):
    found = kernels.load("conv_pair", **macros).get_function("convolve")
    found.max_dynamic_shared_size_bytes = blocked.SHARED - blocked.BARRIERS
    return found

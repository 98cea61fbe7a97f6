"""Convolutions of bytes with what follows them, and the first one in the same kernel: see `int8_conv.cu`."""

from dataclasses import dataclass
from math import prod

import numpy as np

from mlpkit.kernels import gpu
from mlpkit.kernels.conv import blocked

from . import Back, blocked_shape, filters_in_pieces, in_order, in_pieces, kernel, struct

MOST_PAIRS, MOST_TEAMS = 7, 3  # 7 pairs of tiles are 112 sums in registers, of 168 that 384 threads leave
ALONE, ALONE_PAIRS = 16, 4  # warps of a team that has a block for itself, and their pairs: 512 threads leave 128
MOST_VALUES = 64  # that a window of a stem has
NAMES = {np.dtype(np.uint8): "unsigned char", np.dtype(np.float32): "float"}


@dataclass(frozen=True)
class Tiling:
    """Warps of a team by 32 channels and by windows, pairs of tiles of a warp, and teams of a block."""

    warps_m: int
    warps_n: int
    pairs: int
    teams: int

    @property
    def threads(self):
        return self.warps_m * self.warps_n * self.teams * 32


def pairs_of(each):
    """Return how many pairs of tiles of 8 windows an image has: a pool's four windows are two columns of both."""
    return -(-prod(each.of.output[1:]) // (4 if each.of.pool else 16))


def tilings(each, stem, n):
    """Return the tilings that fit, the best first: of few images a block has 32 channels, of many all, and teams."""
    pairs, heights, many = pairs_of(each), -(-each.of.layer.channels // 32), blocked.multiprocessors()
    alone = [Tiling(m, ALONE // m, even(pairs, ALONE // m, ALONE_PAIRS), 1) for m in (4, 2, 1) if m < 2 * heights]
    found = alone[-1:] if n * heights <= many else []
    for one in alone:
        warps_n = 4 // one.warps_m
        at_once = even(pairs, warps_n, MOST_PAIRS)
        most = even(-(-n // many), 1, MOST_TEAMS if at_once > 2 else 2 * MOST_TEAMS)
        found += [*(Tiling(one.warps_m, warps_n, at_once, teams) for teams in range(most, 1, -1)), one]
    return [tiling for tiling in found if shared(each, stem, tiling) <= gpu.shared_memory()]


def even(count, workers, most):
    """Return how many of `count` things, at most so many, a worker has at a time, with as few times as there can be."""
    times = -(-count // (most * workers))
    return -(-count // (times * workers))


def shared(each, stem, tiling):
    """Return the bytes of shared memory that a block takes."""
    (_, groups, *_), layer = blocked_shape(1, each.of.shape), each.of.layer
    both = [one for one in (each, stem) if one]
    areas = [prod(side + 2 * one.of.layer.padding for side in one.of.shape[1:]) for one in both]  # with their margins
    steps, image = -(-(layer.size**2 * groups) // 2), 16 * groups * areas[0]
    filters = tiling.warps_m * (steps * 1024 + 384) + -(-steps // 2) * 16
    if stem:
        pieces = -(-stem.of.shape[0] * stem.of.layer.size**2 // 16)
        filters += -(-stem.of.layer.channels // 32) * (-(-pieces // 2) * 1024 + 384) + 256
        image += pieces * pairs_of(stem) * 256 + -(-stem.of.shape[0] * areas[1] // 16) * 16
    return filters + tiling.teams * image


def why_not(each, stem, n):
    """Return why these kernels can't do a convolution, a sentence without its end, or None. stem: as `Conv` has it."""
    for one in (each, stem):
        if one and one.of.pool and (one.of.pool.size, one.of.pool.stride or 2) != (2, 2):
            return f"{one.of.pool!r} is not fused, which windows of 2 x 2 side by side are"
    if stem and stem.of.shape[0] * stem.of.layer.size**2 > MOST_VALUES:
        return f"windows of more than {MOST_VALUES} values are not gathered"
    if not tilings(each, stem, n):
        return f"{each.of.layer!r} on images of {each.of.shape} does not fit into shared memory"
    return None


class Conv:
    """A convolution of n images: call it with blocked bytes, and where the result goes. A graph can record a call.

    each: its `IntegerOperation`. stem: that of the first convolution, if the same kernel does it, of pixels, uint8 or
    float32 (n, c, h, w), or None; then table, uint8 (256,) on the GPU, says what bytes become.
    """

    def __init__(self, each, n, stem=None, table=None, tiling=None):
        import cupy

        self.each, self.n, self.stem, self.table = each, n, stem, table
        self.reads, self.name, self.shape = (stem or each).of.inputs, each.of.name, blocked_shape(n, each.of.output)
        self.tiling = tiling or tilings(each, stem, n)[0]
        self.back, self.filters = Back(each), cupy.asarray(in_order(filters_in_pieces(each.W)))
        if stem:
            pieces = in_pieces(stem.W.reshape(len(stem.W), -1))
            self.stem_back, self.stem_filters = Back(stem), cupy.asarray(in_order(pieces))

    def macros(self, pixel):
        """Return the kernel's macros for pixels of a dtype."""
        (_, groups, h, w, _), layer = blocked_shape(1, self.each.of.shape), self.each.of.layer
        found = {name.upper(): value for name, value in vars(self.tiling).items()} | {"CHANNELS": layer.channels}
        found |= {"IN_DOWN": h, "IN_ACROSS": w, "IN_GROUPS": groups, "KERNEL": layer.size, "STRIDE": layer.stride}
        found |= {"PADDING": layer.padding, "POOL": 2 if self.each.of.pool else 1, "FLOATS": int(self.each.y is None)}
        found |= dict(zip(("DOWN", "ACROSS"), self.each.of.output[1:], strict=True))
        if self.stem:
            (c, h, w), layer = self.stem.of.shape, self.stem.of.layer
            found |= {"STEM": 1, "STEM_CHANNELS": layer.channels, "STEM_KERNEL": layer.size, "PIXEL": NAMES[pixel]}
            found |= {"STEM_STRIDE": layer.stride, "STEM_PADDING": layer.padding, "PIXEL_CHANNELS": c}
            found |= {"STEM_POOL": 2 if self.stem.of.pool else 1, "PIXELS_DOWN": h, "PIXELS_ACROSS": w}
        return found

    def __call__(self, x, y):
        tiling, bytes_ = self.tiling, shared(self.each, self.stem, self.tiling)
        heights = -(-self.each.of.layer.channels // (32 * tiling.warps_m))
        resident = max(1, min(gpu.shared_memory() // bytes_, 512 // tiling.threads))
        most, zero = max(1, blocked.multiprocessors() * resident // heights), self.each.x[0].zero_point
        told = [struct("<3Q32sQ2i", x, y, self.filters, self.back.struct, self.back.scale, self.n, zero)]
        if self.stem:
            pixels = self.stem.x[0]
            more = entry(pixels, self.table), pixels.zero_point
            told.append(struct("<Q32s16si4x", self.stem_filters, self.stem_back.struct, *more))
        convolve = kernel("int8_conv", "convolve", **self.macros(x.dtype))
        blocks = heights * min(-(-self.n // tiling.teams), most)
        convolve((blocks,), (tiling.threads,), tuple(told), shared_mem=bytes_)


def entry(x, table):
    """Return the struct `Entry`. x: the `Quantization` of the pixels; table: as `Conv` has it."""
    return struct("<Q2f", table, np.float32(1 / x.scale), x.zero_point)

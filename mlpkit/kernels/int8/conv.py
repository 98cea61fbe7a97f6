"""Convolutions of bytes with what follows them, and the first one in the same kernel: see `int8_conv.cu`."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mlpkit.kernels import gpu
from mlpkit.kernels.conv import blocked

from . import Back, filters_in_pieces, groups_of, in_order, kernel, struct, windows_in_pieces

MOST_PAIRS, MOST_CREWS = 7, 3  # 7 pairs of tiles are 112 sums in registers, of 168 that 384 threads leave
MOST_VALUES = 64  # that a window of a stem has
NAMES = {np.dtype(np.uint8): "unsigned char", np.dtype(np.float32): "float"}


@dataclass(frozen=True)
class Tiling:
    """Warps of a crew by 32 channels and by windows, pairs of tiles of a warp, and crews of a block."""

    warps_m: int
    warps_n: int
    pairs: int
    crews: int

    @property
    def crew(self):
        return self.warps_m * self.warps_n * 32


def pool_of(each):
    return 2 if each.of.pool else 1


def pairs_of(each):
    """Return how many pairs of tiles of 8 windows an image has: a pool's four windows are two columns of both."""
    windows = int(np.prod(each.of.output[1:]))
    return -(-windows // (4 if each.of.pool else 16))


def tilings(each, stem, n):
    """Return the tilings that fit into shared memory, the most promising first.

    Of few images each has blocks of its own for 32 channels; of many a block has all channels, and crews.
    """
    channels, many, pairs = each.of.layer.channels, blocked.multiprocessors(), pairs_of(each)
    heights, found = -(-channels // 32), list[Tiling]()
    if n * heights <= 2 * many:
        warps = min(8, pairs)
        found.append(Tiling(1, warps, min(MOST_PAIRS, -(-pairs // warps)), 1))
    at_once = -(-pairs // -(-pairs // MOST_PAIRS))
    for crews in range(min(MOST_CREWS, -(-n // many)), 0, -1):
        for warps_m in (each_m for each_m in (4, 2, 1) if each_m < 2 * heights):
            found.append(Tiling(warps_m, min(4 // warps_m, -(-pairs // at_once)), at_once, crews))
    return [tiling for tiling in found if shared(each, stem, tiling) <= gpu.shared_memory()]


def shared(each, stem, tiling):
    """Return the bytes of shared memory that a block takes."""
    (c, h, w), layer = each.of.shape, each.of.layer
    steps = -(-(layer.size**2 * groups_of(c)) // 2)
    image = groups_of(c) * (h + 2 * layer.padding) * (w + 2 * layer.padding) * 16
    filters = tiling.warps_m * steps * 1024 + -(-steps // 2) * 16
    if stem:
        (c, h, w), layer = stem.of.shape, stem.of.layer
        pieces = -(-c * layer.size**2 // 16)
        filters += -(-layer.channels // 32) * -(-pieces // 2) * 1024
        image += pieces * pairs_of(stem) * 256 + -(-c * (h + 2 * layer.padding) * (w + 2 * layer.padding) // 16) * 16
    return filters + tiling.crews * image


def why_not(each, stem, n):
    """Return why these kernels can't do a convolution, a sentence, or None. stem: the first one, with it, or None."""
    for one in (each, stem):
        if one and one.of.pool and (one.of.pool.size, one.of.pool.stride or 2) != (2, 2):
            return f"{one.of.pool!r} is not fused: take windows of 2 x 2, side by side, or the engine numba_int8."
    if stem and stem.of.shape[0] * stem.of.layer.size**2 > MOST_VALUES:
        return f"windows of more than {MOST_VALUES} values are not gathered."
    if not tilings(each, stem, n):
        return f"images of {each.of.shape} and filters of {each.of.layer!r} don't fit into this GPU's shared memory."
    return None


class Conv:
    """A convolution of at most n images: call it with blocked bytes, and where the result goes.

    each: its `IntegerOperation`. stem: that of the first convolution, if the same kernel does it, of pixels (n, c, h, w),
    uint8 or float32; then table, uint8 (256,) on the GPU, says what pixels become. A graph can record a call.
    """

    def __init__(self, each, n, stem=None, table=None, tiling=None):
        import cupy

        self.each, self.n, self.stem, self.table = each, n, stem, table
        self.reads, self.name = (stem or each).of.inputs, each.of.name
        self.tiling = tiling or tilings(each, stem, n)[0]
        self.back, self.filters = Back(each), cupy.asarray(in_order(filters_in_pieces(each.W)))
        if stem:
            self.stem_back, self.stem_filters = Back(stem), cupy.asarray(in_order(windows_in_pieces(stem.W)))

    @property
    def shape(self):
        """The shape of the result's bytes."""
        c, h, w = self.each.of.output
        return (self.n, groups_of(c), h, w, 16)

    @cached_property
    def macros(self):
        (c, h, w), layer, (_, down, across) = self.each.of.shape, self.each.of.layer, self.each.of.output
        found = {"IN_DOWN": h, "IN_ACROSS": w, "IN_GROUPS": groups_of(c), "KERNEL": layer.size, "STRIDE": layer.stride}
        found |= {"PADDING": layer.padding, "POOL": pool_of(self.each), "DOWN": down, "ACROSS": across}
        found |= {"CHANNELS": layer.channels, "FLOATS": int(self.each.y is None)}
        found |= {name.upper(): value for name, value in vars(self.tiling).items()}
        if self.stem:
            (c, h, w), layer = self.stem.of.shape, self.stem.of.layer
            found |= {"STEM": 1, "STEM_CHANNELS": layer.channels, "STEM_KERNEL": layer.size}
            found |= {"STEM_STRIDE": layer.stride, "STEM_PADDING": layer.padding, "STEM_POOL": pool_of(self.stem)}
            found |= {"PIXEL_CHANNELS": c, "PIXELS_DOWN": h, "PIXELS_ACROSS": w}
        return found

    def __call__(self, x, y):
        tiling, zero, macros = self.tiling, self.each.x[0].zero_point, self.macros
        back, of_scale = self.back, self.back.scale
        about = [struct("<3Q32sQ2i", x, y, self.filters, back.struct.tobytes(), of_scale, self.n, zero)]
        if self.stem:
            macros = macros | {"PIXEL": NAMES[x.dtype]}
            about.append(stem_struct(self.stem, self.stem_filters, self.stem_back, self.table))
        heights, bytes_ = -(-self.each.of.layer.channels // (32 * tiling.warps_m)), shared(self.each, self.stem, tiling)
        resident = max(1, min(gpu.shared_memory() // bytes_, 512 // (tiling.crew * tiling.crews)))
        most = max(1, blocked.multiprocessors() * resident // heights)
        blocks = heights * min(-(-self.n // tiling.crews), most if tiling.crews > 1 else max(most, 2 * blocked.multiprocessors()))
        convolve = kernel("int8_conv", "convolve", **macros)
        convolve((blocks,), (tiling.crew * tiling.crews,), about, shared_mem=bytes_)


def entry(x, table):
    """Return the fields of the struct `Entry`. x: the `Quantization` of the pixels."""
    return table, np.float32(1 / x.scale), np.float32(x.zero_point)


def stem_struct(stem, filters, back, table):
    x = stem.x[0]
    return struct("<Q32sQ2fi4x", filters, back.struct.tobytes(), *entry(x, table), x.zero_point)

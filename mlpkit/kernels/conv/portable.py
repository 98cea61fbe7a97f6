"""Convolutions in the channel-blocked layout on any chip with tensor cores: since Turing, of compute capability 7.5.

`conv_13_portable.cu` has the forward pass and the input gradient, `conv_14_portable_weights.cu` the weight gradient.
They read and write what the kernels of `blocked` do, and take their places where a `Mode` has this module as its
`products`: see `MODES`. Here is how the work of a launch is divided, for as much shared memory as a block has here.
"""

import sys
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import product

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap

from . import blocked
from .blocked import Convolution, groups_of, padded

FORWARD, WEIGHTS = "conv_13_portable", "conv_14_portable_weights"
MOST_POOL = 2  # edge of a pool's windows, whose largest a lane finds in its registers

# Modes in which the products are these
MODES = {name: replace(mode, products=sys.modules[__name__]) for name, mode in blocked.MODES.items() if name != "tf32"}


@dataclass(frozen=True)
class Tiling:
    """Of the forward kernel: its macros; windows are `warps_m` times `rows` times 16, the others `columns` times 8.

    together: whole images of a tile, of which there are several where they are small.
    """

    chunk: int
    warps_m: int
    warps_n: int
    rows: int
    columns: int
    slots: int
    together: int
    bands_rows: int  # rows of windows in a tile
    blocks: int = 1
    heights: int = 1

    @property
    def macros(self):
        names = ("chunk", "warps_m", "warps_n", "rows", "columns", "slots", "blocks")
        return {name.upper(): getattr(self, name) for name in names}

    @property
    def tile(self):
        """Output channels of a block."""
        return 8 * self.warps_n * self.columns

    @property
    def threads(self):
        return 32 * self.warps_m * self.warps_n

    def block(self, mode):
        """Return how many pieces of filters are followed by their low fp16 parts."""
        return self.chunk // mode.channels * self.tile

    def seen(self, conv):
        """Return how many rows of an image a tile needs, at most."""
        return min(conv.height, (self.bands_rows - 1) * conv.stride + conv.taps[0])

    def bands(self, conv):
        return -(-conv.windows[0] // self.bands_rows)

    def grid(self, conv):
        """Return the number of blocks."""
        tiles = -(-conv.images // self.together) * self.bands(conv)
        return tiles * -(-8 * groups_of(conv.channels_out) // self.tile)

    def shared(self, conv, mode):
        """Return the bytes of shared memory that the two rings take."""
        image = (self.together * self.seen(conv) * conv.width + 1) * self.chunk // 8
        buffers = min(2, padded(conv.channels) // self.chunk)
        return 16 * mode.parts * (buffers * image + self.slots * self.chunk // 8 * self.tile)


# Warps down and across, times 16 windows and times 8 output channels of each, and blocks that registers are left for
SHAPES = ((2, 4, 4, 4, 1), (4, 2, 2, 4, 1), (4, 2, 2, 4, 2), (2, 2, 4, 4, 2), (2, 2, 2, 4, 2), (4, 1, 2, 4, 2),
          (2, 4, 2, 4, 1), (2, 2, 4, 2, 2), (4, 1, 2, 8, 1), (8, 1, 2, 4, 1), (4, 2, 2, 2, 2), (4, 2, 3, 4, 1),
          (6, 2, 2, 4, 1), (4, 2, 2, 8, 1), (1, 1, 2, 2, 2), (2, 1, 2, 2, 2), (4, 1, 2, 2, 2))  # fmt: skip
# Cycles of a multiprocessor of an H100, as measured: for a product of 16 x 8 x 16, for a load of four pieces, for a
# byte from the L2 cache; what a stage and a block take besides. Where products and loads meet, both wait a little.
PRODUCT, LOAD, BYTE, STAGE, STEP, BLOCK, MEET = 2.2, 3, 1 / 40, 100, 200, 1000, 0.4


@lru_cache(4096)
def tilings(conv, mode):
    """Return the tilings that fit, the most promising first: by the cycles of the busiest multiprocessor."""
    if conv.behind or conv.pool > MOST_POOL:
        return []
    found, limit, many = [], gpu.shared_memory(), blocked.multiprocessors()
    for (warps_m, warps_n, rows, columns, blocks), chunk in product(SHAPES, (64, 32, 16)):
        if padded(conv.channels) % chunk or (rows % 2 and conv.pool == 2):
            continue
        for together, band in _bands(conv, 16 * rows * warps_m):
            slots = min(3, conv.taps[0] * conv.taps[1] + 1)
            tiling = Tiling(chunk, warps_m, warps_n, rows, columns, slots, together, band, blocks)
            if tiling.shared(conv, mode) <= limit:
                found.append((_cost(tiling, conv, mode, many, limit), tiling))
    return [tiling for _, tiling in sorted(found, key=lambda pair: pair[0])]


def _resident(one, grid, shared, many, limit):
    """Return how many blocks of a launch are on a multiprocessor at a time."""
    fit = min((limit + 1024) // (shared + 1024), 65536 // (one.threads * (128 if one.blocks > 1 else 255)))
    return max(1, min(fit, -(-grid // many)))


def _cycles(warps, products, loads, copied, resident):
    """Return about how long blocks take that are on a multiprocessor together, for a piece of work of each."""
    multiplying, loading = PRODUCT * products * padded(warps * resident, 4) / warps, LOAD * loads * resident
    both = max(multiplying, loading) + MEET * min(multiplying, loading)
    return max(both, BYTE * copied * resident)


def _bands(conv, most):
    """Yield how many images and how many rows of windows tiles of at most so many windows may have."""
    across, edge = conv.windows[1], max(1, conv.pool)
    if edge == 2:  # windows of pools come in eights
        most = most // 32 * 32
    whole = conv.windows[0] * across
    for together in {1, most // whole} - {0}:
        rows = conv.windows[0] if together * whole <= most else most // across // edge * edge
        if rows:
            bands = -(-conv.windows[0] // rows)
            yield together, min(rows, padded(-(-conv.windows[0] // bands), edge))


def _cost(tiling, conv, mode, many, limit):
    """Return about how many cycles a launch takes."""
    stages = padded(conv.channels) // tiling.chunk * conv.taps[0] * conv.taps[1]
    warps, deep = tiling.warps_m * tiling.warps_n, tiling.chunk // 16
    products = warps * tiling.rows * tiling.columns * deep * (3 if mode.parts == 2 else 1)
    loads = warps * deep * mode.parts * (tiling.rows + tiling.columns / 2)
    copied, grid = 16 * mode.parts * tiling.chunk / 8 * tiling.tile, tiling.grid(conv)
    resident = _resident(tiling, grid, tiling.shared(conv, mode), many, limit)
    stage = _cycles(warps, products, loads, copied, resident) + STAGE / resident
    return -(-grid // (many * resident)) * (stages * stage + BLOCK)


def _sizes(conv):
    """Return the beginning of both kernels' argument `Problem`."""
    sizes = conv.images, padded(conv.channels), groups_of(conv.channels), conv.height, conv.width
    return [*sizes, *conv.pad, *conv.taps, *conv.windows, conv.stride]


def _struct(values):
    return np.array(values, np.int32).view(f"V{4 * len(values)}")


@cache
def _kernel(name, function, **macros):
    return overlap.InTurn(gpu.with_shared_memory(kernels.load(name, **macros).get_function(function)))


def convolve_with(macros, mode, shape, which, images, filters, to, *told, tiling=None):
    """See `blocked.convolve_with`."""
    channels = 8 * groups_of(shape.channels_out if which == "forward" else shape.channels)
    at, scales = filters.array.data.ptr, blocked.addresses(images, filters)
    for kernel, grid, threads, about, shared, nbytes in _launches(mode, shape, which, tiling, channels, macros):
        kernel((grid,), (threads,), (images.array, about, np.uintp(at), to, *scales, *told), shared_mem=shared)
        at += nbytes


@lru_cache(1024)
def _launches(mode, shape, which, tiling, to_channels, macros=()):
    """Return kernel, blocks, threads, first argument, shared memory, and bytes of filters of each launch."""
    found = []
    for one in blocked.launches(mode, shape, which, tiling):
        conv, chosen = one.conv, one.tiling
        more = [to_channels, *conv.to, conv.step, *conv.first]
        about = _struct(
            [*_sizes(conv), *more, chosen.bands_rows, chosen.bands(conv), chosen.together, chosen.seen(conv)]
        )
        kernel = _kernel(FORWARD, "convolve", MODE=mode.number, **chosen.macros, **dict(macros))
        kernel = overlap.Overlapping(kernel) if ("OVERLAPS", 1) in macros else kernel
        found.append((kernel, chosen.grid(conv), chosen.threads, about, chosen.shared(conv, mode),
                      16 * mode.parts * one.pieces(mode)))  # fmt: skip
    return found


# ---- The weight gradient ----


@dataclass(frozen=True)
class Division:
    """Of the weight gradient: its macros, the rows of a band, and how many slices of the bands there are."""

    chunk: int
    taps: int
    warps_m: int
    warps_n: int
    rows: int
    slots: int
    band: int
    slices: int = 1
    blocks: int = 1

    @property
    def macros(self):
        names = ("chunk", "taps", "warps_m", "warps_n", "rows", "slots", "blocks")
        return {name.upper(): getattr(self, name) for name in names}

    @property
    def threads(self):
        return 32 * self.warps_m * self.warps_n

    @property
    def tall(self):
        return 16 * self.warps_m * self.rows

    def tiles(self, conv):
        """Return how many blocks a slice has: by output channels, by channels and by taps."""
        return (
            -(-8 * groups_of(conv.channels_out) // self.tall),
            padded(conv.channels) // self.chunk,
            -(-conv.taps[0] * conv.taps[1] // self.taps),
        )

    def sizes(self, conv):
        """Return bands of an image, and of a band: pieces of a row of the image, rows, and times 16 windows."""
        pitch = (conv.windows[1] - 1) * conv.stride + conv.taps[1]
        seen = (self.band - 1) * conv.stride + conv.taps[0]
        return -(-conv.windows[0] // self.band), pitch, seen, -(-self.band * conv.windows[1] // 16)

    def shared(self, conv, mode):
        _, pitch, seen, steps = self.sizes(conv)
        slot = self.chunk // 8 * seen * pitch + self.tall // 8 * (self.band * conv.windows[1] + 1)
        return 64 * steps + self.slots * 16 * mode.parts * slot


# Warps down and across, times 16 output channels of a warp, taps of a block, and blocks on a multiprocessor
DIVISIONS = ((2, 4, 2, 3, 1), (2, 4, 4, 3, 1), (2, 4, 2, 3, 2), (2, 2, 2, 3, 2), (1, 4, 2, 3, 2), (1, 4, 2, 9, 1),
             (2, 4, 1, 9, 1), (1, 4, 1, 9, 1), (2, 2, 2, 1, 2), (1, 4, 2, 5, 1), (1, 1, 1, 1, 2), (1, 6, 2, 9, 2),
             (1, 6, 2, 9, 1), (1, 2, 2, 3, 2), (1, 1, 1, 5, 2), (1, 5, 1, 25, 1))  # fmt: skip


@lru_cache(1024)
def divisions(conv, mode):
    """Return how the weight gradient's work may be divided, the most promising first."""
    found, limit, many = [], gpu.shared_memory(), blocked.multiprocessors()
    for (warps_m, warps_n, rows, taps, blocks), chunk in product(DIVISIONS, (64, 32, 16)):
        if padded(conv.channels) % chunk or taps * chunk // 8 % (2 * warps_n) or taps > conv.taps[0] * conv.taps[1] + 2:
            continue
        for band in {-(-conv.windows[0] // bands) for bands in range(1, conv.windows[0] + 1)}:
            one = Division(chunk, taps, warps_m, warps_n, rows, 2, band, blocks=blocks)
            if one.shared(conv, mode) > limit:
                continue
            bands, tiles = conv.images * one.sizes(conv)[0], int(np.prod(one.tiles(conv)))
            for resident in (1, 2, 3):
                each = -(-bands // max(1, many * resident // tiles))
                if mode.parts > 1:
                    each = min(each, max(1, blocked.MOST_SUMMED // (band * conv.windows[1])))
                cut = replace(one, slices=-(-bands // each))
                found.append((_work(cut, conv, mode, each, tiles, many, limit), cut))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _work(one, conv, mode, each, tiles, many, limit):
    """Return about how many cycles a launch takes, and the sums behind it."""
    steps, warps, columns = one.sizes(conv)[3], one.warps_m * one.warps_n, one.taps * one.chunk // 8 / one.warps_n
    products = steps * warps * one.rows * columns * (3 if mode.parts == 2 else 1)
    loads = steps * warps * mode.parts * (one.rows + columns / 2)
    shared, grid = one.shared(conv, mode), one.slices * tiles
    resident = _resident(one, grid, shared, many, limit)
    alone = 4 * steps * STEP / (warps * resident)  # what a warp waits while no other one multiplies
    band = _cycles(warps, products, loads, shared / one.slots, resident) + alone + STAGE / resident
    taps, sums = conv.taps[0] * conv.taps[1], 4 * padded(conv.channels, 8) * padded(conv.channels_out, 8)
    return -(-grid // (many * resident)) * (each * band + BLOCK) + 2 * BYTE * one.slices * taps * sums / many


@lru_cache(1024)
def _weights(mode, shape, division=None):
    """Return both kernels, blocks, threads and shared memory of the first one, what they are told, and all sums."""
    conv = blocked.convolutions(shape, "forward")[0][0]
    chosen = division or divisions(conv, mode)[0]
    bands, pitch, seen, steps = chosen.sizes(conv)
    tiles, groups = chosen.tiles(conv), groups_of(conv.channels_out)
    about = [*_sizes(conv), conv.channels_out, groups, chosen.band, bands, pitch, seen, steps, *tiles, chosen.slices]
    about[1] = conv.channels
    multiply, add = (_kernel(WEIGHTS, name, MODE=mode.number, **chosen.macros) for name in ("multiply", "add"))
    threads, blocks = chosen.threads, chosen.slices * int(np.prod(tiles))
    elements = 8 * groups * conv.taps[0] * conv.taps[1] * 8 * groups_of(conv.channels)
    return multiply, add, blocks, threads, chosen.shared(conv, mode), _struct(about), (chosen.slices, elements)


def empty_sums(mode, shape):
    """See `blocked.empty_sums`."""
    import cupy

    return cupy.empty(_weights(mode, shape)[-1], np.float32)


def weight_gradient(
    mode, shape, images, dy, dw, bias=None, db=None, before=None, partial_sums=None, later=None, division=None
):
    """See `blocked.weight_gradient`; nobody gives `before`."""
    import cupy

    multiply, add, blocks, threads, shared, about, sums = _weights(mode, shape, division)
    partial_sums = cupy.empty(sums, np.float32) if partial_sums is None else partial_sums
    multiply((blocks,), (threads,), (about, images.array, dy.array, partial_sums), shared_mem=shared)
    pointers = [np.uintp(0 if each is None else each.data.ptr) for each in (bias, db)]
    slices = np.int32(0 if bias is None else len(bias))
    arguments = about, partial_sums, dw, *blocked.addresses(images, dy), *pointers, slices
    ask = partial(add, (-(-sums[1] // 256),), (256,), arguments)
    later(ask) if later else ask()
    return partial_sums


def why_not(shape, which, mode):
    """Return why these kernels can't, a sentence, or None."""
    convolutions = blocked.convolutions(shape, which)
    fits = divisions(convolutions[0][0], mode) if which == "weight_gradient" else True
    if not fits or (which != "weight_gradient" and not all(tilings(conv, mode) for conv, _, _ in convolutions)):
        return "no part of the images fits into this GPU's shared memory."
    return None


__all__ = ["MODES", "Convolution", "convolve_with", "divisions", "tilings", "weight_gradient", "why_not"]

"""Convolutions in the channel-blocked layout (NC/8HW8): windows are never gathered, a tap is an address.

For one chip alone, Hopper's (sm_90a).

`conv_11_blocked.cu` has the forward pass and the input gradient, `conv_12_blocked_weights.cu` the weight gradient, and
`blocked.cuh` how images lie. Here is what a launch is told: how wide a row is in shared memory, how many rows a tile
has, and where the results go. The widths of tiles are those that `wgmma.cuh` has.

Operands are `Stored` as products read them, once for all products that do: see `convolve`, `weight_gradient` and
`Filters`.
"""

from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap, tensor_map
from mlpkit.kernels.cnn.updates import NO_UPDATE

from . import Shape

FORWARD, WEIGHTS, OPERANDS = "conv_11_blocked", "conv_12_blocked_weights", "blocked_operands"
MOST_PIECES = 128  # of a row: the copy engine takes boxes of at most 256 elements of 8 bytes a side
WIDTHS = (32, 64, 104, 128, 144, 176, 208)
SPLIT = (128, 176, 208)  # those that two warpgroups share where there is much to do with the sums
MOST_SLOTS = 12  # of filters, where there is room: they come before the images do
SHARED, BARRIERS = 227 << 10, 256  # bytes of shared memory that a block may have, and those not of the rings
MOST_STACKED = 32  # filters, of which both fp16 parts are one operand: two products take the place of three
MOST_BLOCKS = 512  # that look for a scale together
MULTIPROCESSORS = 132  # that the tilings are made for: an H100's and an H200's
# Windows that a block sums for the weight gradient where float32 is meant. Tensor cores truncate what they add: the
# error grows with the sum: by 3e-9 of the result's norm a window, as measured; the slices are added by float32 adders.
MOST_SUMMED = 1_500
LANES, ADDERS = 16, 256  # of conv_12_blocked_weights.cu; threads of a block that adds up slices
SPREAD = 96 << 10  # bytes of shared memory of such a block, more than it needs: two are on a multiprocessor at most
UNSPREAD = 32 << 10  # what it needs: where others are at work, it takes what they leave
UPDATERS, UPDATED = 1, 4 * 256  # blocks for the other parameters, on each multiprocessor; how many one has, at least
FEW_IMAGES = 32  # at most, for which the weight gradient leaves fewer sums than multiprocessors could
CHUNKS = (64, 32)  # channels of a block that makes the weight gradient, where there are as many
LEAVING = 200  # windows: about as long as to sum them does it take to add up a block's sums with those of others


@dataclass(frozen=True)
class Mode:
    """How values are stored and multiplied. number: of the macro MODE. stored: channels in 16 bytes of an operand.

    fp16_parts: what a value of float32 is split into before the product; 0 where it is multiplied as it is stored.
    products: the module that has the products, if it is not this one; see `portable`.
    """

    number: int
    precision: str
    stored: int
    fp16_parts: int = 0
    products: Any = None

    @property
    def parts(self):
        return max(1, self.fp16_parts)

    @property
    def channels(self):
        """Channels in 16 bytes of shared memory."""
        return 8 if self.fp16_parts else self.stored


MODES = {
    "bf16": Mode(0, "bf16", 8),
    "tf32": Mode(1, "tf32", 4),
    "fp16": Mode(2, "tf32", 4, fp16_parts=1),
    "fp16x3": Mode(3, "float32", 4, fp16_parts=2),
}


@dataclass(frozen=True)
class Cropped(Shape):
    """A convolution of which only the first rows and columns of windows are asked for: all that a pool reads.

    pool: the edge of the pool's windows, or 1, where its kernel does what follows, too; else 0. See `convolve`. behind:
    bytes of shared memory that a tile of the input gradient takes for what its kernel does with it.
    """

    rows: int = 1
    columns: int = 1
    pool: int = 0
    behind: int = 0

    @property
    def out_height(self):
        return self.rows

    @property
    def out_width(self):
        return self.columns


def cropped(shape, multiple=1, followed=False, behind=0):
    """Return the convolution of `shape` with a number of rows and of columns of windows that is a multiple of one.

    followed: whether its kernel does what follows, too. behind: as `Cropped` has it.
    """
    rows, columns = shape.out_height // multiple * multiple, shape.out_width // multiple * multiple
    if (rows, columns) == (shape.out_height, shape.out_width) and not followed and not behind:
        return shape
    own = {"rows": rows, "columns": columns, "pool": multiple if followed else 0, "behind": behind}
    return Cropped(**vars(shape) | own)


@dataclass(frozen=True)
class Convolution:
    """One launch: the sizes of what is read, its padding, taps and windows, and which pixels the windows become."""

    images: int
    channels: int
    channels_out: int
    height: int
    width: int
    pad: tuple[int, int]
    stride: int
    taps: tuple[int, int]
    windows: tuple[int, int]
    to: tuple[int, int]  # height and width of the result
    step: int = 1
    first: tuple[int, int] = (0, 0)
    pool: int = 0  # of what follows in the same kernel, 0 for nothing
    behind: int = 0  # bytes of shared memory of a tile, for what is done with its sums

    @property
    def pitch(self):
        """Pieces from one row to the next. The padding on the right is that on the left of the next row, if it fits."""
        last = self.windows[1] - 1 + (self.taps[1] - 1) // self.stride  # the last piece of a row that is read
        if self.stride > 1 or self.pad[1] <= 0:
            return max(self.windows[1], last + 1)
        return max(self.windows[1], min(last + 1, max(self.width + self.pad[1], last + 1 - self.pad[1])))

    def box(self, rows):
        """Return the rows and columns of pieces that are copied for so many rows of windows, in each phase.

        Where a row's padding is that of the next one, that is copied, too.
        """
        wraps = self.windows[1] - 1 + (self.taps[1] - 1) // self.stride >= self.pitch
        return rows + (self.taps[0] - 1) // self.stride + wraps, self.pitch

    def pieces(self, rows):
        """Return the space of such a box: a multiple of 128 bytes."""
        height, width = self.box(rows)
        return padded(height * width, 8)

    @property
    def reach(self):
        """How many pieces the last tap's pixels lie after the first tap's of the same phase."""
        return sum((taps - 1) // self.stride * pieces for taps, pieces in zip(self.taps, (self.pitch, 1), strict=True))


@dataclass(frozen=True)
class Tiling:
    """Of the forward kernel: its macros. width: windows of a tile; tiles, heights: of a block; chunk: channels.

    blocks: on a multiprocessor. slots: of the ring of filters. resident: whether there is one for each tap. promote:
    whether each tap's sums are added by float32 adders. stacked: whether 64 rows are both fp16 parts of 32 filters.
    split: warpgroups that share a tile's windows.
    """

    width: int
    tiles: int
    heights: int
    chunk: int
    blocks: int = 1
    slots: int = 4
    resident: bool = False
    promote: bool = False
    stacked: bool = False
    split: int = 1

    @property
    def macros(self):
        return {name.upper(): int(value) for name, value in vars(self).items()}

    @property
    def tile(self):
        """Filters in 64 rows."""
        return 32 if self.stacked else 64

    @property
    def threads(self):
        return 128 * self.multipliers + 64

    @property
    def multipliers(self):
        """Warpgroups that multiply."""
        return self.tiles * self.heights * self.split

    def block(self, mode):
        """Return how many pieces of filters are followed by their low fp16 parts."""
        return 32 if self.stacked else self.chunk // mode.channels * 64

    def rows(self, conv):
        """Return how many rows of windows a tile has, and how many tiles an image; None where not even one row fits."""
        if self.width < conv.windows[1]:
            return None
        most = min(conv.windows[0], (self.width - conv.windows[1]) // conv.pitch + 1)
        most -= most % max(1, conv.pool)
        if not most:
            return None
        bands = -(-conv.windows[0] // most)
        return padded(-(-conv.windows[0] // bands), max(1, conv.pool)), bands

    def items(self, conv):
        """Return how many times a block's work there is, and how many blocks share that number."""
        heights = -(-padded(conv.channels_out) // (64 * self.heights))
        items = -(-conv.images * self.rows(conv)[1] // self.tiles) * heights
        return items, min(items, max(1, self.blocks * MULTIPROCESSORS // heights) * heights)

    def shared(self, conv, mode):
        """Return the bytes of shared memory that the two rings take."""
        groups = self.chunk // mode.channels * mode.parts * 16
        image = conv.stride**2 * conv.pieces(self.rows(conv)[0]) * groups
        items, blocks = self.items(conv)
        buffers = 2 if padded(conv.channels) > self.chunk or items > blocks else 1
        taken = conv.pool or conv.behind  # eight lines of sums for each warp
        mine = self.width // self.split + 4 * (conv.behind > 0)
        line = mine + (40 - mine % 32) % 32 if taken else 0
        filters = self.slots * self.heights * self.tile * groups
        buffer = self.multipliers * 4 * 8 * 4 * line + self.stacked * self.tiles * 2 * 32 * self.width // 2 * 4
        return buffers * self.tiles * image + filters + buffer + self.tiles * conv.behind


def padded(channels, multiple=16):
    """Return a number of channels, rounded up to what products take at a time."""
    return -(-channels // multiple) * multiple


def groups_of(channels):
    """Return how many times eight channels are stored of so many: the last ones may be zeros."""
    return -(-channels // 8)


# Tiles and heights of a block, blocks on a multiprocessor, how many sums a thread has registers for, and how much
# longer the same work took: of values of 16 bits, and of float32. Where nobody else multiplies, waiting is seen.
BLOCKS = ((1, 1, 1, 208, 1.15, 1), (1, 1, 2, 144, 1, 1.06), (2, 1, 1, 144, 1, 1.06), (1, 2, 1, 144, 0.98, 1.06))


def tilings(conv, mode):
    """Return the tilings that fit, the most promising first: by the multiplications of the busiest multiprocessor."""
    if mode.products:
        return mode.products.tilings(conv, mode)
    found = []
    chunk = next(chunk for chunk in (64, 32, 16) if padded(conv.channels) % chunk == 0)
    stages = padded(conv.channels) // chunk * conv.taps[0] * conv.taps[1]
    promote = mode.parts > 1
    for width, (tiles, heights, blocks, most, *longer) in product(WIDTHS, BLOCKS):
        stacked = promote and heights == 1 and padded(conv.channels_out) <= MOST_STACKED
        own, split = (tiles, heights), 2 if conv.behind and (tiles, heights) == (1, 1) and width in SPLIT else 1
        most_slots = MOST_SLOTS if conv.behind else 4
        fit = [
            tiling
            for slots, resident in ((stages, True), *((slots, False) for slots in range(most_slots, 1, -1)))
            if (tiling := Tiling(width, *own, chunk, blocks, slots, resident, promote, stacked, split)).rows(conv)
            and tiling.shared(conv, mode) + BARRIERS <= SHARED // blocks
            and width // 2 * (1 + promote) <= most
            and (slots <= 9 or not resident)
        ]
        if fit:
            items, shared_by = fit[0].items(conv)
            rounds = -(-items // shared_by) * blocks
            found.append((rounds * tiles * heights * (width + 8) * longer[mode.channels == 4], fit[0]))
    return [tiling for _, tiling in sorted(found, key=lambda pair: pair[0])]


def convolutions(shape, which):
    """Return what a forward pass or an input gradient is made of: (convolution, rows of taps, columns of taps) each.

    The slices choose and turn the taps of the filters.
    """
    n, k, s, p = shape.batch, shape.kernel, shape.stride, shape.padding
    if which != "input_gradient":
        sizes = (n, shape.channels, shape.channels_out, shape.height, shape.width)
        windows = (shape.out_height, shape.out_width)
        pool = getattr(shape, "pool", 0)
        return [(Convolution(*sizes, (p, p), s, (k, k), windows, windows, pool=pool), slice(None), slice(None))]
    sizes = (n, shape.channels_out, shape.channels, shape.out_height, shape.out_width)
    found = []
    for a, b in product(range(s), repeat=2):
        pad_y, taps_y, windows_y, rows = _phase(a, shape.height, k, s, p)
        pad_x, taps_x, windows_x, columns = _phase(b, shape.width, k, s, p)
        if taps_y * taps_x * windows_y * windows_x:
            sides = (pad_y, pad_x), 1, (taps_y, taps_x), (windows_y, windows_x)
            to, behind = (shape.height, shape.width), getattr(shape, "behind", 0)
            found.append((Convolution(*sizes, *sides, to, s, (a, b), behind=behind), rows, columns))
    return found


def _phase(first, size, k, s, p):
    """Return of each s-th pixel of a side, from `first` on: padding, taps that hit them, their number, and the taps."""
    start = (first + p) % s  # the first of them
    taps = len(range(start, k, s))
    flipped = slice(start + s * (taps - 1), start - 1 if start else None, -s)
    return taps - 1 - (first + p - start) // s, taps, len(range(first, size, s)), flipped


@dataclass(frozen=True)
class Division:
    """Of the weight gradient: its macros chunk and slots, the rows of a band, its windows, and how many slices."""

    chunk: int
    slots: int
    rows: int
    bands: int
    windows: int
    tiles: tuple[int, int, int]  # by 64 output channels, by chunks, by groups of nine taps
    slices: int  # a multiple of the blocks of a cluster
    cluster: int

    @property
    def elements(self):
        """How many sums a slice has."""
        return 3 * 3 * self.chunk // 2 * 128 * int(np.prod(self.tiles))

    def packed(self, conv):
        """Return how many of them leave where most are of no tap, filter or channel; None where that is not so."""
        found = conv.taps[0] * conv.taps[1] * padded(conv.channels_out, 8) * padded(conv.channels, 8)
        return found if 2 * found < self.elements else None

    @property
    def received(self):
        """The bytes of shared memory for what the others of a cluster send a block."""
        return (self.cluster - 1) * padded(3 * self.chunk // 2 // self.cluster, 4) * 4 * 384

    def slot(self, conv, mode):
        """Return the bytes of shared memory that a band takes."""
        plane = conv.stride**2 * (self.windows + conv.reach) | 1  # an odd number
        return (self.chunk // 8 * plane + 8 * (self.windows | 1)) * mode.parts * 16


def division(conv, mode):
    """Return how the weight gradient's work is divided; None where not even two rows of windows fit.

    Clusters are of two blocks: with more of them some multiprocessors stay without one. Of few images half of the
    multiprocessors have enough to do, and larger clusters leave fewer sums: memory is what counts there. Where what
    they send each other does not fit, they are smaller.
    """
    clusters, blocks = ((8, 4, 2, 1), 64) if conv.images <= FEW_IMAGES else ((2, 1), MULTIPROCESSORS // 2 * 2)
    chunks = [chunk for chunk in CHUNKS if padded(conv.channels) % chunk == 0] or [16]
    for cluster in clusters:
        found = [one for chunk in chunks for one in _divisions(conv, mode, chunk, cluster, blocks)]
        if found:
            return min(found, key=lambda pair: pair[0])[1]
    return None


def _divisions(conv, mode, chunk, cluster, blocks):
    """Yield how long a division of the work takes, and itself, for each number of rows of a band that fits."""
    tiles = -(-conv.channels_out // 64), padded(conv.channels) // chunk, -(-conv.taps[0] * conv.taps[1] // 9)
    at_once = max(1, blocks // int(np.prod(tiles)))  # slices
    for most in range(1, conv.windows[0] + 1):
        bands = -(-conv.windows[0] // most)
        rows = -(-conv.windows[0] // bands)
        windows = padded(rows * conv.pitch)
        each = -(-conv.images * bands // min(at_once, conv.images * bands))
        if mode.parts > 1:
            each = min(each, max(1, MOST_SUMMED // windows))
        slices = -(-conv.images * bands // each)
        together = 1 << min(slices, cluster).bit_length() - 1  # a share of the sums is whole then
        slices = padded(slices, together)
        found = Division(chunk, 2, rows, bands, windows, tiles, slices, together)
        slots = min(4, (SHARED - BARRIERS - found.received) // found.slot(conv, mode))
        if slots >= 2:
            work = -(-slices // at_once) * (each * (windows + 24) + LEAVING) * chunk
            yield work, replace(found, slots=slots)


# On a GPU


def images_as_blocked(x, mode):
    """Return images (n, c, h, w) as blocked (n, c / s, h, w, s) by a mode's `stored` s channels, with zeros added."""
    import cupy

    n, c, h, w = x.shape
    x = cupy.pad(x, ((0, 0), (0, 8 * groups_of(c) - c), (0, 0), (0, 0)))
    x = x.reshape(n, -1, mode.stored, h, w).transpose(0, 1, 3, 4, 2)
    return as_bf16(x) if mode.stored == 8 else cupy.ascontiguousarray(x)


def as_bf16(x):
    """Return float32 values as the 16 bits of bfloat16, rounded to the nearest, and to even in the middle."""
    import cupy

    bits = cupy.ascontiguousarray(x).view(cupy.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return cupy.where(cupy.isnan(x), bits >> 16 | 0x40, rounded).astype(cupy.uint16)


def filters_in_order(w, mode, tiling):
    """Return filters (o, c, k, l) in the order in which the kernel takes them: 64 o, a chunk of c, a tap, a piece."""
    import cupy

    o, c, k, l = w.shape  # noqa: E741
    tile = tiling.tile
    o_padded, c_padded = padded(o, tile * tiling.heights), padded(c, max(16, tiling.chunk))
    w = cupy.pad(w, ((0, o_padded - o), (0, c_padded - c), (0, 0), (0, 0)))
    per = mode.channels
    w = w.reshape(o_padded // tile, tile, c_padded // tiling.chunk, tiling.chunk // per, per, k, l)
    w = cupy.ascontiguousarray(w.transpose(0, 2, 5, 6, 3, 1, 4))
    return as_bf16(w) if mode.stored == 8 else w


def problem(conv, rows, bands, pieces, to_channels):
    """Return the kernel's argument `Problem`, an array of 32-bit integers."""
    box = conv.box(rows)
    elements = [conv.images, padded(conv.channels), conv.height, conv.width, *conv.pad, *conv.taps, *conv.windows]
    elements += [to_channels, *conv.to, conv.step, *conv.first, conv.pitch, rows, bands, pieces, box[0] * box[1]]
    by_pitch = -(-(1 << 32) // conv.pitch)
    return np.array([*elements, by_pitch % (1 << 32)], np.int64).astype(np.uint32).view("V88")


def _lacks(conv):
    """Return the macro for a kernel that reads eight channels more than are stored, where that is so."""
    return {"LACKS": 1} if padded(conv.channels) > 8 * groups_of(conv.channels) else {}


@cache
def multiprocessors():
    """Return how many multiprocessors this GPU has."""
    return gpu.multiprocessors()


@cache
def _kernel(name, function, **macros):
    kernel = gpu.with_shared_memory(kernels.load(name, **macros).get_function(function), SHARED - BARRIERS)
    return overlap.InTurn(kernel)


# ---- Operands as products read them ----


@dataclass(frozen=True)
class Stored:
    """Images, their gradient, or filters, as the products read them, so that several products may.

    array: of images fp16, uint16 (parts, n, c / 8, h, w, 8), or (n, c / s, h, w, s) in bfloat16 (as uint16) or float32;
    zeros are added to channels up to a multiple of 8. scale: that of fp16, see `new_scale`.
    """

    array: Any
    scale: Any = None


def new_scale():
    """Return a scale of fp16 on the GPU, float32: the first value is the power of two, the rest is for blocks.

    It lasts as long as the array is made again and again: the last launch's scale is the next one's guess.
    """
    import cupy

    scale = cupy.zeros(8 + 2 * MOST_BLOCKS, np.float32)
    first = np.zeros(8, np.float32)
    first[0] = 1
    first[6:].view(np.uint64)[:] = scale.data.ptr + first.nbytes  # where its blocks' messages are
    scale[:8] = cupy.asarray(first)
    return scale


def empty_blocked(mode, n, channels, height, width):
    """Return a blocked array that `convolve` may write: float32, or bfloat16 as uint16, (n, c / s, h, w, s)."""
    import cupy

    dtype = np.uint16 if mode.stored == 8 else np.float32
    return cupy.empty((n, 8 * groups_of(channels) // mode.stored, height, width, mode.stored), dtype)


def empty_operand(mode, n, channels, height, width, scale=None, memory=None):
    """Return `Stored` for somebody to write. scale: see `new_scale`; None where values are stored as they are.

    memory: a blocked array of this size, in whose place it lies; None for a place of its own.
    """
    import cupy

    if not mode.fp16_parts:
        return Stored(empty_blocked(mode, n, channels, height, width) if memory is None else memory)
    shape = mode.parts, n, groups_of(channels), height, width, 8
    if memory is None:
        return Stored(cupy.empty(shape, np.uint16), scale)
    return Stored(memory.reshape(-1).view(np.uint16)[: prod(shape)].reshape(shape), scale)


# ---- Products ----


@dataclass(frozen=True)
class Launch:
    """One of those that a forward pass or an input gradient is made of. rows, columns: of taps; see `convolutions`."""

    conv: Convolution
    tiling: Tiling
    rows: slice
    columns: slice

    def pieces(self, mode):
        """Return how many pieces of 16 bytes its filters are, low fp16 parts not counted."""
        conv, rows = self.conv, padded(self.conv.channels_out, self.tiling.tile * self.tiling.heights)
        return rows * padded(conv.channels) // mode.channels * conv.taps[0] * conv.taps[1]


@lru_cache(4096)
def launches(mode, shape, which, tiling=None):
    """Return the `Launch`es of a forward pass or an input gradient. tiling: instead of the most promising one."""
    found = convolutions(shape, which)
    return [Launch(conv, tiling or tilings(conv, mode)[0], rows, columns) for conv, rows, columns in found]


class Moments(NamedTuple):
    """Of a forward pass's tiles: means, and sums of squared differences from them, (channels, tiles, 2), float32.

    An image is `bands` tiles; rows: of windows in each, but an image's last one may have fewer.
    """

    array: Any
    bands: int
    rows: int


def empty_moments(mode, shape, tiling=None):
    """Return `Moments` to be left by a forward pass, from `cupy.empty`; None where its kernels leave none.

    tiling: of that pass, see `convolve`.
    """
    import cupy

    if mode.products:
        return None
    (one,) = launches(mode, shape, "forward", tiling)
    rows, bands = one.tiling.rows(one.conv)
    size = 8 * groups_of(shape.channels_out), shape.batch * bands, 2
    return Moments(cupy.empty(size, np.float32), bands, rows)


def convolve(mode, shape, which, images, filters, to, tiling=None, overlaps=False, moments=None):
    """Ask for a forward pass, or an input gradient: of images, or dy, and filters, both `Stored`, into `to`.

    mode: a `Mode`. filters: as `Filters` makes them for this pass. to: as `empty_blocked` returns, written whole.
    overlaps: whether it begins before the kernel before it has ended, which must not be one that writes the filters,
    and the one behind it may; see `kernels.overlap`. moments: to be left by a forward pass, as `empty_moments`
    returns them, or None. A graph can record it. Raises RuntimeError where the driver refuses.
    """
    found = launches(mode, shape, which, tiling)
    if sum(one.conv.windows[0] * one.conv.windows[1] for one in found) < to.shape[2] * to.shape[3]:
        to.fill(0)  # no window has seen some of the pixels
    macros = (("OVERLAPS", 1),) * overlaps + (("MOMENTS", 1),) * bool(moments)
    told = (moments.array,) if moments else ()
    convolve_with(macros, mode, shape, which, images, filters, to, *told, tiling=tiling)


def convolve_with(macros, mode, shape, which, images, filters, to, *told, tiling=None):
    """Ask for a pass as `convolve` does, whose kernels do more: what follows, or what is done with a gradient.

    macros, told: pairs that tell the kernels of it, and their last arguments; see `cnn.between`. to: as they take it.
    """
    if mode.products:
        mode.products.convolve_with(macros, mode, shape, which, images, filters, to, *told, tiling=tiling)
        return
    channels = 8 * groups_of(shape.channels_out if which == "forward" else shape.channels)
    at, scales = filters.array.data.ptr, addresses(images, filters)
    of = mode, shape, which, tiling, images.array.data.ptr, channels, macros
    for kernel, grid, block, about, shared, nbytes in _launches(*of):
        kernel(grid, block, (*about, np.uintp(at), to, *scales, *told), shared_mem=shared)
        at += nbytes


def addresses(*operands):
    """Return where the scales of `Stored` are, a kernel's arguments."""
    return [np.uintp(0 if operand.scale is None else operand.scale.data.ptr) for operand in operands]


@lru_cache(1024)
def _launches(mode, shape, which, tiling, address, to_channels, macros=()):
    """Return kernel, grid, block, first arguments, shared memory, and bytes of filters of each launch."""
    found = []
    for one in launches(mode, shape, which, tiling):
        conv, chosen = one.conv, one.tiling
        rows, bands = chosen.rows(conv)
        about = problem(conv, rows, bands, conv.pieces(rows), to_channels)
        more = chosen.macros | _lacks(conv) | dict(macros)
        kernel = _kernel(FORWARD, "convolve", MODE=mode.number, STRIDE=conv.stride, **more)
        kernel = overlap.Overlapping(kernel) if ("OVERLAPS", 1) in macros else kernel
        _, blocks = chosen.items(conv)
        arguments = _map(address, mode, conv, conv.box(rows)), about
        nbytes = 16 * mode.parts * one.pieces(mode)
        found.append((kernel, (blocks,), (chosen.threads,), arguments, chosen.shared(conv, mode), nbytes))
    return found


def _map(address, mode, conv, box):
    """Return the tensor map of images or their fp16 parts; a box is each `stride`-th row and column of a plane.

    The kernel's coordinates are 2 x, y, plane; for a stride of 2 they are 0, x, y, plane. Raises RuntimeError where the
    driver refuses.
    """
    planes = conv.images * 8 * groups_of(conv.channels) // mode.channels * mode.parts
    (rows, columns), s = box, conv.stride
    sizes, strides = [conv.width, conv.height, planes], [16 * conv.width, 16 * conv.width * conv.height]
    boxes = [[2 * columns, rows, 1], [1, 1, 1]]  # and steps
    if s == 1:  # a row's pieces follow each other: one dimension of elements of 8 bytes
        sizes[0] *= 2
    else:
        sizes, strides, boxes = [2, *sizes], [16, *strides], [[2, s * columns, s * rows, 1], [1, s, s, 1]]
    kind, swizzle = tensor_map.UINT64, tensor_map.NO_SWIZZLE
    return tensor_map.tiled(kind, address, sizes, strides, boxes, swizzle, f"{planes} planes, boxes of {box}")


def empty_sums(mode, shape):
    """Return a buffer for what the slices of a weight gradient leave to be added up, from `cupy.empty`, float32."""
    import cupy

    if mode.products:
        return mode.products.empty_sums(mode, shape)
    return cupy.empty(_sums(mode, shape), np.float32)


@lru_cache(1024)
def _sums(mode, shape):
    """Return how many clusters leave sums, and how many each."""
    conv = convolutions(shape, "forward")[0][0]
    d = division(conv, mode)
    return d.slices // d.cluster, d.packed(conv) or d.elements


def of_each(elements):
    """Return how many sums a thread makes that adds up slices: one, if all blocks are on the GPU at once then."""
    return 1 if elements <= 2 * MULTIPROCESSORS * ADDERS else 2


def weight_gradient(
    mode, shape, images, dy, dw, bias=None, db=None, before=None, partial_sums=None, later=None, update=None
):
    """Ask for the gradient of the filters: of images and dy, both `Stored`, into dw (o, c, k, k), float32.

    bias: (slices, o rounded up to a multiple of 8), sums whose sums over the slices are the gradient db (o,), or None.
    before: None, or (sums (slices, room, k k + 1), dw, db or None) of a convolution of one channel, added up here, too.
    partial_sums: as `empty_sums` returns; needed where a graph records this without a pool of its own, or None.
    later: None, or a function that is given another one, which asks for the last of it, to add up the slices, and keeps
    their sums. update: None, or an `Update` of all parameters, where a mode `updates`: all other gradients have been
    asked for, and on this stream. Return these sums, which nobody else may have until the work is done. A graph can
    record it.
    """
    if mode.products:
        return mode.products.weight_gradient(mode, shape, images, dy, dw, bias, db, before, partial_sums, later)
    multiply, add, blocks, shared, about = _weights(mode, shape, update.kind if update else 0)
    partial_sums = empty_sums(mode, shape) if partial_sums is None else partial_sums
    _, elements = _sums(mode, shape)
    multiply((blocks,), (512,), (*about[:2], images.array, dy.array, partial_sums), shared_mem=shared)
    sizes = np.int32(shape.channels_out), np.int32(shape.channels)
    pointers = [np.uintp(0 if each is None else each.data.ptr) for each in (bias, db)]
    last = *addresses(images, dy), *pointers, np.int32(0 if bias is None else len(bias)), np.int32(about[2])
    more = LANES * (0 if before is None else before[1].size + len(before[1]))
    more += LANES * (0 if bias is None else shape.channels_out)
    updaters, whole = 0, NO_UPDATE
    if update:
        updaters = min(UPDATERS * multiprocessors(), -(-len(update.theta) // UPDATED))
        whole = update.argument((dw, db, *(before or (None,))[1:]), updaters)
    arguments = *about[:2], partial_sums, dw, *sizes, *last, _before(before), whole
    blocks = updaters + -(-elements // (of_each(elements) * ADDERS)) + -(-more // ADDERS)
    if later:
        later(partial(add, (blocks,), (ADDERS,), arguments, shared_mem=UNSPREAD))
    else:
        add((blocks,), (ADDERS,), arguments, shared_mem=SPREAD)
    return partial_sums


def updates(mode):
    """Return whether the kernel of the weight gradient can take the optimizer's step, too."""
    return not mode.products


def _before(before):
    """Return the kernel's argument `Before`."""
    if before is None:
        return np.zeros(5, np.uint64).view("V40")
    sums, dw, db = before
    pointers = [sums.data.ptr, dw.data.ptr, 0 if db is None else db.data.ptr]
    sizes = np.array([len(sums), len(dw), *sums.shape[1:]], np.int32).view(np.uint64)
    return np.array([*pointers, *sizes], np.uint64).view("V40")


@lru_cache(1024)
def _weights(mode, shape, updates=0):
    """Return both kernels, the first one's blocks and shared memory, and what both are told.

    updates: the `kind` of the update that the second one does, too, or 0.
    """
    conv = convolutions(shape, "forward")[0][0]
    d, channels = division(conv, mode), 8 * groups_of(shape.channels_out)
    about = problem(conv, d.rows, d.bands, d.windows + conv.reach, channels)
    divided = np.array([d.windows, channels, d.windows | 1, *d.tiles, d.slices], np.int32).view("V28")
    macros = {"MODE": mode.number, "STRIDE": conv.stride, "CHUNK": d.chunk, "SLOTS": d.slots, "CLUSTER": d.cluster}
    macros |= _lacks(conv) | ({"PACKED": 1} if d.packed(conv) else {})
    multiply = _kernel(WEIGHTS, "multiply", **macros)
    macros["OF_EACH"] = of_each(d.packed(conv) or d.elements)
    add = _kernel(WEIGHTS, "add", **macros, **({"UPDATES": updates} if updates else {}))
    blocks, shared = d.slices * int(np.prod(d.tiles)), d.slots * d.slot(conv, mode) + d.received
    return multiply, add, blocks, shared, (about, divided, channels)


# ---- Filters ----

PASSES_OF_FILTERS = "forward", "input_gradient"
MOST_ORDERS = 16  # of a launch; as in blocked_operands.cu
TALL, WIDE = 8, 16  # output and input channels of filters that a block takes; as in blocked_operands.cu
ORDER = np.dtype(
    [("to", "u8")]
    + [(name, "i4") for name in ("by_inputs", "rows", "groups", "chunks", "taps", "taps_x", "by_taps_x")]
    + [(name, "i4") for name in ("tap_y", "tap_x", "step_y", "step_x", "tile", "block", "padding")]
)
FILTER = np.dtype(
    [("from", "u8")]
    + [(name, "i4") for name in ("outputs", "inputs", "side", "area", "first", "across", "first_order", "orders")]
)
ORDERS = np.dtype(
    [("of", ORDER, MOST_ORDERS), ("filters", FILTER, MOST_ORDERS), ("scales", "u8", MOST_ORDERS), ("counts", "i4", 4)],
)


class Filters:
    """The filters of a model's convolutions, in the orders in which its products read them, made in one launch.

    wanted: (shape, W, passes) of each convolution: W (o, c, k, k) float32 on the GPU, contiguous, read again in each
    call; passes: of "forward" and "input_gradient" those that there are. Call it: it returns `Stored` for each of the
    wanted, in their order, a dict by pass. What it writes comes from `cupy.empty`. Or `begin()` on one stream, and
    `take()` on another, which then waits.
    """

    def __init__(self, mode, wanted):
        self.mode, self.wanted = mode, list(wanted)
        self.scales = [new_scale() if mode.fp16_parts else None for _ in self.wanted]
        self.begun: tuple | None = None

    def begin(self):
        """Make them on the current stream."""
        import cupy

        self.begun = self(), cupy.cuda.get_current_stream().record()

    def take(self):
        """Return what has been begun, once the current stream waits for it."""
        import cupy

        begun, self.begun = self.begun, None
        assert begun, "what is taken has been begun"
        found, event = begun
        cupy.cuda.get_current_stream().wait_event(event)
        return found

    def __call__(self):
        import cupy

        mode, found, filters = self.mode, [], []  # of each W: itself, its scale, its orders
        for (shape, w, passes), scale in zip(self.wanted, self.scales, strict=True):
            made, orders = {}, []
            for which in passes:
                many = sum(one.pieces(mode) for one in launches(mode, shape, which))
                size, dtype = mode.parts * many * mode.channels, np.float32 if mode.channels == 4 else np.uint16
                made[which] = Stored(cupy.empty(size, dtype), scale)
                at = made[which].array.data.ptr
                for one in launches(mode, shape, which):
                    orders.append({"to": at} | _order(mode, shape, which, one))
                    at += 16 * mode.parts * one.pieces(mode)
            found.append(made)
            filters.append((w, scale, orders))
        for group in _groups(filters):
            self._launch(group)
        return found

    def _launch(self, filters):
        about, first, number = np.zeros(1, ORDERS), 0, 0
        areas = [w.shape[2] * w.shape[3] for w, _, _ in filters]
        for i, (w, scale, orders) in enumerate(filters):
            about["scales"][0, i] = 0 if scale is None else scale.data.ptr
            outputs, inputs = w.shape[:2]
            for order in orders:
                columns = (order["chunks"] << order["groups"]) * self.mode.channels
                here = (columns, order["rows"]) if order["by_inputs"] else (order["rows"], columns)
                outputs, inputs = max(outputs, here[0]), max(inputs, here[1])
                for name, value in order.items():
                    about["of"][0, number][name] = value
                number += 1
            across = -(-inputs // WIDE)
            sizes = *w.shape[:3], areas[i], first, across, number - len(orders), len(orders)
            about["filters"][0, i] = w.data.ptr, *sizes
            first += across * -(-outputs // TALL)
        about["counts"] = len(filters), first, 0, 0
        shared = 12 * MOST_ORDERS + 4 * TALL * (WIDE * max(areas) + 1)
        kernel = _kernel(OPERANDS, "in_order", MODE=self.mode.number)
        kernel(
            (min(first, 4 * multiprocessors(), MOST_BLOCKS),),
            (256,),
            (about.view(f"V{ORDERS.itemsize}"),),
            shared_mem=shared,
        )


def _groups(filters):
    """Cut a list of filters into parts for a launch each, by the number of their orders."""
    parts: list[list] = []
    for each in filters:
        if not parts or sum(len(orders) for *_, orders in [*parts[-1], each]) > MOST_ORDERS:
            parts.append([])
        parts[-1].append(each)
    return parts


def _order(mode, shape, which, one):
    """Return what the kernel is told of an order: fields of `ORDER`."""
    k, columns, rows = shape.kernel, one.conv.channels, one.tiling.tile * one.tiling.heights
    (tap_y, _, step_y), (tap_x, _, step_x) = one.rows.indices(k), one.columns.indices(k)
    chunk = min(one.tiling.chunk, padded(columns))
    elements = {"by_inputs": int(which != "forward"), "rows": padded(one.conv.channels_out, rows)}
    elements |= {"groups": _bits(chunk // mode.channels), "chunks": padded(columns) // chunk}
    elements |= {"taps": one.conv.taps[0] * one.conv.taps[1], "taps_x": one.conv.taps[1]}
    elements |= {"by_taps_x": -(-(1 << 16) // one.conv.taps[1])}
    elements |= {"tile": _bits(one.tiling.tile), "block": _bits(one.tiling.block(mode))}
    return elements | {"tap_y": tap_y, "tap_x": tap_x, "step_y": step_y, "step_x": step_x}


def _bits(number):
    """Return how often 2 divides a power of two."""
    return number.bit_length() - 1


# ---- What can't be ----


def why_not(mode, shape, which):
    """Return why a mode can't, a sentence, or None."""
    if mode.products:
        return mode.products.why_not(shape, which, mode)
    if which == "weight_gradient" and mode == MODES["tf32"]:
        return "wgmma does not transpose numbers of TF32, as the weight gradient needs: halves have as many digits."
    if which == "weight_gradient" and division(convolutions(shape, "forward")[0][0], mode) is None:
        return "two bands of one row each do not fit into shared memory."
    if any(conv.pitch > MOST_PIECES for conv, _, _ in convolutions(shape, which)):
        return f"the copy engine takes rows of at most {MOST_PIECES} pieces, padding included, and these are wider."
    return None

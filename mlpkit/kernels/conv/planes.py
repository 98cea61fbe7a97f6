"""Convolutions on planes: windows are never gathered, a tap is an address. For one chip alone, Hopper's (sm_90a).

`conv_11_planes.cu` has the forward pass and the input gradient, `conv_12_planes_weights.cu` the weight gradient, and
`planes.cuh` how images lie. Here is what a launch is told: how wide a row is in shared memory, how many rows a tile
has, and where the results go. The widths of tiles are those that `wgmma.cuh` has.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np

from mlpkit import kernels

from . import Prepared, Rung

FORWARD, WEIGHTS = "conv_11_planes", "conv_12_planes_weights"
WIDTHS = (32, 64, 104, 144, 176, 208)
SHARED, BARRIERS = 227 << 10, 256  # bytes of shared memory that a block may have, and those not of the rings
MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Mode:
    """How numbers are stored and multiplied. number: of the macro MODE. stored: channels in 16 bytes of memory.

    channels: in 16 bytes of shared memory. parts: arrays that a number is split into there. converts: on the way.
    """

    number: int
    precision: str
    stored: int
    channels: int
    parts: int = 1
    converts: bool = False


MODES = {
    "bf16": Mode(0, "bf16", 8, 8),
    "tf32": Mode(1, "tf32", 4, 4),
    "fp16": Mode(2, "tf32", 4, 8, converts=True),
    "fp16x3": Mode(3, "float32", 4, 8, parts=2, converts=True),
}


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

    @property
    def pitch(self):
        """Pieces from one row to the next. The padding on the right is that on the left of the next row, if it fits."""
        last = self.windows[1] - 1 + (self.taps[1] - 1) // self.stride  # the last piece of a row that is read
        if self.stride > 1 or self.pad[1] <= 0:
            return max(self.windows[1], last + 1)
        return max(self.windows[1], min(last + 1, max(self.width + self.pad[1], last + 1 - self.pad[1])))

    @property
    def reach(self):
        """How many pieces the last tap's pixels lie after the first tap's of the same phase."""
        return sum((taps - 1) // self.stride * pieces for taps, pieces in zip(self.taps, (self.pitch, 1), strict=True))


@dataclass(frozen=True)
class Tiling:
    """Of the forward kernel: its macros. width: windows of a tile; tiles, heights: of a block; chunk: channels."""

    width: int
    tiles: int
    heights: int
    chunk: int
    slots: int = 4
    promote: int = 0

    @property
    def macros(self):
        return {name.upper(): int(value) for name, value in vars(self).items()}

    @property
    def threads(self):
        return 128 * (self.tiles * self.heights + 1)

    def rows(self, conv):
        """Return how many rows of windows a tile has, and how many tiles an image; None where not even one row fits."""
        if self.width < conv.windows[1]:
            return None
        most = min(conv.windows[0], (self.width - conv.windows[1]) // conv.pitch + 1)
        bands = -(-conv.windows[0] // most)
        return -(-conv.windows[0] // bands), bands

    def shared(self, conv, mode):
        """Return the bytes of shared memory that the two rings take."""
        groups = self.chunk // mode.channels * mode.parts * 16
        image = conv.stride**2 * (self.width + conv.reach) * groups
        buffers = 2 if padded(conv.channels) > self.chunk else 1
        return buffers * self.tiles * image + self.slots * self.heights * 64 * groups

    def blocks(self, conv):
        """Return how many blocks there are."""
        return -(-conv.images * self.rows(conv)[1] // self.tiles) * -(-conv.channels_out // (64 * self.heights))


def padded(channels, multiple=16):
    """Return a number of channels, rounded up to what is stored."""
    return -(-channels // multiple) * multiple


def tilings(conv, mode):
    """Return the tilings that fit, the most promising first: by the multiplications of the busiest multiprocessor."""
    found = []
    chunks = [chunk for chunk in (64, 32, 16) if padded(conv.channels) % chunk == 0][:1]
    for width, (tiles, heights), chunk, slots in product(WIDTHS, ((1, 1), (2, 1), (1, 2), (2, 2)), chunks, (4, 3, 2)):
        tiling = Tiling(width, tiles, heights, chunk, slots)
        fits = tiling.rows(conv) and tiling.shared(conv, mode) + BARRIERS <= SHARED and tiles * heights * width <= 416
        if fits and not any((t.width, t.tiles, t.heights) == (width, tiles, heights) for _, t in found):
            rounds = -(-tiling.blocks(conv) // MULTIPROCESSORS)
            work = tiles * heights * (width + 16) * padded(conv.channels) * conv.taps[0] * conv.taps[1]
            found.append((rounds * (work + 20_000), tiling))
    return [tiling for _, tiling in sorted(found, key=lambda pair: pair[0])]


def convolutions(shape, which):
    """Return what a forward pass or an input gradient is made of: (convolution, rows of taps, columns of taps) each.

    The slices choose and turn the taps of the filters.
    """
    n, k, s, p = shape.batch, shape.kernel, shape.stride, shape.padding
    if which == "forward":
        sizes = (n, shape.channels, shape.channels_out, shape.height, shape.width)
        windows = (shape.out_height, shape.out_width)
        return [(Convolution(*sizes, (p, p), s, (k, k), windows, windows), slice(None), slice(None))]
    sizes = (n, shape.channels_out, shape.channels, shape.out_height, shape.out_width)
    found = []
    for first in product(range(s), repeat=2):
        starts = [(a + p) % s for a in first]  # the first tap that hits these pixels
        taps = [len(range(start, k, s)) for start in starts]
        windows = [len(range(a, size, s)) for a, size in zip(first, (shape.height, shape.width), strict=True)]
        if all(taps) and all(windows):
            pad = [t - 1 - (a + p - start) // s for t, a, start in zip(taps, first, starts, strict=True)]
            conv = Convolution(
                *(*sizes, tuple(pad), 1, tuple(taps), tuple(windows)), (shape.height, shape.width), s, first
            )
            ends = zip(starts, taps, strict=True)
            rows, columns = (slice(start + s * (t - 1), start - 1 if start else None, -s) for start, t in ends)
            found.append((conv, rows, columns))
    return found


# On a GPU


def images_as_planes(x, mode):
    """Return images (n, c, h, w) as planes (n, c / s, h, w, s) of a mode's `stored` s channels, with zeros added."""
    import cupy

    n, c, h, w = x.shape
    x = cupy.pad(x, ((0, 0), (0, padded(c) - c), (0, 0), (0, 0)))
    x = x.reshape(n, -1, mode.stored, h, w).transpose(0, 1, 3, 4, 2)
    return as_bf16(x) if mode.stored == 8 else cupy.ascontiguousarray(x)


def planes_as_images(planes, channels):
    """Return planes as float32 images (n, channels, h, w)."""
    import cupy

    n, _, h, w, _ = planes.shape
    planes = (planes.astype(cupy.uint32) << 16).view(cupy.float32) if planes.dtype == cupy.uint16 else planes
    return cupy.ascontiguousarray(planes.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :channels])


def as_bf16(x):
    """Return float32 numbers as the 16 bits of bfloat16, rounded to the nearest, and to even in the middle."""
    import cupy

    bits = cupy.ascontiguousarray(x).view(cupy.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return cupy.where(cupy.isnan(x), bits >> 16 | 0x40, rounded).astype(cupy.uint16)


def filters_in_order(w, mode, tiling):
    """Return filters (o, c, k, l) in the order in which the kernel takes them: 64 o, a chunk of c, a tap, a piece."""
    import cupy

    o, c, k, l = w.shape  # noqa: E741
    o_padded, c_padded = padded(o, 64 * tiling.heights), padded(c, max(16, tiling.chunk))
    w = cupy.pad(w, ((0, o_padded - o), (0, c_padded - c), (0, 0), (0, 0)))
    per = mode.channels
    w = w.reshape(o_padded // 64, 64, c_padded // tiling.chunk, tiling.chunk // per, per, k, l)
    w = cupy.ascontiguousarray(w.transpose(0, 2, 5, 6, 3, 1, 4))
    return as_bf16(w) if mode.stored == 8 else w


def problem(conv, rows, bands, pieces, to_channels, channels):
    """Return the kernel's argument `Problem`, an array of 32-bit integers."""
    numbers = [conv.images, channels, conv.height, conv.width, *conv.pad, conv.stride, *conv.taps, *conv.windows]
    numbers += [to_channels, *conv.to, conv.step, *conv.first, conv.pitch, rows, bands, pieces]
    by_pitch = -(-(1 << 32) // conv.pitch)
    return np.array([*numbers, by_pitch % (1 << 32)], np.int64).astype(np.uint32).view("V88")


@cache
def _kernel(name, function, **macros):
    kernel = kernels.load(name, **macros).get_function(function)
    kernel.max_dynamic_shared_size_bytes = SHARED - BARRIERS
    return kernel


def prepare(name, shape, which, a, b, tiling=None):
    """Return a pass that is ready; see `Rung`. name: of a mode. tiling: instead of the most promising one."""
    mode = MODES[name]
    if reason := why_not(name, shape, which):
        raise ValueError(reason)
    if which == "weight_gradient":
        return prepare_weights(mode, shape, a, b)
    import cupy

    out_channels = padded(shape.channels_out if which == "forward" else shape.channels)
    to = cupy.zeros((shape.batch, out_channels // mode.stored, *shape.operands(which)[2][2:], mode.stored))
    to = to.astype(np.uint16 if mode.stored == 8 else np.float32)
    images = images_as_planes(a, mode)
    found = cupy.zeros((2, 2 * MULTIPROCESSORS), np.float32)
    calls, kept = [], []
    for conv, rows, columns in convolutions(shape, which):
        w = (b if which == "forward" else b.swapaxes(0, 1))[:, :, rows, columns]
        chosen = tiling or tilings(conv, mode)[0]
        filters = filters_in_order(w, mode, chosen)
        calls.append(_launch(mode, conv, chosen, (images, filters, to, found)))
        kept.append(filters)
    if mode.converts:
        calls.insert(
            0, _largest(FORWARD, found, images, kernels_filters := cupy.concatenate([f.ravel() for f in kept]))
        )
        kept.append(kernels_filters)
    channels = shape.channels_out if which == "forward" else shape.channels

    def call():
        for one in calls:
            one()

    return Prepared(call, lambda: planes_as_images(to, channels), found.nbytes if mode.converts else 0, (images, *kept))


def _largest(name, found, a, b):
    """Return a function that finds the largest magnitude of each of two arrays, one number a block."""
    kernel = _kernel(name, "largest", MODE=3)
    arguments = (a, np.uint64(a.size // 4), b, np.uint64(b.size // 4), found)
    return lambda: kernel((found.shape[1],), (512,), arguments)


def _launch(mode, conv, tiling, arrays):
    images, filters, to, found = arrays
    rows, bands = tiling.rows(conv)
    about = problem(
        conv, rows, bands, tiling.width + conv.reach, to.shape[1] * to.shape[4], images.shape[1] * images.shape[4]
    )
    shared = tiling.shared(conv, mode)
    kernel = _kernel(FORWARD, "convolve", MODE=mode.number, **tiling.macros)
    arguments = (about, images, filters, to, found, np.int32(found.shape[1]))
    return lambda: kernel((tiling.blocks(conv),), (tiling.threads,), arguments, shared_mem=shared)


@dataclass(frozen=True)
class Division:
    """Of the weight gradient: its macros chunk and slots, the rows of a band, its windows, and how many slices."""

    chunk: int
    slots: int
    rows: int
    bands: int
    windows: int
    tiles: tuple[int, int, int]  # by 64 output channels, by chunks, by groups of nine taps
    slices: int

    @property
    def numbers(self):
        return 3 * 3 * self.chunk // 2 * 128 * int(np.prod(self.tiles))  # of a slice


def division(conv, mode):
    """Return how the weight gradient's work is divided; None where not even two rows of windows fit."""
    chunk = 64 if padded(conv.channels) % 64 == 0 else 32 if padded(conv.channels) % 32 == 0 else 16
    tiles = -(-conv.channels_out // 64), padded(conv.channels) // chunk, -(-conv.taps[0] * conv.taps[1] // 9)
    best = None
    for rows in range(1, conv.windows[0] + 1):
        windows = padded(rows * conv.pitch)
        groups = [conv.stride**2 * (windows + conv.reach) * chunk, windows * 64]
        slot = sum(groups) // 8 * mode.parts * 16
        slots = min(4, (SHARED - BARRIERS) // slot)
        if slots < 2:
            continue
        bands = -(-conv.windows[0] // rows)
        rows = -(-conv.windows[0] // bands)
        slices = max(1, min(MULTIPROCESSORS // int(np.prod(tiles)), conv.images * bands))
        each = -(-conv.images * bands // slices)
        work = each * (windows + 24)
        found = Division(chunk, slots, rows, bands, windows, tiles, -(-conv.images * bands // each))
        if best is None or work < best[0]:
            best = work, found
    return best and best[1]


def prepare_weights(mode, shape, a, b):
    """Return a weight gradient that is ready."""
    import cupy

    conv = convolutions(shape, "forward")[0][0]
    found, d = cupy.zeros((2, 2 * MULTIPROCESSORS), np.float32), division(conv, mode)
    images, dy = images_as_planes(a, mode), images_as_planes(b, mode)
    dw, partial_sums = cupy.empty(shape.w, np.float32), cupy.empty((d.slices, d.numbers), np.float32)
    channels = padded(shape.channels_out)
    about = problem(conv, d.rows, d.bands, d.windows + conv.reach, channels, padded(shape.channels))
    divided = np.array([d.windows, channels, *d.tiles, d.slices], np.int32).view("V24")
    groups = d.chunk // mode.channels
    shared = d.slots * mode.parts * 16 * (groups * conv.stride**2 * (d.windows + conv.reach) + 8 * d.windows)
    macros = {"MODE": mode.number, "CHUNK": d.chunk, "SLOTS": d.slots}
    multiply, add = (_kernel(WEIGHTS, name, **macros) for name in ("multiply", "add"))
    last = found, np.int32(found.shape[1])
    largest = _largest(WEIGHTS, found, images, dy) if mode.converts else None
    blocks = d.slices * int(np.prod(d.tiles))

    def call():
        if largest:
            largest()
        multiply((blocks,), (512,), (about, divided, images, dy, partial_sums, *last), shared_mem=shared)
        sizes = (np.int32(shape.channels_out), np.int32(shape.channels))
        add((-(-d.numbers // 256),), (256,), (about, divided, partial_sums, dw, *sizes, *last))

    return Prepared(call, lambda: dw, partial_sums.nbytes + found.nbytes, (images, dy))


def why_not(name, shape, which):
    """Return why a mode can't, a sentence, or None."""
    if which == "weight_gradient" and name == "tf32":
        return "wgmma does not turn numbers of TF32, as the weight gradient needs: halves have as many digits."
    if which == "weight_gradient" and division(convolutions(shape, "forward")[0][0], MODES[name]) is None:
        return "two bands of one row each do not fit into shared memory."
    if which != "weight_gradient" and max(shape.width, shape.out_width) > WIDTHS[-1]:
        return f"a row of more than {WIDTHS[-1]} pixels does not fit in a tile of the planes."
    return None


def _rung(name, label):
    return Rung(
        label, (FORWARD, WEIGHTS), MODES[name].precision, "planes", partial(prepare, name), partial(why_not, name)
    )


RUNGS = {
    "planes_bf16": _rung("bf16", "planes, bfloat16"),
    "planes_tf32": _rung("tf32", "planes, TF32"),
    "planes_fp16": _rung("fp16", "planes, halves"),
    "planes_fp16x3": _rung("fp16x3", "planes, three products of halves"),
}

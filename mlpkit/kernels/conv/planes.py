"""Convolutions on planes: windows are never gathered, a tap is an address. For one chip alone, Hopper's (sm_90a).

`conv_11_planes.cu` has the forward pass and the input gradient, `conv_12_planes_weights.cu` the weight gradient, and
`planes.cuh` how images lie. Here is what a launch is told: how wide a row is in shared memory, how many rows a tile
has, and where the results go. The widths of tiles are those that `wgmma.cuh` has.
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import tensor_map

from . import Prepared, Rung

FORWARD, WEIGHTS = "conv_11_planes", "conv_12_planes_weights"
MOST_PIECES = 128  # of a row: the copy engine takes boxes of at most 256 numbers of 8 bytes a side
WIDTHS = (32, 64, 104, 144, 176, 208)
SHARED, BARRIERS = 227 << 10, 256  # bytes of shared memory that a block may have, and those not of the rings
MULTIPROCESSORS = 132  # that the tilings are made for: an H100's and an H200's
# Windows that a block sums for the weight gradient where float32 is meant. Tensor cores cut what they add, and so the
# error grows with the sum: by 3e-9 of the result's norm a window, as measured; the slices are added by float32 adders.
MOST_SUMMED = 1_500


@dataclass(frozen=True)
class Mode:
    """How numbers are stored and multiplied. number: of the macro MODE. stored: channels in 16 bytes of an operand.

    halves: those that a number of float32 is made into before the product; 0 where it is multiplied as it is stored.
    """

    number: int
    precision: str
    stored: int
    halves: int = 0

    @property
    def parts(self):
        return max(1, self.halves)

    @property
    def channels(self):
        """Channels in 16 bytes of shared memory."""
        return 8 if self.halves else self.stored


MODES = {
    "bf16": Mode(0, "bf16", 8),
    "tf32": Mode(1, "tf32", 4),
    "fp16": Mode(2, "tf32", 4, halves=1),
    "fp16x3": Mode(3, "float32", 4, halves=2),
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

    def box(self, rows):
        """Return the rows and columns of pieces that are copied for so many rows of windows, in each phase.

        Where a row's padding is that of the next one, that is copied, too.
        """
        wraps = self.windows[1] - 1 + (self.taps[1] - 1) // self.stride >= self.pitch
        return rows + (self.taps[0] - 1) // self.stride + wraps, self.pitch

    def pieces(self, rows):
        """Return the room of such a box: a multiple of 128 bytes."""
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
    whether each tap's sums are added by float32 adders.
    """

    width: int
    tiles: int
    heights: int
    chunk: int
    blocks: int = 1
    slots: int = 4
    resident: bool = False
    promote: bool = False

    @property
    def macros(self):
        return {name.upper(): int(value) for name, value in vars(self).items()}

    @property
    def threads(self):
        return 128 * self.tiles * self.heights + 64

    def rows(self, conv):
        """Return how many rows of windows a tile has, and how many tiles an image; None where not even one row fits."""
        if self.width < conv.windows[1]:
            return None
        most = min(conv.windows[0], (self.width - conv.windows[1]) // conv.pitch + 1)
        bands = -(-conv.windows[0] // most)
        return -(-conv.windows[0] // bands), bands

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
        return buffers * self.tiles * image + self.slots * self.heights * 64 * groups


def padded(channels, multiple=16):
    """Return a number of channels, rounded up to what is stored."""
    return -(-channels // multiple) * multiple


# Tiles and heights of a block, blocks on a multiprocessor, how many sums a thread has registers for, and how much
# longer the same work took: of numbers of 16 bits, and of float32. Where nobody else multiplies, waiting is seen.
BLOCKS = ((1, 1, 1, 208, 1.15, 1), (1, 1, 2, 144, 1, 1.06), (2, 1, 1, 144, 1, 1.06), (1, 2, 1, 144, 0.98, 1.06))


def tilings(conv, mode):
    """Return the tilings that fit, the most promising first: by the multiplications of the busiest multiprocessor."""
    found = []
    chunk = next(chunk for chunk in (64, 32, 16) if padded(conv.channels) % chunk == 0)
    stages = padded(conv.channels) // chunk * conv.taps[0] * conv.taps[1]
    promote = mode.parts > 1
    for width, (tiles, heights, blocks, most, *longer) in product(WIDTHS, BLOCKS):
        fit = [
            tiling
            for slots, resident in ((stages, True), (4, False), (3, False), (2, False))
            if (tiling := Tiling(width, tiles, heights, chunk, blocks, slots, resident, promote)).rows(conv)
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
        return [(Convolution(*sizes, (p, p), s, (k, k), windows, windows), slice(None), slice(None))]
    sizes = (n, shape.channels_out, shape.channels, shape.out_height, shape.out_width)
    found = []
    for a, b in product(range(s), repeat=2):
        pad_y, taps_y, windows_y, rows = _phase(a, shape.height, k, s, p)
        pad_x, taps_x, windows_x, columns = _phase(b, shape.width, k, s, p)
        if taps_y * taps_x * windows_y * windows_x:
            sides = (pad_y, pad_x), 1, (taps_y, taps_x), (windows_y, windows_x)
            found.append((Convolution(*sizes, *sides, (shape.height, shape.width), s, (a, b)), rows, columns))
    return found


def _phase(first, size, k, s, p):
    """Return of each s-th pixel of a side, from `first` on: padding, taps that hit them, their number, and the taps."""
    start = (first + p) % s  # the first of them
    taps = len(range(start, k, s))
    turned = slice(start + s * (taps - 1), start - 1 if start else None, -s)
    return taps - 1 - (first + p - start) // s, taps, len(range(first, size, s)), turned


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


def problem(conv, rows, bands, pieces, to_channels):
    """Return the kernel's argument `Problem`, an array of 32-bit integers."""
    box = conv.box(rows)
    numbers = [conv.images, padded(conv.channels), conv.height, conv.width, *conv.pad, *conv.taps, *conv.windows]
    numbers += [to_channels, *conv.to, conv.step, *conv.first, conv.pitch, rows, bands, pieces, box[0] * box[1]]
    by_pitch = -(-(1 << 32) // conv.pitch)
    return np.array([*numbers, by_pitch % (1 << 32)], np.int64).astype(np.uint32).view("V88")


@cache
def _kernel(name, function, **macros):
    kernel = kernels.load(name, **macros).get_function(function)
    kernel.max_dynamic_shared_size_bytes = SHARED - BARRIERS
    kernel.preferred_shared_memory_carveout = 100
    return kernel


def prepare(name, shape, which, a, b, tiling=None):
    """Return a pass that is ready; see `Rung`. name: of a mode. tiling: instead of the most promising one.

    Raises ValueError where the mode can't.
    """
    mode = MODES[name]
    if reason := why_not(name, shape, which):
        raise ValueError(reason)
    if which == "weight_gradient":
        return prepare_weights(mode, shape, a, b)
    import cupy

    channels = shape.channels_out if which == "forward" else shape.channels
    size = shape.batch, padded(channels) // mode.stored, *shape.operands(which)[2][2:], mode.stored
    to = cupy.zeros(size, np.uint16 if mode.stored == 8 else np.float32)
    images, launches, calls = images_as_planes(a, mode), [], []
    for conv, rows, columns in convolutions(shape, which):
        w = (b if which == "forward" else b.swapaxes(0, 1))[:, :, rows, columns]
        chosen = tiling or tilings(conv, mode)[0]
        launches.append((conv, chosen, filters_in_order(w, mode, chosen)))
    filters = cupy.concatenate([filters.ravel() for _, _, filters in launches])
    halves = Halves(FORWARD, mode, images, filters, launches[0][1].chunk * 8) if mode.halves else None
    at, found = 0, halves.scales if halves else cupy.zeros(2, np.float32)
    images, filters = halves.made if halves else (images, filters)
    for conv, chosen, part in launches:
        mine = filters[at * mode.parts : (at + part.size) * mode.parts]
        calls.append(_launch(mode, conv, chosen, (images, mine, to, found)))
        at += part.size

    def call():
        for one in [halves.call, *calls] if halves else calls:
            one()

    workspace = halves.nbytes if halves else 0
    return Prepared(call, lambda: planes_as_images(to, channels), workspace, (images, filters, halves))


class Halves:
    """Two arrays of float32 as halves, one or two for each number: planes of images, and planes or filters.

    `call()` asks for the kernel that makes them; `made`: the arrays of halves; `scales`: what the kernel leaves for its
    next launch. block: of the second array, how many pieces are followed by their second halves; all, where it is None.
    """

    def __init__(self, name, mode, a, b, block=None):
        import cupy

        self.scales = cupy.zeros(8, np.uint32)
        self.scales[:2] = np.float32(1).view(np.uint32)
        self.made = [cupy.empty(mode.parts * array.size, np.uint16) for array in (a, b)]
        self.nbytes = self.scales.nbytes + sum(array.nbytes for array in self.made)
        areas = [array.shape[2] * array.shape[3] if array.ndim == 5 else 1 for array in (a, b)]
        pieces = [
            np.array([array.data.ptr, made.data.ptr, array.size // 8 | area << 32, of], np.uint64).view("V32")
            for array, made, area, of in zip((a, b), self.made, areas, (a.size // 8, block or b.size // 8), strict=True)
        ]
        split = _kernel(name, "split", MODE=mode.number)
        blocks, arguments = multiprocessors(), (*pieces, self.scales)
        self.call = lambda: split.kernel((blocks,), (1024,), arguments, enable_cooperative_groups=True)
        self.keeps = a, b


@cache
def multiprocessors():
    """Return how many multiprocessors this GPU has."""
    import cupy

    return cupy.cuda.Device().attributes["MultiProcessorCount"]


def _map(images, mode, conv, box):
    """Return the tensor map of images or their halves; a box is rows and columns of a plane, each `stride`-th of both.

    The kernel's coordinates are 2 x, y, plane; for a stride of 2 they are 0, x, y, plane. Raises RuntimeError where the
    driver refuses.
    """
    planes = conv.images * padded(conv.channels) // mode.channels * mode.parts
    (rows, columns), s = box, conv.stride
    sizes, strides = [conv.width, conv.height, planes], [16 * conv.width, 16 * conv.width * conv.height]
    boxes = [[2 * columns, rows, 1], [1, 1, 1]]  # and steps
    if s == 1:  # a row's pieces follow each other: one dimension of numbers of 8 bytes
        sizes[0] *= 2
    else:
        sizes, strides, boxes = [2, *sizes], [16, *strides], [[2, s * columns, s * rows, 1], [1, s, s, 1]]
    kind, swizzle = tensor_map.UINT64, tensor_map.NO_SWIZZLE
    status, found = tensor_map.tiled(kind, images.data.ptr, sizes, strides, boxes, swizzle)
    if status:
        raise RuntimeError(f"the driver makes no tensor map of {planes} planes, boxes of {box}: CUDA error {status}.")
    return found


def _launch(mode, conv, tiling, arrays):
    images, filters, to, found = arrays
    rows, bands = tiling.rows(conv)
    to_channels = to.shape[1] * to.shape[4]
    about = problem(conv, rows, bands, conv.pieces(rows), to_channels)
    shared, (_, blocks) = tiling.shared(conv, mode), tiling.items(conv)
    kernel = _kernel(FORWARD, "convolve", MODE=mode.number, STRIDE=conv.stride, **tiling.macros)
    arguments = (_map(images, mode, conv, conv.box(rows)), about, filters, to, found)
    return lambda: kernel((blocks,), (tiling.threads,), arguments, shared_mem=shared)


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
    def numbers(self):
        """How many sums a slice has."""
        return 3 * 3 * self.chunk // 2 * 128 * int(np.prod(self.tiles))

    def slot(self, conv, mode):
        """Return the bytes of shared memory that a band takes."""
        plane = conv.stride**2 * (self.windows + conv.reach) | 1  # an odd number
        return (self.chunk // 8 * plane + 8 * (self.windows | 1)) * mode.parts * 16


def division(conv, mode, cluster=2):
    """Return how the weight gradient's work is divided; None where not even two rows of windows fit.

    cluster: blocks, at most; with 4 of them some multiprocessors stay without one.
    """
    chunk = 64 if padded(conv.channels) % 64 == 0 else 32 if padded(conv.channels) % 32 == 0 else 16
    tiles = -(-conv.channels_out // 64), padded(conv.channels) // chunk, -(-conv.taps[0] * conv.taps[1] // 9)
    at_once = max(1, MULTIPROCESSORS // 2 * 2 // int(np.prod(tiles)))  # slices
    best = None
    for most in range(1, conv.windows[0] + 1):
        bands = -(-conv.windows[0] // most)
        rows = -(-conv.windows[0] // bands)
        windows = padded(rows * conv.pitch)
        each = -(-conv.images * bands // min(at_once, conv.images * bands))
        if mode.parts > 1:
            each = min(each, max(1, MOST_SUMMED // windows))
        slices = -(-conv.images * bands // each)
        together = min(slices, cluster)
        slices = padded(slices, together)
        found = Division(chunk, 2, rows, bands, windows, tiles, slices, together)
        slots = min(4, (SHARED - BARRIERS) // found.slot(conv, mode))
        work = -(-slices // at_once) * each * (windows + 24)
        if slots >= 2 and (best is None or work < best[0]):
            best = work, replace(found, slots=slots)
    return best and best[1]


def prepare_weights(mode, shape, a, b):
    """Return a weight gradient that is ready."""
    import cupy

    conv = convolutions(shape, "forward")[0][0]
    d, channels = division(conv, mode), padded(shape.channels_out)
    images, dy = images_as_planes(a, mode), images_as_planes(b, mode)
    halves = Halves(WEIGHTS, mode, images, dy) if mode.halves else None
    images, dy = halves.made if halves else (images, dy)
    found = halves.scales if halves else cupy.zeros(2, np.float32)
    dw, partial_sums = cupy.empty(shape.w, np.float32), cupy.empty((d.slices // d.cluster, d.numbers), np.float32)
    about = problem(conv, d.rows, d.bands, d.windows + conv.reach, channels)
    divided = np.array([d.windows, channels, d.windows | 1, *d.tiles, d.slices], np.int32).view("V28")
    macros = {"MODE": mode.number, "STRIDE": conv.stride, "CHUNK": d.chunk, "SLOTS": d.slots, "CLUSTER": d.cluster}
    multiply, add = (_kernel(WEIGHTS, name, **macros) for name in ("multiply", "add"))
    sizes = np.int32(shape.channels_out), np.int32(shape.channels), found
    blocks, shared = d.slices * int(np.prod(d.tiles)), max(d.slots * d.slot(conv, mode), 9 * d.chunk // 2 * 512)

    def call():
        if halves:
            halves.call()
        multiply((blocks,), (512,), (about, divided, images, dy, partial_sums), shared_mem=shared)
        add((-(-d.numbers // 256),), (256,), (about, divided, partial_sums, dw, *sizes))

    return Prepared(call, lambda: dw, partial_sums.nbytes + (halves.nbytes if halves else 0), (images, dy, halves))


def why_not(name, shape, which):
    """Return why a mode can't, a sentence, or None."""
    if which == "weight_gradient" and name == "tf32":
        return "wgmma does not turn numbers of TF32, as the weight gradient needs: halves have as many digits."
    if which == "weight_gradient" and division(convolutions(shape, "forward")[0][0], MODES[name]) is None:
        return "two bands of one row each do not fit into shared memory."
    if any(conv.pitch > MOST_PIECES for conv, _, _ in convolutions(shape, which)):
        return f"the copy engine takes rows of at most {MOST_PIECES} pieces, padding included, and these are wider."
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

"""The rungs that multiply a matrix of windows which is never in memory: on CUDA cores and on tensor cores.

What the kernels are given: images by pixels (n, h, w, c) or, for `implicit_nchw`, as they are; filters as a matrix
(k k c, o) for a forward pass, and for an input gradient (k k o, c), phase by phase: see `implicit.cuh`. bfloat16 images
and filters have channels up to the next multiple of 8, zeros. The others are copied number by number where their
channels are no multiple of 4: that is slower. A weight gradient is (k k c, o).
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mlpkit import kernels

from . import Prepared, Rung

MULTIPROCESSORS = 132  # of an H200: tiles and slices are chosen for it, and right anywhere
ENOUGH_BLOCKS = 96  # for 132 multiprocessors
MOST = 2**31 - 1
_DIVIDER = np.dtype([("factor", np.uint32), ("shift", np.uint32)])
_SIZES = ("images", "channels", "height", "width", "channels_out", "out_height", "out_width")
GEOMETRY = np.dtype(
    [(name, np.int32) for name in (*_SIZES, "kernel", "stride", "padding")]
    + [("by_image", _DIVIDER, 4), ("by_line", _DIVIDER, 4)]
)


@dataclass(frozen=True)
class Tile:
    """How a kernel is compiled: the tiles of a block and of a warp, the k of a step, and how many the ring holds.

    at_a_time: how many blocks for each multiprocessor the slices of a weight gradient make up.
    """

    m: int
    n: int
    warp_m: int
    warp_n: int
    depth: int
    stages: int
    at_a_time: int = 1

    @property
    def threads(self):
        """The threads of a block."""
        return 32 * (self.m // self.warp_m) * (self.n // self.warp_n)

    @property
    def macros(self):
        """What `kernels.load` is given."""
        names = ("TILE_M", "TILE_N", "WARP_M", "WARP_N", "DEPTH", "STAGES")
        return dict(zip(names, vars(self).values(), strict=False))

    def shared_bytes(self, which, size, on_cores=True):
        """Return the bytes of shared memory that a block needs, for numbers of `size` bytes."""
        four, rows = 16 // size, -(-16 * self.m // 128) * 128
        if not on_cores:
            by_rows = rows + self.stages * 4 * (self.m * (self.depth + 4) + self.depth * (self.n + 4))
            transposed = max(self.stages * self.depth * (self.m + 4 + self.n + 4), self.n * (self.m + 4))
            return max(by_rows, rows + 4 * transposed)
        if which == "weight_gradient":
            begins, results = -(-16 * self.depth // 128) * 128, 4 * self.m * (self.n + 8)
            return begins + max(results, self.stages * size * self.depth * (self.m + 8 + self.n + 8))
        tiles = self.stages * size * (self.m * (self.depth + four) + self.depth * (self.n + 8))
        return rows + max(size * self.m * (self.n + 8), tiles)


def divider(number):
    """Return the factor and the shift that divide any number below 2**31 by `number`, as `implicit.cuh` does it."""
    shift = (number - 1).bit_length()
    return (2**32 * (2**shift - number)) // number + 1, shift


def geometry(shape, which):
    """Return what a kernel is told of a shape, an array of one item that a launch passes by value."""
    sizes = (shape.batch, shape.channels, shape.height, shape.width, shape.channels_out)
    out = (shape.out_height, shape.out_width)
    windows = [size for size, _ in phases(shape)] if which == "input_gradient" else [out]
    windows += [(1, 1)] * (4 - len(windows))
    dividers = [
        [divider(max(1, size)) for size in sizes] for sizes in ([h * w for h, w in windows], [w for _, w in windows])
    ]
    return np.array([(*sizes, *out, shape.kernel, shape.stride, shape.padding, *dividers)], GEOMETRY)


def phases(shape):
    """Yield for each phase of an input gradient the lines and columns of its pixels, and the taps that hit: slices."""
    for y in range(shape.stride):
        for x in range(shape.stride):
            pixels = (len(range(y, shape.height, shape.stride)), len(range(x, shape.width, shape.stride)))
            first = ((y + shape.padding) % shape.stride, (x + shape.padding) % shape.stride)
            yield pixels, tuple(slice(tap, None, shape.stride) for tap in first)


def blocks(shape, which, tile):
    """Return how many blocks a pass has; those of a weight gradient are of one slice."""
    if which == "weight_gradient":
        return -(-shape.channels * shape.kernel**2 // tile.m) * -(-shape.channels_out // tile.n)
    if which == "forward":
        return -(-shape.batch * shape.out_height * shape.out_width // tile.m) * -(-shape.channels_out // tile.n)
    across = -(-shape.channels // tile.n)
    return sum(-(-shape.batch * h * w // tile.m) * across for (h, w), _ in phases(shape))


def slices(shape, tile):
    """Return the pixels of a slice, and how many slices there are: about as many as run at a time."""
    pixels = shape.batch * shape.out_height * shape.out_width
    wanted = max(1, tile.at_a_time * MULTIPROCESSORS // blocks(shape, "weight_gradient", tile))
    each = -(-pixels // (wanted * tile.depth)) * tile.depth
    return each, -(-pixels // each)


def filters_of(kind, shape, which, w, xp):
    """Return the filters (o, c, k, k) as the matrix of a pass, in the kind's numbers."""
    if kind.size == 2:
        w = to_bf16(filled(filled(w, 0, 8, xp), 1, 8, xp), xp)
    if which == "forward":
        return xp.ascontiguousarray(w.transpose(2, 3, 1, 0))
    parts = [w[:, :, taps[0], taps[1]].transpose(2, 3, 0, 1).reshape(-1) for _, taps in phases(shape)]
    return xp.concatenate(parts)


def images_of(kind, images, xp):
    """Return images (n, c, h, w) as the kind stores them."""
    if kind.layout == "nchw":
        return xp.ascontiguousarray(images)
    images = images.transpose(0, 2, 3, 1)
    return to_bf16(filled(images, 3, 8, xp), xp) if kind.size == 2 else xp.ascontiguousarray(images)


def filled(array, axis, multiple, xp):
    """Return an array with zeros at the end of an axis up to a multiple."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, -array.shape[axis] % multiple)
    return xp.pad(array, widths) if widths[axis][1] else array


def to_bf16(array, xp):
    """Return float32 numbers rounded to bfloat16, as the 16 bits of each."""
    bits = xp.ascontiguousarray(array).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(array):
    """Return numbers given by their 16 bits as float32."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def why_not(shape, which):
    """Return why these rungs can't compute a pass, a sentence, or None: their kernels count with 32 bits."""
    n, c, h, w = shape.x
    pixels = n * max(h * w, shape.out_height * shape.out_width) + 2**16
    largest = max(pixels, n * (c + 7) * h * w, n * (shape.channels_out + 7) * shape.out_height * shape.out_width)
    if largest > MOST:
        return (
            f"an image batch of {largest} numbers is too large: these kernels count up to {MOST}, so split the batch."
        )
    return None


@dataclass(frozen=True)
class _Kind:
    """A rung's kernels: their file, bytes of a number, whether channels come first, and macros of their own."""

    label: str
    file: str
    precision: str
    size: int = 4
    layout: str = "nhwc"
    on_cores: bool = True  # tensor cores
    macros: tuple = ()


KINDS = {
    "implicit_nchw": _Kind(
        *("implicit product, channel by channel", "conv_5_implicit", "float32"),
        layout="nchw",
        on_cores=False,
        macros=(("CHANNELS_FIRST", 1),),
    ),
    "implicit_nhwc": _Kind("implicit product, pixel by pixel", "conv_5_implicit", "float32", on_cores=False),
    "tf32": _Kind("implicit product, TF32", "conv_6_tf32", "tf32"),
    "tf32x3": _Kind("implicit product, three TF32 products", "conv_7_tf32x3", "float32"),
    "bf16": _Kind("implicit product, bfloat16", "conv_8_bf16", "bf16", size=2),
}


# The fastest of those tried on an H200, by the columns of the product that they are for: an image's channels, or its
# gradient's. Two tables a rung: for products of windows and filters, and for weight gradients.
TILES = {
    "implicit_nchw": (
        {
            16: Tile(128, 16, 32, 16, 16, 3),
            32: Tile(128, 32, 32, 32, 8, 4),
            64: Tile(64, 64, 32, 32, 16, 3),
            128: Tile(128, 128, 64, 32, 16, 3),
        },
        {
            32: Tile(128, 32, 32, 32, 16, 3, 2),
            64: Tile(128, 64, 64, 32, 16, 3, 2),
            128: Tile(64, 128, 32, 64, 8, 4, 3),
            256: Tile(128, 256, 64, 64, 8, 4, 3),
        },
    ),
    "implicit_nhwc": (
        {
            16: Tile(128, 16, 32, 16, 16, 3),
            32: Tile(128, 32, 32, 32, 16, 3),
            64: Tile(64, 64, 32, 32, 16, 3),
            128: Tile(128, 128, 64, 32, 16, 3),
            256: Tile(128, 256, 64, 64, 16, 3),
        },
        {
            32: Tile(128, 32, 32, 32, 16, 3, 3),
            64: Tile(64, 64, 64, 32, 8, 4, 4),
            128: Tile(64, 128, 32, 64, 16, 3, 3),
            256: Tile(128, 256, 64, 64, 8, 4, 3),
        },
    ),
    "tf32": (
        {
            16: Tile(256, 16, 32, 16, 32, 2),
            32: Tile(256, 32, 32, 32, 32, 2),
            64: Tile(64, 64, 32, 32, 32, 2),
            128: Tile(128, 128, 64, 32, 32, 2),
            256: Tile(128, 256, 64, 64, 32, 3),
        },
        {
            32: Tile(288, 32, 32, 32, 32, 2, 1),
            64: Tile(64, 64, 32, 32, 32, 3, 2),
            128: Tile(64, 128, 32, 64, 32, 2, 2),
            256: Tile(128, 256, 64, 64, 32, 3, 1),
        },
    ),
    "tf32x3": (
        {
            16: Tile(256, 16, 32, 16, 32, 2),
            32: Tile(256, 32, 64, 32, 32, 2),
            64: Tile(64, 64, 32, 32, 32, 3),
            128: Tile(128, 128, 64, 32, 32, 3),
        },
        {
            32: Tile(288, 32, 32, 32, 32, 3, 1),
            64: Tile(64, 64, 32, 32, 32, 2, 3),
            128: Tile(64, 128, 32, 64, 32, 2, 2),
            256: Tile(128, 128, 64, 32, 32, 3, 3),
        },
    ),
    "bf16": (
        {
            16: Tile(256, 16, 32, 16, 64, 3),
            32: Tile(256, 32, 32, 32, 32, 3),
            64: Tile(128, 64, 64, 32, 64, 3),
            128: Tile(128, 128, 64, 32, 64, 3),
            256: Tile(128, 256, 64, 64, 64, 3),
        },
        {
            32: Tile(288, 32, 32, 32, 32, 3, 1),
            64: Tile(64, 64, 32, 32, 64, 3, 2),
            128: Tile(64, 128, 32, 64, 64, 3, 1),
            256: Tile(128, 256, 64, 64, 64, 3, 1),
        },
    ),
}


def tile_of(name, shape, which):
    """Return the tile of a rung for a shape and a pass.

    It is the first one of the table that is as wide as the product, or the widest. Where it makes up too few blocks for
    all multiprocessors, a smaller one is taken; a weight gradient has slices for that. Copies number by number need
    registers: where float32 channels are no multiple of 4, tiles are 64 wide at most, of weight gradients always.
    """
    columns = shape.channels if which == "input_gradient" else shape.channels_out
    odd = KINDS[name].size == 4 and KINDS[name].on_cores and (shape.channels % 4 or shape.channels_out % 4)
    table = TILES["tf32" if odd else name][which == "weight_gradient"]
    widths = sorted(table)
    if odd:
        widths = [64] if which == "weight_gradient" else [width for width in widths if width <= 64]
    place = next((i for i, width in enumerate(widths) if columns <= width), len(widths) - 1)
    while place > 0 and which != "weight_gradient" and blocks(shape, which, table[widths[place]]) < ENOUGH_BLOCKS:
        place -= 1
    return table[widths[place]]


def stored_shape(name, shape):
    """Return the shape as a rung stores it: bfloat16 has channels up to the next multiple of 8."""
    if KINDS[name].size == 4:
        return shape
    return replace(shape, channels=-(-shape.channels // 8) * 8, channels_out=-(-shape.channels_out // 8) * 8)


def macros_of(name, shape, which, tile):
    """Return the macros of a rung's kernels: its tile, and how many numbers a copy of A and of B brings."""
    kind, a, b = KINDS[name], shape.channels, shape.channels_out
    if which == "input_gradient":
        a, b = b, a
    four = 16 // kind.size
    values = {
        letter: four if channels % four == 0 else 1 for letter, channels in (("A_ELEMENTS", a), ("B_ELEMENTS", b))
    }
    if kind.on_cores:
        values["CACHED"] = 2 if kind.size == 2 and tile.n <= 128 else 1
    one_tap = {"ONE_TAP": int(a % tile.depth == 0)} if kind.layout == "nchw" else {}
    return tile.macros | values | one_tap | dict(kind.macros)


def prepare(name, shape, which, a, b, tile=None, **macros):
    """Return `Prepared` for a rung by its name. tile: the one to take; macros: more of them, for those who try."""
    import cupy as xp

    if reason := why_not(shape, which):
        raise ValueError(reason)
    kind, stored = KINDS[name], stored_shape(name, shape)
    tile = tile or tile_of(name, stored, which)
    module = kernels.load(kind.file, **(macros_of(name, stored, which, tile) | macros))
    first = images_of(kind, a, xp)
    second = images_of(kind, b, xp) if which == "weight_gradient" else filters_of(kind, stored, which, b, xp)
    kernel = module.get_function(which)
    kernel.max_dynamic_shared_size_bytes = shared = tile.shared_bytes(which, kind.size, kind.on_cores)
    grid, arguments = blocks(stored, which, tile), (geometry(stored, which), first, second)
    if which == "weight_gradient":
        return _sliced(module, kernel, shape, stored, tile, arguments, grid, shared, xp)
    n, c, h, w = stored.y if which == "forward" else stored.x
    out = xp.empty((n, c, h, w) if kind.layout == "nchw" else (n, h, w, c), np.float32 if kind.size == 4 else np.uint16)

    def call():
        kernel((grid,), (tile.threads,), (*arguments, out), shared_mem=shared)

    def result():
        channels = (shape.y if which == "forward" else shape.x)[1]
        values = from_bf16(out) if kind.size == 2 else out
        return xp.ascontiguousarray(values if kind.layout == "nchw" else values.transpose(0, 3, 1, 2)[:, :channels])

    return Prepared(call, result)


def _sliced(module, kernel, shape, stored, tile, arguments, grid, shared, xp):
    """Return `Prepared` for a weight gradient: the slices' sums, and a second kernel that adds them."""
    each, count = slices(stored, tile)
    values = stored.kernel**2 * stored.channels * stored.channels_out
    out = xp.empty((stored.kernel, stored.kernel, stored.channels, stored.channels_out), np.float32)
    sums = out if count == 1 else xp.empty((count, values), np.float32)
    add = module.get_function("add_slices")

    def call():
        kernel((grid * count,), (tile.threads,), (*arguments, sums, np.int32(each)), shared_mem=shared)
        if count > 1:
            add((-(-values // 32),), (256,), (sums, out, np.int32(values), np.int32(count)), shared_mem=1024)

    def result():
        return xp.ascontiguousarray(out.transpose(3, 2, 0, 1)[: shape.channels_out, : shape.channels])

    return Prepared(call, result, workspace=sums.nbytes if count > 1 else 0)


def _rung(name):
    kind = KINDS[name]
    return Rung(kind.label, (kind.file,), kind.precision, kind.layout, partial(prepare, name), why_not)


RUNGS = {name: _rung(name) for name in KINDS}

"""Convolutions on CUDA cores, in float32: from a thread a number to a patch in each thread's registers.

What a launch takes (its tiles, its blocks, its bytes of shared memory) is said by `registers_macros` and its like with
no GPU; CuPy is imported where one is needed.
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.conv import PASSES

from . import LAYERS, Prepared, Rung

MOST_SHARED = 227 << 10  # bytes that a block may have on an H100 or H200
PROCESSORS = 132


def _values(shape):
    return (
        *(shape.batch, shape.channels, shape.channels_out, shape.height, shape.width),
        *(shape.out_height, shape.out_width, shape.kernel, shape.stride, shape.padding),
    )


def _int32(*values):
    return tuple(map(np.int32, values))


def _ceil(a, b):
    return -(-a // b)


def _prepared(launches, out, keeps, workspace=0):
    """Return `Prepared` for kernels that follow each other: (kernel, blocks, threads, arguments, shared bytes)."""

    def call():
        for kernel, blocks, threads, arguments, shared in launches:
            kernel((blocks,), (threads,), arguments, shared_mem=shared)

    return Prepared(call, lambda: out, workspace, keeps)


def _checked(shape, which, a, b):
    """Raise ValueError where the operands are not those of the pass."""
    if (a.shape, b.shape) != (wanted := shape.operands(which)[:2]):
        raise ValueError(f"the {which} of {shape} needs arrays {wanted[0]} and {wanted[1]}, not {a.shape}, {b.shape}.")
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        raise ValueError(f"the {which} of {shape} needs arrays stored by rows: make them so with ascontiguousarray.")


def _function(name, which, shared=0, **macros):
    kernel = kernels.load(name, **macros).get_function(which)
    if shared > 48 << 10:
        kernel.max_dynamic_shared_size_bytes = shared  # more than 48 KiB has to be asked for
    return kernel


# ---- A thread a number ----


def _prepare_plain(name, shape, which, a, b):
    """A thread for each number of the result; in the direct rung, a warp for each weight."""
    import cupy

    _checked(shape, which, a, b)
    double = a.dtype == np.float64
    out = cupy.empty(shape.operands(which)[2], a.dtype)
    kernel = _function(name, which, **({"NUMBER": "double"} if double else {}))
    threads = out.size * (32 if name == "conv_1_direct" and which == "weight_gradient" else 1)
    launch = (kernel, _ceil(threads, 256), 256, (a, b, out, *_int32(*_values(shape))), 0)
    return _prepared([launch], out, (a, b))


# ---- Tiles in shared memory ----

SIDE, FILTERS, CHUNK, TILE, DEPTH = 8, 4, 8, 16, 32  # as in conv_2_shared.cu


def shared_launch(shape, which):
    """Return (blocks, bytes of shared memory, slices of the batch) of the rung "shared"."""
    taps = shape.kernel**2
    if which == "weight_gradient":
        tiles = taps * _ceil(shape.channels, TILE) * _ceil(shape.channels_out, TILE)
        slices = min(shape.batch, _ceil(8 * PROCESSORS, tiles))
        return tiles * slices, 4 * 2 * TILE * (DEPTH + 1), slices
    _, channels, height, width = shape.operands(which)[2]
    blocks = shape.batch * _ceil(channels, FILTERS) * _ceil(height, SIDE) * _ceil(width, SIDE)
    span = (SIDE - 1) * shape.stride + shape.kernel
    if which == "input_gradient":
        span = (SIDE + shape.kernel - 2) // shape.stride + 2
    return blocks, 4 * CHUNK * (span**2 + FILTERS * taps), 1


def _prepare_shared(shape, which, a, b):
    import cupy

    _checked(shape, which, a, b)
    macros = {"KERNEL": shape.kernel, "STRIDE": shape.stride, "PADDING": shape.padding}
    blocks, shared, slices = shared_launch(shape, which)
    out = cupy.empty(shape.operands(which)[2], np.float32)
    kernel = _function("conv_2_shared", which, shared, **macros)
    sizes = _int32(*_values(shape)[1:7])
    if which != "weight_gradient":
        return _prepared([(kernel, blocks, 256, (a, b, out, *sizes), shared)], out, (a, b))
    sums = cupy.empty((slices, *out.shape), np.float32)
    launches = [
        (kernel, blocks, 256, (a, b, sums, np.int32(shape.batch), *sizes, np.int32(slices)), shared),
        _adding("conv_2_shared", sums, out, macros, 256, 0),
    ]
    return _prepared(launches, out, (a, b, sums), sums.nbytes)


def _adding(name, sums, out, macros, weights_a_block, shared):
    """Return the launch that adds slices up."""
    kernel = _function(name, "add_slices", **macros)
    return kernel, _ceil(out.size, weights_a_block), 256, (sums, out, *_int32(out.size, len(sums))), shared


# ---- Patches in registers ----


@dataclass(frozen=True)
class Images:
    """What `conv_3_registers.cu` reads and writes in a pass; for the weights, x and dy."""

    channels: int
    height: int
    width: int
    channels_out: int
    out_height: int
    out_width: int
    kernel: int
    stride: int
    spread: int
    padding: int

    @property
    def taps(self):
        return self.kernel**2


def images_of(shape, which):
    """Return the `Images` of a pass. The input gradient reads dy, whose pixels lie `stride` apart."""
    x, y = (shape.channels, shape.height, shape.width), (shape.channels_out, shape.out_height, shape.out_width)
    if which == "input_gradient":
        return Images(*y, *x, shape.kernel, 1, shape.stride, shape.kernel - 1 - shape.padding)
    return Images(*x, *y, shape.kernel, shape.stride, 1, shape.padding)


def _odd(size, vector):
    """Return the next odd multiple of `vector` numbers: lines so long begin in different banks."""
    return (_ceil(size, vector) | 1) * vector


@dataclass(frozen=True)
class Tiles:
    """Who has what in `conv_3_registers.cu`; see its macros. slices_of_batch: of the sum, for the weights."""

    patch_h: int
    patch_w: int
    patches_y: int
    patches_x: int
    lanes: int
    each: int = 1
    groups: int = 1
    slices: int = 1
    chunk: int = 4
    vector: int = 1
    outs: int = 1
    slices_of_batch: int = 0

    @property
    def threads(self):
        """The threads of a block."""
        return self.lanes * self.slices * (self.groups if self.slices_of_batch else self.patches_y * self.patches_x)

    def read(self, images):
        """Return the rows and columns that a patch reads; columns that are zeros for all patches are left out."""
        first, before = images.padding % images.spread, -(images.padding // images.spread)
        high, wide = (
            _ceil((size - 1) * images.stride + images.kernel - first, images.spread)
            for size in (self.patch_h, self.patch_w)
        )
        if self.patch_w >= images.out_width:
            wide = min(wide + min(before, 0), images.width - max(before, 0))
        return high, wide

    def plane(self, images):
        """Return the numbers of a channel's tile in shared memory."""
        high, wide = self.read(images)
        rows = (self.patches_y - 1) * (self.patch_h * images.stride // images.spread) + high
        return rows * self.patches_x * _ceil(wide, 4) * 4

    def shared_bytes(self, images):
        """Return the bytes of shared memory of a block."""
        plane = self.plane(images)
        if self.slices_of_batch:
            strip = self.patches_y * self.patch_h * images.out_width
            stage = self.groups * self.each * plane + _ceil(self.lanes * self.outs * _odd(strip, self.vector), 4) * 4
            return max(8 * stage, 4 * self.outs * self.each * images.taps * (self.threads + 1))
        run = _odd(self.chunk * images.taps, self.vector)
        stage = self.chunk * plane + _ceil(self.lanes * self.each * run, 4) * 4
        pixels = self.patches_y * self.patch_h * self.patches_x * self.patch_w
        return max(8 * stage, 4 * self.lanes * (pixels | 1))

    def blocks(self, images, batch):
        """Return the number of blocks."""
        if self.slices_of_batch:
            groups = _ceil(images.channels_out, self.lanes * self.outs) * _ceil(
                images.channels, self.groups * self.each
            )
            return groups * self.slices_of_batch
        down = _ceil(images.out_height, self.patches_y * self.patch_h)
        across = _ceil(images.out_width, self.patches_x * self.patch_w)
        return batch * down * across * _ceil(images.channels_out, self.lanes * self.each)

    def macros(self, images, which):
        """Return the macros of the file."""
        found = {name.upper(): value for name, value in vars(images).items()}
        found |= {name.upper(): value for name, value in vars(self).items() if name != "slices_of_batch"}
        return found | {"PASS": PASSES.index(which)}


def registers(tiles, images):
    """Return about how many registers a thread takes."""
    pixels, wide = tiles.patch_h * tiles.patch_w, tiles.read(images)[1]
    if tiles.slices_of_batch:
        return tiles.outs * (tiles.each * images.taps + pixels) + wide + 36
    return tiles.each * (pixels + images.taps) + wide + 36


@cache
def _inside(out, size, images):
    """Return which part of the taps along an edge meets the image, of those that meet a pixel and no zero between."""
    places = np.arange(out)[:, None] * images.stride + np.arange(images.kernel) - images.padding
    places = places[places % images.spread == 0] // images.spread
    return np.mean((places >= 0) & (places < size)) if len(places) else 1.0


def _work(tiles, images):
    """Return multiply-adds of a thread for a patch of a channel (for the weights: of all of them), and its loads."""
    pixels, (high, wide) = tiles.patch_h * tiles.patch_w, tiles.read(images)
    products = pixels * images.taps / images.spread**2 * _inside(images.out_height, images.height, images)
    if tiles.patch_w >= images.out_width:
        products *= _inside(images.out_width, images.width, images)
    if tiles.slices_of_batch:
        return tiles.outs * tiles.each * products, tiles.each * high * wide + tiles.outs * pixels * 1.2
    return tiles.each * products, high * wide + tiles.each * images.taps * tiles.vector


def _turns(tiles, images, batch):
    """Return how often a thread does its work, how often it waits for copies, and what a block copies in all."""
    plane = tiles.plane(images)
    if not tiles.slices_of_batch:
        chunks = _ceil(images.channels, tiles.chunk)
        filters = tiles.lanes * tiles.each * images.taps * 8 / tiles.vector
        return chunks * _ceil(tiles.chunk, tiles.slices), chunks, images.channels * (plane * 3 + filters)
    waits = batch / tiles.slices_of_batch * _ceil(images.out_height, tiles.patches_y * tiles.patch_h)
    strip = tiles.lanes * tiles.outs * tiles.patches_y * tiles.patch_h * images.out_width
    copies = waits * (tiles.groups * tiles.each * plane * 3 + strip * 5 / tiles.vector)
    return waits * _ceil(tiles.patches_y * tiles.patches_x, tiles.slices), waits, copies


def microseconds(tiles, images, batch):
    """Return about how long a pass takes on an H200. What it is good for is to choose tiles."""
    multiplied, loaded = _work(tiles, images)
    turns, waits, copies = _turns(tiles, images, batch)
    blocks, warps = tiles.blocks(images, batch), _ceil(tiles.threads, 32)
    fits = min(65536 // (registers(tiles, images) * warps * 32), 2048 // tiles.threads)
    together = max(1, min(fits, MOST_SHARED // (tiles.shared_bytes(images) + 1024), _ceil(blocks, PROCESSORS)))
    waves = blocks / (PROCESSORS * together)
    waves = _ceil(waves, 1) if waves < 4 else waves + 0.3
    a_scheduler = _ceil(warps * together, 4)
    slow = {1: 1.35, 2: 1.08, 3: 1.03}.get(a_scheduler, 1.0) * (1.2 if multiplied > 4000 else 1.0)
    issued = turns * (1.35 * multiplied + loaded / 3 + 60) + copies / tiles.threads
    cycles = (a_scheduler * issued * slow) ** 4 + (turns * loaded * warps * together) ** 4
    values = tiles.each * (tiles.outs * images.taps if tiles.slices_of_batch else tiles.patch_h * tiles.patch_w)
    after = 1.5 + tiles.slices_of_batch * images.channels * images.channels_out * images.taps * 8 / 3e6
    return waves * (cycles**0.25 + waits * 300 + 2000 + values * 20) / 1900 + (after if tiles.slices_of_batch else 0)


def _parts(size, most, multiple=1):
    """Return the sizes of equal parts of an edge, each the least for its number of parts, from the largest on."""
    found = {_ceil(_ceil(size, count), multiple) * multiple for count in range(1, size + 1)}
    return sorted((part for part in found if part <= most), reverse=True) or [multiple]


@cache
def candidates(images, which, batch):
    """Return the `Tiles` that fit, those of the least estimated time first."""
    return sorted(fitting(images, which, batch), key=lambda tiles: microseconds(tiles, images, batch))


def fitting(images, which, batch):
    """Yield the `Tiles` that fit."""
    for patch_h in _parts(images.out_height, 16, images.spread):
        for patch_w in _parts(images.out_width, 32, images.spread):
            if not min(16, images.out_height * images.out_width) <= patch_h * patch_w <= 172:
                continue
            down, across = _ceil(images.out_height, patch_h), _ceil(images.out_width, patch_w)
            variants = _weight_variants if which == "weight_gradient" else _patch_variants
            for way in variants(images, batch, down, across):
                tiles = Tiles(patch_h, patch_w, **way)
                tiles = replace(tiles, vector=_vector(tiles, images, which))
                if _fits(tiles, images):
                    yield tiles


def _fits(tiles, images):
    if not 32 <= tiles.threads <= 1024 or tiles.threads % 32:
        return False
    most = min(250, 65536 // tiles.threads - 8)
    places = _ceil(tiles.plane(images), tiles.threads)
    return registers(tiles, images) + places <= most and tiles.shared_bytes(images) <= MOST_SHARED


def _lanes(images):
    """Return numbers of lanes worth a look: no more than twice the channels, but 32 are always a warp."""
    return [n for n in (1, 4, 8, 16, 32, 64, 128) if n < 2 * images.channels_out or n == 32]


def _patch_variants(images, batch, down, across):
    chunks = [n for n in (4, 8, 16) if n == 4 or n // 2 < images.channels]
    rows, columns = sorted({1, 2, down} & set(range(down + 1))), sorted({across, min(across, 2), min(across, 4)})
    for lanes, each, slices, chunk in product(_lanes(images), (1, 2), (1, 2, 4, 8, 16), chunks):
        if (each > 1 and lanes * each > images.channels_out) or slices > min(chunk, images.channels):
            continue
        for patches_y, patches_x in product(rows, columns):
            if 32 <= lanes * slices * patches_y * patches_x <= 1024:
                yield {
                    "lanes": lanes,
                    "each": each,
                    "slices": slices,
                    "chunk": chunk,
                    "patches_y": patches_y,
                    "patches_x": patches_x,
                }


def _weight_variants(images, batch, down, across):
    channels = ((1, 1), (1, 2), (1, 4), (2, 2), (4, 2))  # of a thread: of dy, and of x
    for lanes, (outs, each), groups in product(_lanes(images), channels, (1, 4, 8, 16)):
        if groups * each >= 2 * images.channels or (outs > 1 and lanes * outs > images.channels_out):
            continue
        blocks = _ceil(images.channels_out, lanes * outs) * _ceil(images.channels, groups * each)
        for patches_y, waves in product(sorted({1, 2, down} & set(range(down + 1))), (1, 2)):
            patches = patches_y * across
            for slices in sorted({1, 2, 4, min(16, patches)} & set(range(patches + 1))):
                if 32 <= lanes * groups * slices <= 512:
                    yield {
                        "lanes": lanes,
                        "outs": outs,
                        "each": each,
                        "groups": groups,
                        "slices": slices,
                        "patches_y": patches_y,
                        "patches_x": across,
                        "slices_of_batch": max(1, min(batch, PROCESSORS * waves // blocks)),
                    }


def _vector(tiles, images, which):
    """Return how many numbers of the filters, or of dy, a copy may take: 4, 2 or 1.

    Lanes read a filter's line number by number, and lines of copies of four begin in the same banks: two are better.
    """
    runs: tuple[int, ...]
    if which == "weight_gradient":
        runs = (images.out_height * images.out_width, images.out_width, tiles.patch_w)
    elif which == "input_gradient":
        runs = (tiles.lanes * tiles.each * images.taps, images.channels_out * images.taps)
    else:
        runs = (2, tiles.chunk * images.taps, images.channels * images.taps)
    return next(n for n in (4, 2, 1) if all(run % n == 0 for run in runs))


def _tuned():
    """Return what was the fastest of many on an H200 for the layers that are timed: {(shape, pass): tiles}."""
    small, same, mid, large = (LAYERS[name] for name in LAYERS if not name.startswith("1 "))
    wide = partial(Tiles, 7, 14, lanes=32, patches_x=2)
    return {
        (small, "forward"): Tiles(11, 11, 1, 1, 128, slices=2, chunk=16, vector=2),
        (small, "input_gradient"): Tiles(13, 13, 1, 1, 64, slices=4, chunk=32, vector=4),
        (small, "weight_gradient"): Tiles(11, 11, 1, 1, 16, each=4, groups=16, slices_of_batch=16),
        (same, "forward"): wide(patches_y=4, chunk=16, vector=2),
        (same, "input_gradient"): wide(patches_y=4, chunk=16, vector=4),
        (same, "weight_gradient"): Tiles(2, 28, 7, 1, 16, 2, 8, 2, vector=4, outs=2, slices_of_batch=64),
        (mid, "forward"): Tiles(7, 14, 2, 1, 64, slices=2, chunk=32, vector=2),
        (mid, "input_gradient"): Tiles(7, 14, 2, 1, 64, slices=2, chunk=32, vector=4),
        (mid, "weight_gradient"): Tiles(2, 14, 7, 1, 32, 4, 8, vector=2, outs=2, slices_of_batch=64),
        (large, "forward"): wide(patches_y=2, chunk=8, vector=2),
        (large, "input_gradient"): wide(patches_y=4, chunk=16, vector=4),
        (large, "weight_gradient"): Tiles(1, 28, 4, 1, 32, 2, 8, vector=4, outs=4, slices_of_batch=8),
    }


@cache
def tiles_of(shape, which, most_shared=MOST_SHARED):
    """Return the `Tiles` for a pass: those found best on an H200, or of the least estimated time; None: none fit.

    most_shared: bytes of shared memory that a block may have.
    """
    images = images_of(shape, which)
    tuned = _tuned().get((shape, which))
    if tuned and tuned.shared_bytes(images) <= most_shared:
        return tuned
    found = candidates(images, which, shape.batch)
    return next((tiles for tiles in found if tiles.shared_bytes(images) <= most_shared), None)


def _prepare_registers(shape, which, a, b, tiles=None):
    import cupy

    _checked(shape, which, a, b)
    most_shared = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    images, tiles = images_of(shape, which), tiles or tiles_of(shape, which, most_shared)
    if tiles is None:
        raise ValueError(f"{_TOO_LARGE.format(shape)}, and a block has {most_shared} bytes of it here.")
    tiles = _aligned(tiles, b)
    macros, shared = tiles.macros(images, which), tiles.shared_bytes(images)
    kernel = _function("conv_3_registers", which, shared, **macros)
    out = cupy.empty(shape.operands(which)[2], np.float32)
    blocks = tiles.blocks(images, shape.batch)
    if which != "weight_gradient":
        return _prepared([(kernel, blocks, tiles.threads, (a, b, out), shared)], out, (a, b))
    sums = cupy.empty((tiles.slices_of_batch, *out.shape), np.float32)
    values = _int32(shape.batch, tiles.slices_of_batch)
    launches = [
        (kernel, blocks, tiles.threads, (a, b, sums, *values), shared),
        _adding("conv_3_registers", sums, out, macros, 32, 1024),
    ]
    return _prepared(launches, out, (a, b, sums), sums.nbytes)


def _aligned(tiles, array):
    """Return tiles whose copies of the array may begin where it does: at a multiple of their bytes."""
    while array.data.ptr % (4 * tiles.vector):
        tiles = replace(tiles, vector=tiles.vector // 2)
    return tiles


_TOO_LARGE = "no patch of {} fits into a block's registers and shared memory"


def _why_not_registers(shape, which):
    if next(fitting(images_of(shape, which), which, shape.batch), None) is None:
        return f"{_TOO_LARGE.format(shape)}: take smaller images."
    return None


# ---- One channel ----


def one_channel_macros(shape, which):
    """Return the macros of `conv_one_channel.cu`."""
    names = ("height", "width", "out_height", "out_width", "channels_out", "kernel", "stride", "padding")
    found = {name.upper(): getattr(shape, name) for name in names}
    if which == "forward":
        plane = shape.out_height * shape.out_width
        pixels = next(n for n in (4, 2, 1) if plane % n == 0 and (n == 1 or n * shape.kernel**2 <= 64))
        group, threads = min(64, shape.channels_out), min(96, _ceil(plane // pixels, 32) * 32)
        return found | {"PASS": 0, "PIXELS": pixels, "GROUP": group, "BLOCK_THREADS": threads}
    if which == "input_gradient":
        most = (92 - shape.kernel**2) // shape.kernel // shape.stride * shape.stride  # as many as registers hold
        tiles = _ceil(shape.height, min(most, 28))
        rows = _ceil(_ceil(shape.height, tiles), shape.stride) * shape.stride
        return found | {"PASS": 1, "ROWS": rows, "EACH": 1, "WARPS": 8}
    rows = _ceil(shape.out_height, _ceil(shape.out_height, 28))
    return found | {"PASS": 2, "ROWS": rows, "EACH": max(1, min(4, 50 // shape.kernel**2)), "WARPS": 16}


def one_channel_launch(shape, which, macros):
    """Return (blocks, threads, bytes of shared memory) of a pass."""
    taps = shape.kernel**2
    if which == "forward":
        seen = [(size - 1) * shape.stride + shape.kernel for size in (shape.out_height, shape.out_width)]
        shared = 4 * (macros["GROUP"] * _ceil(taps, 4) * 4 + seen[0] * seen[1])
        return shape.batch * _ceil(shape.channels_out, macros["GROUP"]), macros["BLOCK_THREADS"], shared
    rows, each, warps = (macros[name] for name in ("ROWS", "EACH", "WARPS"))
    if which == "input_gradient":
        return shape.batch * _ceil(shape.height, rows), 32 * warps, 4 * warps * rows * shape.width
    wide = (32 * _ceil(shape.out_width, 32) - 1) * shape.stride + shape.kernel
    shared = 4 * max(((rows - 1) * shape.stride + shape.kernel) * wide, warps * each * taps * 33)
    return shape.batch * _ceil(shape.channels_out, warps * each), 32 * warps, shared


def _prepare_one_channel(shape, which, a, b, **changes):
    import cupy

    _checked(shape, which, a, b)
    macros = one_channel_macros(shape, which) | changes
    blocks, threads, shared = one_channel_launch(shape, which, macros)
    kernel = _function("conv_one_channel", which, shared, **macros)
    out = cupy.empty(shape.operands(which)[2], np.float32)
    if which != "weight_gradient":
        return _prepared([(kernel, blocks, threads, (a, b, out), shared)], out, (a, b))
    sums = cupy.empty((shape.batch, *out.shape), np.float32)
    launches = [
        (kernel, blocks, threads, (a, b, sums), shared),
        _adding("conv_one_channel", sums, out, macros, 8, 1024),
    ]
    return _prepared(launches, out, (a, b, sums), sums.nbytes)


def _why_not_one_channel(shape, which):
    if shape.channels != 1:
        return f"it is for images of one channel, and these have {shape.channels}: take the rung registers."
    if one_channel_launch(shape, which, one_channel_macros(shape, which))[2] > MOST_SHARED:
        return f"images of {shape.height} x {shape.width} don't fit into a block's shared memory: take smaller ones."
    return None


RUNGS = {
    "reference": Rung(
        *("a thread a number, sums in double", ("conv_0_reference",), "float32", "nchw"),
        partial(_prepare_plain, "conv_0_reference"),
    ),
    "direct": Rung(
        *("neighbours side by side", ("conv_1_direct",), "float32", "nchw"), partial(_prepare_plain, "conv_1_direct")
    ),
    "shared": Rung("tiles in shared memory", ("conv_2_shared",), "float32", "nchw", _prepare_shared),
    "registers": Rung(
        *("patches in registers", ("conv_3_registers",), "float32", "nchw", _prepare_registers, _why_not_registers),
    ),
    "one_channel": Rung(
        *("one channel: filters go by", ("conv_one_channel",), "float32", "nchw"),
        *(_prepare_one_channel, _why_not_one_channel),
    ),
}

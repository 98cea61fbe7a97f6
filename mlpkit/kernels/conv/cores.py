"""Convolutions on CUDA cores, in float32: from a thread a number to a patch in each thread's registers.

What a launch takes (its tiles, its blocks, its bytes of shared memory) is said by `registers_macros` and its like with
no GPU; CuPy is imported where one is needed.
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.conv import PASSES, Prepared, Rung

MOST_SHARED = 227 << 10  # bytes that a block may have on an H100 or H200
PROCESSORS = 132
MOST_BLOCKS = 2**31 - 1


def _numbers(shape):
    return (
        *(shape.batch, shape.channels, shape.channels_out, shape.height, shape.width),
        *(shape.out_height, shape.out_width, shape.kernel, shape.stride, shape.padding),
    )


def _int32(*numbers):
    return tuple(map(np.int32, numbers))


def _ceil(a, b):
    return -(-a // b)


def _prepared(launches, out, keeps, workspace=0):
    """Return `Prepared` for kernels that follow each other: (kernel, blocks, threads, arguments, shared bytes)."""

    def call():
        for kernel, blocks, threads, arguments, shared in launches:
            kernel((blocks,), (threads,), arguments, shared_mem=shared)

    return Prepared(call, lambda: out, workspace, keeps)


def _checked(shape, which, a, b):
    if (a.shape, b.shape) != (wanted := shape.operands(which)[:2]):
        raise ValueError(f"the {which} of {shape} needs arrays {wanted[0]} and {wanted[1]}, not {a.shape}, {b.shape}.")


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
    launch = (kernel, _ceil(threads, 256), 256, (a, b, out, *_int32(*_numbers(shape))), 0)
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
    sizes = _int32(*_numbers(shape)[1:7])
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
        return max(8 * stage, 4 * self.patch_h * self.patch_w * (self.threads + 1))

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


def microseconds(tiles, images, batch):
    """Return about how long a pass takes on an H200: multiply-adds or loads, and what is left."""
    taps, pixels, (high, wide) = images.taps, tiles.patch_h * tiles.patch_w, tiles.read(images)
    threads, blocks, plane = tiles.threads, tiles.blocks(images, batch), tiles.plane(images)
    products = pixels * taps / images.spread**2 * _inside(images.out_height, images.height, images)
    if tiles.patch_w >= images.out_width:
        products *= _inside(images.out_width, images.width, images)
    rows = high * wide
    if tiles.slices_of_batch:
        turns = batch / tiles.slices_of_batch * _ceil(images.out_height, tiles.patches_y * tiles.patch_h)
        turns *= _ceil(tiles.patches_y * tiles.patches_x, tiles.slices)
        multiplied, loaded = tiles.outs * tiles.each * products, tiles.each * rows + tiles.outs * pixels * 1.2
        strip = tiles.patches_y * tiles.patch_h * images.out_width
        copies = tiles.groups * tiles.each * plane * 3 + tiles.lanes * tiles.outs * strip * 5 / tiles.vector
        copies *= turns / _ceil(tiles.patches_y * tiles.patches_x, tiles.slices)
        after = 1.5 + tiles.slices_of_batch * images.channels * images.channels_out * taps * 8 / 3e6
        fixed = 2000 + tiles.each * tiles.outs * taps * 20
        code = tiles.outs * tiles.each * products
    else:
        turns = _ceil(images.channels, tiles.chunk) * _ceil(tiles.chunk, tiles.slices)
        multiplied, loaded = tiles.each * products, rows + tiles.each * taps * {1: 1, 2: 2, 4: 4}[tiles.vector]
        copies = images.channels * (plane * 3 + tiles.lanes * tiles.each * taps * 8 / tiles.vector)
        after, fixed, code = 0, 2000 + tiles.each * pixels * 12, tiles.each * products
    loads = loaded / 3
    issued = turns * (multiplied + loads + 20) * (1.3 if code > 2400 else 1.0) + copies / threads
    warps = _ceil(threads, 32)
    fits = min(65536 // (max(registers(tiles, images), 32) * warps * 32), 2048 // threads)
    together = max(1, min(fits, MOST_SHARED // (tiles.shared_bytes(images) + 1024), _ceil(blocks, PROCESSORS)))
    waves = blocks / (PROCESSORS * together)
    waves = _ceil(blocks, PROCESSORS * together) if waves < 4 else waves + 0.3
    per_scheduler = _ceil(warps * together, 4)
    slow = {1: 1.35, 2: 1.08, 3: 1.03}.get(per_scheduler, 1.0)
    cycles = (per_scheduler * issued * slow) ** 4 + (turns * loaded * warps * together) ** 4
    return waves * (cycles**0.25 + fixed) / 1755 + after


def _divided(size, most, multiple):
    """Return edges of patches worth a look: the least for each number of patches along a side."""
    return sorted(
        {_ceil(_ceil(size, count), multiple) * multiple for count in range(1, size + 1)} & set(range(most + 1))
    )


def candidates(images, which, batch):
    """Yield the `Tiles` that fit, each with its estimated microseconds."""
    weights = which == "weight_gradient"
    powers = [1, 2, 4, 8, 16, 32, 64, 128]
    lanes_worth = [n for n in powers if n < 2 * images.channels_out or n == 32]
    heights = _divided(images.out_height, 16, images.spread) or [images.spread]
    widths = _divided(images.out_width, 32, images.spread) or [images.spread]
    for patch_h in heights:
        for patch_w in widths:
            if patch_h * patch_w > 172:
                continue
            across = _ceil(images.out_width, patch_w)
            down = _ceil(images.out_height, patch_h)
            shape = partial(Tiles, patch_h, patch_w)
            many = _weight_tiles if weights else _patch_tiles
            for tiles in many(shape, images, batch, down, across, lanes_worth):
                if 32 <= tiles.threads <= 1024 and tiles.threads % 32 == 0 and _fits(tiles, images):
                    tiles = replace(tiles, vector=_vector(tiles, images, which))
                    yield microseconds(tiles, images, batch), tiles


def _fits(tiles, images):
    plane = tiles.plane(images)
    most = min(250, 65536 // tiles.threads - 8)
    places = _ceil(plane, tiles.threads)
    return registers(tiles, images) + places <= most and tiles.shared_bytes(images) <= MOST_SHARED


def _patch_tiles(shape, images, batch, down, across, lanes_worth):
    for lanes in lanes_worth:
        for each in (1, 2, 4, 8):
            if each > 1 and lanes * each > images.channels_out:
                continue
            for patches_y in sorted({1, 2, 4, down, _ceil(down, 2)} & set(range(down + 1))):
                for patches_x in sorted({across, _ceil(across, 2), min(across, 4)}):
                    for slices in (1, 2, 3, 4, 8, 16):
                        if slices > images.channels:
                            continue
                        for chunk in (4, 8, 16):
                            if chunk >= slices and (chunk == 4 or chunk // 2 < images.channels):
                                yield shape(patches_y, patches_x, lanes, each, 1, slices, chunk)


def _weight_tiles(shape, images, batch, down, across, lanes_worth):
    for lanes, outs, each, groups in product(lanes_worth, (1, 2, 4), (1, 2, 4), (1, 2, 4, 8, 16)):
        if groups * each >= 2 * images.channels or (outs > 1 and lanes * outs > images.channels_out):
            continue
        for patches_y in sorted({1, 2, 4, down} & set(range(down + 1))):
            for slices in sorted({1, 2, 3, 4, 8, min(16, patches_y * across)} & set(range(patches_y * across + 1))):
                blocks = _ceil(images.channels_out, lanes * outs) * _ceil(images.channels, groups * each)
                for turns in (1, 2):
                    parts = max(1, min(batch, PROCESSORS * turns // blocks))
                    yield shape(patches_y, across, lanes, each, groups, slices, 1, 1, outs, parts)


def _vector(tiles, images, which):
    """Return how many numbers of the filters, or of dy, a copy may take: 4, 2 or 1."""
    if which == "weight_gradient":
        runs = (images.out_height * images.out_width, images.out_width, tiles.patch_w)
    elif which == "input_gradient":
        runs = (tiles.lanes * tiles.each * images.taps, images.channels_out * images.taps)
    else:
        runs = (tiles.chunk * images.taps, images.channels * images.taps)
    return next(n for n in (2 if which == "forward" else 4, 2, 1) if all(run % n == 0 for run in runs))


@cache
def tiles_of(shape, which, rank=0):
    """Return the `Tiles` for a pass: those of the least estimated time (or the next ones); None where none fit."""
    images = images_of(shape, which)
    found = sorted(candidates(images, which, shape.batch), key=lambda pair: pair[0])
    if rank >= len(found):
        return None
    return found[rank][1]


def _prepare_registers(shape, which, a, b, tiles=None):
    import cupy

    _checked(shape, which, a, b)
    images, tiles = images_of(shape, which), tiles or tiles_of(shape, which)
    macros, shared = tiles.macros(images, which), tiles.shared_bytes(images)
    kernel = _function("conv_3_registers", which, shared, **macros)
    out = cupy.empty(shape.operands(which)[2], np.float32)
    blocks = tiles.blocks(images, shape.batch)
    if which != "weight_gradient":
        return _prepared([(kernel, blocks, tiles.threads, (a, b, out), shared)], out, (a, b))
    sums = cupy.empty((tiles.slices_of_batch, *out.shape), np.float32)
    numbers = _int32(shape.batch, tiles.slices_of_batch)
    launches = [
        (kernel, blocks, tiles.threads, (a, b, sums, *numbers), shared),
        _adding("conv_3_registers", sums, out, macros, 32, 1024),
    ]
    return _prepared(launches, out, (a, b, sums), sums.nbytes)


def _why_not_registers(shape, which):
    if tiles_of(shape, which) is None:
        return f"no patch of {shape} fits into a block's registers and shared memory: take smaller images."
    return None


# ---- One channel ----


def one_channel_macros(shape, which):
    """Return the macros of `conv_one_channel.cu`."""
    names = ("height", "width", "out_height", "out_width", "channels_out", "kernel", "stride", "padding")
    found = {name.upper(): getattr(shape, name) for name in names}
    if which == "forward":
        plane = shape.out_height * shape.out_width
        pixels = next(n for n in (4, 2, 1) if plane % n == 0 and (n == 1 or n * shape.kernel**2 <= 64))
        return found | {"PASS": 0, "PIXELS": pixels, "GROUP": 16}
    if which == "input_gradient":
        most = (
            (92 - shape.kernel**2) // shape.kernel // shape.stride * shape.stride
        )  # so many totals fit into registers
        tiles = _ceil(shape.height, min(most, 28))
        rows = _ceil(_ceil(shape.height, tiles), shape.stride) * shape.stride
        return found | {"PASS": 1, "ROWS": rows, "EACH": 1, "WARPS": 8}
    rows = _ceil(shape.out_height, _ceil(shape.out_height, 28))
    return found | {"PASS": 2, "ROWS": rows, "EACH": max(1, min(4, 50 // shape.kernel**2)), "WARPS": 16}


def one_channel_launch(shape, which, macros):
    """Return (blocks, threads, bytes of shared memory) of a pass."""
    taps = shape.kernel**2
    if which == "forward":
        pieces = shape.batch * (shape.out_height * shape.out_width // macros["PIXELS"])
        blocks = _ceil(pieces, 128) * _ceil(shape.channels_out, macros["GROUP"])
        return blocks, 128, 4 * macros["GROUP"] * _ceil(taps, 4) * 4
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
    if which == "forward":
        return _prepared([(kernel, blocks, threads, (a, b, out, np.int32(shape.batch)), shared)], out, (a, b))
    if which == "input_gradient":
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

"""What is between blocked convolutions: bias, pool, ReLU, layouts and fp16, each in one trip through memory.

`between_forward.cu` and `between_backward.cu` follow a convolution by `blocked`; `first_forward.cu` and
`first_weights.cu` are the whole of a first convolution, of images of few channels. What they write comes from
`cupy.empty`, nothing waits, and a graph can record it.

An array lies in one of three layouts. "nchw": float32 (n, c, h, w). "nc8hw8": what `blocked.convolve` writes, see
`blocked.empty_blocked`. "stored": a `blocked.Stored`, as products read it.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap
from mlpkit.kernels.conv import blocked

from . import first_bf16

# Threads of a block, as in the files, and blocks on a multiprocessor where they wait for each other
THREADS = {"between_forward": 256, "between_backward": 512, "first_forward": 512, "first_weights": 256}
TOGETHER = {"between_forward": 3, "between_backward": 2, "first_forward": 1}
MOST_POOL, MOST_FIRST_POOL = 15, 2  # edges of windows, at most
FEW = 4  # channels of images, at most, whose convolution needs no tensor cores
SHARED = 200 << 10  # bytes that a block asks for, at most


@dataclass(frozen=True)
class Pooled:
    """What follows a convolution of so many images: its size, of whole windows, and what is done to it.

    height, width: of the convolution's result, multiples of `pool`, the edge of a window; 1 for no pool. relu: whether
    there is one, before the pool or behind it.
    """

    images: int
    channels: int
    height: int
    width: int
    pool: int = 1
    relu: bool = False

    @property
    def keeps(self):
        """Whether the way back needs to know which values came through."""
        return self.relu or self.pool > 1

    @property
    def groups(self):
        """Eight channels each, those that are added included."""
        return blocked.groups_of(self.channels)

    @property
    def down(self):
        return self.height // self.pool

    @property
    def across(self):
        return self.width // self.pool

    @property
    def sizes(self):
        """The kernels' argument `Sizes`."""
        return np.array([self.images, self.channels, self.groups], np.int32).view("V12")

    @property
    def macros(self):
        return {"POOL": self.pool, "RELU": int(self.relu), "TALL_Z": self.height, "WIDE_Z": self.width}

    def empty_kept(self):
        """Return an array for what the way back needs, 4 or 8 bits a value; None where that is nothing."""
        import cupy

        if not self.keeps:
            return None
        dtype = np.uint32 if self.pool < 4 else np.uint64
        return cupy.empty((self.images, self.groups, self.down, self.across), dtype)

    def empty(self, mode, layout, scale):
        """Return an array for the pooled values, in a layout; a `Stored` for "stored"."""
        import cupy

        size = self.images, self.channels, self.down, self.across
        if layout == "nchw":
            return cupy.empty(size, np.float32)
        return blocked.empty_blocked(mode, *size) if layout == "nc8hw8" else blocked.empty_operand(mode, *size, scale)


def forward(mode, about, x, layout, to, bias=None, scale=None, added=None, overlaps=False):
    """Return what bias, pool and ReLU make of the values `x`, in the layout `to`, and what `backward` needs of it.

    about: a `Pooled`. x: before the pool, in the layout "nchw" or "nc8hw8". bias: (channels,) or None. scale: of the
    fp16 values, see `blocked.new_scale`; None where there are none. added: a `Stored` of x's size, added before the
    pool. overlaps: whether it begins before the kernel before it has ended, and the one behind it may: see
    `kernels.overlap`.
    """
    y, kept = about.empty(mode, to, scale), about.empty_kept()
    pieces = about.images * about.groups * about.down * about.across
    macros = {"MODE": mode.number, "FROM": _from(mode, layout), "TO": _to(mode, to)} | _adds(added) | about.macros
    arguments = x, _pointer(bias), _array(y), _pointer(kept), _pointer(scale), *_addresses(added), about.sizes
    blocks = min(-(-pieces // THREADS["between_forward"]), most_blocks("between_forward"))
    _launch("between_forward", "forward", macros, blocks, arguments, 32, _guesses(mode, to), overlaps)
    return y, kept


def follows(mode, to):
    """Return whether the convolution's own kernel can do what follows: it does not know the scale of fp16."""
    return not _guesses(mode, to)


def convolve(mode, conv, about, images, filters, to, bias=None, added=None, overlaps=False):
    """Return what a convolution and `forward` make of images, in one kernel. images, filters: `Stored`.

    conv: a shape that is `blocked.cropped` and followed. overlaps: as for `blocked.convolve`. The others: as for
    `forward`.
    """
    y, kept = about.empty(mode, to, None), about.empty_kept()
    addresses = np.array([_pointer(bias), _pointer(kept), *_addresses(added)], np.uint64).view(np.uint8)
    sizes = np.array([about.images, about.channels, about.groups, 0], np.int32).view(np.uint8)
    macros = {"FOLLOWED": 1, "TO": _to(mode, to)} | _adds(added) | about.macros
    macros |= {"OVERLAPS": 1} if overlaps else {}
    macros |= {"FORGETS": 1} if kept is None and about.pool == 1 and mode.stored == 8 and to != "nchw" else {}
    following = np.concatenate([addresses, sizes]).view("V48")
    blocked.convolve_with(tuple(macros.items()), mode, conv, "forward", images, filters, _array(y), following)
    return y, kept


def convert(mode, size, x, layout, to, scale=None):
    """Return images x of a size (n, c, h, w) in another layout. scale: as for `forward`."""
    return forward(mode, Pooled(*size), x, layout, to, scale=scale)[0]


def backward(mode, about, dy, layout, kept, bias=False, scale=None, largest=None):
    """Return the gradient before the pool as a `Stored`, from that behind it, and sums for the gradient of the bias.

    dy: of the pooled values, in the layout "nchw" or "nc8hw8". kept: what `forward` returned. bias: whether there is
    one; the sums are what `blocked.weight_gradient` takes, else None. scale: as for `forward`. largest: None, or an
    array of one uint32, the bits of the largest magnitude in dy or of a larger one: then the scale is no guess.
    """
    import cupy

    most = most_blocks("between_backward")
    slices = max(1, min(about.images, most // about.groups))
    dz = blocked.empty_operand(mode, about.images, about.channels, about.height, about.width, scale)
    partial = cupy.empty((slices, 8 * about.groups), np.float32) if bias else None
    macros = {"MODE": mode.number, "FROM": _from(mode, layout)} | about.macros
    pointers = (_pointer(each) for each in (kept, dz.array, partial, scale))
    known = bool(mode.fp16_parts) and largest is not None
    macros |= {"KNOWN": 1} if known else {}
    arguments = dy, *pointers, about.sizes, np.int32(slices), _pointer(largest)
    blocks, shared = min(about.groups * slices, most), 16 + 4 * 8 * THREADS["between_backward"] // 32
    _launch("between_backward", "backward", macros, blocks, arguments, shared, bool(mode.fp16_parts) and not known)
    return dz, partial


# ---- The first convolution ----


def why_not_first(shape, about):
    """Return why the kernels of a first convolution can't, a sentence, or None."""
    if shape.channels > FEW:
        return f"it is for images of at most {FEW} channels, and these have {shape.channels}."
    if shape.stride != 1 or about.pool > MOST_FIRST_POOL:
        return f"it is for a stride of 1 and pools of at most {MOST_FIRST_POOL} x {MOST_FIRST_POOL}."
    if max(_first_shared(shape, about), _weights_shared(shape, about, 1)) > min(SHARED, gpu.shared_memory()):
        return f"images of {shape.height} x {shape.width} or the filters don't fit into shared memory."
    return None


def first_forward(mode, shape, about, x, w, to, bias=None, scale=None, overlaps=False, largest=None):
    """Return what a convolution, bias, pool and ReLU make of images, in the layout `to`, and what is kept.

    x (n, c, h, w): float32, or uint8 pixels, which become values from 0 to 1. w (o, c, k, k), bias (o,) or None:
    float32. overlaps: whether the kernel behind it may begin early. largest: None, or an array of one uint32, the bits
    of the largest magnitude in x or of a larger one: then the scale is no guess. The others: as for `forward`.
    """
    y, kept = about.empty(mode, to, scale), about.empty_kept()
    if mode.stored == 8 and to != "nchw" and first_bf16.why_not_kept(shape, about, x.dtype) is None:
        first_bf16.forward(shape, about, x, w, bias, _array(y), kept)
        return y, kept
    most = most_blocks("first_forward")
    parts = max(1, min(about.groups, most // about.images))
    pointers = (_pointer(each) for each in (bias, _array(y), kept, scale))
    macros = {"MODE": mode.number, "TO": _to(mode, to)} | _first_macros(shape, about)
    macros |= {"PIXEL": "unsigned char"} if x.dtype == np.uint8 else {}
    macros |= {"OVERLAPS": 1} if overlaps else {}
    known = _guesses(mode, to) and largest is not None
    macros |= {"KNOWN": 1} if known else {}
    arguments = x, w, *pointers, about.sizes, np.int32(parts), _pointer(largest)
    blocks, shared = min(about.images * parts, most), _first_shared(shape, about)
    _launch("first_forward", "forward", macros, blocks, arguments, shared, _guesses(mode, to) and not known)
    return y, kept


def first_weights(mode, shape, about, x, dy, layout, kept, dw, db, counters):
    """Write the gradients of a first convolution's filters and, unless db is None, of its bias.

    dy: of the pooled values, in the layout "nchw" or "nc8hw8". counters: what `first_counters` returned. The others:
    as for `first_forward`.
    """
    import cupy

    each, many = _each(shape), _tiles(shape, about)
    slices = max(1, min(about.images, 2 * blocked.multiprocessors() // many))
    of_slice = -(-about.images // slices)
    most = min(SHARED, gpu.shared_memory()) // 2
    chunk = next(n for n in range(of_slice, 0, -1) if n == 1 or _weights_shared(shape, about, n) <= most)
    partial = cupy.empty((slices, 8 * about.groups * shape.channels * (shape.kernel**2 + 1)), np.float32)
    macros = {"MODE": mode.number, "FROM": _from(mode, layout), "EACH": each} | _first_macros(shape, about)
    pointers = (_pointer(one) for one in (kept, partial, dw, db, counters))
    arguments = x, dy, *pointers, about.sizes, np.int32(slices), np.int32(chunk)
    shared = _weights_shared(shape, about, chunk)
    _launch("first_weights", "weights", macros, many * slices, arguments, shared)


def behind(shape, about):
    """Return the bytes of shared memory that `first_sums` needs in the next convolution's kernel, for each tile."""
    seen = about.across * about.pool + shape.kernel - 1
    wide = seen + 1 + (40 - seen % 32) % 32
    tall = about.down * about.pool + shape.kernel - 1
    return 4 * (tall * wide + 8 * about.down * about.across + 2 * 64 * (shape.kernel**2 + 1))


def first_sums(mode, conv, dz, filters, first, x, kept):
    """Return sums (slices, 8 groups, k k + 1) for the gradients of a first convolution: `weight_gradient` adds them up.

    conv: the next convolution's shape, with bytes `behind`; dz, filters: `Stored`, of its input gradient, which is
    never written. first: the first one's shape and `Pooled`. x, kept: as for `first_weights`. See `first_sums.cuh`.
    """
    import cupy

    shape, about = first
    (one,) = blocked.launches(mode, conv, "input_gradient")
    slices = one.tiling.items(one.conv)[1] * one.tiling.tiles
    sums = cupy.empty((slices, 8 * about.groups, shape.kernel**2 + 1), np.float32)
    macros = {"KERNEL": shape.kernel, "PADDING": shape.padding, "POOL": about.pool, "KEEPS": int(about.keeps)}
    macros |= {"HEIGHT": shape.height, "WIDTH": shape.width, "DOWN": about.down, "ACROSS": about.across}
    macros |= {"ROWS": 8 * about.groups}
    macros = {"FIRST": 1} | {f"FIRST_{name}": value for name, value in macros.items()}
    pointers = np.array([_pointer(each) for each in (x, kept, sums)] + [about.groups], np.uint64).view("V32")
    of = mode, conv, "input_gradient", dz, filters, np.uintp(0), pointers
    blocked.convolve_with(tuple(macros.items()), *of)
    return sums


def why_not_first_sums(mode, conv, shape, about):
    """Return why the kernel of the input gradient of `conv`, with bytes `behind`, can't do `first_sums`, or None."""
    if shape.channels > 1 or about.groups > 8 or conv.stride > 1:
        return "it is for images of one channel, at most 64 filters and then a stride of 1."
    ((back, _, _),) = blocked.convolutions(conv, "input_gradient")
    tilings = blocked.tilings(back, mode)
    if not tilings or tilings[0].stacked or tilings[0].heights > 1:
        return "a warp of the next convolution has not the same filters of all its tiles."
    return None


def first_counters(shape, about):
    """Return what the blocks of `first_weights` count with, from call to call."""
    import cupy

    return cupy.zeros(_tiles(shape, about), np.uint32)


def _tiles(shape, about):
    """Return how many blocks a slice of the images has in the weight gradient."""
    return -(-about.channels // _each(shape)) * shape.channels


def _each(shape):
    """Return how many filters a thread of the weight gradient has: as many as its registers hold the sums of."""
    return 4 if shape.kernel <= 3 else 2 if shape.kernel <= 5 else 1


def _first_macros(shape, about):
    macros = {"CHANNELS_IN": shape.channels, "KERNEL": shape.kernel, "PADDING": shape.padding}
    return macros | {"IMAGE_HEIGHT": shape.height, "IMAGE_WIDTH": shape.width} | about.macros


def _pixels(shape, about):
    """Return how many values of an image are in shared memory."""
    return shape.channels * (about.height + shape.kernel - 1) * ((about.width + shape.kernel) // 2 * 2)


def _first_shared(shape, about):
    return 16 + 4 * (8 * about.groups * (shape.channels * shape.kernel**2 + 1) + _pixels(shape, about))


def _weights_shared(shape, about, images):
    sums = blocked.padded(_each(shape) * (shape.kernel**2 + 1), 8)
    return 16 + 4 * max(images * _pixels(shape, about), THREADS["first_weights"] // 32 * sums)


# ---- Launches ----


def _from(mode, layout):
    return 2 if layout == "nchw" else int(mode.stored == 8)


def _to(mode, layout):
    return {"stored": 0, "nc8hw8": int(mode.stored == 4), "nchw": 2}[layout]


def _guesses(mode, to):
    """Return whether the scale of fp16 is guessed, and all blocks have to meet."""
    return to == "stored" and bool(mode.fp16_parts)


def _array(x):
    return x.array if isinstance(x, blocked.Stored) else x


def _adds(added):
    return {} if added is None else {"ADD": 1}


def _addresses(added):
    return [_pointer(added and added.array), _pointer(added and added.scale)]


def _pointer(array):
    return np.uintp(0 if array is None else array.data.ptr)


def most_blocks(file):
    """Return how many blocks of a kernel are on the GPU at once."""
    return min(blocked.MOST_BLOCKS, TOGETHER[file] * blocked.multiprocessors())


@cache
def _kernel(file, function, **macros):
    return overlap.InTurn(gpu.with_shared_memory(kernels.load(file, **macros).get_function(function), SHARED))


def _launch(file, function, macros, blocks, arguments, shared, together=False, overlaps=False):
    """Launch a kernel. together: whether its blocks wait for each other, so that all must run at once."""
    kernel = _kernel(file, function, **macros, **({"OVERLAPS": 1} if overlaps else {}))
    if overlaps:
        overlap.Overlapping(kernel, together)((blocks,), (THREADS[file],), arguments, shared_mem=shared)
    else:
        of = (blocks,), (THREADS[file],), arguments
        kernel(*of, shared_mem=shared, enable_cooperative_groups=together)

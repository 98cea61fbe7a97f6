"""Batch normalization between two blocked convolutions: all that happens there, in one launch each way.

A `Norm` says what there is: sizes, whether something is added, a ReLU, a pool. `forward` takes a convolution's output
and makes the next one's operand, `backward` takes the gradient of that and makes the operand of the two gradients of
the convolution before. What lies between, a trip through memory each, never leaves the multiprocessors: see the
kernels, `norm_forward.cu` and `norm_backward.cu`.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap
from mlpkit.kernels.conv import blocked
from mlpkit.kernels.conv.blocked import Stored

FORWARD, BACKWARD = "norm_forward", "norm_backward"
RESERVED_BYTES = 4096  # bytes of a block's shared memory that are not for units
MOST_HEARD = 96  # blocks that share a group of channels: see norm.cuh
MOST_KERNEL = 3  # of a convolution of one channel: its weights and their sums stay in registers
MOST_POOL = 3  # a mark has 4 bits, and one mark says that no value went on
OUT = {"operand": 0, "nc8hw8": 1, "nchw": 2}


@dataclass(frozen=True)
class Norm:
    """Batch normalization of images (n, channels, height, width), blocked as a `Mode` has it, and what comes after it.

    relu: whether there is one. add: whether something is added before it. pool: side of the windows of a max pool,
    which lie side by side; 1 for none, at most `MOST_POOL`. eps, momentum: as `nn.norm.BatchNorm` has them. kernel,
    padding: of a convolution of images of one channel, whose result is normalized and never stored; a kernel of 0 where
    there is none, at most `MOST_KERNEL`. height, width: of what is normalized.
    """

    mode: blocked.Mode
    n: int
    channels: int
    height: int
    width: int
    relu: bool = True
    add: bool = False
    pool: int = 1
    eps: float = 1e-5
    momentum: float = 0.1
    kernel: int = 0
    padding: int = 0

    @property
    def groups(self):
        """Of 8 channels."""
        return blocked.groups_of(self.channels)

    @property
    def stored(self):
        """Pieces of 16 bytes that 8 channels of a pixel take where blocked."""
        return 8 // self.mode.stored

    @property
    def area(self):
        return self.height * self.width

    @property
    def out(self):
        """Height and width of the result."""
        return self.height // self.pool, self.width // self.pool

    @property
    def macros(self):
        values = {"MODE": self.mode.number, "RELU": int(self.relu), "ADD": int(self.add), "POOL": self.pool}
        values["BLOCK_THREADS"] = self.threads
        return values | ({"STEM": 1, "KERNEL": self.kernel, "PADDING": self.padding} if self.kernel else {})

    @property
    def threads(self):
        """Of a block: with weights and their sums, a thread needs many registers."""
        return 256 if self.kernel else 512

    @property
    def pieces(self):
        """Of 16 bytes, those of what is normalized in a unit: blocked, or an image with its padding."""
        if self.kernel:
            return -(-(self.height + self.kernel - 1) * (self.width + self.kernel - 1) // 4)
        return self.area * self.stored

    @property
    def marks(self):
        """How many bytes are kept of a piece of the result: which values went on; 0 where y tells."""
        return 4 if self.pool > 1 else int(self.add and self.relu)

    def shares(self, blocks=None):
        """Return how many blocks share a group of channels, and how many groups are had at a time."""
        blocks = min(blocks or blocked.multiprocessors(), MOST_HEARD * self.groups)
        together = min(self.groups, blocks)
        return min(self.n, blocks // together), together

    def resident(self, pieces, blocks=None):
        """Return how many units a block holds at a time, and whether those are all that it has. pieces: of a unit."""
        ctas, together = self.shares(blocks)
        wanted = -(-self.n // ctas)
        resident = min((gpu.shared_memory() - RESERVED_BYTES) // (16 * pieces), wanted)
        return resident, resident == wanted and together == self.groups

    def launch(self, pieces, blocks=None, windows=None):
        """Return blocks, bytes of shared memory and the argument `Sizes`. pieces: of a unit that a block would hold.

        windows: how many an image has, down and across, of those that a thread has whole; or as many as its result.
        """
        (ctas, together), (resident, _) = self.shares(blocks), self.resident(pieces, blocks)
        values = [self.n, self.groups, self.channels, self.height, self.width, resident, ctas, together]
        down, across = windows or self.out
        divisors = self.width, across, self.area, down * across, ctas
        values += [*divmod(self.n, ctas), *(-(-(1 << 32) // divisor) % (1 << 32) for divisor in divisors)]
        count = self.n * self.area
        floats = np.array([count, 1 / count, count**0.5], np.float32).view(np.uint32)
        sizes = np.array([*values, *floats], np.uint32).view("V72")
        return ctas * together, RESERVED_BYTES + 16 * pieces * resident, sizes


@dataclass(frozen=True)
class Channels:
    """Vectors (channels,) of a normalization, float32 on the GPU: parameters, running averages, gradients.

    bias, dbias: of the convolution before; None where it has none.
    """

    gamma: Any
    beta: Any
    mean: Any
    variance: Any
    dgamma: Any
    dbeta: Any
    bias: Any = None
    dbias: Any = None


@dataclass(frozen=True)
class Kept:
    """What the backward pass needs: what was normalized, (mean, 1 / deviation) of each channel, marks.

    filters: where images of one channel were read. scale: of the result.
    """

    y: Any
    filters: Any
    statistics: Any
    marks: Any
    scale: Any = None


class Gradients(NamedTuple):
    """What `backward` returns, None where nobody asked. dense: the gradient before the normalization, blocked.

    dz: the gradient of what was normalized, and again: what `forward` had returned, both `Stored`.
    """

    dz: Any
    dense: Any
    again: Any


@dataclass(frozen=True)
class Past:
    """A gradient that came to the sum at the end of a residual, and the marks of what followed that sum.

    Its way past the residual is added by `backward`. relu, pool: as the sum's `Norm` has them. layout: or "nchw".
    """

    gradient: Any
    marks: Any
    relu: bool
    pool: int
    layout: str = "nc8hw8"


def new_meeting(norm, blocks=None):
    """Return where blocks tell each other what they have found, on the GPU. It lasts, and no two launches share it."""
    import cupy

    ctas, together = norm.shares(blocks)
    messages = 8 * norm.groups * ctas
    return cupy.zeros(64 + 16 * messages * (1 + norm.kernel**2) + 8 * ctas * together, np.uint8)


def forward(norm, channels, y, scale, meeting, added=None, out="operand", filters=None, blocks=None, moments=None):
    """Normalize blocked y and what follows; return the result and `Kept`. The running averages move.

    With filters (o, 1, k, k), float32, y are images (n, 1, height, width), and their convolution is normalized. scale:
    see `blocked.new_scale`; of the result. meeting: see `new_meeting`, of this way. added: an operand. out:
    "operand" for `Stored`, "nc8hw8", or "nchw" for images (n, c, h, w) in float32. A graph can record it. blocks:
    instead of one for each multiprocessor. moments: of y, `blocked.Moments`, if its convolution has left them. Where
    kernels begin in turn, the one ahead of this one must not have written `added`.
    """
    import cupy

    pieces = norm.pieces + norm.area * norm.add * norm.mode.parts
    blocks, shared, sizes = norm.launch(pieces, blocks)
    statistics = cupy.empty((norm.groups * 8, 2), np.float32)
    marks = cupy.empty(norm.n * norm.groups * norm.out[0] * norm.out[1] * norm.marks, np.uint8) if norm.marks else None
    to = _empty(norm, scale, out)
    vectors = [channels.gamma, channels.beta, channels.bias, channels.mean, channels.variance, statistics]
    settings = np.array([norm.momentum, norm.eps], np.float32).view(np.uint64)
    about = np.array([*map(_address, vectors), settings[0]], np.uint64).view("V56")
    written = _addresses(to.array if isinstance(to, Stored) else to, marks, scale)
    others = (np.uintp(_address(added and added.array)), np.uintp(_address(added and added.scale)))
    left = np.array([_address(moments and moments.array), *_words(moments)], np.uint64).view("V24")
    macros = norm.macros | ({"MOMENTS": 1} if moments else {})
    kernel = _kernel(FORWARD, "normalize", OUT=_out_number(norm, out), **macros)
    arguments = (sizes, about, y, np.uintp(_address(filters)), *others, meeting, left, written)
    kernel((blocks,), (norm.threads,), arguments, shared_mem=shared, enable_cooperative_groups=True)
    return to, Kept(y, filters, statistics, marks, scale)


def _words(moments):
    """Return the integers of the kernel's argument `Moments`, two by two."""
    if moments is None:
        return 0, 0
    sizes = moments.array.shape[1], moments.bands, moments.rows, 0
    return np.array(sizes, np.int32).view(np.uint64)


def _empty(norm, scale, out):
    import cupy

    if out == "operand":
        height, width = norm.out
        return blocked.empty_operand(norm.mode, norm.n, norm.channels, height, width, scale)
    if out == "nc8hw8":
        return blocked.empty_blocked(norm.mode, norm.n, norm.channels, *norm.out)
    return cupy.empty((norm.n, norm.channels, *norm.out), np.float32)


def _out_number(norm, out):
    return 0 if out == "nc8hw8" and not norm.mode.fp16_parts else OUT[out]


def backward(
    norm, channels, kept, dy, scale, meeting, past=None, layout="nc8hw8", keep=False, again=False, dw=None, blocks=None
):
    """Return `Gradients`; write those of the channels. All as for `forward`. `kept.y` and dy are not to be used again.

    dy: the gradient of the result, blocked, or images where layout is "nchw". past: `Past`, whose gradient belongs to
    the result, too. keep: return blocked, too, the gradient before the normalization, which goes past a residual.
    again: make an operand again that `forward` has returned and nobody kept; nothing was added to it, and there was no
    pool. dw: where images of one channel were read, their filters' gradient, written instead. Where kernels begin in
    turn, the one ahead of this one may have written gradients alone.
    """
    pieces = norm.pieces + (norm.stored * norm.out[0] * norm.out[1] if layout == "nc8hw8" else 0)
    whole = norm.mode, norm.n, norm.channels, norm.height, norm.width
    # Where blocks have all in shared memory before the first of them writes, that goes to where it came from.
    there = norm.resident(pieces, blocks)[1] and not norm.kernel
    to = None if norm.kernel else blocked.empty_operand(*whole, scale, kept.y if there else None)
    in_dy = dy if there and layout == "nc8hw8" else None
    made = blocked.empty_operand(*whole, kept.scale, in_dy) if again else None
    dense = blocked.empty_blocked(*whole) if keep else None
    vectors = [channels.gamma, channels.beta, kept.statistics, channels.dgamma, channels.dbeta, channels.dbias]
    given = _addresses(dy, kept.marks), _addresses(past and past.gradient, past and past.marks)
    ends = [np.uintp(_address(each)) for each in (dw if to is None else to.array, scale, dense)]
    macros = _backward_macros(norm, past, layout, keep, again)
    windows = tuple(-(-size // macros["SIDE"]) for size in (norm.height, norm.width))
    blocks, shared, sizes = norm.launch(pieces, blocks, windows)
    arguments = (sizes, _addresses(*vectors), kept.y, np.uintp(_address(kept.filters)), *given, meeting, *ends)
    kernel = _kernel(BACKWARD, "normalize_backward", **macros)
    arguments = *arguments, _addresses(made and made.array, made and made.scale)
    kernel((blocks,), (norm.threads,), arguments, shared_mem=shared, enable_cooperative_groups=True)
    return Gradients(to, dense, made)


def add(mode, to, other):
    """Add a blocked array to another, `to`, in place, and return this one."""
    pieces = to.nbytes // 16
    _kernel("norm_add", "add", MODE=mode.number)((-(-pieces // 256),), (256,), (to, other, np.int64(pieces)))
    return to


def _backward_macros(norm, past, layout, keep, again):
    macros = norm.macros | {"FROM": OUT[layout] if layout == "nchw" else 0, "KEEP": int(keep), "AGAIN": int(again)}
    # Pixels of a pool's window have its gradient in common: their own pool's; else another's, if nothing else is far.
    common = past and layout != "nchw" and not (norm.relu and norm.add)
    macros["SIDE"] = norm.pool if norm.pool > 1 or not common else past.pool
    if past:
        images = OUT["nchw"] if past.layout == "nchw" else 0
        macros |= {"PAST": past.pool, "PAST_RELU": int(past.relu), "PAST_FROM": images}
    return macros


def _address(array):
    return 0 if array is None else array.data.ptr


def _addresses(*arrays):
    """Return a struct of pointers."""
    return np.array([_address(array) for array in arrays], np.uint64).view(f"V{8 * len(arrays)}")


@cache
def _kernel(name, function, **macros):
    kernel = gpu.with_shared_memory(kernels.load(name, **macros).get_function(function))
    return overlap.InTurn(kernel)

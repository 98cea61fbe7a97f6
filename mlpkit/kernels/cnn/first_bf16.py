"""The first convolution on tensor cores, with what follows it, in one kernel: see `first_bf16.cu`."""

from functools import cache

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import overlap
from mlpkit.kernels.conv import blocked

THREADS, WARPS = 256, 8  # as in first_bf16.cu
FEW, MOST_KERNEL, MOST_POOL = 4, 5, 2  # channels; edges of filters and of windows
SHARED = 48 << 10  # bytes that a block may have


def why_not(shape, about):
    """Return why this kernel can't do a convolution and what follows it, a sentence, or None."""
    if shape.channels > FEW or shape.kernel > MOST_KERNEL or shape.stride != 1 or about.pool > MOST_POOL:
        return f"it is for images of at most {FEW} channels, filters up to {MOST_KERNEL}, a stride of 1, small pools."
    if _steps(shape) > 3:
        return "so large a patch does not fit into registers."
    if shared(shape, about) > SHARED:
        return f"two images of {shape.height} x {shape.width} don't fit into shared memory."
    return None


def why_not_kept(shape, about, dtype):
    """Return why it can't in training, where the way back is kept, a sentence, or None."""
    if about.pool != 2 or not about.relu or dtype != np.float32:
        return "it keeps the way back of pools of 2 x 2 with a ReLU, of images of float32."
    return why_not(shape, about)


class First:
    """A convolution of few channels, bias, pool and ReLU: call it with images; it returns blocked bfloat16.

    shape, about: the convolution's and what follows, see `between.Pooled`. W (o, c, k, k), b (o,) or None: float32 on
    the GPU, the values of now. bytes_: whether images (n, c, h, w) are bytes, 0 to 255, which stand for 0 to 1, and
    not float32. overlaps: whether the kernel behind it may begin early. What is returned comes from `cupy.empty`; a
    graph can record it.
    """

    def __init__(self, shape, about, W, b, bytes_, overlaps=False):
        import cupy

        self.macros = {"OVERLAPS": 1} if overlaps else {}
        self.shape, self.about, self.pixel = shape, about, "unsigned char" if bytes_ else "float"
        W = cupy.asnumpy(W).astype(np.float64) / (255 if bytes_ else 1)
        channels = blocked.padded(about.channels)  # groups in pairs
        filters = cupy.asarray(in_order(W, channels).astype(np.float32))
        self.filters = cupy.ascontiguousarray(blocked.as_bf16(filters))
        self.bias = cupy.zeros(channels, np.float32)
        if b is not None:
            self.bias[: len(b)] = b

    @property
    def first_macros(self):
        """The macros of first_bf16.cuh."""
        return _macros(self.shape, self.about, self.pixel)

    def __call__(self, x):
        about = self.about
        y = blocked.empty_blocked(blocked.MODES["bf16"], about.images, about.channels, about.down, about.across)
        _launch(self.shape, about, self.first_macros | self.macros, x, self.filters, self.bias, y)
        return y


def forward(shape, about, x, W, b, y, kept):
    """Do the same to float32 images, in training: as a kernel that begins in its turn, and keeps the way back.

    W (o, c, k, k), b (o,) or None: read by the kernel. y, kept: what `about` makes, empty; to be written.
    """
    macros = _macros(shape, about, "float") | {"FIRST_KEEPS": 1}
    _launch(shape, about, macros, x, W, np.uintp(0) if b is None else b, y, kept)


def _macros(shape, about, pixel):
    macros = {"CHANNELS_IN": shape.channels, "KERNEL": shape.kernel, "PADDING": shape.padding, "PIXEL": pixel}
    macros |= {"IMAGE_HEIGHT": shape.height, "IMAGE_WIDTH": shape.width, "FIRST_POOL": about.pool}
    return macros | {"FIRST_RELU": int(about.relu), "FIRST_TALL": about.height, "FIRST_WIDE": about.width}


def _launch(shape, about, macros, x, filters, bias, y, kept=None):
    pairs, most = _pairs(about), 2 * blocked.multiprocessors()
    tiles = -(-(-(-about.height // 2) * -(-about.width // 2)) // 16)
    parts = max(1, min(-(-tiles // (WARPS // pairs)), most // about.images))
    blocks = min(about.images * parts, most)
    arguments = x, filters, bias, y, about.sizes, np.int32(parts), np.uintp(0) if kept is None else kept
    kernel = _kernel(PAIRS=pairs, ODD=about.groups % 2, **macros)
    kernel((blocks,), (THREADS,), arguments, shared_mem=shared(shape, about))


def in_order(W, channels_out):
    """Return filters (o, c, k, k) as the kernel's lanes hold them: (o / 8, 4 places, steps, 32 lanes, 2, 2) values."""
    o, c, k, _ = W.shape
    across = (k + 2) // 2 * 2
    patches = np.zeros((channels_out, 4, c, k + 1, across), W.dtype)
    for place in range(4):
        y, x = divmod(place, 2)
        patches[:o, place, :, y : y + k, x : x + k] = W
    steps = -(-c * (k + 1) * across // 16)
    flat = np.zeros((channels_out, 4, steps * 16), W.dtype)
    flat[:, :, : c * (k + 1) * across] = patches.reshape(channels_out, 4, -1)
    # a lane: filter lane / 4; inputs 2 (lane % 4) and the next one, and those 8 further on
    return flat.reshape(-1, 8, 4, steps, 2, 4, 2).transpose(0, 2, 3, 1, 5, 4, 6).reshape(-1, 4, steps, 32, 2, 2).copy()


def _pairs(about):
    """Return how many pairs of groups of filters a block's warps have at a time."""
    return max(pairs for pairs in (1, 2, 4, 8) if pairs <= max(1, -(-about.groups // 2)))


def _steps(shape):
    return -(-shape.channels * (shape.kernel + 1) * ((shape.kernel + 2) // 2) // 8)


def shared(shape, about):
    """Return the bytes of two images in shared memory."""
    tall = -(-about.height // 2) * 2 + shape.kernel - 1
    wide = -(-about.width // 2) + (shape.kernel + 2) // 2 - 1
    return 2 * 4 * shape.channels * tall * wide


@cache
def _kernel(**macros):
    return overlap.InTurn(kernels.load("first_bf16", **macros).get_function("convolve"))

"""Winograd: 3 x 3 convolutions with fewer multiplications, as three kernels: there, products of matrices, and back.

With tiles of m x m outputs, `winograd2` and `winograd4` do 4 and 2.25 multiplications an output where the direct way
does 9. They pay with memory, through which the transformed images go (`Prepared.workspace`), and with precision.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.conv import Prepared, Rung
from mlpkit.kernels.conv.product import in_order, pixels, product

FILE, THREADS, TAPS = "conv_9_winograd", 256, 3
VECTORS = {2: 4, 4: 2}  # numbers of a thread, so that a tile of them fits into its registers
PRODUCT_TILE, PROCESSORS = 128, 132  # what a large block of a product computes, and how many blocks fill a GPU
MOST = 2**31 - 2**16
SIZES = np.dtype(
    [
        *((name, np.int32) for name in ("n", "h", "w", "channels", "down", "across", "padding", "pitch")),
        ("places", "i8"),
    ]
)


@dataclass(frozen=True)
class Plan:
    """Correlations of n images (h, w) with padding, by tiles of m x m outputs (out_h, out_w); slices: of the tiles."""

    m: int
    n: int
    h: int
    w: int
    out_h: int
    out_w: int
    padding: int
    slices: int = 1

    @property
    def down(self):
        return -(-self.out_h // self.m)

    @property
    def across(self):
        return -(-self.out_w // self.m)

    @property
    def places(self):
        return (self.m + TAPS - 1) ** 2

    @property
    def rows(self):
        """The tiles, filled up to whole slices of whole fours."""
        return -(-self.n * self.down * self.across // (4 * self.slices)) * 4 * self.slices

    def empty(self, channels):
        """Return an array (places, rows, channels filled up to fours) of zeros: what no kernel writes stays so."""
        import cupy

        return cupy.zeros((self.places, self.rows, _fours(channels)), np.float32)

    def kernel(self, name, images, tiles, outputs=False):
        """Return a launch that makes tiles of images (n, h, w, c), or back; outputs: the images are of outputs."""
        (n, h, w, c), padding = images.shape, 0 if outputs else self.padding
        vector = math.gcd(c, VECTORS[self.m])
        pitch, place = (size // vector for size in (tiles.shape[2], tiles[0].size))
        sizes = np.array([(n, h, w, c // vector, self.down, self.across, padding, pitch, place)], SIZES)
        arrays = (tiles, images) if name == "transform_output" else (images, tiles)
        blocks = -(-n * self.down * self.across * c // vector // THREADS)
        kernel = kernels.load(FILE, TILE=self.m, VECTOR=vector).get_function(name)
        return partial(kernel, (blocks,), (THREADS,), (*arrays, sizes.view(f"V{sizes.nbytes}")))


def why_not(shape, which):
    """Return why these matrices don't fit, a sentence, or None."""
    if shape.kernel != TAPS or shape.stride != 1:
        return (
            f"Winograd's matrices here are for 3 x 3 kernels and a stride of 1, not {shape.kernel} x {shape.kernel} "
            f"and {shape.stride}: take another rung."
        )
    if shape.batch * (shape.height + 4) * (shape.width + 4) * max(shape.channels, shape.channels_out) > MOST:
        return f"these kernels count tiles in 32 bits, and {shape.batch} images have too many: take fewer at a time."
    return None


def prepare(m, precision, shape, which, a, b):
    """Return the pass of a shape for float32 operands, with tiles of m x m outputs. See `Rung`.

    Raises ValueError for what `why_not` says no to.
    """
    if reason := why_not(shape, which):
        raise ValueError(reason)
    if which == "weight_gradient":
        return _weight_gradient(m, precision, shape, a, b)
    n, _, h, w = a.shape
    back = which == "input_gradient"
    out_h, out_w = shape.x[2:] if back else shape.y[2:]
    plan = Plan(m, n, h, w, out_h, out_w, TAPS - 1 - shape.padding if back else shape.padding)
    return _correlate(plan, precision, a, b, back)


def _correlate(plan, precision, x, filters, back):
    """Return y (n, o, out_h, out_w) of images x (n, c, h, w); back: from o to c, the filters turned by half a turn."""
    import cupy

    x, o = pixels(x), filters.shape[1 if back else 0]
    y = cupy.empty((plan.n, plan.out_h, plan.out_w, o), np.float32)
    V, M = plan.empty(x.shape[3]), plan.empty(o)
    U = cupy.zeros((plan.places, V.shape[2], M.shape[2]), np.float32)
    calls = (
        _filters(plan, filters, U, back),
        plan.kernel("transform_input", x, V),
        product(V, U, M, precision),
        plan.kernel("transform_output", y, M, outputs=True),
    )
    return Prepared(in_order(*calls), partial(_images, y), V.nbytes + M.nbytes + U.nbytes, (x, filters))


def _weight_gradient(m, precision, shape, x, dy):
    import cupy

    plan = Plan(m, *x.shape[::2], x.shape[3], *dy.shape[2:], shape.padding, slices(shape, m))
    x, dy, dw = pixels(x), pixels(dy), cupy.empty(shape.w, np.float32)
    V, dM = plan.empty(shape.channels), plan.empty(shape.channels_out)
    parts = [array.reshape(plan.places * plan.slices, -1, array.shape[2]) for array in (dM, V)]
    dM_T, V_parts = parts[0].transpose(0, 2, 1), parts[1]
    dU = cupy.empty((len(V_parts), dM.shape[2], V.shape[2]), np.float32)
    calls = (
        plan.kernel("transform_input", x, V),
        plan.kernel("transform_output_gradient", dy, dM, outputs=True),
        product(dM_T, V_parts, dU, precision),
        _filter_gradient(plan, dU, dw),
    )
    return Prepared(in_order(*calls), lambda: dw, V.nbytes + dM.nbytes + dU.nbytes, (x, dy))


def slices(shape, m):
    """Return in how many parts the sum over tiles is made, so that there is work for all multiprocessors."""
    blocks = (m + 2) ** 2 * math.prod(-(-size // PRODUCT_TILE) for size in shape.w[:2])
    return max(1, min(8, 2 * PROCESSORS // blocks))


# What is launched


def _filters(plan, w, U, back):
    o, c = w.shape[:2]
    taps = TAPS**2
    (come, go), steps = ((o, c), (c * taps, taps)) if back else ((c, o), (taps, c * taps))
    numbers = *map(np.int32, (come, go, *steps, U.shape[2])), np.int64(U[0].size), np.int32(back)
    kernel = kernels.load(FILE, TILE=plan.m, VECTOR=1).get_function("transform_filters")
    return partial(kernel, (-(-come * go // THREADS),), (THREADS,), (w, U, *numbers))


def _filter_gradient(plan, dU, dw):
    o, c = dw.shape[:2]
    numbers = *map(np.int32, (o, c, dU.shape[2])), np.int64(dU[0].size), np.int32(plan.slices)
    kernel = kernels.load(FILE, TILE=plan.m, VECTOR=1).get_function("transform_filter_gradient")
    return partial(kernel, (-(-o * c // THREADS),), (THREADS,), (dU, dw, *numbers))


# What lies how


def _fours(number):
    return -(-number // 4) * 4


def _images(pixels):
    """Return images (n, h, w, c) as (n, c, h, w)."""
    import cupy

    return cupy.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


RUNGS = {
    f"winograd{m}{suffix}": Rung(
        f"fewer multiplications: tiles of {m} x {m}{words}",
        (FILE,),
        precision,
        "nhwc",
        partial(prepare, m, precision),
        why_not,
    )
    for m, precision, suffix, words in (
        (2, "float32", "", ""),
        (4, "float32", "", ""),
        (2, "tf32", "_tf32", ", products in TF32"),
    )
}

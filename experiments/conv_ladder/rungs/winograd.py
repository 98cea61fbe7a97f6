"""Winograd: 3 x 3 convolutions with fewer multiplications, as three kernels: there, products of matrices, and back.

With tiles of m x m outputs, `winograd2` and `winograd4` do 4 and 2.25 multiplications an output where the direct way
does 9. They pay with memory, through which the transformed images go (`Prepared.workspace`), and with precision.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from mlpkit import kernels

from . import Prepared, Rung
from .product import InOrder, by_value, pixels, product

FILE, FUSED, THREADS, FUSED_THREADS, TAPS = "conv_9_winograd", "conv_9_winograd_fused", 256, 256, 3
VECTORS = {2: 4, 4: 2}  # numbers of a thread, so that a tile of them fits into its registers
PRODUCT_TILE, PROCESSORS = 128, 132  # what a large block of a product computes, and how many blocks fill a GPU
MANY_WAVES = 8  # of large blocks, in which the last one costs little
MOST_SLICES, PAIRS = 16, 32  # of a sum over tiles; of a filter and a channel, of a block
SPLIT = "tf32x3"  # products of float32 numbers as three of TF32
MOST = 2**31 - 2**16
SIZES = np.dtype(  # the struct of the kernels
    [
        *((name, np.int32) for name in ("n", "h", "w", "channels", "down", "across", "padding", "pitch")),
        *((name, np.int64) for name in ("places", "copies")),
        *((name, np.int32) for name in ("low", "nothing")),
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

    def empty(self, channels, copies=1):
        """Return an array (places, rows, channels filled up to fours) of zeros: what no kernel writes stays so."""
        import cupy

        return cupy.zeros((self.places, copies * self.rows, _whole(channels, 4)), np.float32)

    def kernel(self, name, images, tiles, outputs=False, copies=0, low=0):
        """Return a launch that makes tiles of images (n, h, w, c), or back; outputs: the images are of outputs.

        copies: numbers from one of three copies of the tiles to the next, or 0; low: which is the rest of the rounding.
        """
        (n, h, w, c), padding = images.shape, 0 if outputs else self.padding
        vector = math.gcd(c, VECTORS[self.m])
        pitch, place = (size // vector for size in (tiles.shape[2], tiles.strides[0] // 4))
        sizes = np.array(
            [(n, h, w, c // vector, self.down, self.across, padding, pitch, place, copies // vector, low, 0)], SIZES
        )
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
    h, w = a.shape[2:]
    back = which == "input_gradient"
    out_h, out_w = shape.x[2:] if back else shape.y[2:]
    plan = Plan(m, shape.batch, h, w, out_h, out_w, TAPS - 1 - shape.padding if back else shape.padding)
    return _correlate(plan, precision, a, b, back)


def _correlate(plan, precision, x, filters, back):
    """Return y (n, o, out_h, out_w) of images x (n, c, h, w); back: from o to c, the filters turned by half a turn."""
    import cupy

    x, o = pixels(x), filters.shape[1 if back else 0]
    y = cupy.empty((len(x), plan.out_h, plan.out_w, o), np.float32)
    split, c = 3 if precision == SPLIT else 1, _whole(x.shape[3], 4)
    V, M = plan.empty(split * c), plan.empty(o)
    U = cupy.zeros((plan.places, split * c, M.shape[2]), np.float32)
    copies = c if split > 1 else 0
    calls = (
        _filters(plan, filters, U, back, copies),
        plan.kernel("transform_input", x, V, copies=copies),
        product(V, U, M, "tf32" if copies else precision),
        plan.kernel("transform_output", y, M, outputs=True),
    )
    return Prepared(InOrder(*calls), partial(_images, y), V.nbytes + M.nbytes + U.nbytes, (x, filters))


def _weight_gradient(m, precision, shape, x, dy):
    import cupy

    split, (h, w), (out_h, out_w) = 3 if precision == SPLIT else 1, shape.x[2:], shape.y[2:]
    plan = Plan(m, shape.batch, h, w, out_h, out_w, shape.padding, slices(shape, m))
    x, dy, dw = pixels(x), pixels(dy), cupy.empty(shape.w, np.float32)
    V, dM = plan.empty(shape.channels, split), plan.empty(shape.channels_out, split)
    copies, precision = (plan.rows, "tf32") if split > 1 else (0, precision)
    parts = [array.reshape(plan.places * plan.slices, -1, array.shape[2]) for array in (dM, V)]
    dM_T, V_parts = parts[0].transpose(0, 2, 1), parts[1]
    dU = cupy.empty((len(V_parts), dM.shape[2], V.shape[2]), np.float32)
    calls = (
        plan.kernel("transform_input", x, V, copies=copies * V.shape[2]),
        plan.kernel("transform_output_gradient", dy, dM, True, copies * dM.shape[2], low=1),
        product(dM_T, V_parts, dU, precision),
        _filter_gradient(plan, dU, dw),
    )
    return Prepared(InOrder(*calls), lambda: dw, V.nbytes + dM.nbytes + dU.nbytes, (x, dy))


def slices(shape, m):
    """Return in how many parts the sum over tiles is made, so that blocks of the product come in full waves.

    What a wave of blocks takes, and what a part's bytes take, is as measured on an H200, roughly.
    """
    o, c = shape.w[:2]
    tiles = shape.batch * math.prod(-(-size // m) for size in shape.y[2:])
    places = (m + TAPS - 1) ** 2
    blocks = places * -(-o // PRODUCT_TILE) * -(-c // PRODUCT_TILE)

    def us(parts):
        return 0.035 * tiles * -(-blocks * parts // PROCESSORS) / parts + parts * places * o * c * 8 / 3e6

    return min(range(1, MOST_SLICES + 1), key=us)


# In one kernel


def fused_tile(shape, which):
    """Return the macros of a block: filters, or rows of the matrices, and tiles or channels, their columns.

    Small blocks come in pairs on a multiprocessor: one transforms while the other multiplies. Large ones load less.
    """
    o, c = shape.w[:2]
    if which == "weight_gradient":
        return {"FILTERS": 64 if o > 32 else 32, "COLUMNS": 32}
    (h, w), rows = (shape.x[2:], c) if which == "input_gradient" else (shape.y[2:], o)
    waves = shape.batch * -(-h // 2) * -(-w // 2) / 32 * -(-rows // 64) / PROCESSORS
    return {"FILTERS": 64 if rows > 32 and waves > MANY_WAVES else 32, "COLUMNS": 32}


def prepare_fused(shape, which, a, b, **macros):
    """Return the pass of a shape, with tiles of 2 x 2 outputs, in one kernel and a small one before it or after it.

    macros: instead of those of `fused_tile`; or PARTS: in how many the sum over tiles is made. See `Rung`. Raises
    ValueError for what `why_not` says no to.
    """
    import cupy

    if reason := why_not(shape, which):
        raise ValueError(reason)
    slices, macros = macros.pop("PARTS", None), fused_tile(shape, which) | macros
    if which == "weight_gradient":
        return _fused_weight_gradient(shape, a, b, macros, slices)
    back, x = which == "input_gradient", pixels(a)
    o, c = shape.w[:2]
    (come, go), size = ((o, c), shape.x[2:]) if back else ((c, o), shape.y[2:])
    depth, padded = FUSED_THREADS // macros["COLUMNS"], _whole(go, macros["FILTERS"])
    U = cupy.zeros((_whole(come, depth), 16, padded), np.float32)
    y = cupy.empty((shape.batch, *size, go), np.float32)
    tiles = shape.batch * -(-size[0] // 2) * -(-size[1] // 2)
    blocks = -(-tiles // macros["COLUMNS"]) * (padded // macros["FILTERS"])
    sizes = _fused_sizes(x, y, padded, TAPS - 1 - shape.padding if back else shape.padding)
    steps = (c * TAPS**2, TAPS**2) if back else (TAPS**2, c * TAPS**2)
    values = map(np.int32, (come, go, *steps, padded, back))
    calls = (
        _fused("transform_filters", -(-come * go // THREADS), (b, U, *values), macros),
        _fused("forward", blocks, (x, U, y, sizes), macros),
    )
    return Prepared(InOrder(*calls), partial(_images, y), U.nbytes, (x, b))


def _fused_weight_gradient(shape, x, dy, macros, slices):
    import cupy

    x, dy, (o, c) = pixels(x), pixels(dy), shape.w[:2]
    depth, blocks = FUSED_THREADS // macros["COLUMNS"], -(-o // macros["FILTERS"]) * -(-c // macros["COLUMNS"])
    groups = -(-shape.batch * -(-shape.out_height // 2) * -(-shape.out_width // 2) // depth)
    slices = min(groups, slices or max(1, PROCESSORS // blocks))
    parts, dw = cupy.empty((slices, TAPS**2, c, o), np.float32), cupy.empty(shape.w, np.float32)
    sizes = _fused_sizes(x, dy, o, shape.padding, slices)
    calls = (
        _fused("weight_gradient", blocks * slices, (x, dy, parts, sizes), macros),
        _fused("add_slices", -(-dw.size // THREADS), (parts, dw, *map(np.int32, (o, c, slices))), macros),
    )
    return Prepared(InOrder(*calls), lambda: dw, parts.nbytes, (x, dy))


def _fused_sizes(x, y, padded, padding, slices=1):
    h, w, o = y.shape[1:]
    return by_value(*x.shape, h, w, o, padded, -(-h // 2), -(-w // 2), padding, slices)


def _fused(name, blocks, arguments, macros):
    shared, filters, columns = 0, macros["FILTERS"], macros["COLUMNS"]
    if name in ("forward", "weight_gradient"):
        depth = FUSED_THREADS // columns
        shared = 4 * 16 * max(2 * depth * (filters + columns + 32 // depth), columns * (filters + 4))
    kernel = kernels.load(FUSED, **macros).get_function(name)
    kernel.max_dynamic_shared_size_bytes = shared
    return partial(kernel, (blocks,), (FUSED_THREADS,), arguments, shared_mem=shared)


def _whole(number, multiple):
    return -(-number // multiple) * multiple


# What is launched


def _filters(plan, w, U, back, copies):
    o, c = w.shape[:2]
    taps = TAPS**2
    (come, go), steps = ((o, c), (c * taps, taps)) if back else ((c, o), (taps, c * taps))
    values = (
        *map(np.int32, (come, go, *steps, U.shape[2])),
        np.int64(U[0].size),
        np.int64(copies * U.shape[2]),
        np.int32(1),
        np.int32(back),
    )
    kernel = kernels.load(FILE, TILE=plan.m, VECTOR=1).get_function("transform_filters")
    return partial(kernel, (-(-come * go // THREADS),), (THREADS,), (w, U, *values))


def _filter_gradient(plan, dU, dw):
    o, c = dw.shape[:2]
    values = *map(np.int32, (o, c, dU.shape[2])), np.int64(dU[0].size), np.int32(plan.slices)
    kernel = kernels.load(FILE, TILE=plan.m, VECTOR=1).get_function("transform_filter_gradient")
    return partial(kernel, (-(-o * c // PAIRS),), (THREADS,), (dU, dw, *values), shared_mem=4 * plan.places * PAIRS)


# What lies how


def _images(pixels):
    """Return images (n, h, w, c) as (n, c, h, w)."""
    import cupy

    return cupy.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _rung(m, precision, words):
    label, kind = f"fewer multiplications: tiles of {m} x {m}{words}", "float32" if precision == SPLIT else precision
    return Rung(label, (FILE,), kind, "nhwc", partial(prepare, m, precision), why_not)


RUNGS = {
    "winograd2": _rung(2, "float32", ""),
    "winograd4": _rung(4, "float32", ""),
    "winograd2_tf32": _rung(2, "tf32", ", on tensor cores"),
    "winograd4_tf32": _rung(4, "tf32", ", on tensor cores"),
    "winograd4_split": _rung(4, SPLIT, ", on tensor cores, numbers in two parts"),
    "winograd2_fused": Rung("tiles of 2 x 2, all in one kernel", (FUSED,), "float32", "nhwc", prepare_fused, why_not),
}

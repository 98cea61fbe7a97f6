"""Convolution, bias, ReLU and 2 x 2 max pool: in one kernel, or in two or three. What does a trip through memory cost?

Images lie as (n, c, h, w). With y (n, o, h' // 2, w' // 2), h' and w' being those of the convolution, also come the
choices: which of the four pixels of a window was the largest. They are two bits, those of eight filters in a uint16,
in an array (ceil(o / 8), windows of all images). Of several as large it is the first; where y is 0, it says nothing.
"""

from functools import partial

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.conv import Prepared, winograd
from mlpkit.kernels.conv.product import InOrder, by_value, pixels

FILE, GROUP, THREADS = "conv_fused", 8, 256
BACKWARD, WARPS, CHANNELS, CHUNK = "conv_fused_backward", 8, 64, 8
FEW = 8  # channels, at most, for which a lane has a filter
MOST_SHARED, SHARED_OF_TWO, PROCESSORS = 227 << 10, 113 << 10, 132  # bytes of a block, and where there are two
MOST = 2**31 - 2**16
SIZES = (
    *("batch", "channels", "height", "width", "channels_out", "filters_room", "out_height", "out_width"),
    *("down", "across", "padding"),
)


def tile(shape):
    """Return the macros: a block has FILTERS filters of WINDOWS windows, and a thread EACH of these; see the kernel."""
    filters = 64 if shape.channels_out > 32 else 32
    return {
        "FILTERS": filters,
        "WINDOWS": 32,
        "EACH": 1,
        "CHANNELS": 2 if shape.kernel <= 3 and shape.channels > 1 else 1,
    }


def why_not(shape):
    """Return why there is nothing to pool, a sentence, or None."""
    if min(shape.out_height, shape.out_width) < 2:
        return f"a result of {shape.out_height} x {shape.out_width} has no window of 2 x 2: leave out the pool."
    if shape.batch * shape.channels_out * shape.out_height * shape.out_width > MOST:
        return f"these kernels count in 32 bits, and {shape.batch} images have too many numbers: take fewer at a time."
    return None


def pooled(shape):
    """Return the shape of the pool's result."""
    return shape.batch, shape.channels_out, shape.out_height // 2, shape.out_width // 2


def prepare_fused(shape, x, w, bias, **macros):
    """Return `Prepared` for all four in one kernel; its result() returns y, float32, and the choices, uint16.

    x (n, c, h, w), w (o, c, k, k), bias (o,): float32 CuPy arrays. macros: instead of those of `tile`. Raises
    ValueError for what `why_not` says no to.
    """
    macros, filters = _begin(shape, w, macros)
    y, choices = _empty_pooled(shape)
    call = _convolution("convolution_pool", shape, macros, (x, filters, bias, y, choices))
    return Prepared(call, lambda: (y, choices), 0, (x, filters, bias))


def prepare_separate(shape, x, w, bias, together=1, **macros):
    """Return `Prepared` for the same with three kernels; together: 2 for two, bias and ReLU with the convolution.

    Arguments and results are those of `prepare_fused`. workspace: the bytes of what is written between the kernels.
    """
    import cupy

    macros, filters = _begin(shape, w, macros)
    z, (y, choices) = cupy.empty(shape.y, np.float32), _empty_pooled(shape)
    here = bias if together > 1 else np.uintp(0)
    calls = [_convolution("convolution", shape, macros, (x, filters, here, z), pool=False)]
    if together == 1:
        numbers = map(np.int32, (shape.channels_out, shape.out_height * shape.out_width, z.size))
        calls.append(_launch("bias_relu", z.size, macros, (z, bias, *numbers)))
    calls.append(_launch("pool", choices.size, macros, (z, y, choices, sizes_of(shape, macros))))
    return Prepared(InOrder(*calls), lambda: (y, choices), z.nbytes, (x, filters, bias))


def why_not_winograd(shape):
    """Return why the pool can't be in Winograd's last kernel, a sentence, or None."""
    if shape.channels_out % GROUP:
        return f"choices are kept for eight filters together: {shape.channels_out} filters are no multiple of 8."
    return winograd.why_not(shape, "forward") or why_not(shape)


def prepare_winograd(shape, x, w, bias, m=4, precision="float32"):
    """Return `Prepared` for the same by Winograd's way with tiles of m x m outputs: the pool is in its last kernel.

    Arguments and results are those of `prepare_fused`. precision: as of `winograd.prepare`. Raises ValueError for what
    `why_not_winograd` says no to.
    """
    if reason := why_not_winograd(shape):
        raise ValueError(reason)
    (y, choices), x = _empty_pooled(shape), pixels(x)
    n, o, down, across = y.shape
    plan = winograd.Plan(m, n, shape.height, shape.width, 2 * down, 2 * across, shape.padding)
    M, calls, workspace = winograd.products(plan, precision, x, w)
    sizes, blocks = plan.sizes((n, 2 * down, 2 * across, o), M)
    last = plan.launch("transform_output_pool", blocks, (M, bias, y, choices, sizes), o)
    return Prepared(InOrder(*calls, last), lambda: (y, choices), workspace, (x, w, bias))


def unpack(choices, filters, windows):
    """Return choices as numbers from 0 to 3, (filters, windows); choices: a NumPy or a CuPy array."""
    bits = choices.reshape(-1, 1, windows) >> (2 * np.arange(GROUP, dtype=np.uint16)).reshape(1, GROUP, 1)
    return (bits & 3).reshape(-1, windows)[:filters]


def why_not_back(shape, which):
    """Return why there is no way back for a shape, a sentence, or None; which: one of the two gradients."""
    if shape.stride != 1:
        return "the way back through a pool is for convolutions with a stride of 1: take separate kernels for others."
    if (reason := why_not(shape)) is None and not band_of(shape, which):
        reason = f"images {shape.width} pixels wide don't fit into a block's shared memory: take separate kernels."
    return reason


def prepare_weight_gradient(shape, x, dy, y, choices, **macros):
    """Return `Prepared` for dW (o, c, k, k), from the pool's gradient dy, and y and choices of `prepare_fused`.

    macros: instead of those of `back_tile`. Raises ValueError for what `why_not_back` says no to.
    """
    import cupy

    if reason := why_not_back(shape, "weight_gradient"):
        raise ValueError(reason)
    macros, few, (o, c) = back_tile(shape) | macros, shape.channels <= FEW, shape.w[:2]
    blocks = -(-o // 32) * c if few else -(-o // (WARPS * macros["FILTERS"])) * -(-c // CHANNELS)
    band = band_of(shape, "weight_gradient", macros)
    bands = shape.batch * -(-(shape.out_height // 2) // band)
    slices = -(-bands // -(-bands * blocks // ((4 if few else 2) * PROCESSORS)))
    parts, dw = cupy.empty((slices, o, shape.kernel**2, c), np.float32), cupy.empty(shape.w, np.float32)
    sizes = _back_sizes(shape, band, slices)
    name, shared = "weight_gradient" + "_few" * few, _weight_shared(shape, band, macros)
    arguments = (x, dy, y, choices, parts, sizes)
    calls = (
        _back(name, blocks * slices, arguments, macros, shared),
        _back("add_slices", -(-dw.size // THREADS), (parts, dw, *map(np.int32, (o, c, slices))), macros),
    )
    return Prepared(InOrder(*calls), lambda: dw, parts.nbytes, (x, dy, y, choices))


def prepare_input_gradient(shape, w, dy, y, choices, **macros):
    """Return `Prepared` for dx (n, c, h, w), from the filters, and what `prepare_weight_gradient` gets."""
    import cupy

    if reason := why_not_back(shape, "input_gradient"):
        raise ValueError(reason)
    macros, band = back_tile(shape) | macros, band_of(shape, "input_gradient")
    dx = cupy.empty(shape.x, np.float32)
    filters = cupy.zeros(
        (-(-shape.channels_out // CHUNK) * CHUNK, shape.kernel**2, -(-shape.channels // CHANNELS) * CHANNELS),
        np.float32,
    )
    filters[: len(w), :, : shape.channels] = w.reshape(*w.shape[:2], -1).transpose(0, 2, 1)
    blocks = -(-shape.height // band) * -(-shape.channels // CHANNELS) * shape.batch
    arguments = (filters, dy, y, choices, dx, _back_sizes(shape, band, 1))
    shared = _input_shared(shape, band, macros)
    return Prepared(
        _back("input_gradient", blocks, arguments, macros, shared), lambda: dx, 0, (filters, dy, y, choices)
    )


def back_tile(shape):
    """Return the macros of the way back: filters whose sums a warp keeps, and windows whose patches it keeps."""
    filters, windows = {1: (8, 4), 2: (8, 4), 3: (4, 4), 4: (3, 2), 5: (2, 2)}.get(shape.kernel, (1, 1))
    return {"KERNEL": shape.kernel, "FILTERS": filters, "WINDOWS": windows, "WARPS": WARPS}


def band_of(shape, which, macros=None):
    """Return how many rows a block has at a time: as many as fit into shared memory, or 0.

    They are rows of windows for the weight gradient, of the image for the input's.
    """
    macros, back = macros or back_tile(shape), which == "input_gradient"
    most, shared = (MOST_SHARED, _input_shared) if back else (SHARED_OF_TWO, _weight_shared)
    rows = shape.height if back else shape.out_height // 2
    return next((band for band in range(rows, 0, -1) if shared(shape, band, macros) <= most), 0)


def _weight_shared(shape, band, macros):
    """Return the bytes of pixels and gradients for so many rows of windows."""
    across, taps = shape.out_width // 2, shape.kernel**2
    places, windows = (2 * band + shape.kernel - 1) * (2 * across + shape.kernel - 1), band * across
    if shape.channels <= FEW:
        return max(4 * places + 8 * 33 * windows, 4 * 32 * WARPS * taps)
    return 4 * places * (CHANNELS + 2) + 8 * windows * WARPS * macros["FILTERS"]


def _input_shared(shape, band, macros):
    """Return the bytes of weights, gradients and patches for so many rows of the image."""
    taps, patch = shape.kernel**2, (shape.kernel + 1) ** 2
    windows = min((band + shape.kernel) // 2 + 1, shape.out_height // 2) * (shape.out_width // 2)
    held = 2 * (4 * CHUNK * taps * CHANNELS + 8 * WARPS * macros["WINDOWS"] * CHUNK)
    return held + 4 * windows * (patch * (CHANNELS + 1) + 1)


def _back_sizes(shape, band, slices):
    return by_value(*shape.x, shape.channels_out, *pooled(shape)[2:], shape.padding, band, slices)


def _back(name, blocks, arguments, macros, shared=0):
    kernel = kernels.load(BACKWARD, **macros).get_function(name)
    kernel.max_dynamic_shared_size_bytes = shared
    return partial(kernel, (blocks,), (32 * WARPS,), arguments, shared_mem=shared)


def _begin(shape, w, macros):
    """Return the macros, and the weights as (c, k k, o filled up with zeros to whole blocks)."""
    import cupy

    if reason := why_not(shape):
        raise ValueError(reason)
    macros = tile(shape) | macros | {"KERNEL": shape.kernel, "STRIDE": shape.stride}
    filters = cupy.zeros((shape.channels, shape.kernel**2, _room(shape, macros)), np.float32)
    filters[:, :, : shape.channels_out] = w.reshape(*w.shape[:2], -1).transpose(1, 2, 0)
    return macros, filters


def _room(shape, macros):
    return -(-shape.channels_out // macros["FILTERS"]) * macros["FILTERS"]


def _empty_pooled(shape):
    import cupy

    n, o, down, across = pooled(shape)
    return cupy.empty((n, o, down, across), np.float32), cupy.empty((-(-o // GROUP), n * down * across), np.uint16)


def sizes_of(shape, macros, pool=True):
    """Return the struct `Sizes` of the kernels, as an array of one item that a launch passes by value."""
    down, across = (size // 2 if pool else -(-size // 2) for size in (shape.out_height, shape.out_width))
    numbers = {"filters_room": _room(shape, macros), "down": down, "across": across}
    return by_value(*(numbers[name] if name in numbers else getattr(shape, name) for name in SIZES))


def _convolution(name, shape, macros, arrays, pool=True):
    """Return a launch of a convolution, with blocks for all windows and all filters."""
    sizes = sizes_of(shape, macros, pool)
    *_, down, across, _ = sizes.view(np.int32)
    filters, windows = macros["FILTERS"], macros["WINDOWS"]
    blocks = -(-shape.batch * int(down) * int(across) // windows) * (_room(shape, macros) // filters)
    taps, side = shape.kernel**2, shape.kernel + shape.stride
    shared = 2 * 4 * macros["CHANNELS"] * (side**2 * windows + taps * filters)
    kernel = kernels.load(FILE, **macros).get_function(name)
    kernel.max_dynamic_shared_size_bytes = shared
    threads = filters // GROUP * windows // macros["EACH"]
    return partial(kernel, (blocks,), (threads,), (*arrays, sizes), shared_mem=shared)


def _launch(name, threads, macros, arguments):
    kernel = kernels.load(FILE, **macros).get_function(name)
    return partial(kernel, (-(-threads // THREADS),), (THREADS,), arguments)

"""What is between convolutions on planes: on the emulator against NumPy, and on a GPU."""

from itertools import product

import emulator
import numpy as np
import pytest
from conv_cases import error
from emulator import needs_compiler
from shared import one_sentence, skip_before_ampere, sweep

from experiments.lab import ptxas
from mlpkit.engines import numpy_baseline
from mlpkit.kernels.cnn import between
from mlpkit.kernels.conv import Shape, blocked

MODES = {"float32": blocked.MODES["fp16x3"], "tf32": blocked.MODES["fp16"], "bf16": blocked.MODES["bf16"]}
SIZES = (
    between.Pooled(3, 20, 6, 8, 2, True),
    between.Pooled(2, 5, 4, 4, 2, False),
    between.Pooled(2, 16, 5, 3, 1, True),
    between.Pooled(2, 7, 3, 5, 1, False),
    between.Pooled(2, 9, 6, 3, 3, True),
    between.Pooled(1, 33, 10, 5, 5, True),
)
FIRST = (
    (Shape(3, 1, 20, 9, 8, 3), 2, True),
    (Shape(2, 1, 6, 10, 7, 5, padding=2), 2, True),
    (Shape(2, 3, 9, 6, 7, 3, padding=1), 1, True),
    (Shape(5, 2, 17, 6, 6, 2), 2, False),
    (Shape(1, 4, 5, 9, 9, 7, padding=1), 1, False),
)


@pytest.fixture
def cupy(folder):
    with emulator.with_blocked(folder, blocked, between) as found:
        yield found


def numbers(shape, seed=0):
    """Return small float32 numbers, many of them equal, which bfloat16 can store."""
    return np.random.default_rng(seed).integers(-6, 7, shape).astype(np.float32) / 4


def windows_of(z, pool):
    """Return z (n, c, h, w) as (n, c, h / pool, w / pool, pool * pool)."""
    n, c, h, w = z.shape
    windows = z.reshape(n, c, h // pool, pool, w // pool, pool).transpose(0, 1, 2, 4, 3, 5)
    return windows.reshape(n, c, h // pool, w // pool, -1)


def right_forward(about, z, bias):
    """Return the pooled numbers and which of a window's numbers came through, -1 for none."""
    windows = windows_of(z + (0 if bias is None else bias[:, None, None]), about.pool)
    places, y = windows.argmax(-1), windows.max(-1)
    return (np.maximum(y, 0), np.where(y > 0, places, -1)) if about.relu else (y, places)


def right_backward(about, dy, places):
    n, c, h, w = dy.shape
    dz = np.where(np.arange(about.pool**2) == places[..., None], dy[..., None], 0)
    dz = dz.reshape(n, c, h, w, about.pool, about.pool).transpose(0, 1, 2, 4, 3, 5)
    return dz.reshape(n, c, about.height, about.width)


def put(cupy, x, mode, layout):
    """Return images (n, c, h, w) in a layout, "nchw" or "nc8hw8"."""
    x = cupy.asarray(np.ascontiguousarray(x, np.float32))
    return x if layout == "nchw" else cupy.ascontiguousarray(blocked.images_as_blocked(x, mode))


def taken(cupy, found, mode, layout, channels, least=2**11):
    """Return what is in a layout as images (n, c, h, w), a NumPy array, and that channels that are added are zero.

    least: of the largest number as fp16.
    """
    if layout == "nchw":
        return cupy.asnumpy(found)
    array = cupy.asnumpy(found.array if layout == "stored" else found)
    if layout == "nc8hw8" or not mode.fp16_parts:
        array = (array.astype(np.uint32) << 16).view(np.float32) if mode.stored == 8 else array
    else:
        scale = cupy.asnumpy(found.scale)[0]
        array = array.view(np.float16).astype(np.float64).sum(axis=0)
        assert not array.any() or least <= np.abs(array).max() < 2**15
        array = array / scale
    n, groups, h, w, each = array.shape
    images = array.transpose(0, 1, 4, 2, 3).reshape(n, groups * each, h, w)
    assert groups * each == blocked.padded(channels, 8)
    assert not images[:, channels:].any()
    return images[:, :channels]


def check_there_and_back(cupy, about, mode, layout, to):
    z, bias = numbers((about.images, about.channels, about.height, about.width)), numbers(about.channels, 1)
    dy = numbers((about.images, about.channels, about.down, about.across), 2)
    scales = blocked.new_scale(), blocked.new_scale()
    for size in (1, 1, 1024):
        y, kept = between.forward(
            mode, about, put(cupy, size * z, mode, layout), layout, to, cupy.asarray(size * bias), scales[0]
        )
        wanted, places = right_forward(about, size * z, size * bias)
        np.testing.assert_array_equal(taken(cupy, y, mode, to, about.channels), wanted)
        back, scale = "nchw" if to == "nchw" else "nc8hw8", scales[1] if mode.fp16_parts else None
        dz, sums = between.backward(mode, about, put(cupy, dy / size, mode, back), back, kept, True, scale)
        wanted = right_backward(about, dy / size, places)
        np.testing.assert_array_equal(taken(cupy, dz, mode, "stored", about.channels), wanted)
        db = cupy.asnumpy(sums).sum(axis=0)[: about.channels]
        np.testing.assert_allclose(db, wanted.sum((0, 2, 3)), rtol=1e-5, atol=1e-5 / size)
    if mode.fp16_parts:  # somebody else has found the largest number, and no guess is right
        largest, scale = cupy.asarray(np.abs(wanted).max(keepdims=True).ravel().view(np.uint32)), blocked.new_scale()
        dz, _ = between.backward(mode, about, put(cupy, dy / size, mode, back), back, kept, True, scale, largest)
        np.testing.assert_array_equal(taken(cupy, dz, mode, "stored", about.channels), wanted)


def check_first(cupy, shape, pool, relu, mode, to):
    conv = blocked.cropped(shape, pool)
    about = between.Pooled(conv.batch, conv.channels_out, conv.out_height, conv.out_width, pool, relu)
    assert between.why_not_first(conv, about) is None
    x, w, bias = numbers(shape.x), numbers(shape.w, 1) / 16, numbers(shape.channels_out, 2)
    scale, counters = blocked.new_scale(), between.first_counters(conv, about)
    z = numpy_baseline.conv(*(each.astype(float) for each in (x, w)), None, 1, shape.padding)
    z = z[:, :, : about.height, : about.width]
    wanted, places = right_forward(about, z, bias)
    dy = numbers(wanted.shape, 3)
    dz = np.zeros(shape.y)
    dz[:, :, : about.height, : about.width] = right_backward(about, dy, places)
    dw_right = np.empty(shape.w)
    numpy_baseline.conv_backward_weights(x.astype(float), dz, dw_right, None, 1, shape.padding)
    largest = cupy.asarray(np.abs(x).max(keepdims=True).ravel().view(np.uint32))
    x, w, bias = map(cupy.asarray, (x, w, bias))
    for known in (None, None, largest):  # the first guess is wrong, the second right
        y, kept = between.first_forward(mode, conv, about, x, w, to, bias, scale, largest=known)
        found = taken(cupy, y, mode, to, about.channels, 2**11 if known is None else 2**6)
        assert error(found, wanted) < (1e-3 if mode.parts == 1 else 1e-6) * (8 if mode.stored == 8 else 1)
        dw, db = cupy.empty(shape.w, np.float32), cupy.empty(shape.channels_out, np.float32)
        back = "nchw" if to == "nchw" else "nc8hw8"
        between.first_weights(mode, conv, about, x, put(cupy, dy, mode, back), back, kept, dw, db, counters)
        assert error(cupy.asnumpy(dw), dw_right) < 1e-6
        np.testing.assert_allclose(cupy.asnumpy(db), dz.sum((0, 2, 3)), rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("about", [SIZES[0], SIZES[5]], ids=str)
def test_there_and_back(about, cupy):
    check_there_and_back(cupy, about, MODES["float32"], "nc8hw8", "stored")


LAYOUTS = (
    ("bf16", "nc8hw8", "stored"),
    ("tf32", "nchw", "stored"),
)


@needs_compiler
@pytest.mark.parametrize(("name", "layout", "to"), LAYOUTS)
def test_layouts(name, layout, to, cupy):
    check_there_and_back(cupy, SIZES[0], MODES[name], layout, to)


@needs_compiler
def test_the_first_convolution(cupy):
    check_first(cupy, *FIRST[2], MODES["float32"], "stored")


@needs_compiler
def test_the_first_convolution_in_bfloat16(cupy):
    check_first(cupy, *FIRST[1], MODES["bf16"], "stored")


@needs_compiler
def test_a_nan_comes_through(cupy):
    about = between.Pooled(1, 3, 2, 2, 2, True)
    z = np.float32([[[[1, np.nan], [3, 2]], [[-1, -2], [-3, np.nan]], [[-1, -2], [-3, -4]]]])
    y, _ = between.forward(MODES["float32"], about, put(cupy, z, MODES["float32"], "nc8hw8"), "nc8hw8", "nchw")
    np.testing.assert_array_equal(y.ravel(), [np.nan, np.nan, 0])


def test_what_the_first_convolution_can_not_do_is_said(monkeypatch):
    monkeypatch.setattr(between.gpu, "shared_memory", lambda: 227 << 10)
    conv, about = Shape(2, 1, 8, 9, 9, 3), between.Pooled(2, 8, 7, 7)
    assert between.why_not_first(conv, about) is None
    refused = (
        (Shape(2, 5, 8, 9, 9, 3), about),
        (Shape(2, 1, 8, 9, 9, 3, stride=2), about),
        (conv, between.Pooled(2, 8, 6, 6, 3)),
        (Shape(2, 4, 8, 200, 200, 3), between.Pooled(2, 8, 198, 198)),
    )
    for given in refused:
        one_sentence(between.why_not_first(*given))


@needs_compiler
@pytest.mark.parametrize("mode", sweep(MODES.values(), MODES["float32"]), ids=MODES)
def test_no_number_leaves_the_registers(mode):
    pytest.importorskip("cupy")
    found = []
    for about in (between.Pooled(128, 64, 26, 26, 2, True), between.Pooled(128, 128, 10, 10, 2, True), SIZES[2]):
        macros = {"MODE": mode.number, "FROM": int(mode.stored == 8)} | about.macros
        found += [ptxas.resources(f"between_{way}", **macros)[way] for way in ("forward", "backward")]
    for shape, pool in ((Shape(128, 1, 64, 28, 28, 3), 2), (Shape(128, 1, 6, 28, 28, 5, padding=2), 2)):
        about = between.Pooled(128, 64, shape.out_height, shape.out_width, pool, True)
        macros = {"MODE": mode.number, "EACH": between._each(shape)} | between._first_macros(shape, about)
        found += [
            ptxas.resources(name, **macros)[way]
            for name, way in (("first_forward", "forward"), ("first_weights", "weights"))
        ]
    assert {one.spilled_bytes for one in found} == {0}


@pytest.mark.gpu
@pytest.mark.parametrize("about", [*SIZES, between.Pooled(128, 128, 10, 10, 2, True)], ids=str)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_there_and_back_on_a_gpu(mode, about):
    import cupy

    for layout, to in product(("nc8hw8", "nchw"), ("stored", "nc8hw8", "nchw")):
        check_there_and_back(cupy, about, mode, layout, to)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "pool", "relu"), [*FIRST, (Shape(128, 1, 64, 28, 28, 3), 2, True)], ids=str)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_first_convolution_on_a_gpu(mode, shape, pool, relu):
    import cupy

    skip_before_ampere(mode is MODES["bf16"])
    for to in ("stored", "nc8hw8", "nchw"):
        check_first(cupy, shape, pool, relu, mode, to)

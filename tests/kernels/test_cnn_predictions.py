"""What is for answers alone, the first convolution in bfloat16 and the last layers: on the emulator, with no GPU."""

import emulator
import numpy as np
import pytest
from conv_cases import error
from emulator import needs_compiler
from shared import one_sentence, skip_before_ampere

from experiments.lab import ptxas
from mlpkit.engines import numpy_baseline
from mlpkit.kernels import gpu
from mlpkit.kernels.cnn import between, dense, first_bf16, predictions
from mlpkit.kernels.conv import Shape, blocked

# The convolution, the pool behind it, a ReLU, and whether images are bytes
FIRST = (
    (Shape(3, 1, 20, 9, 8, 3), 2, True, True),
    (Shape(2, 1, 6, 10, 7, 5, padding=2), 2, True, False),
    (Shape(2, 3, 9, 5, 7, 3, padding=1), 1, False, True),
    (Shape(5, 2, 40, 6, 6, 2), 1, True, False),
    (Shape(70, 1, 64, 8, 10, 3), 2, True, True),
)
ENDS = (
    (3, (2, 5), (10,)),
    (70, (20, 6), (70, 10)),
    (2, (64, 25), (256, 40, 7)),
    (5, (16, 4), (3, 2)),
)
ERRORS = {"float32": 1e-6, "tf32": 1e-3, "bf16": 1e-2}


@pytest.fixture
def cupy(folder):
    for cached in (predictions._kernel, dense._kernel, first_bf16._kernel):
        cached.cache_clear()
    with emulator.with_blocked(folder) as found:
        yield found
    for cached in (predictions._kernel, dense._kernel, first_bf16._kernel):
        cached.cache_clear()


def rounded(x):
    """Return float32 numbers as bfloat16 has them."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def images_of(y, channels):
    """Return planes of bfloat16 as images (n, channels, h, w), and that channels that were added are 0."""
    array = (np.asarray(y).astype(np.uint32) << 16).view(np.float32)
    n, groups, h, w, _ = array.shape
    images = array.transpose(0, 1, 4, 2, 3).reshape(n, groups * 8, h, w)
    assert not images[:, channels:].any()
    return images[:, :channels]


def check_first(cupy, shape, pool, relu, as_bytes):
    rng = np.random.default_rng(0)
    conv = blocked.cropped(shape, pool)
    about = between.Pooled(conv.batch, conv.channels_out, conv.out_height, conv.out_width, pool, relu)
    assert first_bf16.why_not(conv, about) is None
    x = rng.integers(0, 256, shape.x).astype(np.uint8) if as_bytes else rounded(rng.normal(size=shape.x))
    w, b = rng.normal(size=shape.w).astype("f4"), rng.normal(size=shape.channels_out).astype("f4")
    for bias in (b, None):
        on = bias if bias is None else cupy.asarray(bias)
        first = first_bf16.First(conv, about, cupy.asarray(w), on, as_bytes)
        y = images_of(cupy.asnumpy(first(cupy.asarray(x))), about.channels)
        filters, scale = (rounded(w / 255), 1) if as_bytes else (rounded(w), 1)
        z = numpy_baseline.conv(x * float(scale), filters.astype(float), bias, 1, shape.padding)
        z = z[:, :, : about.height, : about.width]
        z = z.reshape(*z.shape[:2], about.down, pool, about.across, pool).max((3, 5))
        assert error(y, np.maximum(z, 0) if relu else z) < 3e-3  # the result is rounded, too


def check_end(cupy, n, image, units, precision):
    rng = np.random.default_rng(1)
    channels, area = image
    sizes = (channels * area, *units)
    x = rng.normal(size=(n, channels, area, 1)).astype("f4")
    pairs = list(zip(sizes, units, strict=False))
    layers = [(rng.normal(size=(i, o)).astype("f4") / i**0.5, rng.normal(size=o).astype("f4")) for i, o in pairs]
    wanted = x.reshape(n, -1).astype(float)
    for number, (W, b) in enumerate(layers):
        wanted = wanted @ W + b
        wanted = np.maximum(wanted, 0) if number + 1 < len(layers) else wanted
    on = [(cupy.asarray(W), cupy.asarray(b)) for W, b in layers]
    end = predictions.End(n, on, precision, channels)
    out = cupy.empty((n, units[-1]), np.float32)
    given = blocked.images_as_blocked(cupy.asarray(x), blocked.MODES["bf16"]) if precision == "bf16" else x
    end(cupy.asarray(given), out)
    assert error(cupy.asnumpy(out), wanted) < ERRORS[precision]


def check_added(cupy, mode, layouts):
    about = between.Pooled(2, 20, 6, 4, 2, True)
    rng = np.random.default_rng(2)
    z, more = (rng.integers(-8, 9, (2, 20, 6, 4)).astype("f4") / 4 for _ in range(2))
    bias = rng.integers(-8, 9, 20).astype("f4") / 4
    wanted = np.maximum(z + more + bias[:, None, None], 0).reshape(2, 20, 3, 2, 2, 2).max((3, 5))
    scale = blocked.new_scale() if mode.fp16_parts else None
    added = between.convert(mode, more.shape, cupy.asarray(more), "nchw", "stored", scale)
    for layout in layouts:
        x = cupy.asarray(z) if layout else blocked.images_as_blocked(cupy.asarray(z), mode)
        x = cupy.ascontiguousarray(x)
        y, _ = between.forward(mode, about, x, layout or "nc8hw8", "nchw", cupy.asarray(bias), added=added)
        np.testing.assert_array_equal(cupy.asnumpy(y), wanted)


def check_bytes(cupy, mode):
    conv, about = Shape(2, 2, 8, 6, 8, 3, padding=1), between.Pooled(2, 8, 6, 8, 2, True)
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 256, conv.x).astype(np.uint8), rng.normal(size=conv.w).astype("f4")
    scaled = numpy_baseline.scale(x, np.dtype("f4"))
    found = [between.first_forward(mode, conv, about, *map(cupy.asarray, (each, w)), "nchw")[0] for each in (x, scaled)]
    np.testing.assert_array_equal(*map(cupy.asnumpy, found))


@needs_compiler
@pytest.mark.parametrize("case", FIRST[:3], ids=str)
def test_the_first_convolution_on_tensor_cores(case, cupy):
    check_first(cupy, *case)


@needs_compiler
@pytest.mark.parametrize(("precision", "case"), [("bf16", ENDS[1]), ("bf16", ENDS[2]), ("tf32", ENDS[3])], ids=str)
def test_the_last_layers_are_what_the_layers_are(case, precision, cupy):
    check_end(cupy, *case, precision)


@needs_compiler
def test_a_nan_is_answered_with_nan(cupy):
    rows, W, b = (cupy.asarray(np.ones(shape, "f4")) for shape in ((2, 40, 1, 1), (40, 8), 8))
    rows[1, 3] = np.nan
    out, x = (
        cupy.empty((2, 5), np.float32),
        cupy.ascontiguousarray(blocked.images_as_blocked(rows, blocked.MODES["bf16"])),
    )
    predictions.End(2, [(W, b), (cupy.asarray(np.ones((8, 5), "f4")), b[:5])], "bf16", 40)(x, out)
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()


def test_slices_are_whole_and_blocks_fit(monkeypatch):
    monkeypatch.setattr(gpu, "shared_memory", lambda: 227 << 10)
    for n, inputs, units in ((1, 3200, 256), (64, 3200, 256), (1024, 3200, 256), (4096, 400, 120), (9, 16, 10)):
        of_slice, slices = predictions.cut(n, inputs, units)
        assert of_slice % predictions.DEPTH == 0
        assert (slices - 1) * of_slice < inputs <= slices * of_slice
    assert [predictions.rows_of(n, 256) for n in (1, 64, 1024, 4096)] == [1, 1, 2, 8]
    assert predictions.rows_of(4096, 1024) < 8


def test_what_the_first_kernel_is_not_for_is_said():
    about = between.Pooled(2, 8, 7, 7)
    large = Shape(2, 1, 8, 200, 200, 3)
    for shape in (Shape(2, 5, 8, 9, 9, 3), Shape(2, 1, 8, 9, 9, 7), Shape(2, 4, 8, 9, 9, 5), large):
        one_sentence(first_bf16.why_not(shape, between.Pooled(2, 8, shape.out_height, shape.out_width)))
    one_sentence(first_bf16.why_not(Shape(2, 1, 8, 9, 9, 3), between.Pooled(2, 8, 6, 6, 3)))
    assert first_bf16.why_not(Shape(2, 1, 8, 9, 9, 3), about) is None


@needs_compiler
@pytest.mark.parametrize("name", ["fp16x3", "bf16"])
def test_an_operand_is_added_before_the_pool(name, cupy):
    check_added(cupy, blocked.MODES[name], (None,))


@needs_compiler
def test_bytes_are_numbers_from_0_to_1(cupy):
    check_bytes(cupy, blocked.MODES["bf16"])


@needs_compiler
def test_nothing_is_spilled():
    five = {"KERNEL": 5, "PADDING": 2, "FIRST_TALL": 28, "FIRST_WIDE": 28, "PAIRS": 1}
    for macros in ({}, five, {"FIRST_POOL": 1, "PIXEL": "float"}):
        sizes = {"IMAGE_HEIGHT": 28, "IMAGE_WIDTH": 28, "FIRST_TALL": 26, "FIRST_WIDE": 26} | macros
        assert ptxas.resources("first_bf16", **sizes)["convolve"].spilled_bytes == 0
    for rows in (1, 8):
        assert not any(found.spilled_bytes for found in ptxas.resources("predictions", ROWS=rows).values())


@pytest.mark.gpu
@pytest.mark.parametrize("case", FIRST, ids=str)
def test_the_first_convolution_on_a_gpu(case):
    import cupy

    skip_before_ampere(True)
    check_first(cupy, *case)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("case", ENDS, ids=str)
def test_the_last_layers_on_a_gpu(case, precision):
    import cupy

    skip_before_ampere(precision == "bf16")
    check_end(cupy, *case, precision)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", blocked.MODES.values(), ids=blocked.MODES)
def test_what_is_added_and_bytes_on_a_gpu(mode):
    import cupy

    check_added(cupy, mode, (None, "nchw"))
    check_bytes(cupy, mode)

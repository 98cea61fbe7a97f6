"""Convolutions on planes: the addresses come out right in a model on the CPU, and the kernels on a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, check_on_gpu, error, operands, random_shape, wanted
from test_kernels import needs_compiler
from test_tensor_map import Driver

from mlpkit import kernels
from mlpkit.kernels import tensor_map
from mlpkit.kernels.conv import LAYERS, Shape, planes

MODES = list(planes.MODES)
MORE = [random_shape(np.random.default_rng(seed)) for seed in range(8)]


def tile_of(conv, image, first, rows, pieces, beyond=0.0):
    """Return what shared memory holds of an image (c, h, w): (phases, pieces, c); what no box covers is `beyond`."""
    s, (height, width) = conv.stride, conv.box(rows)
    assert height * width <= pieces
    tile = np.full((s * s, pieces, len(image)), beyond)
    tile[:, : height * width] = 0
    for phase in range(s * s):
        for n in range(height * width):
            row, column = divmod(n, width)
            y, x = (first + row) * s + phase // s - conv.pad[0], column * s + phase % s - conv.pad[1]
            if 0 <= y < conv.height and 0 <= x < conv.width:
                tile[phase, n] = image[:, y, x]
    return tile.reshape(s * s * pieces, -1)


def band_of(conv, image, first, pieces):
    """Return what shared memory holds of an image for the weight gradient: (phases, pieces, c), zeros between rows."""
    s = conv.stride
    tile = np.zeros((s * s, pieces, len(image)))
    for phase, n in np.ndindex(s * s, pieces):
        row, column = divmod(n, conv.pitch)
        y, x = (first + row) * s + phase // s - conv.pad[0], column * s + phase % s - conv.pad[1]
        if 0 <= y < conv.height and 0 <= x < conv.width:
            tile[phase, n] = image[:, y, x]
    return tile.reshape(s * s * pieces, -1)


def shift(conv, pieces, tap_y, tap_x):
    s = conv.stride
    return (tap_y % s * s + tap_x % s) * pieces + tap_y // s * conv.pitch + tap_x // s


def model(shape, which, a, b, tilings=planes.tilings):
    """Return a forward pass or an input gradient, computed tile by tile from shifted tiles."""
    result = np.zeros(shape.operands(which)[2])
    for conv, rows, columns in planes.convolutions(shape, which):
        w = (b if which == "forward" else b.swapaxes(0, 1))[:, :, rows, columns]
        tiling = tilings(conv, planes.MODES["fp16x3"])[0]
        height, bands = tiling.rows(conv)
        pieces = conv.pieces(height)
        for image in range(conv.images):
            for band in range(bands):
                tile = tile_of(conv, a[image], band * height, height, pieces, np.nan)
                tile = np.concatenate([tile, np.full((512, tile.shape[1]), np.nan)])
                sums = np.zeros((len(w), tiling.width))
                for tap_y, tap_x in np.ndindex(conv.taps):
                    at = shift(conv, pieces, tap_y, tap_x)
                    sums += w[:, :, tap_y, tap_x] @ tile[at : at + tiling.width].T
                for n in range(tiling.width):
                    y, x = divmod(n, conv.pitch)
                    if y < height and band * height + y < conv.windows[0] and x < conv.windows[1]:
                        at = conv.step * (band * height + y) + conv.first[0], conv.step * x + conv.first[1]
                        result[image, :, *at] = sums[:, n]
    return result


@pytest.mark.parametrize("which", ["forward", "input_gradient"])
@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)
def test_a_tap_is_an_address(shape, which):
    a, b = operands(shape, which)
    assert error(model(shape, which, a, b), wanted(shape, which, a, b)) < 1e-6


@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)
def test_bands_of_windows_make_the_weight_gradient(shape):
    x, dy = operands(shape, "weight_gradient")
    (conv, _, _), *_ = planes.convolutions(shape, "forward")
    d = planes.division(conv, planes.MODES["fp16x3"])
    pieces, dw = d.windows + conv.reach, np.zeros(shape.w)
    assert d.windows % 16 == 0
    for image, band in np.ndindex(shape.batch, d.bands):
        tile, gradient = (
            band_of(conv, x[image], band * d.rows, pieces),
            np.zeros((d.windows, shape.channels_out)),
        )
        for n in range(d.windows):
            y, column = divmod(n, conv.pitch)
            if y < d.rows and band * d.rows + y < conv.windows[0] and column < conv.windows[1]:
                gradient[n] = dy[image, :, band * d.rows + y, column]
        for tap_y, tap_x in np.ndindex(conv.taps):
            at = shift(conv, pieces, tap_y, tap_x)
            dw[:, :, tap_y, tap_x] += gradient.T @ tile[at : at + d.windows]
    assert error(dw, wanted(shape, "weight_gradient", x, dy)) < 1e-6


@pytest.mark.parametrize("mode", planes.MODES.values(), ids=MODES)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE, *LAYERS.values()], ids=str)
def test_what_is_chosen_fits(shape, mode):
    for which in PASSES[:2]:
        for conv, _, _ in planes.convolutions(shape, which):
            tilings = planes.tilings(conv, mode)
            assert tilings
            for tiling in tilings:
                rows, bands = tiling.rows(conv)
                assert (rows - 1) * conv.pitch + conv.windows[1] <= tiling.width
                assert rows * bands >= conv.windows[0]
                assert tiling.shared(conv, mode) + planes.BARRIERS <= (227 << 10) // tiling.blocks
    d = planes.division(planes.convolutions(shape, "forward")[0][0], mode)
    assert d.rows * d.bands >= shape.out_height
    assert d.slices - d.cluster < shape.batch * d.bands
    assert d.slices % d.cluster == 0


def test_the_padding_on_the_right_is_that_on_the_left_of_the_next_row():
    (conv, _, _), *_ = planes.convolutions(Shape(1, 16, 16, 28, 28, 3, padding=1), "forward")
    assert conv.pitch == 29
    (conv, _, _), *_ = planes.convolutions(Shape(1, 16, 16, 13, 13, 3), "forward")
    assert conv.pitch == 13


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_long_sums_are_cut_where_float32_is_meant(layer):
    (conv, _, _), *_ = planes.convolutions(layer, "forward")
    for mode in planes.MODES.values():
        d = planes.division(conv, mode)
        summed = -(-layer.batch * d.bands // d.slices) * d.windows
        assert mode.parts == 1 or summed <= planes.MOST_SUMMED
        assert d.slices * np.prod(d.tiles) >= 126 or d.slices >= layer.batch * d.bands


def test_what_does_not_fit_is_said():
    wide = Shape(1, 1, 1, 4, 129, 1)
    assert "at most 128 pieces" in planes.why_not("bf16", wide, "forward")
    assert "turn" in planes.why_not("tf32", LAYERS["64 to 128, 13 x 13"], "weight_gradient")
    assert planes.why_not("fp16x3", LAYERS["64 to 128, 13 x 13"], "weight_gradient") is None


def test_the_copy_engine_is_told_what_a_row_and_a_plane_are(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(tensor_map.ctypes, "CDLL", lambda name: driver)
    halves = SimpleNamespace(data=SimpleNamespace(ptr=4096))

    def told(stride, mode="fp16x3"):
        (conv, _, _), *_ = planes.convolutions(Shape(2, 16, 16, 9, 11, 3, stride, 1), "forward")
        planes._map(halves, planes.MODES[mode], conv, (5, conv.pitch))
        _, kind, dimensions, pointer, *sides, _, _, _, _ = driver.told
        assert (kind, dimensions, pointer) == (tensor_map.UINT64, len(sides[0]), 4096)
        return sides

    assert told(1) == [[22, 9, 8], [176, 1584], [24, 5, 1], [1, 1, 1]]  # 2 images, 2 planes, 2 parts; a pitch of 12
    assert told(2) == [[2, 11, 9, 8], [16, 176, 1584], [2, 14, 10, 1], [1, 2, 2, 1]]
    assert told(1, "tf32")[0] == [22, 9, 8]  # 4 planes an image, no parts
    driver.status = 1
    with pytest.raises(RuntimeError, match="no tensor map of 4 planes"):
        told(1, "bf16")


@needs_compiler
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("layer", LAYERS)
def test_no_number_leaves_the_registers(name, layer):
    mode = planes.MODES[name]
    (conv, _, _), *_ = planes.convolutions(LAYERS[layer], "forward")
    macros = planes.tilings(conv, mode)[0].macros
    assert kernels.resources(planes.FORWARD, MODE=mode.number, **macros)["convolve"].spilled_bytes == 0
    if planes.why_not(name, LAYERS[layer], "weight_gradient") is None:
        d = planes.division(conv, mode)
        found = kernels.resources(planes.WEIGHTS, MODE=mode.number, CHUNK=d.chunk, SLOTS=d.slots)
        assert {one.spilled_bytes for one in found.values()} == {0}


@pytest.mark.gpu
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)
def test_a_rung_is_right(name, which, shape):
    rung = planes.RUNGS[f"planes_{name}"]
    if reason := rung.why_not(shape, which):
        pytest.skip(reason)
    check_on_gpu(rung, shape, which)


@pytest.mark.gpu
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_halves_take_numbers_of_any_size(scale, which):
    import cupy

    shape = Shape(2, 20, 24, 9, 9, 3, padding=1)
    a, b = operands(shape, which)
    a *= np.float32(scale)
    prepared = planes.RUNGS["planes_fp16x3"].prepare(shape, which, cupy.asarray(a), cupy.asarray(b))
    prepared.call()
    assert error(cupy.asnumpy(prepared.result()), wanted(shape, which, a, b)) < 1e-5

"""Convolutions on planes: the addresses come out right in a model on the CPU, and the kernels on a GPU."""

import sys
from dataclasses import replace
from functools import partial

import emulator
import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, error, operands, random_shape, wanted
from emulator import needs_compiler as needs_emulator
from shared import needs_hopper, sweep
from test_kernels import needs_compiler
from test_tensor_map import Driver

from experiments.conv_ladder.rungs import ERRORS, LAYERS
from experiments.conv_ladder.rungs.blocked import as_operand, blocked_as_images
from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.kernels import tensor_map
from mlpkit.kernels.cnn import updates
from mlpkit.kernels.conv import Shape, blocked, portable
from mlpkit.kernels.driver import cuda

MODES = list(blocked.MODES)
BLOCKED = (kernels.FOLDER / "conv/blocked.cuh").read_text("utf-8")
UPDATES = (kernels.FOLDER / "updates.cuh").read_text("utf-8").replace('#include "ptx.cuh"', "")
MORE = [random_shape(np.random.default_rng(seed)) for seed in range(8)]


def between(text, first, last):
    return text[text.index(first) : text.index(last, text.index(first))]


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


def model(shape, which, a, b, tilings=blocked.tilings):
    """Return a forward pass or an input gradient, computed tile by tile from shifted tiles."""
    result = np.zeros(shape.operands(which)[2])
    for conv, rows, columns in blocked.convolutions(shape, which):
        w = (b if which == "forward" else b.swapaxes(0, 1))[:, :, rows, columns]
        tiling = tilings(conv, blocked.MODES["fp16x3"])[0]
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
    (conv, _, _), *_ = blocked.convolutions(shape, "forward")
    d = blocked.division(conv, blocked.MODES["fp16x3"])
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


@pytest.mark.parametrize("mode", blocked.MODES.values(), ids=MODES)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE, *LAYERS.values()], ids=str)
def test_what_is_chosen_fits(shape, mode):
    for which in PASSES[:2]:
        for conv, _, _ in blocked.convolutions(shape, which):
            tilings = blocked.tilings(conv, mode)
            assert tilings
            for tiling in tilings:
                rows, bands = tiling.rows(conv)
                assert (rows - 1) * conv.pitch + conv.windows[1] <= tiling.width
                assert rows * bands >= conv.windows[0]
                assert tiling.shared(conv, mode) + blocked.BARRIERS <= (227 << 10) // tiling.blocks
    d = blocked.division(blocked.convolutions(shape, "forward")[0][0], mode)
    assert d.rows * d.bands >= shape.out_height
    assert d.slices - d.cluster < shape.batch * d.bands
    assert d.slices % d.cluster == 0


def test_the_padding_on_the_right_is_that_on_the_left_of_the_next_row():
    (conv, _, _), *_ = blocked.convolutions(Shape(1, 16, 16, 28, 28, 3, padding=1), "forward")
    assert conv.pitch == 29
    (conv, _, _), *_ = blocked.convolutions(Shape(1, 16, 16, 13, 13, 3), "forward")
    assert conv.pitch == 13


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_long_sums_are_cut_where_float32_is_meant(layer):
    (conv, _, _), *_ = blocked.convolutions(layer, "forward")
    for mode in blocked.MODES.values():
        d = blocked.division(conv, mode)
        summed = -(-layer.batch * d.bands // d.slices) * d.windows
        assert mode.parts == 1 or summed <= blocked.MOST_SUMMED
        assert d.slices * np.prod(d.tiles) >= 126 or d.slices >= layer.batch * d.bands


def test_what_does_not_fit_is_said():
    wide = Shape(1, 1, 1, 4, 129, 1)
    assert "at most 128 pieces" in blocked.why_not(blocked.MODES["bf16"], wide, "forward")
    assert "transpose" in blocked.why_not(blocked.MODES["tf32"], LAYERS["64 to 128, 13 x 13"], "weight_gradient")
    assert blocked.why_not(blocked.MODES["fp16x3"], LAYERS["64 to 128, 13 x 13"], "weight_gradient") is None


def test_the_copy_engine_is_told_what_a_row_and_a_plane_are(monkeypatch):
    driver = Driver(monkeypatch)

    def told(stride, mode="fp16x3"):
        (conv, _, _), *_ = blocked.convolutions(Shape(2, 16, 16, 9, 11, 3, stride, 1), "forward")
        blocked._map(4096, blocked.MODES[mode], conv, (5, conv.pitch))
        kind, dimensions, pointer, *sides, _, _, _, _ = driver.told
        assert (kind, dimensions, pointer) == (tensor_map.UINT64, len(sides[0]), 4096)
        return sides

    assert told(1) == [[22, 9, 8], [176, 1584], [24, 5, 1], [1, 1, 1]]  # 2 images, 2 planes, 2 parts; a pitch of 12
    assert told(2) == [[2, 11, 9, 8], [16, 176, 1584], [2, 14, 10, 1], [1, 2, 2, 1]]
    assert told(1, "tf32")[0] == [22, 9, 8]  # 4 planes an image, no parts
    driver.status = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match="no tensor map of 4 planes"):
        told(1, "bf16")


@needs_compiler
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("layer", sweep(LAYERS, "64 to 64, 14 x 14"))
def test_no_number_leaves_the_registers(name, layer):
    mode = blocked.MODES[name]
    (conv, _, _), *_ = blocked.convolutions(LAYERS[layer], "forward")
    macros = blocked.tilings(conv, mode)[0].macros
    assert ptxas.resources(blocked.FORWARD, MODE=mode.number, **macros)["convolve"].spilled_bytes == 0
    if blocked.why_not(blocked.MODES[name], LAYERS[layer], "weight_gradient") is None:
        d = blocked.division(conv, mode)
        found = ptxas.resources(blocked.WEIGHTS, MODE=mode.number, CHUNK=d.chunk, SLOTS=d.slots)
        assert {one.spilled_bytes for one in found.values()} == {0}


@pytest.fixture
def cupy(folder, monkeypatch):
    """Put the emulator in the place of a GPU of four multiprocessors, and NumPy in that of CuPy."""
    with emulator.with_cupy(folder):
        load = kernels.load
        monkeypatch.setattr(blocked, "_kernel", lambda file, name, **macros: load(file, **macros).get_function(name))
        monkeypatch.setattr(blocked, "multiprocessors", lambda: 4)
        found = sys.modules["cupy"]
        vars(found).update(uint16=np.uint16, uint32=np.uint32, where=np.where, isnan=np.isnan)
        yield found


def in_fp16(filters, mode, tiling, scale):
    """Return filters in order as the halves of a mode, those of a tap together; else as they are."""
    if not mode.fp16_parts:
        return filters.ravel()
    blocks = (filters.ravel() * scale).reshape(-1, 1, 8 * tiling.block(mode))
    high = blocks.astype(np.float16)
    both = [high, (blocks - high.astype(np.float32)).astype(np.float16)]
    return np.concatenate(both[: mode.parts], axis=1).view(np.uint16).ravel()


@needs_emulator
@pytest.mark.parametrize(("name", "stacked"), [*((name, 0) for name in MODES), ("fp16x3", 32)])
def test_filters_come_in_the_orders_of_both_passes(name, stacked, cupy, monkeypatch, request):
    monkeypatch.setattr(blocked, "MOST_STACKED", stacked)
    blocked.launches.cache_clear()
    request.addfinalizer(blocked.launches.cache_clear)
    mode, rng = blocked.MODES[name], np.random.default_rng(0)
    shapes = Shape(2, 6, 20, 9, 9, 3), Shape(1, 70, 40, 7, 8, 2, stride=2), Shape(1, 5, 3, 8, 8, 3, 2, 1)
    sizes = np.float32([1e-9, 1, 50])
    ws = [
        (size * rng.standard_normal(shape.w, np.float32)).view(emulator.Array)
        for shape, size in zip(shapes, sizes, strict=True)
    ]
    filters = blocked.Filters(
        mode, [(shape, w, blocked.PASSES_OF_FILTERS) for shape, w in zip(shapes, ws, strict=True)]
    )
    for size in (1, 10, 100, 0.01, 0.01):
        ws[1][:] = rng.standard_normal(ws[1].shape, np.float32) * size  # the scale is guessed, and wrong
        for shape, w, made in zip(shapes, ws, filters(), strict=True):
            for which, stored in made.items():
                scale = stored.scale[0] if mode.fp16_parts else 1
                assert not mode.fp16_parts or 2**11 <= np.abs(w).max() * scale < 2**15
                at = 0
                for one in blocked.launches(mode, shape, which):
                    flipped = (w if which == "forward" else w.swapaxes(0, 1))[:, :, one.rows, one.columns]
                    right = in_fp16(blocked.filters_in_order(flipped, mode, one.tiling), mode, one.tiling, scale)
                    np.testing.assert_array_equal(stored.array[at : at + right.size], right)
                    assert right.nbytes == 16 * mode.parts * one.pieces(mode)
                    at += right.size
                assert at == stored.array.size


@needs_emulator
def test_fp16_of_one_array_by_itself(cupy):
    mode, scale = blocked.MODES["fp16x3"], blocked.new_scale()
    for size in (1.0, 1.0, 1e6):
        x = (size * np.random.default_rng(0).standard_normal((2, 4, 3, 5, 4), np.float32)).view(emulator.Array)
        found = as_operand(mode, x, scale)
        pieces = x.reshape(2, 2, 2, 3, 5, 4).transpose(0, 1, 3, 4, 2, 5).reshape(2, 2, 3, 5, 8) * found.scale[0]
        assert 2**11 <= np.abs(pieces).max() < 2**15
        high = pieces.astype(np.float16)
        wanted_fp16 = np.stack([high, (pieces - high.astype(np.float32)).astype(np.float16)])
        np.testing.assert_array_equal(found.array, wanted_fp16.view(np.uint16))


@needs_emulator
@pytest.mark.parametrize(
    ("outlier", "least", "most"), [(None, 0, 1e-6), (1e3, 0, 1e-6), (4e6, 4e-6, 4e-5), (4e7, 4e-5, 1e-3)]
)
def test_one_large_element_leaves_the_other_images_few_bits(outlier, least, most, cupy):
    """The array has one power of two, for its largest. What the parts hold of the other images is what is tested."""
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 5, 4), np.float32).view(emulator.Array)
    x[0, 0, 1, 1, 1] = outlier or 1
    made = as_operand(blocked.MODES["fp16x3"], x, blocked.new_scale())
    parts = np.asarray(made.array).view(np.float16).astype(float).sum(0) / made.scale[0]
    right = x.reshape(2, 2, 2, 3, 5, 4).transpose(0, 1, 3, 4, 2, 5).reshape(parts.shape)
    assert least <= error(parts[1], np.asarray(right[1], float)) < most


SPREAD = """
extern "C" __global__ void spread(const __grid_constant__ Problem p, const __grid_constant__ Division d,
                                 const float4* sums, float4* partial)
{
    int height = blockIdx.x % d.heights, width = blockIdx.x / d.heights % d.widths;
    int tap_group = blockIdx.x / (d.heights * d.widths);
    for (int i = threadIdx.x; i < ELEMENTS / 4; i += blockDim.x) {
        int at = packed_place(p, d, height, width, tap_group, i);
        if (at >= 0) partial[at] = sums[blockIdx.x * (ELEMENTS / 4) + i];
    }
}
"""


def sums_that_leave():
    """Return the text of what becomes of the weight gradient's sums. What makes them, `wgmma`, is not emulated."""
    weights = kernels.source(blocked.WEIGHTS)
    parts = (
        kernels.source(blocked.OPERANDS).split("// ---- Arrays as they lie")[0],
        UPDATES,
        between(BLOCKED, "#ifndef LACKS", "// The pieces by which"),
        between(weights, "#ifndef TAPS", "static_assert"),
        between(weights, "// How a launch divides", "// ---- The kernel"),
        SPREAD,
        weights[weights.index("// ---- The second kernel") :],
    )
    return "".join(parts)


@needs_emulator
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("shape", "packs"), [
    (Shape(2, 6, 16, 9, 9, 5), True), (Shape(2, 20, 70, 6, 6, 3), True), (Shape(2, 64, 40, 5, 5, 1), True),
    (Shape(2, 20, 64, 6, 6, 3), False),
], ids=str)  # fmt: skip
def test_the_sums_of_the_weight_gradient_are_added_where_they_belong(shape, packs, each, folder):
    mode, (o, c, k) = blocked.MODES["bf16"], (shape.channels_out, shape.channels, shape.kernel)
    conv = blocked.convolutions(shape, "forward")[0][0]
    d = blocked.division(conv, mode)
    heights, widths, tap_groups = d.tiles
    sums = np.full((tap_groups, widths, heights, 3, d.chunk // 2, 384), np.nan, "f4")
    dw = np.random.default_rng(0).normal(size=(o, c, k * k)).astype("f4")
    for at in np.ndindex(sums.shape):
        group, width, height, tap, i, thread = at
        tap += (group * 3 + thread // 128) * 3
        row = height * 64 + thread // 32 % 4 * 16 + thread % 32 // 4 + i % 4 // 2 * 8
        column = width * d.chunk + i // 4 * 8 + thread % 4 * 2 + i % 2
        if tap < k * k and row < o and column < c:
            sums[at] = dw[row, column, tap]
    macros = {"MODE": mode.number, "CHUNK": d.chunk, "CLUSTER": d.cluster, "PACKED": int(packs), "OF_EACH": each}
    macros |= blocked._lacks(conv)
    file = emulator.File(folder, 0, "sums", sums_that_leave(), **macros)
    about = blocked.problem(conv, d.rows, d.bands, d.windows + conv.reach, blocked.padded(o, 8))
    divided = np.array([0, blocked.padded(o, 8), 0, *d.tiles, d.cluster], np.int32).view("V28")
    partial, found = (np.full(size, np.nan, "f4").view(emulator.Array) for size in (d.packed(conv) or 0, dw.shape))
    assert (partial.size > 0) == packs
    if packs:
        file.get_function("spread")((np.prod(d.tiles),), (128,), (about, divided, sums.view(emulator.Array), partial))
    else:
        partial = sums.ravel().view(emulator.Array)
    none = np.uintp(0)
    rest = np.int32(o), np.int32(c), none, none, none, none, np.int32(0), np.int32(0), blocked._before(None)
    add, arguments = file.get_function("add"), (about, divided, partial, found, *rest, updates.NO_UPDATE)
    add((-(-partial.size // (each * blocked.ADDERS)),), (blocked.ADDERS,), arguments, shared_mem=blocked.UNSPREAD)
    np.testing.assert_array_equal(found, dw)


# Whose gradients are the last, and whether there are biases and a convolution before
LAST = (
    (Shape(2, 20, 64, 6, 6, 3), True, True), (Shape(2, 20, 70, 6, 6, 3), True, False),
    (Shape(2, 6, 16, 9, 9, 5), False, True), (Shape(2, 64, 40, 5, 5, 1), False, False),
)  # fmt: skip
UPDATED = [(*last, kind) for kind in ("sgd", "adam") for last in LAST]


class Vectors:
    """Parameters, their gradient, and Adam's state, of an odd number of parameters, and where some of them lie."""

    def __init__(self, shape, first_channels=11, rest=(3, 20_000, 2)):
        rng = np.random.default_rng(0)
        sizes = rest[0], first_channels * 9, int(np.prod(shape.w)), rest[1], first_channels, shape.channels_out, rest[2]
        self.ends = np.cumsum(sizes)
        n = int(self.ends[-1]) + 1 - self.ends[-1] % 2
        self.theta, self.grad, self.m, self.v = (rng.normal(size=n).astype("f4").view(emulator.Array) for _ in range(4))
        self.v = abs(self.v)
        self.lr, self.t = (np.full(1, number, "f4").view(emulator.Array) for number in (0.01, 3))

    def parts(self, *shapes):
        """Return parts of the gradient, unwritten: of filters before, of filters, of biases before, of biases."""
        found = [self.grad[self.ends[i - 1] : self.ends[i]] for i in (1, 2, 4, 5)]
        for part, shape in zip(found, shapes, strict=True):
            part[:] = np.nan
            assert part.size == np.prod(shape)
        return [part.reshape(shape) for part, shape in zip(found, shapes, strict=True)]

    def update(self, kind):
        of_adam = {"m": self.m, "v": self.v, "t": self.t, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        return updates.Update(self.theta, self.grad, self.lr, **of_adam if kind == "adam" else {})


@needs_emulator
@pytest.mark.parametrize(("shape", "biased", "follows", "kind"), sweep(UPDATED, *UPDATED[: len(LAST) + 1]), ids=str)
def test_the_last_gradients_of_a_step_come_with_the_update(shape, biased, follows, kind, cupy, folder, monkeypatch):
    mode, rng, vectors = blocked.MODES["bf16"], np.random.default_rng(1), Vectors(shape)

    def kernel(file, function, **macros):
        add = emulator.File(folder, 0, "sums", sums_that_leave(), **macros).get_function("add")

        def run(grid, block, arguments, shared_mem):
            if function == "multiply":
                arguments[4][:] = rng.integers(-9, 9, arguments[4].shape)
            else:
                add(grid, block, arguments, shared_mem=32 << 10)

        return run

    monkeypatch.setattr(blocked, "_kernel", kernel)
    monkeypatch.setattr(updates, "_kernel", lambda name: kernels.load("updates").get_function(name))
    blocked._weights.cache_clear()
    first_dw, dw, first_db, db = vectors.parts((11, 1, 3, 3), shape.w, 11, shape.channels_out)
    bias, sums = (rng.normal(size=size).astype("f4").view(emulator.Array) for size in ((5, 80), (7, 16, 10)))
    bias = bias[:, : blocked.padded(shape.channels_out, 8)].copy() if biased else None
    images = blocked.Stored(np.zeros(1, "u2").view(emulator.Array))
    told = bias, db if biased else None, (sums, first_dw, first_db if biased else None) if follows else None
    for part, there in ((dw, True), (db, biased), (first_dw, follows), (first_db, follows and biased)):
        if not there:
            part[...] = 1  # somebody else has written it
    before = {name: vector.copy() for name, vector in vars(vectors).items() if isinstance(vector, emulator.Array)}
    blocked.weight_gradient(mode, shape, images, images, dw, *told, update=vectors.update(kind))
    blocked._weights.cache_clear()
    assert np.isfinite(vectors.grad).all()
    found = [each.copy() for each in (vectors.theta, vectors.m, vectors.v)]
    for name in ("theta", "m", "v"):
        getattr(vectors, name)[:] = before[name]
    update = vectors.update(kind)
    updates._launch(update, kind)
    assert (vectors.theta != before["theta"]).mean() > 0.9
    for one, name in zip(found, ("theta", "m", "v"), strict=True):
        np.testing.assert_array_equal(one, getattr(vectors, name), name)


@needs_compiler
@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("mode", sweep(["bf16", "fp16", "fp16x3"], "bf16"))
def test_two_blocks_that_update_are_on_a_multiprocessor(mode, kind):
    macros = {"MODE": blocked.MODES[mode].number, "UPDATES": kind}
    add = ptxas.resources(blocked.WEIGHTS, "sm_90", **macros)["add"]
    assert add.spilled_bytes == 0
    assert 2 * 256 * blocked.padded(add.registers, 8) <= 65536
    assert 2 * (blocked.SPREAD + (1 << 10)) <= 228 << 10 < 3 * (blocked.SPREAD + (1 << 10))


WGMMA = """
template <Kind kind, int N>
static void wgmma_registers(float (&d)[N / 2], const Word (&a)[4], Word64 b)
{
    multiply_registers<kind == FP16, N>(d, a, b);
}
"""


def weights_emulated():
    """Return the text of the weight gradient's kernels with another product, and barriers behind all else."""
    text = kernels.source(blocked.WEIGHTS)
    text = text.replace(between(text, "#define TWO_OF(i)", "// ---- What wgmma is told"), WGMMA)
    text = text.replace(between(text, "// ---- From memory to shared memory", "#ifndef TAPS"), UPDATES)
    text = text.replace('asm volatile("" : "+f"(sums[i])::"memory")', "")
    return text.replace(
        "__shared__ Barriers barriers;", "Barriers& barriers = *(Barriers*)(shared_bytes + (220 << 10));"
    )


# Slices, and how many images are few: larger clusters then
RINGS = {
    "bands that take turns": (Shape(7, 64, 24, 4, 5, 3), 2, 0),
    "eight blocks": (Shape(8, 40, 24, 6, 7, 3, 1, 1), 8, 32),
    "few sums": (Shape(3, 6, 16, 9, 9, 5), 2, 32),
    "a stride": (Shape(3, 20, 16, 8, 7, 3, 2, 1), 3, 32),
    "one tap": (Shape(2, 64, 70, 5, 5, 1), 4, 32),
    "many bands": (Shape(40, 16, 16, 5, 4, 2), 4, 0),
}


@needs_emulator
@pytest.mark.parametrize("name", sweep(["bf16", "fp16x3"], "fp16x3"))
@pytest.mark.parametrize("case", sweep(RINGS, "bands that take turns", "few sums"))
def test_the_weight_gradient_comes_by_way_of_rings_and_clusters(case, name, cupy, folder, monkeypatch):
    shape, slices, few = RINGS[case]
    mode, real = blocked.MODES[name], blocked.division
    monkeypatch.setattr(blocked, "FEW_IMAGES", few)
    monkeypatch.setattr(blocked, "division", lambda *of: replace(
        d := real(*of), slices=blocked.padded(min(slices, d.slices), d.cluster)
    ))  # fmt: skip
    monkeypatch.setattr(emulator._Kernel, "max_dynamic_shared_size_bytes", blocked.SHARED)

    def kernel(file, function, **macros):
        run = emulator.File(folder, len(macros), file, weights_emulated(), **macros).get_function(function)
        whole = macros["CLUSTER"]  # all launches of a file are of clusters here
        return lambda grid, block, arguments, shared_mem: run(
            (blocked.padded(grid[0], whole),), block, arguments, shared_mem=blocked.SHARED
        )

    monkeypatch.setattr(blocked, "_kernel", kernel)
    blocked._weights.cache_clear()
    rng = np.random.default_rng(0)
    x, dy = (rng.integers(-2, 3, size).astype("f4") for size in (shape.x, shape.y))
    images, gradient = (
        as_operand(mode, blocked.images_as_blocked(each.view(emulator.Array), mode).view(emulator.Array), scale)
        for each, scale in zip(
            (x, dy), [blocked.new_scale() if mode.fp16_parts else None for _ in range(2)], strict=True
        )
    )
    bias, sums = (
        rng.integers(-9, 9, size).astype("f4").view(emulator.Array)
        for size in ((19, blocked.padded(shape.channels_out, 8)), (37, 16, 10))
    )
    dw, db, first_dw, first_db = (
        np.full(size, np.nan, "f4").view(emulator.Array) for size in (shape.w, shape.channels_out, (11, 1, 3, 3), 11)
    )
    blocked.weight_gradient(mode, shape, images, gradient, dw, bias, db, (sums, first_dw, first_db))
    blocked._weights.cache_clear()
    np.testing.assert_array_equal(dw, wanted(shape, "weight_gradient", x, dy))
    np.testing.assert_array_equal(db, bias.sum(axis=0)[: shape.channels_out])
    np.testing.assert_array_equal(first_dw.reshape(11, 9), sums.sum(axis=0)[:11, :9])
    np.testing.assert_array_equal(first_db, sums.sum(axis=0)[:11, 9])


# The convolutions of the model of garments, and of the residual network
WHOLE = Shape(32, 64, 128, 13, 13, 3), Shape(32, 32, 32, 28, 28, 3, 1, 1), Shape(128, 32, 64, 14, 14, 3, 1, 1)


def test_only_what_has_odd_sizes_takes_other_code():
    mode = blocked.MODES["fp16x3"]
    for shape in WHOLE:
        for which in ("forward", "input_gradient"):
            conv, _, _ = blocked.convolutions(shape, which)[0]
            assert blocked._lacks(conv) == {}
        conv, _, _ = blocked.convolutions(shape, "forward")[0]
        assert blocked.division(conv, mode).packed(conv) is None
    (conv, _, _), *_ = blocked.convolutions(Shape(32, 6, 16, 14, 14, 5), "forward")  # LeNet-5's
    d = blocked.division(conv, mode)
    assert blocked._lacks(conv) == {"LACKS": 1}
    assert (d.elements, d.packed(conv)) == (27648, 25 * 16 * 8)


ASKED = """
struct TensorMap {
    int* asked;  // of each plane in shared memory the row and the plane in memory
};
constexpr int PIECES = 64;
static Piece tile_of_images[PARTS * GROUPS * PHASES * PIECES];

static void write_down(const void* to, const TensorMap* images, int row, int plane)
{
    int number = (static_cast<const Piece*>(to) - tile_of_images) / PIECES;
    images->asked[2 * number] = row, images->asked[2 * number + 1] = plane;
}

static void cp_async_bulk_tensor_3d(void* to, const TensorMap* images, int, int y, int plane, Word64*)
{
    write_down(to, images, y, plane);
}

static void cp_async_bulk_tensor_4d(void* to, const TensorMap* images, int, int, int y, int plane, Word64*)
{
    write_down(to, images, y, plane);
}
"""
ASK = """
extern "C" __global__ void ask(const __grid_constant__ Problem p, int* asked, int tile, int first_channel)
{
    TensorMap images = {asked};
    load_images(p, &images, tile, first_channel, tile_of_images, nullptr);
}
"""


def images_that_come():
    """Return the text of what the copy engine is asked for, and a kernel that asks."""
    fp16_parts = kernels.source(blocked.OPERANDS).split("// ---- Arrays as they lie")[0]
    sizes = between(BLOCKED, "#ifndef CHUNK", "// The pieces by which")
    return "".join([fp16_parts, sizes, ASKED, BLOCKED[BLOCKED.index("// Ask for") :], ASK])


@needs_emulator
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(("channels", "stride"), [(6, 1), (40, 1), (40, 2), (24, 1), (24, 2), (64, 1)])
def test_groups_that_are_not_stored_come_as_zeros(channels, stride, name, folder):
    mode, shape = blocked.MODES[name], Shape(3, channels, 16, 9, 9, 3, stride)
    (conv, _, _), *_ = blocked.convolutions(shape, "forward")
    tiling = blocked.tilings(conv, mode)[0]
    macros = {"MODE": mode.number, "STRIDE": stride, "CHUNK": tiling.chunk} | blocked._lacks(conv)
    ask = emulator.File(folder, 0, "images", images_that_come(), **macros).get_function("ask")
    stored, there = tiling.chunk // mode.channels, blocked.padded(channels, 8) // mode.channels  # planes
    about = blocked.problem(conv, 2, 4, 64, 16)
    for image, band, chunk in np.ndindex(3, 4, blocked.padded(channels) // tiling.chunk):
        asked = np.full((mode.parts, stored, stride**2, 2), -99, np.int32).view(emulator.Array)
        ask((1,), (32,), (about, asked, np.int32(4 * image + band), np.int32(chunk * tiling.chunk)))
        for part, number, phase in np.ndindex(asked.shape[:3]):
            row, plane = asked[part, number, phase]
            if chunk * stored + number < there:
                assert row == band * 2 * stride + phase // stride
                assert plane == (part * 3 + image) * there + chunk * stored + number
            else:
                assert row >= shape.height


LEAVE = """
extern "C" __global__ void leave_tile(const __grid_constant__ Problem p, const float* sums, float2* to, int tile,
                                      int channel, float unscale) {
    float mine[WIDTH / 2];
    for (int i = 0; i < WIDTH / 2; ++i) mine[i] = sums[i * 32 + threadIdx.x];
    leave_moments(p, to, tile, channel, mine, unscale, windows_inside(p, threadIdx.x));
}
"""


@needs_emulator
@pytest.mark.parametrize(("side", "padding", "rows", "width"), [(9, 1, 4, 64), (13, 0, 3, 64), (6, 1, 6, 208)])
def test_a_tiles_moments_are_those_of_its_windows(side, padding, rows, width, folder):
    (conv, _, _), *_ = blocked.convolutions(Shape(2, 16, 24, side, side, 3, 1, padding), "forward")
    forward = kernels.source(blocked.FORWARD)
    parts = (
        kernels.source(blocked.OPERANDS).split("// ---- Arrays as they lie")[0],
        between(BLOCKED, "#ifndef CHUNK", "// The pieces by which"),
        between(forward, "// Where a lane's windows go", "// What four neighbours have"),
        between(forward, "// What four neighbours have", "// Sums leave as they are stored"),
        between(forward, "// Which of a lane's windows are in their row", "// Of a channel's sums: four lines"),
        LEAVE,
    )
    file = emulator.File(folder, 0, "moments", "".join(parts), MODE=0, CHUNK=16, STRIDE=1, WIDTH=width)
    bands = -(-conv.windows[0] // rows)
    about = blocked.problem(conv, rows, bands, conv.pieces(rows), 24)
    rng, found = np.random.default_rng(0), np.full((24, 2 * bands, 2), np.nan, "f4").view(emulator.Array)
    for tile, channel in np.ndindex(2 * bands, 2):
        sums = rng.normal(size=(16, width)) + 100  # of a warp: (channels, windows)
        lanes = np.array([[sums[lane // 4 + i % 4 // 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2] for lane in range(32)]
                         for i in range(width // 2)], "f4")  # fmt: skip
        one = lanes.view(emulator.Array), found, np.int32(tile), np.int32(16 * channel), np.float32(0.5)
        file.get_function("leave_tile")((1,), (32,), (about, *one))
        first = tile % bands * rows
        there = [row * conv.pitch + column for row in range(min(rows, conv.windows[0] - first))
                 for column in range(conv.windows[1])]  # fmt: skip
        windows = sums[: 24 - 16 * channel, there] * 0.5
        wanted = np.stack([windows.mean(1), windows.var(1) * len(there)], -1)
        np.testing.assert_allclose(found[16 * channel : 16 * channel + 16, tile], wanted[:16], rtol=1e-4)
    assert np.isfinite(found).all()


def mean_and_variance(tiles, moments, shape):
    """Return those of each channel of a result, in float64, of the moments of its tiles."""
    _, channels, height, width = shape.y
    first = np.arange(tiles.shape[1]) % moments.bands * moments.rows
    counts, (means, squares) = np.minimum(moments.rows, height - first) * width, tiles[:channels].astype(float).T
    mean = np.average(means, 0, counts)
    return mean, (squares + counts[:, None] * (means - mean) ** 2).sum(0) / counts.sum()


@needs_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)
def test_operands_made_once_serve_all_passes(name, shape):
    import cupy

    mode = blocked.MODES[name]
    if any(blocked.why_not(blocked.MODES[name], shape, which) for which in PASSES[:2]):
        pytest.skip("too wide")
    (x, w), (dy, _) = operands(shape, "forward"), operands(shape, "input_gradient", 1)
    filters = blocked.Filters(mode, [(shape, cupy.asarray(w), blocked.PASSES_OF_FILTERS)])
    scales = [blocked.new_scale() if mode.fp16_parts else None for _ in range(2)]
    for _ in range(2):
        images, gradient = (
            as_operand(mode, blocked.images_as_blocked(cupy.asarray(each), mode), scale)
            for each, scale in zip((x, dy), scales, strict=True)
        )
        (made,) = filters()
        y = blocked.empty_blocked(mode, *shape.y)
        moments = blocked.empty_moments(mode, shape)
        blocked.convolve(mode, shape, "forward", images, made["forward"], y, moments=moments)
        dx = blocked.empty_blocked(mode, *shape.x)
        blocked.convolve(mode, shape, "input_gradient", gradient, made["input_gradient"], dx)
        found = [blocked_as_images(y, shape.channels_out), blocked_as_images(dx, shape.channels)]
        mean, variance = mean_and_variance(cupy.asnumpy(moments.array), moments, shape)
        exact = cupy.asnumpy(found[0]).astype(float)
        assert_near = partial(np.testing.assert_allclose, rtol=10 * ERRORS[mode.precision])
        assert_near(variance, exact.var((0, 2, 3)))
        assert_near(mean, exact.mean((0, 2, 3)), atol=ERRORS[mode.precision] * exact.std())
        if blocked.why_not(blocked.MODES[name], shape, "weight_gradient") is None:
            dw = cupy.empty(shape.w, np.float32)
            blocked.weight_gradient(mode, shape, images, gradient, dw)
            found.append(dw)
        given = (x, w), (dy, w), (x, dy)
        for which, pair, result in zip(PASSES, given, found, strict=False):
            assert error(cupy.asnumpy(result), wanted(shape, which, *pair)) < ERRORS[mode.precision], which


def test_whoever_puts_filters_in_order_divides_by_powers_of_two_alone():
    tiles = {8 * warps * columns for _, warps, _, columns, _ in portable.SHAPES} | {32, 64}
    chunks = {16 // 8, 32 // 8, 64 // 8, 16 // 4, 32 // 4, 64 // 4}
    assert all(number == 1 << blocked._bits(number) for number in tiles | chunks)

"""Convolutions by products: windows in memory, Winograd's tiles, spectra; on the emulator, in NumPy, and on a GPU."""

import re

import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, check_on_gpu, error, operands, random_shape, wanted
from emulated_rungs import cupy, error_of
from emulator import needs_compiler
from shared import one_sentence

from experiments.conv_ladder.rungs import LAYERS, fourier, product, winograd
from mlpkit import kernels
from mlpkit.engines import numpy_fft, numpy_winograd2, numpy_winograd4
from mlpkit.engines.images.winograd import cook_toom
from mlpkit.kernels.conv import Shape

RUNGS = {**product.RUNGS, **winograd.RUNGS, **fourier.RUNGS}
EMULATED = (
    Shape(2, 3, 5, 7, 9, 3),
    Shape(2, 4, 8, 6, 5, 3, padding=2),
    Shape(3, 5, 2, 7, 6, 3, padding=1),
    Shape(1, 8, 12, 8, 11, 3, padding=1),
)
OTHERS = (Shape(2, 4, 3, 8, 11, 5, stride=2, padding=1), Shape(1, 3, 2, 6, 7, 1, stride=2, padding=2), SHAPES[0])
FIXTURES = (cupy,)


# What a rung says of itself


def test_winograd_refuses_what_its_matrices_are_not_for():
    for shape in (Shape(1, 1, 1, 9, 9, 5), Shape(1, 1, 1, 9, 9, 3, stride=2)):
        reason = winograd.why_not(shape, "forward")
        one_sentence(ValueError(reason), "3 x 3")
        with pytest.raises(ValueError, match="stride of 1"):
            winograd.prepare(2, "float32", shape, "forward", None, None)


@pytest.mark.parametrize("name", RUNGS)
def test_images_that_can_not_be_counted_are_refused(name):
    reason = RUNGS[name].why_not(Shape(2**20, 3, 3, 64, 64, 3), "forward")
    one_sentence(ValueError(reason), "32 bits")
    assert all(RUNGS[name].why_not(shape, which) is None for shape in LAYERS.values() for which in PASSES)


def test_lengths_of_transforms_hold_an_image_and_its_padding_once():
    assert fourier.lengths(Shape(1, 1, 1, 28, 26, 3, padding=2)) == (30, 28)
    assert fourier.lengths(Shape(1, 1, 1, 3, 3, 7, padding=2)) == (7, 7)
    assert [fourier.good(n) for n in (1, 11, 13, 17, 22, 31, 121)] == [1, 12, 14, 18, 24, 32, 125]


def test_slices_come_in_full_waves():
    found = {name: winograd.slices(layer, 4) for name, layer in LAYERS.items()}
    assert found["64 to 128, 13 x 13"] == 3  # 36 places: 108 blocks on 132 multiprocessors
    assert found["256 to 256, 28 x 28"] > 1  # else 144 blocks, and a second wave of 12
    for shape in LAYERS.values():
        plan = winograd.Plan(4, *shape.x[::2], shape.width, *shape.y[2:], shape.padding, winograd.slices(shape, 4))
        assert plan.rows % (4 * plan.slices) == 0
        assert 0 <= plan.rows - plan.n * plan.down * plan.across < 4 * plan.slices


# The matrices


def matrix_of(name, m):
    """Return a matrix of the kernel's source, made of numbers and of the constants before it."""
    text = kernels.source(winograd.FILE).split("#if TILE == 2")[1].split("#endif")[0].split("#else")[m == 4]
    text = re.sub(r"(\d)\.?f\b", r"\1", re.sub(r"//.*", "", text)).replace("constexpr float", "")
    known: dict = {}
    for statement in filter(None, map(str.strip, text.split(";"))):
        if "[" not in statement:
            for part in statement.split(","):
                constant, formula = part.split("=")
                known[constant.strip()] = eval(formula, {}, known)
        elif statement.startswith(f"{name}["):
            return np.array(eval(statement.split("=")[1].replace("{", "[").replace("}", "]"), {}, known))
    raise AssertionError(f"no {name}")


@pytest.mark.parametrize("m", [2, 4])
def test_the_matrices_make_a_convolution_of_any_numbers(m):
    BT, G, AT = (matrix_of(name, m) for name in ("BT", "G", "AT"))
    rng = np.random.default_rng(0)
    d, g = rng.standard_normal(m + 2), rng.standard_normal(3)
    np.testing.assert_allclose(AT @ ((G @ g) * (BT @ d)), np.correlate(d, g, "valid"), rtol=1e-12)
    A, G_derived, B = cook_toom(m, 3)
    for mine, derived in ((BT, B.T), (G, G_derived), (AT, A.T)):  # the same but for signs and factors of whole rows
        assert mine.shape == derived.shape
        assert ((mine != 0) == (abs(derived) > 1e-12)).all()


@pytest.mark.parametrize("name", ["winograd2", "winograd4", "fft"])
def test_numpys_engines_make_the_same_of_the_same_numbers(name):
    """In float64 they are right to the last digits; what float32 loses, the kernels lose, too: some times as much."""
    engine = {"winograd2": numpy_winograd2, "winograd4": numpy_winograd4, "fft": numpy_fft}[name]
    shape = Shape(2, 20, 6, 12, 12, 3, padding=1)
    x, w = operands(shape, "forward")
    right = wanted(shape, "forward", x, w)
    assert error(engine.conv(x.astype(float), w.astype(float), None, 1, 1), right) < 1e-13
    assert error(engine.conv(x, w, None, 1, 1), right) < 2e-6


# On the emulator


@needs_compiler
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", ["im2col", "winograd2", "winograd4", "winograd4_split", "winograd2_fused", "fft"])
def test_a_pass_is_right_on_the_emulator(name, which, cupy):
    for shape in (*EMULATED, *((Shape(2, 9, 40, 6, 5, 3),) if name == "winograd2_fused" else ())):
        assert error_of(RUNGS[name], shape, which, cupy) < (2e-6 if "4" in name else 5e-7), shape


@needs_compiler
@pytest.mark.parametrize("which", ["forward", "input_gradient"])
def test_large_blocks_are_right_on_the_emulator(which, cupy, monkeypatch):
    monkeypatch.setattr(winograd, "MANY_WAVES", 0)
    assert error_of(RUNGS["winograd2_fused"], Shape(2, 40, 40, 6, 5, 3), which, cupy) < 5e-7


@needs_compiler
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", ["im2col", "fft"])
def test_strides_and_other_kernels_are_right_on_the_emulator(name, which, cupy):
    for shape in OTHERS:
        assert error_of(RUNGS[name], shape, which, cupy) < 5e-7, shape


@needs_compiler
@pytest.mark.parametrize("name", ["winograd2", "winograd4_split"])
def test_slices_of_the_tiles_change_nothing(name, cupy, monkeypatch):
    shape = EMULATED[-1]
    for slices in (1, 3):
        monkeypatch.setattr(winograd, "slices", lambda *of, found=slices: found)
        assert error_of(RUNGS[name], shape, "weight_gradient", cupy) < 1e-6


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", RUNGS)
def test_every_shape_on_a_gpu(name, which):
    rng, rung = np.random.default_rng(0), RUNGS[name]
    for shape in (*SHAPES, *EMULATED, *OTHERS, *(random_shape(rng) for _ in range(6))):
        if rung.why_not(shape, which) is None:
            check_on_gpu(rung, shape, which)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
def test_a_graph_records_it(name):
    import cupy as cp

    shape = Shape(2, 8, 12, 9, 10, 3, padding=1)
    a, b = map(cp.asarray, operands(shape, "forward"))
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        prepared = RUNGS[name].prepare(shape, "forward", a, b)
        prepared.call()
        stream.synchronize()
        right = prepared.result().copy()
        stream.begin_capture()
        prepared.call()
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
        np.testing.assert_array_equal(cp.asnumpy(prepared.result()), cp.asnumpy(right))

"""Convolution, bias, ReLU and pool together, there and back: on the emulator, and on a GPU."""

import numpy as np
import pytest
from conv_cases import SHAPES, error
from emulated_rungs import cupy, needs_compiler
from shared import one_sentence

from mlpkit.engines import numpy_baseline
from mlpkit.kernels.conv import LAYERS, Shape, fused

FIXTURES = (cupy,)
EMULATED = (
    Shape(2, 3, 5, 7, 9, 3),
    Shape(3, 1, 9, 8, 6, 3, padding=1),
    Shape(2, 10, 20, 9, 7, 3, padding=2),
    Shape(1, 70, 9, 6, 7, 3),
)


def pool(z):
    """Return the largest of each 2 x 2 numbers of z (n, c, h, w), and which of the four it is, the first of several."""
    n, c, h, w = z.shape
    fours = z[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2)
    fours = fours.transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h // 2, w // 2, 4)
    return fours.max(-1), fours.argmax(-1)


def layer(shape, seed=0):
    """Return x, w and the bias, of small integers: sums are exact, and often equal."""
    rng = np.random.default_rng(seed)
    sizes = shape.x, shape.w, shape.channels_out
    return [rng.integers(-2, 3, size).astype(np.float32) for size in sizes]


def wanted(shape, x, w, bias):
    z = numpy_baseline.conv(*(each.astype(float) for each in (x, w, bias)), shape.stride, shape.padding)
    return pool(np.maximum(z, 0))


def choices_of(shape, packed):
    """Return the choices as numbers, in the shape of the pool's result."""
    n, o, down, across = fused.pooled(shape)
    return fused.unpack(packed, o, n * down * across).reshape(o, n, down, across).transpose(1, 0, 2, 3)


def gradients(shape, seed=0):
    """Return the pool's result, its gradient, the choices packed, and the gradient written out with all its zeros."""
    rng, (n, o, down, across) = np.random.default_rng(seed), fused.pooled(shape)
    y, dy = (rng.standard_normal((n, o, down, across)).astype(np.float32) for _ in range(2))
    y, choices, dz = np.maximum(y, 0), rng.integers(0, 4, y.shape), np.zeros(shape.y)
    packed = np.zeros((-(-o // fused.GROUP), n * down * across), np.uint16)
    for filter, chosen in enumerate(choices.transpose(1, 0, 2, 3).reshape(o, -1)):
        packed[filter // fused.GROUP] |= (chosen << filter % fused.GROUP * 2).astype(np.uint16)
    for i in range(4):
        dz[:, :, i // 2 : 2 * down : 2, i % 2 : 2 * across : 2] = np.where((choices == i) & (y > 0), dy, 0)
    return y, dy, packed, dz


def check_forward(shape, make, cp, **macros):
    x, w, bias = layer(shape)
    prepared = make(shape, *map(cp.asarray, (x, w, bias)), **macros)
    prepared.call()
    y, packed = (each.get() if hasattr(each, "get") else np.asarray(each) for each in prepared.result())
    right, choices = wanted(shape, x, w, bias)
    np.testing.assert_array_equal(y, right)
    np.testing.assert_array_equal(choices_of(shape, packed), choices)


def check_back(shape, which, cp, **macros):
    x, w, _ = layer(shape)
    y, dy, packed, dz = gradients(shape)
    if which == "weight_gradient":
        prepared, right = fused.prepare_weight_gradient, np.empty(shape.w)
        numpy_baseline.conv_backward_weights(x.astype(float), dz, right, None, 1, shape.padding)
    else:
        prepared = fused.prepare_input_gradient
        right = numpy_baseline.conv_backward_input(dz, w.astype(float), shape.x, 1, shape.padding)
    first = x if which == "weight_gradient" else w
    prepared = prepared(shape, *map(cp.asarray, (first, dy, y, packed)), **macros)
    for _ in range(2):
        prepared.call()
        found = prepared.result()
        assert error(found.get() if hasattr(found, "get") else np.asarray(found), right) < 1e-6


# What is refused


def test_a_result_with_no_window_of_four_is_refused():
    shape = Shape(2, 3, 4, 3, 9, 3)
    one_sentence(ValueError(fused.why_not(shape)), "1 x 7", "2 x 2")
    with pytest.raises(ValueError, match="leave out the pool"):
        fused.prepare_fused(shape, None, None, None)


def test_the_way_back_is_refused_for_strides_and_for_wide_images():
    for shape, word in ((Shape(2, 3, 4, 9, 9, 3, stride=2), "stride"), (Shape(1, 3, 4, 99, 99, 3), "99 pixels wide")):
        one_sentence(ValueError(fused.why_not_back(shape, "input_gradient")), word)
        with pytest.raises(ValueError, match="separate kernels"):
            fused.prepare_input_gradient(shape, None, None, None, None)


def test_the_layers_that_it_is_for_are_taken():
    for name in ("64 to 128, 13 x 13", "1 to 64, 28 x 28"):
        assert fused.why_not(LAYERS[name]) is None
        assert fused.why_not_back(LAYERS[name], "weight_gradient") is None
        assert fused.band_of(LAYERS[name], "weight_gradient") == LAYERS[name].out_height // 2  # an image at a time


# On the emulator


@needs_compiler
@pytest.mark.parametrize("kernels", [1, 2, 3])
def test_a_layer_is_right_on_the_emulator_and_ties_go_to_the_first(kernels, cupy):
    def make(*arguments):
        if kernels == 1:
            return fused.prepare_fused(*arguments)
        return fused.prepare_separate(*arguments, together=4 - kernels)

    for shape in EMULATED:
        check_forward(shape, make, cupy)


@needs_compiler
def test_other_kernels_strides_and_tiles_are_right_on_the_emulator(cupy):
    check_forward(Shape(2, 3, 4, 10, 11, 5, stride=2, padding=1), fused.prepare_fused, cupy)
    check_forward(EMULATED[0], fused.prepare_fused, cupy, WINDOWS=64, EACH=2)


@needs_compiler
@pytest.mark.parametrize("m", [2, 4])
def test_the_pool_in_winograds_last_kernel_is_right_on_the_emulator(m, cupy):
    for shape in (Shape(2, 10, 16, 9, 7, 3, padding=2), Shape(1, 4, 8, 11, 13, 3)):
        x, w, bias = layer(shape)
        prepared = fused.prepare_winograd(shape, *map(cupy.asarray, (x, w, bias)), m=m)
        prepared.call()
        y, packed = map(np.asarray, prepared.result())
        right, choices = wanted(shape, x, w, bias)
        assert error(y, right) < 1e-6
        clear = np.isclose(y, right, atol=1e-3) & (right > 0)  # but where two are nearly the same
        assert (choices_of(shape, packed) == choices)[clear].mean() > 0.9


def test_filters_that_are_no_whole_groups_are_refused():
    one_sentence(ValueError(fused.why_not_winograd(Shape(2, 3, 9, 8, 8, 3))), "9 filters")
    with pytest.raises(ValueError, match="3 x 3"):
        fused.prepare_winograd(Shape(2, 3, 8, 8, 8, 5), None, None, None)


@needs_compiler
@pytest.mark.parametrize("which", ["input_gradient", "weight_gradient"])
def test_the_way_back_is_right_on_the_emulator(which, cupy):
    for shape in EMULATED:
        check_back(shape, which, cupy)


# On a GPU


@pytest.mark.gpu
def test_every_shape_on_a_gpu():
    import cupy as cp

    for shape in filter(lambda shape: fused.why_not(shape) is None, (*SHAPES, *EMULATED)):
        check_forward(shape, fused.prepare_fused, cp)
        for together in (1, 2):
            check_forward(shape, fused.prepare_separate, cp, together=together)


@pytest.mark.gpu
@pytest.mark.parametrize("which", ["input_gradient", "weight_gradient"])
def test_the_way_back_of_every_shape_on_a_gpu(which):
    import cupy as cp

    for shape in filter(lambda shape: fused.why_not_back(shape, which) is None, (*SHAPES, *EMULATED)):
        check_back(shape, which, cp)


@pytest.mark.gpu
@pytest.mark.parametrize("m", [2, 4])
def test_the_pool_in_winograds_last_kernel_on_a_gpu(m):
    import cupy as cp

    for shape in filter(lambda shape: fused.why_not_winograd(shape) is None, (*SHAPES, Shape(3, 5, 24, 11, 12, 3))):
        x, w, bias = layer(shape)
        prepared = fused.prepare_winograd(shape, *map(cp.asarray, (x, w, bias)), m=m)
        prepared.call()
        assert error(prepared.result()[0].get(), wanted(shape, x, w, bias)[0]) < 1e-5

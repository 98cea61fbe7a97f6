"""Fused blocks around convolutions: which layers they take over, and that they do what the layers do one by one."""

from itertools import product

import emulator
import numpy as np
import pytest

from experiments.conv_ladder.rungs.blocked import as_operand
from mlpkit.engines import numpy_baseline
from mlpkit.executors.cuda import conv_blocks
from mlpkit.executors.cuda.blocks import MODES, Pipeline, Value
from mlpkit.executors.cuda.matches import mode_for
from mlpkit.kernels.cnn import between
from mlpkit.kernels.conv import Shape, blocked
from mlpkit.nn.bound import BoundLayer, Mode, backward, forward
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Flatten, ReLU

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
TAKEN = (
    ((Conv(9, 3),), 1, 1, False),
    ((Conv(9, 3), ReLU()), 2, 1, True),
    ((Conv(9, 3), MaxPool(2), ReLU()), 3, 2, True),
    ((Conv(9, 3), ReLU(), MaxPool(3), ReLU()), 3, 3, True),
    ((Conv(9, 3), MaxPool(2), MaxPool(2)), 2, 2, False),
    ((Conv(9, 3), MaxPool(3, 2), ReLU()), 1, 1, False),
    ((Conv(9, 3), AvgPool(2), ReLU()), 1, 1, False),
    ((Conv(9, 3), MaxPool(1)), 1, 1, False),
    ((Conv(9, 3), Flatten()), 1, 1, False),
)
BLOCKS = (
    ((5, 9, 8), 3, (Conv(20, 3),)),
    ((20, 7, 8), 2, (Conv(9, 3, padding=1, bias=False),)),
    ((20, 7, 9), 3, (Conv(33, 3, padding=1), ReLU())),
    ((64, 13, 13), 4, (Conv(128, 3), MaxPool(2), ReLU())),
    ((6, 14, 14), 5, (Conv(16, 5), ReLU(), MaxPool(2))),
    ((16, 12, 11), 2, (Conv(8, 3, bias=False), MaxPool(3))),
    ((17, 15, 14), 2, (Conv(40, 3, stride=2, padding=1), MaxPool(2), ReLU())),
    ((32, 28, 28), 2, (Conv(32, 3, padding=1, bias=False), ReLU())),
)
FIRST = (
    ((1, 28, 28), 4, (Conv(64, 3), MaxPool(2), ReLU())),
    ((1, 28, 28), 3, (Conv(6, 5, padding=2), ReLU(), MaxPool(2))),
    ((3, 9, 10), 2, (Conv(20, 3, padding=1, bias=False), ReLU())),
    ((1, 28, 28), 2, (Conv(32, 3, padding=1, bias=False),)),
    ((3, 16, 16), 2, (Conv(16, 3, stride=2), ReLU())),  # not by the first convolution's kernels
)


def bound_to(layers, shape, wants_dx, engine, array, dtype):
    """Return the places of layers, with small integers for parameters: sums are exact, and often equal."""
    rng, bound = np.random.default_rng(0), []
    for i, layer in enumerate(layers):
        at = BoundLayer(layer, (i,), engine, Mode(0, np.dtype(dtype), True), (), wants_dx or i > 0)
        for name, size in layer.parameters(shape).items():
            weights = rng.integers(-1, 2, size) * (rng.random(size) < 0.2)
            setattr(at, name, array(weights.astype(dtype)))
            setattr(at, f"d{name}", array(np.full(size, np.nan, dtype)))
        bound.append(at)
        shape = layer.output(shape)
    return bound


def integers(shape, seed):
    rng = np.random.default_rng(seed)
    return (rng.integers(-2, 3, shape) * (rng.random(shape) < 0.5)).astype(np.float32)


def laid(cupy, x, layout, mode):
    """Return images (n, c, h, w) as a `Value`."""
    array, channels = cupy.asarray(x), x.shape[1]
    if layout == "nchw":
        return Value(array, layout, channels)
    array = cupy.ascontiguousarray(blocked.images_as_blocked(array, mode))
    if layout == "stored":
        array = as_operand(mode, array, blocked.new_scale() if mode.fp16_parts else None)
    return Value(array, layout, channels)


def images(cupy, value, mode):
    """Return a `Value` as a NumPy array (n, c, h, w)."""
    if value.layout == "nchw":
        return cupy.asnumpy(value.array)
    array = value.array
    if value.layout == "stored":
        scale, array = array.scale, cupy.asnumpy(array.array)
        if mode.fp16_parts:
            array = array.view(np.float16).astype(np.float32).sum(axis=0) / cupy.asnumpy(scale)[0]
    array = cupy.asnumpy(array)
    array = (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array
    n, groups, h, w, each = array.shape
    return array.transpose(0, 1, 4, 2, 3).reshape(n, groups * each, h, w)[:, : value.channels]


def check(cupy, block_of, mode, wants_dx, layout, gives):
    """Hold a block to its layers, one by one, in float64: all of it twice, for scales of halves are guesses."""
    shape, n, layers = block_of
    right = bound_to(layers, shape, wants_dx, numpy_baseline, np.asarray, np.float64)
    bound = bound_to(layers, shape, wants_dx, None, cupy.asarray, np.float32)
    count, block = conv_blocks.match(bound, 0, shape, n, mode)
    assert count == len(layers)
    block.gives = gives
    for seed in range(2):
        x = integers((n, *shape), seed)
        wanted = forward(right, x.astype(float))
        getattr(block, "prepare", list)()
        y = block.forward(laid(cupy, x, layout, mode))
        np.testing.assert_array_equal(images(cupy, y, mode), wanted)
        dy = integers(wanted.shape, seed + 9)
        dx_wanted = backward(right, dy.astype(float))
        back = "nc8hw8" if y.layout == "stored" else y.layout
        dx = block.backward(laid(cupy, dy, back, mode))
        for name in layers[0].parameters(shape):
            found = cupy.asnumpy(getattr(bound[0], f"d{name}"))
            np.testing.assert_array_equal(found, getattr(right[0], f"d{name}"), name)
        assert (dx is None) == (dx_wanted is None)
        if dx:
            assert dx.layout == "nc8hw8"
            np.testing.assert_array_equal(images(cupy, dx, mode), dx_wanted)


def check_two(cupy, shape, n, layers, mode, together):
    """Hold the blocks of two convolutions to their layers. together: whether one kernel ends both ways back."""
    right = bound_to(layers, shape, False, numpy_baseline, np.asarray, np.float64)
    bound, pipeline = two_blocks(shape, n, layers, mode, cupy.asarray)
    assert (pipeline.blocks[1].first is pipeline.blocks[0]) == together
    for seed in range(2):
        x = integers((n, *shape), seed)
        wanted = forward(right, x.astype(float))
        pipeline.prepare()
        np.testing.assert_array_equal(
            cupy.asnumpy(pipeline.forward(Value(cupy.asarray(x), "nchw", shape[0])).array), wanted
        )
        dy = integers(wanted.shape, seed + 9)
        backward(right, dy.astype(float))
        assert pipeline.backward(Value(cupy.asarray(dy), "nchw", dy.shape[1])) is None
        for place, other in zip(bound, right, strict=True):
            for name in place.layer.parameters(shape):
                found = cupy.asnumpy(getattr(place, f"d{name}"))
                np.testing.assert_array_equal(found, getattr(other, f"d{name}"), name)


@pytest.fixture
def cupy(folder):
    with emulator.with_blocked(folder, between) as found:
        yield found


@pytest.mark.parametrize(("layers", "count", "pool", "relu"), TAKEN, ids=str)
def test_what_a_block_takes_over(layers, count, pool, relu, cupy):
    bound = bound_to(layers, (5, 12, 13), True, None, np.asarray, np.float32)
    found, block = conv_blocks.match(bound, 0, (5, 12, 13), 4, MODES["float32"])
    assert found == count
    assert isinstance(block, conv_blocks.ConvBlock)
    assert (block.about.pool, block.about.relu) == (pool, relu)
    assert (block.about.height, block.about.width) == (10 // pool * pool, 11 // pool * pool)
    assert block.conv.y == (4, 9, block.about.height, block.about.width)


def test_who_is_left_to_others(cupy):
    def matched(layer, shape, n=2, mode="float32"):
        return conv_blocks.match(
            bound_to((layer,), shape, True, None, np.asarray, np.float32), 0, shape, n, MODES[mode]
        )

    assert matched(ReLU(), (5, 12, 13)) is None
    assert matched(MaxPool(2), (5, 12, 13)) is None
    assert matched(Conv(4, 3, stride=3), (5, 12, 13)) is None
    assert matched(Conv(4, 9), (5, 12, 13)) is None
    assert matched(Conv(4, 3), (5, 4, 300)) is None
    assert matched(Conv(4, 3), (5, 12, 13), n=2**25) is None
    assert matched(Conv(4, 3), (5, 12, 13))[0] == 1


def test_images_of_few_channels_have_kernels_of_their_own(cupy):
    for (shape, n, layers), first in zip(FIRST, (True, True, True, True, False), strict=True):
        for wants_dx in (False, True):
            bound = bound_to(layers, shape, wants_dx, None, np.asarray, np.float32)
            _, block = conv_blocks.match(bound, 0, shape, n, MODES["bf16"])
            assert isinstance(block, conv_blocks.FirstBlock) == (first and not wants_dx)


@needs_compiler
def test_the_first_block_does_what_its_layers_do(cupy):
    check(cupy, ((1, 9, 8), 3, (Conv(10, 3), MaxPool(2), ReLU())), MODES["float32"], False, "nchw", "stored")
    check(cupy, ((2, 6, 7), 2, (Conv(6, 3, padding=1, bias=False),)), MODES["bf16"], False, "nchw", "nc8hw8")


SMALL = (
    ((1, 12, 13), 3, (Conv(40, 3), MaxPool(2), ReLU(), Conv(20, 3), ReLU()), True),
    ((1, 7, 6), 2, (Conv(50, 2, padding=1), ReLU(), Conv(9, 3, padding=1, bias=False)), True),
    ((1, 9, 9), 2, (Conv(40, 3, bias=False), Conv(9, 3)), True),
    ((1, 9, 9), 2, (Conv(40, 3), ReLU(), Conv(9, 3, stride=2)), False),
    ((2, 9, 9), 2, (Conv(40, 3), ReLU(), Conv(9, 3)), False),
)


def two_blocks(shape, n, layers, mode, array=np.asarray):
    """Return the places of layers, and the blocks of the two convolutions among them as a chain."""
    bound, blocks, at = bound_to(layers, shape, False, None, array, np.float32), [], shape
    for i in (0, next(i for i, layer in enumerate(layers) if i and type(layer) is Conv)):
        count, block = conv_blocks.match(bound, i, at, n, mode)
        blocks.append(block)
        for place in bound[i : i + count]:
            at = place.layer.output(at)
    return bound, Pipeline(blocks, mode)


@pytest.mark.parametrize(("shape", "n", "layers", "together"), SMALL, ids=str)
def test_who_makes_the_gradient_of_the_first_convolution(cupy, shape, n, layers, together):
    for mode in MODES.values():
        first, second = two_blocks(shape, n, layers, mode)[1].blocks
        assert (second.first is first) == together
        assert (getattr(second.conv, "behind", 0) > 0) == together


TWO = (
    *SMALL,
    ((1, 28, 28), 130, (Conv(64, 3), MaxPool(2), ReLU(), Conv(128, 3), MaxPool(2), ReLU()), True),
    ((1, 28, 28), 300, (Conv(48, 5, padding=2), ReLU(), MaxPool(2), Conv(16, 5), ReLU()), True),
)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "n", "layers", "together"), TWO, ids=str)
@pytest.mark.parametrize("precision", MODES)
def test_a_second_block_makes_the_gradient_of_the_first_on_a_gpu(precision, shape, n, layers, together):
    import cupy

    mode = mode_for(precision)
    check_two(cupy, shape, n, layers, mode, together and not mode.products)


def test_only_pixels_that_a_pool_reads_are_asked_for():
    conv = blocked.cropped(Shape(4, 64, 128, 13, 13, 3), 2)
    assert (conv.y, conv.x) == ((4, 128, 10, 10), (4, 64, 13, 13))
    (one, _, _), *_ = blocked.convolutions(conv, "forward")
    (back, _, _), *_ = blocked.convolutions(conv, "input_gradient")
    assert (one.windows, back.windows, back.height) == ((10, 10), (13, 13), 10)
    assert blocked.cropped(Shape(4, 64, 128, 12, 12, 3), 2) == Shape(4, 64, 128, 12, 12, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("block_of", BLOCKS, ids=str)
@pytest.mark.parametrize("precision", MODES)
def test_a_block_does_what_its_layers_do(precision, block_of):
    import cupy

    mode = mode_for(precision)
    for layout, gives in product(("nchw", "nc8hw8", "stored"), ("nc8hw8", "stored", "nchw")):
        check(cupy, block_of, mode, True, layout, gives)
    check(cupy, block_of, mode, False, "stored", "nchw")


@pytest.mark.gpu
@pytest.mark.parametrize("block_of", FIRST, ids=str)
@pytest.mark.parametrize("precision", MODES)
def test_a_first_block_does_what_its_layers_do(precision, block_of):
    import cupy

    mode = mode_for(precision)
    for gives in ("nc8hw8", "stored", "nchw"):
        check(cupy, block_of, mode, False, "nchw", gives)

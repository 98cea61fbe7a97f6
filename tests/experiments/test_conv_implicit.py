"""The implicit products: their kernels on an emulated GPU, and on a real one where there is one."""

from dataclasses import replace

import emulator
import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, check_on_gpu, error, operands, random_shape, wanted
from shared import one_sentence, sweep

from experiments.conv_ladder.rungs import ERRORS, LAYERS, implicit
from experiments.conv_ladder.rungs.implicit import KINDS, RUNGS, Tile
from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.kernels.conv import Shape

needs_emulator = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
rungs = pytest.mark.parametrize("name", RUNGS)
passes = pytest.mark.parametrize("which", PASSES)

# Channels that are no multiple of 4, a stride of 2; and channels that are, where a phase of the gradient has no tap.
ODD, EVEN = SHAPES[5], SHAPES[7]


def small(name):
    """Return a tile that is compiled once for all passes."""
    if not KINDS[name].on_cores:
        return Tile(64, 32, 32, 16, 8, 3)
    return Tile(64, 32, 32, 16, 32 if name == "bf16" else 16, 3)


def emulated(name, shape, which, folder, seed=0):
    """Return the result of a pass on the emulated GPU, and the right one."""
    a, b = operands(shape, which)
    with emulator.with_cupy(folder, seed):
        import cupy

        given = (cupy.asarray(a), cupy.asarray(b))
        prepared = implicit.prepare(name, shape, which, *given, tile=small(name))
        prepared.call()
        return np.asarray(prepared.result()), wanted(shape, which, a, b)


# On an emulated GPU


@needs_emulator
@rungs
@pytest.mark.parametrize("shape", sweep([ODD, EVEN, SHAPES[8]], ODD, EVEN), ids=str)
def test_an_emulated_gpu_computes_the_passes(name, shape, folder):
    for which in PASSES:
        found, right = emulated(name, shape, which, folder)
        assert error(found, right) < ERRORS[RUNGS[name].precision], which


@needs_emulator
@pytest.mark.parametrize("name", ["implicit_nhwc", "bf16"])
def test_every_schedule_gives_the_same_to_the_last_bit(name, folder):
    for which in PASSES:
        first, *others = (emulated(name, ODD, which, folder, seed)[0] for seed in range(4))
        for other in others:
            np.testing.assert_array_equal(first, other)


@needs_emulator
@passes
def test_three_products_are_as_exact_as_float32(which, folder):
    found, right = emulated("tf32x3", EVEN, which, folder)
    assert error(found, right) < 3e-7


FAULTS = {
    "nobody waits for the last tiles": ("cp_async_wait_group<STAGES - 2>();", "cp_async_wait_group<STAGES - 1>();"),
    "a tile is filled while others read it": (
        "T& last = ring[slot > 0 ? slot - 1 : STAGES - 1];",
        "T& last = ring[slot];",
    ),
    "the threads do not meet": ("__syncthreads();\n    };", "};"),
}


def fails(seed, folder):
    """Whether a forward pass is wrong, or comes to no end, in a schedule."""
    try:
        return not error(*emulated("bf16", ODD, "forward", folder, seed)) < ERRORS["bf16"]
    except emulator.Failed:
        return True


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_in_one_of_a_few_schedules(fault, folder, monkeypatch):
    before, after = FAULTS[fault]
    source = kernels.source("conv_8_bf16")
    assert before in source
    monkeypatch.setattr(kernels, "source", lambda name: source.replace(before, after))
    assert any(fails(seed, folder) for seed in range(6))


# What is said with no GPU


@pytest.mark.parametrize("number", [1, 2, 3, 5, 7, 11, 13, 28, 169, 784, 12321, 2**20, 2**20 + 1, 2**30 - 1, 2**31 - 1])
def test_a_multiplication_divides(number):
    factor, shift = implicit.divider(number)
    rng = np.random.default_rng(number)
    n = np.concatenate([rng.integers(0, 2**31, 10_000), np.arange(100), 2**31 - 1 - np.arange(100)]).astype(np.uint64)
    near = (n // number * number)[:, None] + np.arange(-1, 2, dtype=np.int64).astype(np.uint64)
    n = np.concatenate([n, near[(near < 2**31)]])
    assert 0 <= factor < 2**32
    np.testing.assert_array_equal(
        ((n * np.uint64(factor) >> np.uint64(32)) + n) >> np.uint64(shift), n // np.uint64(number)
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_phases_have_each_pixel_and_each_tap_once(shape):
    phases = list(implicit.phases(shape))
    assert sum(lines * columns for (lines, columns), _ in phases) == shape.height * shape.width
    hit = np.zeros((shape.kernel, shape.kernel), int)
    for _, taps in phases:
        hit[taps] += 1
    assert (hit == 1).all()


def test_bfloat16_is_rounded_to_the_nearest_even():
    numbers = np.array([0, -0.0, 1, 1.00390625, 1.01171875, -1.00390625, 3.0e38, 1e-40, np.inf], np.float32)
    found = implicit.from_bf16(implicit.to_bf16(numbers, np))
    np.testing.assert_array_equal(found[:6], np.array([0, -0.0, 1, 1, 1.015625, -1], np.float32))
    assert abs(found[6] / 3.0e38 - 1) < 2**-8
    assert np.isinf(found[8])


def test_a_batch_that_cant_be_counted_is_refused_in_a_sentence():
    large = Shape(2**15, 256, 256, 28, 28, 3, padding=1)
    one_sentence(implicit.why_not(large, "forward"), "split the batch")
    for rung in RUNGS.values():
        assert rung.why_not(LAYERS["256 to 256, 28 x 28"], "forward") is None
    with pytest.raises(ValueError, match="split the batch"):
        implicit.prepare("bf16", large, "forward", None, None)


@rungs
@passes
def test_each_shape_has_a_tile_and_each_slice_has_pixels(name, which):
    rng = np.random.default_rng(0)
    for shape in (*SHAPES, *LAYERS.values(), *(random_shape(rng) for _ in range(20))):
        shape = implicit.stored_shape(name, shape)
        tile = implicit.tile_of(name, shape, which)
        assert tile.shared_bytes(which, KINDS[name].size, KINDS[name].on_cores) <= 227 << 10
        assert implicit.blocks(shape, which, tile) > 0
        each, count = implicit.slices(shape, tile)
        pixels = shape.batch * shape.out_height * shape.out_width
        assert each % tile.depth == 0
        assert (count - 1) * each < pixels <= count * each


@pytest.mark.slow
@rungs
def test_no_tile_of_the_table_spills(name):
    try:
        kernels.ptxas(), kernels.ptx("launches")
    except (FileNotFoundError, ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    kind = KINDS[name]
    for which, table in zip(("forward", "weight_gradient"), implicit.TILES[name], strict=True):
        for tile in table.values():
            found = ptxas.resources(kind.file, **tile.macros, **dict(kind.macros))
            assert found[which].spilled_bytes == 0, tile
            assert tile.shared_bytes(which, kind.size, kind.on_cores) <= 227 << 10


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@passes
@rungs
def test_the_gpu_computes_the_passes(name, which, shape):
    check_on_gpu(RUNGS[name], shape, which)


@pytest.mark.gpu
@passes
@rungs
def test_the_gpu_computes_shapes_that_nobody_has_thought_of(name, which):
    rng = np.random.default_rng(0)
    for _ in range(5):
        check_on_gpu(RUNGS[name], random_shape(rng), which)


@pytest.mark.gpu
@passes
@rungs
@pytest.mark.parametrize("layer", LAYERS)
def test_the_gpu_computes_the_layers_of_the_ladder(layer, which, name):
    """Of four images, with the tiles of 128."""
    check_on_gpu(RUNGS[name], replace(LAYERS[layer], batch=4), which)

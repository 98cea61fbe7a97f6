"""Convolutions on CUDA cores: right on a CPU in the emulator, in all chips' registers, and on a GPU against float64."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, check_on_gpu, error, operands, random_shape, wanted
from shared import sweep
from test_kernels import needs_compiler

from experiments.conv_ladder.rungs import ERRORS, LAYERS, cores
from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.kernels.conv import Shape

sys.path.append(str(Path(__file__).parents[1] / "engines"))  # where the emulator is
import emulator

needs_emulator = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
each_pass = pytest.mark.parametrize("which", PASSES)
RANDOM = [random_shape(np.random.default_rng(seed)) for seed in range(4)]
SMALL = (
    Shape(2, 3, 5, 7, 9, 3),
    Shape(2, 5, 4, 8, 6, 3, stride=2, padding=1),
    Shape(2, 2, 3, 6, 5, 5, padding=2),
    Shape(1, 6, 3, 5, 6, 1, stride=2),
)

ONE = (Shape(2, 1, 5, 8, 6, 3), Shape(3, 1, 20, 7, 9, 5, stride=2, padding=1))


@pytest.fixture
def emulated(folder, monkeypatch):
    """Let the rungs launch emulated kernels, and take NumPy for CuPy."""

    def load(name, **macros):
        definitions = [f"-D{macro}={value}" for macro, value in macros.items()]

        def function(which):
            return emulator._Kernel(
                emulator.compiled(name, folder, kernels.source(name), *definitions, kernel=which), 1
            )

        return SimpleNamespace(get_function=function)

    monkeypatch.setitem(sys.modules, "cupy", emulator._cupy(folder, 1))
    monkeypatch.setattr(kernels, "load", load)


def check_emulated(prepare, shape, which):
    a, b = operands(shape, which)
    prepared = prepare(shape, which, *(each.view(emulator.Array) for each in (a, b)))
    prepared.call()
    assert error(np.asarray(prepared.result()), wanted(shape, which, a, b)) < ERRORS["float32"], (shape, which)


@needs_emulator
@each_pass
@pytest.mark.parametrize("name", ["reference", "direct"])
def test_a_thread_a_number_is_right_in_the_emulator(name, which, emulated):
    for shape in SMALL:
        check_emulated(cores.RUNGS[name].prepare, shape, which)


@needs_emulator
@each_pass
@pytest.mark.parametrize("name", ["shared", "registers"])
def test_tiles_are_right_in_the_emulator(name, which, emulated):
    check_emulated(cores.RUNGS[name].prepare, SMALL[1], which)


@needs_emulator
@each_pass
def test_one_channel_is_right_in_the_emulator(which, emulated):
    check_emulated(cores.RUNGS["one_channel"].prepare, ONE[1], which)


# Several tiles of several patches, all with tails; threads that share channels, and have two; windows 1 and 2 apart.
CUT = {
    "forward": (Shape(2, 5, 19, 9, 10, 3, padding=1), cores.Tiles(4, 3, 2, 2, 8, each=2, slices=2)),
    "input_gradient": (Shape(1, 3, 5, 11, 7, 3, stride=2, padding=2), cores.Tiles(4, 2, 2, 2, 4, each=1, slices=4)),
    "weight_gradient": (
        Shape(5, 3, 9, 11, 7, 3, stride=2, padding=1),
        cores.Tiles(2, 3, 2, 2, 4, each=2, outs=2, groups=2, slices=4, slices_of_batch=2),
    ),
}


@needs_emulator
@each_pass
def test_patches_that_are_cut_off_are_right_in_the_emulator(which, emulated):
    shape, tiles = CUT[which]
    check_emulated(partial(cores._prepare_registers, tiles=tiles), shape, which)


@each_pass
def test_every_shape_has_tiles_that_fit(which):
    for shape in SHAPES[::3]:
        tiles = cores.tiles_of(shape, which)
        assert tiles.threads % 32 == 0
        assert tiles.threads <= 1024
        assert tiles.shared_bytes(cores.images_of(shape, which)) <= cores.MOST_SHARED
        assert cores.RUNGS["registers"].why_not(shape, which) is None


def test_tuned_tiles_copy_as_many_numbers_at_a_time_as_they_can():
    for shape, which in cores._tuned():
        tiles, images = cores.tiles_of(shape, which), cores.images_of(shape, which)
        assert tiles.vector == cores._vector(tiles, images, which)


def test_one_channel_says_what_else_to_take():
    reason = cores.RUNGS["one_channel"].why_not(SMALL[0], "forward")
    assert reason.startswith("it is for images of one channel, and these have 3")
    assert cores.RUNGS["one_channel"].why_not(ONE[0], "forward") is None


def test_operands_of_other_shapes_are_refused():
    a, b = operands(SMALL[0], "forward")
    with pytest.raises(ValueError, match=r"needs arrays \(2, 3, 7, 9\) and \(5, 3, 3, 3\)"):
        cores._checked(SMALL[0], "forward", b, a)
    with pytest.raises(ValueError, match="stored by rows"):
        cores._checked(SMALL[0], "forward", np.asfortranarray(a), b)


@pytest.mark.parametrize(("offset", "vector"), [(0, 4), (16, 4), (8, 2), (4, 1)])
def test_copies_are_smaller_where_arrays_begin_elsewhere(offset, vector):
    array = SimpleNamespace(data=SimpleNamespace(ptr=256 + offset))
    assert cores._aligned(cores.Tiles(1, 1, 1, 1, 32, vector=4), array).vector == vector


@needs_compiler
@pytest.mark.parametrize("arch", sweep(["sm_80", "sm_90"], "sm_90"))
def test_the_largest_patches_stay_in_registers(arch):
    most = (163 if arch == "sm_80" else 227) << 10
    for which, name in zip(PASSES, ("64 to 64, 14 x 14", "64 to 128, 13 x 13", "32 to 32, 28 x 28"), strict=True):
        images, tiles = cores.images_of(LAYERS[name], which), cores.tiles_of(LAYERS[name], which, most)
        found = ptxas.resources("conv_3_registers", arch, **tiles.macros(images, which))[which]
        assert found.spilled_bytes == 0
        assert tiles.shared_bytes(images) <= most
        assert found.registers * tiles.threads <= 65536


@needs_compiler
@pytest.mark.parametrize("name", ["conv_0_reference", "conv_1_direct", "conv_2_shared", "conv_one_channel"])
@pytest.mark.parametrize("arch", sweep(["sm_75", "sm_100"], "sm_75"))
def test_older_and_newer_chips_take_the_files(name, arch):
    assert all(found.spilled_bytes == 0 for found in ptxas.resources(name, arch).values())


@needs_compiler
def test_newer_chips_take_patches_in_registers():
    assert all(found.spilled_bytes == 0 for found in ptxas.resources("conv_3_registers", "sm_100").values())


@pytest.mark.gpu
@each_pass
@pytest.mark.parametrize("name", cores.RUNGS)
def test_rungs_are_right_on_the_gpu(name, which):
    for shape in (*SHAPES, *RANDOM, ONE[1]):
        if cores.RUNGS[name].why_not(shape, which) is None:
            check_on_gpu(cores.RUNGS[name], shape, which)


@pytest.mark.gpu
@each_pass
def test_the_reference_takes_double(which):
    import cupy

    a, b = (each.astype(np.float64) for each in operands(SMALL[1], which))
    prepared = cores.RUNGS["reference"].prepare(SMALL[1], which, cupy.asarray(a), cupy.asarray(b))
    prepared.call()
    assert error(cupy.asnumpy(prepared.result()), wanted(SMALL[1], which, a, b)) < 1e-14

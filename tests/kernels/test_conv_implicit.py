"""The implicit products: their kernels on an emulated GPU, and on a real one where there is one."""

import emulator
import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, check_on_gpu, error, operands, wanted

from mlpkit.kernels.conv import ERRORS, implicit
from mlpkit.kernels.conv.implicit import RUNGS

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def emulated(name, shape, which, folder, seed=0, **options):
    """Return the result of a pass on the emulated GPU, and the right one."""
    a, b = operands(shape, which, seed)
    with emulator.with_cupy(folder, seed):
        import cupy

        prepared = implicit.prepare(name, shape, which, cupy.asarray(a), cupy.asarray(b), **options)
        prepared.call()
        return np.asarray(prepared.result()), wanted(shape, which, a, b)


@needs_compiler
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", RUNGS)
def test_an_emulated_gpu_computes_the_passes(name, which, folder):
    for shape in (SHAPES[1], SHAPES[5], SHAPES[7]):
        found, right = emulated(name, shape, which, folder)
        assert error(found, right) < ERRORS[RUNGS[name].precision], shape


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", RUNGS)
def test_the_gpu_computes_the_passes(name, which, shape):
    check_on_gpu(RUNGS[name], shape, which)

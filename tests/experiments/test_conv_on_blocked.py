"""The rungs on planes, on a GPU: a pass of two arrays as they come is right, whatever their size."""

import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, check_on_gpu, error, operands, random_shape, wanted
from shared import needs_hopper

from experiments.conv_ladder.rungs import implicit
from experiments.conv_ladder.rungs.blocked import RUNGS
from mlpkit.kernels.conv import Shape, blocked

MORE = [random_shape(np.random.default_rng(seed)) for seed in range(8)]


@needs_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", blocked.MODES)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)
def test_a_rung_is_right(name, which, shape):
    rung = RUNGS[f"planes_{name}"]
    if reason := rung.why_not(shape, which):
        pytest.skip(reason)
    check_on_gpu(rung, shape, which)


@needs_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_fp16_takes_elements_of_any_size(scale, which):
    import cupy

    shape = Shape(2, 20, 24, 9, 9, 3, padding=1)
    a, b = operands(shape, which)
    a *= np.float32(scale)
    prepared = RUNGS["planes_fp16x3"].prepare(shape, which, cupy.asarray(a), cupy.asarray(b))
    prepared.call()
    assert error(cupy.asnumpy(prepared.result()), wanted(shape, which, a, b)) < 1e-5


@needs_hopper
@pytest.mark.gpu
@pytest.mark.parametrize(("name", "outlier", "least", "most"), [
    ("planes_fp16x3", 1e3, 0, 1e-6), ("planes_fp16x3", 4e6, 1e-6, 1e-4), ("tf32x3", 4e6, 0, 1e-6),
])  # fmt: skip
def test_what_an_outlier_in_one_image_costs_the_others(name, outlier, least, most):
    """fp16 has one power of two an array: chapter 17, section 4. Three products of TF32 have float32's exponents."""
    import cupy

    shape = Shape(3, 64, 32, 9, 9, 3)
    a, b = operands(shape, "forward")
    a[0, 0, 4, 4] = outlier
    prepared = (RUNGS | implicit.RUNGS)[name].prepare(shape, "forward", cupy.asarray(a), cupy.asarray(b))
    for _ in range(2):  # the second time with the right power
        prepared.call()
        found, right = cupy.asnumpy(prepared.result()), wanted(shape, "forward", a, b)
        assert least <= max(error(each, its) for each, its in zip(found[1:], right[1:], strict=True)) < most

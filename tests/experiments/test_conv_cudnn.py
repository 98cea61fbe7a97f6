"""cuDNN's plans: why they can't be had, how arrays are laid out for them; on a GPU, what they compute is right."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, error, operands, random_shape, wanted

from experiments.conv_ladder.rungs import ERRORS, LAYERS, cudnn
from mlpkit.kernels.conv import Shape
from mlpkit.kernels.conv import cudnn as plans

SHAPE = Shape(2, 3, 5, 7, 9, 3, padding=1)
QUICK = cudnn.rungs(seconds=0.02)


def test_a_missing_package_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    reason = cudnn.RUNGS["cudnn_tf32"].why_not(SHAPE, "forward")
    assert reason.startswith("cuDNN is left out")
    assert "pip install nvidia-cudnn-frontend" in reason
    with pytest.raises(ValueError, match="pip install"):
        cudnn.RUNGS["cudnn_tf32"].prepare(SHAPE, "forward", None, None)


def test_a_missing_library_is_said_in_a_sentence(monkeypatch):
    def refuse():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    package = ModuleType("cudnn")
    package.backend_version = refuse
    monkeypatch.setitem(sys.modules, "cudnn", package)
    monkeypatch.setattr(plans, "find_spec", lambda name: object())
    reason = plans.why_not()
    assert "cudnnGetVersion" in reason
    assert "\n" not in reason
    assert "pip install" in reason


def test_strides_are_those_of_the_arrays_as_they_are_stored():
    array = np.empty(SHAPE.x, np.float32)
    assert plans._strides(SHAPE.x, "nchw") == [stride // 4 for stride in array.strides]
    stored = np.empty(cudnn._stored(SHAPE.x, "nhwc"), np.float32).transpose(0, 3, 1, 2)
    assert stored.shape == SHAPE.x
    assert plans._strides(SHAPE.x, "nhwc") == [stride // 4 for stride in stored.strides]


def test_plans_are_taken_once_and_in_order():
    names = ["eng5", "eng3", "eng5", "eng0", "eng3"]
    problem = SimpleNamespace(plans=len(names), name=names.__getitem__)
    assert plans.Problem.different(problem) == [0, 1, 3]


def test_both_layouts_are_tried():
    assert {layout for layout, _ in cudnn._variants("forward", "tf32")} == {"nhwc", "nchw"}
    assert {result for _, result in cudnn._variants("weight_gradient", "bf16")} == {"float32", "bf16"}


@pytest.mark.parametrize("which", PASSES)
def test_what_plans_are_held_to_is_right(which):
    pytest.importorskip("cupy")
    rng = np.random.default_rng(3)
    for shape in (*SHAPES, *(random_shape(rng) for _ in range(10))):
        a, b = operands(shape, which)
        assert error(cudnn.exact(shape, which, a, b), wanted(shape, which, a, b)) < 1e-13, shape


# On a GPU


needs_cudnn = pytest.mark.skipif(cudnn.why_not() is not None, reason=str(cudnn.why_not()))


def check(rung, shape, which):
    """Hold a pass to float64, and twice the same call to each other where the plan's notes promise that."""
    import cupy

    a, b = operands(shape, which)
    prepared = rung.prepare(shape, which, cupy.asarray(a), cupy.asarray(b))
    results = []
    for _ in range(2):
        prepared.call()
        results.append(cupy.asnumpy(prepared.result()))
    assert error(results[0], wanted(shape, which, a, b)) < ERRORS[rung.precision], (shape, which)
    if prepared.keeps[0].repeats:
        np.testing.assert_array_equal(*results, str((shape, which)))


@pytest.mark.gpu
@needs_cudnn
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", QUICK)
def test_every_shape_is_right(name, which):
    for shape in SHAPES:
        check(QUICK[name], shape, which)


@pytest.mark.gpu
@needs_cudnn
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", QUICK)
def test_shapes_that_nobody_has_thought_of_are_right(name, which):
    rng = np.random.default_rng(2)
    for _ in range(3):
        check(QUICK[name], random_shape(rng), which)


@pytest.mark.gpu
@needs_cudnn
@pytest.mark.parametrize("which", PASSES)
def test_float32_is_float32(which):
    """cuDNN's default is TF32: its result is a thousand times as far off."""
    import cupy

    shape = LAYERS["64 to 64, 14 x 14"]
    a, b = operands(shape, which)
    right, errors = wanted(shape, which, a, b), {}
    for name, rung in QUICK.items():
        prepared = rung.prepare(shape, which, cupy.asarray(a), cupy.asarray(b))
        prepared.call()
        errors[name] = error(cupy.asnumpy(prepared.result()), right)
    assert errors["cudnn_float32"] < 5e-6 < 5e-5 < errors["cudnn_tf32"] < errors["cudnn_bf16"]


@pytest.mark.gpu
@needs_cudnn
def test_a_transform_that_is_too_far_off_is_not_taken():
    """The weight gradient of many images by Winograd's transform is off by 2e-5, and would be the fastest."""
    shape = Shape(128, 64, 64, 28, 28, 3, padding=1)
    check(QUICK["cudnn_float32"], shape, "weight_gradient")


@pytest.mark.gpu
@needs_cudnn
def test_rounding_to_bfloat16_is_to_the_nearest_and_to_even():
    import cupy

    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xFF7FFFFF, 0x7F800000, 0x7FC00001], np.uint32)
    found = cupy.asnumpy(cudnn.to_bf16(cupy.asarray(bits.view(np.float32))))
    assert [hex(each) for each in found] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0xff80", "0x7f80", "0x7fc0"]
    assert (cudnn.from_bf16(cupy.asarray(found)).get().view(np.uint32)[:6] == found[:6].astype(np.uint32) << 16).all()


@pytest.mark.gpu
@needs_cudnn
def test_plans_that_repeat_themselves_can_be_asked_for():
    choice, _ = cudnn.tuned(SHAPE, "weight_gradient", "float32", repeats=True, seconds=0.02)
    assert choice.repeats
    assert choice.us > 0
    assert choice.tried <= choice.plans

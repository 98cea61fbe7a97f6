"""What holds for each operation of the NumPy baseline alike: types, layouts, untouched inputs, NaN and infinity."""

import inspect
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import LAYOUTS

from mlpkit.engines import numpy_baseline as engine

IMAGES, CONV, POOL = (2, 3, 5, 5), dict(stride=2, padding=1), dict(size=3, stride=2)
PER_CHANNEL = dict(gamma=(3,), beta=(3,), mean=(3,), variance=(3,))
# operation: (the shapes of its arrays, what else it takes)
OPERATIONS = {
    "add": (dict(x=(3, 4), y=(3, 4)), {}),
    "multiply": (dict(x=(3, 4), y=(3, 4)), {}),
    "dropout": (dict(x=(3, 4)), dict(rate=0.3, key=(5, 6), step=7)),
    "leaky_relu": (dict(z=(3, 4)), dict(slope=0.1)),
    "leaky_relu_backward": (dict(a=(3, 4), da=(3, 4)), dict(slope=0.1)),
    "sigmoid": (dict(z=(3, 4)), {}),
    "sigmoid_backward": (dict(a=(3, 4), da=(3, 4)), {}),
    "tanh": (dict(z=(3, 4)), {}),
    "tanh_backward": (dict(a=(3, 4), da=(3, 4)), {}),
    "conv": (dict(x=IMAGES, W=(4, 3, 3, 3), b=(4,)), CONV),
    "conv_backward_weights": (dict(x=IMAGES, dz=(2, 4, 3, 3), dW=(4, 3, 3, 3), db=(4,)), CONV),
    "conv_backward_input": (dict(dz=(2, 4, 3, 3), W=(4, 3, 3, 3)), CONV | dict(shape=IMAGES)),
    "max_pool": (dict(x=IMAGES), POOL),
    "max_pool_backward": (dict(dy=(2, 3, 2, 2), index=(2, 3, 2, 2)), POOL | dict(shape=IMAGES)),
    "avg_pool": (dict(x=IMAGES), POOL),
    "avg_pool_backward": (dict(dy=(2, 3, 2, 2)), POOL | dict(shape=IMAGES)),
    "batch_norm": (dict(x=IMAGES) | PER_CHANNEL, dict(momentum=0.1, eps=1e-5)),
    "batch_norm_backward": (
        dict(dy=IMAGES, normalized=IMAGES, inverse_deviation=(3,), gamma=(3,), dgamma=(3,), dbeta=(3,)),
        {},
    ),
    "batch_norm_evaluate": (dict(x=IMAGES) | PER_CHANNEL, dict(eps=1e-5)),
    "mean_squared_error": (dict(z=(3, 4), targets=(3, 4)), {}),
    "binary_cross_entropy": (dict(z=(3, 4), targets=(3, 4)), {}),
    "hinge": (dict(z=(3, 4), labels=(3,)), {}),
}
GRADIENTS = {"dW", "db", "dgamma", "dbeta"}  # written
WHOLE = {"index": 9, "labels": 4}  # numbers below this
READ = [
    (name, key) for name, (shapes, _) in OPERATIONS.items() for key in shapes if key not in GRADIENTS | WHOLE.keys()
]


def written(name):
    return GRADIENTS | ({"mean", "variance"} if name == "batch_norm" else set())


def arguments(name, dtype=np.float32):
    rng = np.random.default_rng(5)
    arrays = {argument: rng.normal(size=shape).astype(dtype) for argument, shape in OPERATIONS[name][0].items()}
    if "variance" in arrays:
        arrays["variance"] **= 2
    return arrays | {k: rng.integers(WHOLE[k], size=arrays[k].shape) for k in arrays.keys() & WHOLE}


def results(name, arrays):
    """Return every array that an operation returns or writes."""
    with np.errstate(all="ignore"):
        returned = getattr(engine, name)(**arrays, **OPERATIONS[name][1])
    returned = () if returned is None else returned if isinstance(returned, tuple) else (returned,)
    return [*returned, *(arrays[k] for k in sorted(arrays.keys() & written(name)))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_type_stays(name, dtype):
    found = results(name, arguments(name, dtype))
    assert found
    assert all(array.dtype == dtype or array.dtype.kind == "i" for array in found)
    for array, exact in zip(found, results(name, arguments(name, np.float64)), strict=True):
        assert_allclose(array, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("targets", [np.bool, np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("name", ["mean_squared_error", "binary_cross_entropy"])
def test_the_targets_type_changes_nothing(name, targets):
    z = np.random.default_rng(6).normal(size=(3, 2)).astype(np.float32)
    loss, dz = getattr(engine, name)(z, np.array([[0, 1], [1, 1], [0, 0]], targets))
    wanted, dwanted = getattr(engine, name)(z, np.array([[0, 1], [1, 1], [0, 0]], np.float32))
    assert loss.dtype == dz.dtype == np.float32
    assert loss == wanted
    assert_array_equal(dz, dwanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_any_layout_will_do_and_nothing_else_is_changed(name, layout):
    store, look = LAYOUTS[layout]
    plain = arguments(name)
    stores = {argument: store(array) for argument, array in plain.items()}
    views = {argument: look(array) for argument, array in stores.items()}
    found = results(name, views)
    returned = len(found) - len(plain.keys() & written(name))
    for array in found[:returned]:
        assert not any(np.shares_memory(array, view) for view in views.values())
    for array, wanted in zip(found, results(name, {k: a.copy() for k, a in plain.items()}), strict=True):
        assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)
    for argument in plain.keys() - written(name):
        assert_array_equal(stores[argument], store(plain[argument]))


# A gradient is stopped by a unit that is off, and a NaN is off: the loss has it already.
@pytest.mark.parametrize(("name", "argument"), [case for case in READ if case != ("leaky_relu_backward", "a")])
def test_a_nan_is_never_hidden(name, argument):
    for place in np.ndindex(OPERATIONS[name][0][argument]):
        arrays = arguments(name)
        arrays[argument][place] = np.nan
        assert any(np.isnan(array).any() for array in results(name, arrays)), place


BOUNDED = [("sigmoid", "z"), ("tanh", "z"), ("hinge", "z"), ("batch_norm_evaluate", "variance")]  # 1, 1, 0 and beta


@pytest.mark.parametrize(("name", "argument"), [case for case in READ if case not in BOUNDED])
def test_an_infinity_is_never_hidden(name, argument):
    for place in np.ndindex(OPERATIONS[name][0][argument]):
        arrays = arguments(name)
        arrays[argument][place] = np.inf
        found = results(name, arrays)
        assert not all(np.isfinite(array).all() for array in found) or name == "leaky_relu_backward", place


@pytest.mark.parametrize("logits", [[0, np.nan, 1], [np.nan, 0, 1], [np.nan]], ids=str)
def test_the_hinges_gradient_has_the_nan_too(logits):
    loss, dz = engine.hinge(np.array([logits]), np.array([0]))
    assert np.isnan(loss)
    assert np.isnan(dz).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_sees_every_number(bad):
    array = np.zeros((2, 3), np.float32)
    assert engine.all_finite(array)
    assert np.shape(engine.all_finite(array)) == ()
    for place in np.ndindex(array.shape):
        array = np.zeros((2, 3), np.float32)
        array[place] = bad
        assert not engine.all_finite(array)


def test_every_function_of_numpy_that_is_used_is_one_of_cupy_too():
    cupy = pytest.importorskip("cupy")
    names = set(re.findall(r"\bnp\.(\w+)", inspect.getsource(engine)))
    assert "tensordot" in names
    assert not [name for name in names if not hasattr(cupy, name)]

"""How the tests of the NumPy baseline check a gradient; and the gradients of what is element by element."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit.engines import numpy_baseline as engine


def slopes(f, x, dy, h=1e-6):
    """Return the derivatives of `sum(f(x) * dy)` by each number of x (float64), by central differences."""
    x, result = x.copy(), np.empty_like(x)
    for place in np.ndindex(x.shape):
        saved, sums = x[place], []
        for value in (saved + h, saved - h):
            x[place] = value
            sums.append(np.sum(f(x) * dy))
        x[place] = saved
        result[place] = (sums[0] - sums[1]) / (2 * h)
    return result


def assert_gradient(found, f, x, dy):
    """Assert that a gradient agrees with the slopes to 1e-6, norm by norm."""
    wanted = slopes(f, x, dy)
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= 1e-6 * max(np.linalg.norm(wanted), 1e-3)


@pytest.mark.parametrize("wrong", [lambda x, dy: dy * x * x * 2, lambda x, dy: dy * 3 * x * x * (1 + 1e-5)])
def test_a_wrong_gradient_is_found(wrong):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 3, 4))
    assert_gradient(dy * 3 * x * x, lambda x: x**3, x, dy)
    with pytest.raises(AssertionError):
        assert_gradient(wrong(x, dy), lambda x: x**3, x, dy)


ACTIVATIONS = {
    "leaky_relu": ((0.01,), lambda z: max(z, 0) + 0.01 * min(z, 0)),
    "sigmoid": ((), lambda z: 1 / (1 + np.exp(-z))),
    "tanh": ((), lambda z: (np.exp(z) - np.exp(-z)) / (np.exp(z) + np.exp(-z))),
}


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 5, 7)], ids=str)
@pytest.mark.parametrize(("name", "settings", "formula"), [(name, *rest) for name, rest in ACTIVATIONS.items()])
def test_an_activation_is_the_formula_and_its_gradient_the_slope(name, settings, formula, shape):
    rng = np.random.default_rng(1)
    z, da = rng.normal(size=(2, *shape))
    forward, backward = getattr(engine, name), getattr(engine, name + "_backward")
    a = forward(z, *settings)
    assert_allclose(a, np.vectorize(formula)(z), rtol=1e-13)
    assert_gradient(backward(a, da, *settings), lambda z: forward(z, *settings), z, da)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_number_is_too_large_for_an_activation(dtype):
    z = np.array([-np.inf, -1e4, -20, 0, 20, 1e4, np.inf], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert_allclose(engine.sigmoid(z), [0, 0, np.exp(-20), 0.5, 1 / (1 + np.exp(-20)), 1, 1], rtol=1e-6)
        assert_allclose(engine.tanh(z), [-1, -1, -1, 0, 1, 1, 1], rtol=1e-6)
        assert_allclose(engine.leaky_relu(z[1:-1], 0.5), [-5e3, -10, 0, 20, 1e4])


def test_leaky_relu_has_the_slope_at_zero():
    zero, one = np.zeros(1), np.ones(1)
    assert engine.leaky_relu_backward(zero, one, 0.25) == [0.25]


def test_sums_and_products_are_element_by_element():
    x, y = np.random.default_rng(2).normal(size=(2, 3, 5))
    assert_allclose(engine.add(x, y), [[p + q for p, q in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)])
    assert_allclose(engine.multiply(x, y), np.exp(np.log(abs(x)) + np.log(abs(y))) * np.sign(x) * np.sign(y))

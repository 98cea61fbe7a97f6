"""The losses of the NumPy baseline, against their definitions, and their gradients against the slopes."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_numpy_gradients import assert_gradient

from mlpkit.engines import numpy_baseline as engine

SHAPES = [(1, 1), (1, 4), (7, 1), (5, 3)]


def mean_squared_error(z, targets):
    return sum((p - t) ** 2 for p, t in zip(z.flat, targets.flat, strict=True)) / z.size


def binary_cross_entropy(z, targets):
    p = [1 / (1 + math.exp(-value)) for value in z.flat]
    return -sum(t * math.log(q) + (1 - t) * math.log(1 - q) for q, t in zip(p, targets.flat, strict=True)) / z.size


def hinge(z, labels):
    rows = zip(z, labels, strict=True)
    return sum(max(0, row[j] - row[k] + 1) for row, k in rows for j in range(len(row)) if j != k) / len(z)


def targets_of(name, z, rng):
    if name == "hinge":
        return rng.integers(z.shape[1], size=len(z))
    return rng.normal(size=z.shape) if name == "mean_squared_error" else rng.uniform(size=z.shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("formula", [mean_squared_error, binary_cross_entropy, hinge])
def test_a_loss_is_the_formula_and_its_gradient_the_slope(formula, shape):
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=shape)
    targets = targets_of(formula.__name__, z, rng)
    loss = getattr(engine, formula.__name__)
    found, dz = loss(z, targets)
    assert found == pytest.approx(formula(z, targets), rel=1e-12)
    assert_gradient(dz, lambda z: loss(z, targets)[0], z, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_logit_is_too_extreme_for_the_binary_cross_entropy(dtype):
    z = np.array([[-1e4, -1e4, 0, 1e4, 1e4]], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        loss, dz = engine.binary_cross_entropy(z, np.array([[0, 1, 0, 1, 0]]))
    assert_allclose(loss, (1e4 + math.log(2) + 1e4) / 5, rtol=1e-6)
    assert_allclose(dz, np.array([[0, -1, 0.5, 0, 1]]) / 5, atol=1e-7)


def test_a_small_loss_is_not_rounded_away():
    loss, dz = engine.binary_cross_entropy(np.array([[-30]], np.float32), np.zeros((1, 1)))
    assert_allclose([loss, dz[0, 0]], math.exp(-30), rtol=1e-5)


def test_the_hinge_by_hand():
    z = np.array([[3.0, 1.5, 2.5], [0, 0, 0]], np.float32)
    loss, dz = engine.hinge(z, np.array([0, 2], np.uint8))
    assert loss == (0.5 + 2) / 2
    assert_array_equal(dz, np.array([[-1, 0, 1], [1, 1, -2]]) / 2)


def test_the_hinge_has_no_slope_at_the_margin():
    loss, dz = engine.hinge(np.array([[2.0, 1.0]]), np.array([0]))
    assert loss == 0
    assert_array_equal(dz, [[0, 0]])

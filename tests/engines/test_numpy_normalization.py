"""Batch normalization of the NumPy baseline, against the formula one channel at a time."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_numpy_gradients import assert_gradient

from mlpkit.engines import numpy_baseline as engine

EPS = 1e-5
SHAPES = [(2, 1), (7, 3), (1, 2, 3, 5), (3, 5, 2, 1), (4, 1, 1, 1)]


def parts(shape, seed=0):
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=shape) + 2, *rng.normal(size=(2, shape[1]))


def normalize(x, gamma, beta):
    mean, variance = np.zeros(len(gamma)), np.ones(len(gamma))
    return engine.batch_norm(x, gamma, beta, mean, variance, 0.1, EPS)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_is_the_formula(shape):
    x, gamma, beta = parts(shape)
    mean, variance = np.random.default_rng(1).uniform(1, 2, (2, shape[1]))
    before = mean.copy(), variance.copy()
    y, normalized, inverse_deviation = engine.batch_norm(x, gamma, beta, mean, variance, 0.3, EPS)
    for c in range(shape[1]):
        numbers = x[:, c].ravel().tolist()
        centre, spread = statistics.fmean(numbers), math.sqrt(statistics.pvariance(numbers) + EPS)
        wanted = (x[:, c] - centre) / spread
        assert_allclose(normalized[:, c], wanted, rtol=1e-11, atol=1e-11)
        assert_allclose(y[:, c], gamma[c] * wanted + beta[c], rtol=1e-11, atol=1e-11)
        assert inverse_deviation[c] == pytest.approx(1 / spread)
        assert mean[c] == pytest.approx(0.7 * before[0][c] + 0.3 * centre)
        assert variance[c] == pytest.approx(0.7 * before[1][c] + 0.3 * statistics.variance(numbers))
    assert inverse_deviation.shape == (shape[1],)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_gradients_are_the_slopes(shape):
    x, gamma, beta = parts(shape)
    dy = np.random.default_rng(2).normal(size=shape)
    _, normalized, inverse_deviation = normalize(x, gamma, beta)
    dgamma, dbeta = np.full((2, shape[1]), np.nan)
    dx = engine.batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta)
    # Two numbers a channel are normalized to nearly -1 and 1 whatever they are: eps and rounding are what is left.
    if x.size > 2 * shape[1]:
        assert_gradient(dx, lambda x: normalize(x, gamma, beta)[0], x, dy)
    assert_gradient(dgamma, lambda gamma: normalize(x, gamma, beta)[0], gamma, dy)
    assert_gradient(dbeta, lambda beta: normalize(x, gamma, beta)[0], beta, dy)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_evaluated_it_uses_the_running_statistics(shape):
    x, gamma, beta = parts(shape)
    mean, variance = np.random.default_rng(3).uniform(1, 2, (2, shape[1]))
    y = engine.batch_norm_evaluate(x, gamma, beta, mean, variance, EPS)
    for c in range(shape[1]):
        wanted = gamma[c] * (x[:, c] - mean[c]) / math.sqrt(variance[c] + EPS) + beta[c]
        assert_allclose(y[:, c], wanted, rtol=1e-12, atol=1e-12)


@given(shift=st.floats(-1e3, 1e3), stretch=st.floats(0.1, 1e3))
def test_it_forgets_where_the_numbers_lie_and_how_far_apart(shift, stretch):
    x, gamma, beta = parts((5, 2, 3, 3))
    y, z = (engine.batch_norm(v, gamma, beta, *np.zeros((2, 2)), 0.1, 0.0)[0] for v in (x, stretch * x + shift))
    assert_allclose(z, y, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)], ids=str)
def test_a_single_number_is_its_own_mean(shape):
    x, gamma, beta = parts(shape)
    mean, variance, (dgamma, dbeta) = np.zeros(3), np.ones(3), np.empty((2, 3))
    y, normalized, inverse_deviation = engine.batch_norm(x, gamma, beta, mean, variance, 0.5, EPS)
    assert_array_equal(y, beta.reshape(shape))
    assert_allclose(mean, x.ravel() / 2)
    assert_allclose(variance, [0.5] * 3)
    dx = engine.batch_norm_backward(np.ones(shape), normalized, inverse_deviation, gamma, dgamma, dbeta)
    assert_array_equal(dx, np.zeros(shape))


def test_equal_numbers_divide_by_no_zero():
    x = np.full((4, 2, 3, 3), 7, np.float32)
    gamma, beta, mean, variance = np.ones((4, 2), np.float32)
    y, *_ = engine.batch_norm(x, gamma, beta, mean, variance, 0.1, EPS)
    assert_array_equal(y, np.ones_like(x))

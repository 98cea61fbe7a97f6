"""Backward is the derivative of forward: central differences in float64 agree to 1e-6, and no wrong formula passes."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import IN_FLOAT64, blobs, engine_like, one_sentence

from mlpkit.engines import numpy_baseline
from mlpkit.nn.gradcheck import gradient_error, numerical_gradient
from mlpkit.nn.models import MLP, mlp
from mlpkit.nn.network import Network

NETWORKS = [(4, 3), (5, 4, 3), (7, 1, 3), (1, 6, 2), (6, 5, 4, 3), (3, 1)]


def problem(sizes, n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, sizes[0])), rng.integers(sizes[-1], size=n)


def float64(engine, sizes, seed=0):
    """Return a network whose biases are not zero either."""
    network = Network(engine, mlp(*sizes), seed=seed, dtype=np.float64)
    biases = 0.1 * np.random.default_rng(seed).normal(size=len(network.theta) - network.n_weights)
    network.theta[network.n_weights :] = network.engine.asarray(biases)
    return network


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("sizes", NETWORKS, ids=str)
@pytest.mark.parametrize("engine", IN_FLOAT64)
def test_every_derivative_is_right(engine, sizes, n, seed):
    network = float64(engine, sizes, seed)
    X, y = map(network.engine.asarray, problem(sizes, n, seed))
    assert gradient_error(network, X, y) < 1e-6


@pytest.mark.parametrize("init", ["he", "xavier"])
def test_the_workbooks_network_is_right_in_a_sample_of_its_derivatives(init):
    network = Network(model=MLP, init=init, dtype=np.float64)
    X, y = problem(MLP.sizes(), 4, seed=3)
    assert gradient_error(network, abs(X), y, samples=40) < 1e-6


def one_too_small(x, dz, dW, db):
    numpy_baseline.linear_backward_weights(x, dz, dW, db)
    dW[0, 0] *= 0.999


def forgets_biases(x, dz, dW, db):
    np.matmul(x.T, dz, out=dW)


def without_the_mean(z, labels):
    loss, dz = numpy_baseline.softmax_cross_entropy(z, labels)
    return loss, dz * len(z)


# A ReLU whose derivative is constantly 1 trains, without an error and nearly as well: only a check of numbers finds it.
WRONG = {
    "slope 1 everywhere": dict(relu_backward=lambda a, da: da.copy()),
    "slope of -z": dict(relu_backward=lambda a, da: -da * (a > 0)),
    "one weight off by a thousandth": dict(linear_backward_weights=one_too_small),
    "no gradient for biases": dict(linear_backward_weights=forgets_biases),
    "a sum for a mean": dict(softmax_cross_entropy=without_the_mean),
    "a number that is none": dict(linear_backward_input=lambda dz, W: dz @ W.T * np.nan),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_formula_is_caught(wrong):
    network = float64(engine_like(**wrong), (6, 5, 4, 3))
    X, y = blobs(7, dtype=np.float64)
    assert not gradient_error(network, X, y) < 1e-5  # NaN is caught, too


def test_float32_is_refused():
    network = Network(model=mlp(6, 3))
    with pytest.raises(ValueError, match="float64") as caught:
        gradient_error(network, *blobs(5))
    one_sentence(caught.value)


@pytest.mark.parametrize(("samples", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError)])
def test_a_number_of_samples_that_is_none_is_refused(samples, error):
    network = Network(model=mlp(6, 3), dtype=np.float64)
    with pytest.raises(error, match="samples"):
        gradient_error(network, *blobs(5, dtype=np.float64), samples=samples)


def test_the_check_leaves_the_parameters_as_they_were():
    network = float64("numpy_baseline", (6, 5, 3))
    before = network.theta.copy()
    gradient_error(network, *blobs(5, dtype=np.float64))
    assert_array_equal(network.theta, before)


def test_a_slope_is_that_of_the_loss():
    """With no inputs to speak of, the loss depends on the biases alone: its slopes are softmax - onehot."""
    network = Network(model=mlp(2, 3), dtype=np.float64)
    network.theta[:] = [0] * 6 + [1, 2, 3]
    slopes = numerical_gradient(network, np.zeros((1, 2)), np.array([1]), indices=[6, 7, 8])
    softmax = np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum()
    np.testing.assert_allclose(slopes, softmax - [0, 1, 0], atol=1e-9)

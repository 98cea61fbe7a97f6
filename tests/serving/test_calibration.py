"""Confidence: a temperature makes a network as sure as it is right, and changes no class."""

import numpy as np
import pytest

from mlpkit.serving.calibration import calibration_error, probabilities, reliability, temperature


@pytest.fixture(scope="module")
def outputs():
    """Outputs, and labels that are drawn with the very probabilities that the outputs mean at temperature 1."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (20_000, 10))
    labels = (probabilities(z).cumsum(axis=1) > rng.random((len(z), 1))).argmax(axis=1)
    return z, labels


@pytest.mark.parametrize("degree", [0.5, 1.0, 3.0])
def test_the_temperature_is_found_by_which_outputs_are_too_large(outputs, degree):
    z, labels = outputs
    assert temperature(z * degree, labels) == pytest.approx(degree, rel=0.03)


def test_cross_entropy_is_least_there(outputs):
    z, labels = outputs

    def loss(degree):
        return -np.log(probabilities(3 * z, degree)[np.arange(len(z)), labels]).mean()

    best = temperature(3 * z, labels)
    assert loss(best) < min(loss(best * 1.02), loss(best / 1.02), loss(1.0))


def test_a_network_that_is_too_sure_is_mended_and_no_class_changes(outputs):
    z, labels = outputs
    sure = probabilities(3 * z)
    mended = probabilities(3 * z, temperature(3 * z, labels))
    assert calibration_error(sure, labels) > 0.15
    assert calibration_error(mended, labels) < 0.02
    assert (sure.argmax(axis=1) == mended.argmax(axis=1)).all()


def test_bins_hold_every_example_once(outputs):
    z, labels = outputs
    found = probabilities(z)
    bins = reliability(found, labels, 10)
    assert sum(each.images for each in bins) == len(z)
    assert sum(each.images * each.accuracy for each in bins) == pytest.approx((found.argmax(axis=1) == labels).sum())
    assert [each.confidence for each in bins] == sorted(each.confidence for each in bins)


def test_outputs_that_exp_could_not_take_have_probabilities():
    found = probabilities(np.array([[1e4, -1e4, 0], [-1e4, -1e4, -1e4]]))
    np.testing.assert_allclose(found, [[1, 0, 0], [1 / 3] * 3])


@pytest.mark.peers
def test_softmax_is_scipys(outputs):
    special = pytest.importorskip("scipy.special", reason="no scipy here")
    np.testing.assert_allclose(probabilities(outputs[0], 1.7), special.softmax(outputs[0] / 1.7, axis=1), rtol=1e-12)

"""Few large images are cut into bands of rows, and convolved as more, smaller ones: to the same results."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit.engines import numba_conv, numpy_baseline
from mlpkit.engines.images import bands
from mlpkit.engines.loops.compiler import Threads
from mlpkit.engines.loops.simd import BYTES

WINDOWS = ((3, 1, 1), (5, 2, 2), (3, 2, 1), (5, 1, 2), (1, 1, 0), (3, 1, 0), (3, 3, 0), (4, 2, 1), (1, 2, 0))


@pytest.fixture
def cuts(monkeypatch):
    """Return a list that gets, for each array that is cut, into how many bands."""
    found, cut = [], bands.cut
    monkeypatch.setattr(bands, "cut", lambda x, count, *others: found.append(count) or cut(x, count, *others))
    return found


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(1, 3, 64, 21), (3, 2, 65, 9), (2, 1, 129, 5), (4, 2, 100, 7)], ids=str)
def test_a_convolution_of_bands_is_that_of_the_images(window, shape, cuts):
    size, stride, padding = window
    rng = np.random.default_rng(0)
    x, W, b = rng.normal(size=shape), rng.normal(size=(6, shape[1], size, size)), rng.normal(size=6)
    z = numpy_baseline.conv(x, W, b, stride, padding)
    assert_allclose(numba_conv.conv(x, W, b, stride, padding), z, rtol=0, atol=1e-11)
    assert bool(cuts) == (bands.bands_of(len(x), z.shape[2], Threads.most * BYTES // 8) > 1)
    dz = rng.normal(size=z.shape)
    (dW, db), (theirs, of_b) = ((np.empty_like(W), np.empty_like(b)) for _ in range(2))
    numpy_baseline.conv_backward_weights(x, dz, dW, db, stride, padding)
    numba_conv.conv_backward_weights(x, dz, theirs, of_b, stride, padding)
    assert_allclose(theirs, dW, rtol=1e-11, atol=1e-10)
    assert_allclose(of_b, db, rtol=1e-11, atol=1e-10)
    dx = numpy_baseline.conv_backward_input(dz, W, x.shape, stride, padding)
    assert_allclose(numba_conv.conv_backward_input(dz, W, x.shape, stride, padding), dx, rtol=0, atol=1e-11)


def test_there_are_no_more_bands_than_are_wanted_and_none_of_few_rows():
    assert bands.bands_of(4, 256, 32) == 8
    assert bands.bands_of(5, 256, 32) == 7
    assert bands.bands_of(1, 256, 1000) == 256 // bands.LEAST
    assert bands.bands_of(32, 256, 32) == bands.bands_of(1, 2 * bands.LEAST - 1, 32) == 1


def test_what_is_cut_is_whole_again():
    z = np.arange(3 * 2 * 37 * 4.0).reshape(3, 2, 37, 4)
    parts = bands.cut_results(z, 4)
    assert parts.shape == (12, 2, 10, 4)
    assert np.array_equal(bands.merge_results(parts, 4, 37), z)

"""Few large images are cut into bands of rows, and convolved as more, smaller ones: to the same results."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit.engines import numba_conv, numpy_baseline
from mlpkit.engines.images.bands import LEAST, Bands
from mlpkit.engines.loops.compiler import Threads
from mlpkit.engines.loops.simd import BYTES

WINDOWS = ((3, 1, 1), (5, 2, 2), (3, 2, 1), (5, 1, 2), (1, 1, 0), (3, 1, 0), (3, 3, 0), (4, 2, 1), (1, 2, 0))


@pytest.fixture
def cuts(monkeypatch):
    """Return a list that gets, for each array that is cut, into how many bands."""
    found, cut = [], Bands.cut
    monkeypatch.setattr(Bands, "cut", lambda self, x: found.append(self.count) or cut(self, x))
    return found


def bands_of(n, rows, wanted):
    """Return into how many bands each of n images is cut."""
    found = Bands.of(numba_conv.images, n, wanted, rows, 3, 1, 1)
    return found.count if found else 1


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(1, 3, 64, 21), (3, 2, 65, 9), (2, 1, 129, 5), (4, 2, 100, 7)], ids=str)
def test_a_convolution_of_bands_is_that_of_the_images(window, shape, cuts):
    size, stride, padding = window
    rng = np.random.default_rng(0)
    x, W, b = rng.normal(size=shape), rng.normal(size=(6, shape[1], size, size)), rng.normal(size=6)
    z = numpy_baseline.conv(x, W, b, stride, padding)
    assert_allclose(numba_conv.conv(x, W, b, stride, padding), z, rtol=0, atol=1e-11)
    assert bool(cuts) == (bands_of(len(x), z.shape[2], Threads.most * BYTES // 8) > 1)
    dz = rng.normal(size=z.shape)
    (dW, db), (theirs, of_b) = ((np.empty_like(W), np.empty_like(b)) for _ in range(2))
    numpy_baseline.conv_backward_weights(x, dz, dW, db, stride, padding)
    numba_conv.conv_backward_weights(x, dz, theirs, of_b, stride, padding)
    assert_allclose(theirs, dW, rtol=1e-11, atol=1e-10)
    assert_allclose(of_b, db, rtol=1e-11, atol=1e-10)
    dx = numpy_baseline.conv_backward_input(dz, W, x.shape, stride, padding)
    assert_allclose(numba_conv.conv_backward_input(dz, W, x.shape, stride, padding), dx, rtol=0, atol=1e-11)


def test_there_are_no_more_bands_than_are_wanted_and_none_of_few_rows():
    assert bands_of(4, 256, 32) == 8
    assert bands_of(5, 256, 32) == 7
    assert bands_of(1, 256, 1000) == 256 // LEAST
    assert bands_of(32, 256, 32) == bands_of(1, 2 * LEAST - 1, 32) == 1


def test_what_is_cut_is_whole_again():
    z, bands = np.arange(3 * 2 * 37 * 4.0).reshape(3, 2, 37, 4), Bands(numba_conv.images, 4, 37, 3, 1, 1)
    parts = bands.cut_results(z)
    assert parts.shape == (12, 2, 10, 4)
    assert np.array_equal(bands.merge_results(parts), z)


@pytest.mark.parametrize("scale", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pixels_are_repeated_and_added_up_as_the_baseline_does(dtype, scale):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, 5, 4)).astype(dtype)
    y = numpy_baseline.upsample_nearest(x, scale)
    assert np.array_equal(numba_conv.upsample_nearest(x, scale), y)
    dy = rng.normal(size=y.shape).astype(dtype)
    dx = numba_conv.upsample_nearest_backward(dy, scale)
    assert dx.dtype == dtype
    assert_allclose(dx, numpy_baseline.upsample_nearest_backward(dy, scale), atol=1e-5)

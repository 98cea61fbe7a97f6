"""Patches are pieces of pictures: a network trained on them sees what it will see in whole pictures."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from mlpkit.data.bicubic import resize
from mlpkit.data.patches import cropped, eightfold, patches, small_and_large, with_halo

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(256, size=(3, 37, 50), dtype=np.uint8)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_the_small_picture_is_the_large_one_resized(scale):
    small, large = small_and_large(PICTURE, scale)
    assert large.shape == (1, 37 // scale * scale, 50 // scale * scale)
    assert small.shape[1] * scale == large.shape[1]
    assert_allclose(small, resize(large, small.shape[1:]), atol=1e-6)
    assert small.dtype == large.dtype == np.float32


def test_patches_are_pieces_with_what_is_around_them():
    small, large = small_and_large(PICTURE, 2)
    X, y = patches([PICTURE], 2, 6, 2)
    assert X.shape == (3 * 4, 1, 10, 10)
    assert y.shape == (3 * 4, 1, 12, 12)
    assert_array_equal(X[5, 0], small[0, 4:14, 4:14])
    assert_allclose(y[5, 0] / 255, large[0, 12:24, 12:24], atol=1e-7)
    assert (X.dtype, y.dtype) == (np.float32, np.uint8)
    assert_array_equal(X[0, 0], with_halo(small, 2)[0, :10, :10])


def test_shrunk_pictures_count_as_more_and_too_small_ones_as_none():
    assert len(patches([PICTURE], 2, 6, 2, (1, 0.8))[0]) == 12 + 2 * 3
    with pytest.raises(ValueError, match="larger"):
        patches([PICTURE[:, :9]], 2, 6, 2)
    with pytest.raises(ValueError, match="too small"):
        cropped(PICTURE[:, :1], 2)


def test_eight_ways_to_lay_a_square_are_all_different_and_alike_for_both():
    images = RNG.random((2, 1, 4, 4))
    found = eightfold(images)
    assert found.shape == (16, 1, 4, 4)
    assert len(np.unique(found[::2].reshape(8, -1), axis=0)) == 8
    assert_array_equal(found[4:6], np.rot90(images, 2, (2, 3)))


@pytest.mark.parametrize("odd", [None, "a", 3, np.zeros(5), np.zeros((1, 0, 5))])
@pytest.mark.parametrize("take", [cropped, with_halo])
def test_what_is_no_picture_is_told(take, odd):
    with pytest.raises((TypeError, ValueError), match="a picture") as caught:
        take(odd, 2)
    one_sentence(caught.value)


def test_a_halo_below_zero_and_pixels_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="halo must be at least 0"):
        with_halo(np.zeros((5, 5)), -1)
    for dtype in (bool, complex, str):
        with pytest.raises(TypeError, match="pixels are numbers") as caught:
            resize(np.zeros((5, 5), dtype), (3, 3))
        one_sentence(caught.value)

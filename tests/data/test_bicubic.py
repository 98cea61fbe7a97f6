"""Bicubic is Keys', with antialiasing, and mirrored edges; Pillow, which has other edges, says the same inside."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from shared import one_sentence

from mlpkit.data.bicubic import cubic, resize, weights

RNG = np.random.default_rng(0)
PICTURE = RNG.random((48, 60)).astype(np.float32)


def test_the_cubic_meets_the_pixels_and_is_smooth_between():
    assert_allclose(cubic(np.array([0, 1, 2, 3, -1])), [1, 0, 0, 0, 0], atol=1e-15)
    t = np.linspace(-2.5, 2.5, 5001)
    assert np.abs(np.diff(cubic(t))).max() < 2e-3
    assert np.abs(np.diff(cubic(t), 2)).max() < 1e-5
    for part in np.linspace(0, 1, 11):  # the pixels around any place have a sum of 1
        assert_allclose(cubic(part + np.arange(-3, 4)).sum(), 1)


@pytest.mark.parametrize("size", [(96, 120), (144, 180), (24, 30), (16, 20), (12, 15), (31, 77)])
def test_inside_it_is_pillows_bicubic(size):
    wanted = np.asarray(Image.fromarray(PICTURE).resize(size[::-1], Image.Resampling.BICUBIC))
    edge = [3 + length // 8 for length in size]
    inside = slice(edge[0], -edge[0]), slice(edge[1], -edge[1])
    assert_allclose(resize(PICTURE, size)[inside], wanted[inside], atol=2e-6)


def test_a_straight_slope_stays_straight_inside_and_level_is_level_everywhere():
    slope = np.add.outer(np.arange(30.0), 2 * np.arange(40.0))
    places = (np.arange(60) + 0.5) / 2 - 0.5, (np.arange(80) + 0.5) / 2 - 0.5
    assert_allclose(resize(slope, (60, 80))[5:-5, 5:-5], np.add.outer(places[0], 2 * places[1])[5:-5, 5:-5])
    assert_allclose(resize(np.full((5, 7), 0.3), (9, 2)), 0.3)


def test_behind_an_edge_lies_the_mirrored_picture():
    mirrored = np.pad(PICTURE, 24, "symmetric")
    assert_allclose(resize(PICTURE, (24, 30)), resize(mirrored, (48, 54))[12:-12, 12:-12], atol=1e-6)


def test_smaller_pictures_are_blurred_first():
    stripes = np.tile([0.0, 1.0], (40, 20))
    assert_allclose(resize(stripes, (20, 20))[:, 2:-2], 0.5, atol=0.05)


def test_each_channel_and_dtype_comes_back():
    pixels = RNG.integers(256, size=(3, 9, 11), dtype=np.uint8)
    assert resize(PICTURE, (5, 5)).dtype == np.float32
    found = resize(pixels, (18, 22))
    assert (found.dtype, found.shape) == (np.float64, (3, 18, 22))
    assert_array_equal(found[1], resize(pixels[1], (18, 22)))
    assert_allclose(weights(7, 1).sum(), 1)
    assert_allclose(resize(np.ones((1, 1)), (3, 4)), 1)


@pytest.mark.parametrize(
    ("picture", "size", "error"),
    [
        (PICTURE, (0, 4), ValueError), (PICTURE, (4, 4, 4), ValueError), (PICTURE[:0], (4, 4), ValueError),
        (PICTURE[0], (4, 4), ValueError), ([[1.0]], (4, 4), TypeError), (PICTURE, (2.5, 4), TypeError),
    ],
)  # fmt: skip
def test_what_is_no_picture_or_no_size_is_told(picture, size, error):
    with pytest.raises(error) as caught:
        resize(picture, size)
    one_sentence(caught.value)


def test_a_wide_picture_takes_little_memory():
    wide = RNG.random((1, 8_000))
    tracemalloc.start()
    found = resize(wide, (2, 16_000))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**29  # the whole matrix has twice as much
    assert_allclose(found[:, 10_020:10_180], resize(wide[:, 5_000:5_100], (2, 200))[:, 20:180], rtol=1e-9)
    assert resize(wide, (1, 1)).shape == (1, 1)

"""PSNR and SSIM are those of scikit-image and of the papers, and traps of their protocol are met by sentences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from mlpkit.data.bicubic import resize
from mlpkit.data.patches import small_and_large
from mlpkit.data.pictures import pictures
from mlpkit.data.quality import as_bytes, luminance, psnr, ssim

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def pair():
    """Return luminances of a photograph, and of it made smaller and larger again, uint8."""
    small, large = small_and_large(pictures(longest=240)["chelsea"], 2)
    return as_bytes(resize(small, large.shape[1:])), as_bytes(large)


def test_luminance_goes_from_16_to_235():
    of = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
    assert luminance(of.T[:, None]).tolist() == [[[16, 235, 81, 145, 41]]]
    grey = RNG.integers(256, size=(1, 3, 4), dtype=np.uint8)
    assert luminance(grey) is grey


def test_bytes_are_rounded_and_cut_off():
    assert as_bytes(np.array([-1, 0, 0.5 / 255, 0.49 / 255, 1, 2])).tolist() == [0, 0, 1, 0, 255, 255]


def test_psnr_of_one_wrong_step_everywhere():
    grey = np.full((1, 20, 20), 100, np.uint8)
    assert_allclose(psnr(grey, grey + np.uint8(1)), 20 * np.log10(255))
    assert psnr(grey, grey) == float("inf")
    assert ssim(grey, grey) == 1


def test_a_border_does_not_count():
    one, other = (RNG.integers(256, size=(1, 30, 30), dtype=np.uint8) for _ in range(2))
    other[:, 4:-4, 4:-4] = one[:, 4:-4, 4:-4]
    assert psnr(one, other) < psnr(one, other, 4) == float("inf")
    assert ssim(one, other, 4) == 1


@pytest.mark.peers
def test_both_are_scikit_images(pair):
    metrics = pytest.importorskip("skimage.metrics", reason="scikit-image is not installed")
    made, right = (each[0] for each in pair)
    assert_allclose(psnr(*pair), metrics.peak_signal_noise_ratio(right, made), rtol=1e-12)
    options = dict(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255)
    assert_allclose(ssim(*pair), metrics.structural_similarity(right, made, **options), rtol=1e-12)


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_what_can_not_be_compared_is_told(measure):
    grey = np.zeros((1, 20, 20), np.uint8)
    for arguments in ((grey / 255, grey), (grey, grey[:, 1:]), (grey, grey, 10), (grey, grey, -1)):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (any sentence)
            measure(*arguments)
        one_sentence(caught.value)
    with pytest.raises(TypeError, match="must be an array"):
        measure([[0]], grey)


def test_ssim_wants_a_window_and_luminance_bytes():
    small = np.zeros((1, 10, 10), np.uint8)
    with pytest.raises(ValueError, match="11 x 11"):
        ssim(small, small)
    with pytest.raises(ValueError, match="uint8"):
        luminance(small / 255)
    assert_array_equal(luminance(np.zeros((3, 2, 2), np.uint8)), np.full((1, 2, 2), 16))

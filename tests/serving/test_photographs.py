"""A photograph of a digit is prepared as MNIST's were, whatever its colours, size, place and light."""

import io

import numpy as np
import pytest
from PIL import Image

from mlpkit.serving import photographs as preparing


def on_paper(image, rng, paper=(230, 220, 200), ink=(20, 30, 90), side=120, size=(260, 340), light=0.25):
    """Return a digit (28, 28) as a photograph: somewhere on coloured paper, lit from one side, with noise."""
    digit = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)) / 255
    there = np.zeros(size)
    y, x = (int(rng.integers(15, room - side - 15)) for room in size)
    there[y : y + side, x : x + side] = digit
    colours = np.asarray(paper) * (1 - there[..., None]) + np.asarray(ink) * there[..., None]
    shade = 1 - light * np.linspace(0, 1, size[1])[None, :, None]
    return (colours * shade + rng.normal(0, 4, colours.shape)).clip(0, 255).astype(np.uint8)


LOOKS = {
    "dark on light": {},
    "light on dark": {"paper": (20, 20, 30), "ink": (240, 240, 235)},
    "a colour as bright as its paper": {"paper": (200, 90, 90), "ink": (50, 140, 160), "light": 0.0},
    "small": {"side": 60},
    "lit from one side": {"light": 0.5},
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_photograph_is_read_as_well_as_the_digit_itself(look, network, digits):
    X, y = digits.validation.X[500:540], digits.validation.y[500:540]
    rng = np.random.default_rng(0)
    found = np.stack([preparing.prepare(on_paper(x[0], rng, **LOOKS[look])) for x in X])
    plain, photographed = (np.mean(network.predict(each) == y) for each in (X, found[:, None]))
    assert photographed >= plain - 0.05


def test_mnists_own_digits_stay_as_they_are(digits):
    X = digits.validation.X[:100, 0]
    found = np.stack([preparing.prepare(np.repeat(x[..., None], 3, axis=2)) for x in X])
    assert abs(found.astype(int) - X).mean() < 3


def test_the_digit_fills_a_box_of_20_and_its_mass_lies_in_the_middle():
    photo = np.full((200, 300, 3), 240, np.uint8)
    photo[50:150, 200:212] = 10
    photo[50:62, 170:212] = 10
    shown = preparing.steps(photo)
    assert max(shown["box"].shape) == 20
    assert shown["centred"].shape == (28, 28)
    assert shown["centred"].max() == 255
    mass = shown["centred"].astype(float)
    centre = [(mass.sum(axis=axis) * np.arange(28)).sum() / mass.sum() for axis in (1, 0)]
    assert np.allclose(centre, 14, atol=0.5)


def test_a_thin_pen_does_not_vanish():
    photo = np.full((300, 300, 3), 250, np.uint8)
    photo[40:260, 150:153] = 0  # 3 pixels of 220 become 0.3 of 20
    assert (preparing.prepare(photo) > 127).sum() >= 2 * 18


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_picture_of_nothing_is_refused_in_a_sentence(level):
    with pytest.raises(ValueError, match="nothing stands out"):
        preparing.prepare(np.full((100, 120, 3), level, np.uint8))
    with pytest.raises(ValueError, match="without ink"):
        preparing.centred(np.zeros((20, 9), np.uint8))


def test_odd_pictures_are_prepared_or_refused_and_nothing_else():
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (1, 200), (200, 1), (2, 3), (5, 5), (28, 28), (199, 3)):
        for picture in (rng.integers(0, 256, (*shape, 3)), np.eye(*shape)[..., None] * [255, 0, 0]):
            try:
                assert preparing.prepare(picture.astype(np.uint8)).shape == (28, 28)
            except ValueError as error:
                assert "nothing stands out" in str(error)  # noqa: PT017


def test_otsu_parts_two_heaps_between_them():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(60, 8, 5000), rng.normal(180, 8, 500)])
    assert 75 < preparing.threshold(values) < 165


@pytest.mark.peers
def test_otsu_is_scikit_images():
    filters = pytest.importorskip("skimage.filters", reason="no scikit-image here")
    for seed in range(5):
        values = np.random.default_rng(seed).beta(2, 5, (40, 50)) * 255
        assert abs(preparing.threshold(values) - filters.threshold_otsu(values.astype(np.uint8))) <= 1


def test_a_camera_that_was_turned_makes_no_difference(network, digits):
    inputs = pytest.importorskip("mlpkit.serving.inputs", reason="no python-multipart here", exc_type=ImportError)

    rng = np.random.default_rng(3)
    photo = Image.fromarray(on_paper(digits.validation.X[3, 0], rng))
    plain, sideways = io.BytesIO(), io.BytesIO()
    photo.save(plain, "JPEG", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn me by 90 degrees, clockwise
    photo.transpose(Image.Transpose.ROTATE_90).save(sideways, "JPEG", quality=95, exif=exif)
    reader = inputs.Reader((1, 28, 28), 4, True)
    one, other = (reader.read(each.getvalue(), "image/jpeg")[0, 0].astype(int) for each in (plain, sideways))
    assert abs(one - other).mean() < 6

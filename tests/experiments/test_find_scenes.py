"""Scenes of digits: the same bits wherever they are made, and what is promised of them."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from experiments.find.backgrounds import make
from experiments.find.scenes import EDGE, LARGEST, SMALLEST, backgrounds, drawn, frozen, scenes
from experiments.find.varied import loops
from mlpkit.boxes import iou
from mlpkit.machine import ROOT


def test_a_scene_depends_on_its_seed_and_number_alone():
    whole = scenes(6, seed=4)
    for one in range(6):
        alone = scenes(1, seed=4, first=one)
        assert_array_equal(alone.images[0], whole.images[one])
        assert_array_equal(alone.truth[0], whole.truth[one])
    assert (scenes(6, seed=5).images != whole.images).any(axis=(1, 2, 3)).all()


def test_digits_are_where_and_as_large_as_was_promised():
    images, truth = scenes(80, seed=1)
    assert images.shape == (80, 1, EDGE, EDGE)
    counts = (truth[..., 0] >= 0).sum(axis=1)
    assert set(counts) <= set(range(1, 7))
    assert len(set(counts)) > 4
    for rows, count in zip(truth, counts, strict=True):
        boxes = rows[:count, 1:]
        assert boxes.min() >= 0
        assert boxes.max() <= EDGE
        edges = boxes[:, 2:] - boxes[:, :2]
        assert (edges.max(axis=1) >= SMALLEST).all()
        assert (edges.max(axis=1) <= LARGEST).all()
        assert (2 * edges.min(axis=1) >= edges.max(axis=1)).all()
        assert (iou(boxes, boxes) - np.eye(count)).max() <= 0.3


def test_the_test_scenes_are_those_of_the_records():
    images, truth = frozen()
    assert len(images) == len(truth) == 2000


def test_ink_is_as_large_as_asked_and_a_one_has_room():
    digit = np.zeros((28, 28), np.uint8)
    digit[4:24, 13:15] = 255
    ink = drawn(digit, 40)
    assert ink.shape == (40, 20)
    assert ink.max() > 240
    assert not ink[:, [0, -1]].any()


def test_there_is_no_fourth_part():
    with pytest.raises(ValueError, match="part of the scenes"):
        scenes(1, part="tests")
    with pytest.raises(ValueError, match="n must be at least 0"):
        scenes(-1)


@pytest.mark.parametrize(("rows", "fits"), [(30, True), (31, False)])
def test_seventy_percent_of_the_ink_below_stays_visible(rows, fits):
    below, above = np.zeros((2, EDGE, EDGE), bool)
    below[:100, 0], above[:rows, 0] = True, True
    far = np.array([[100, 100, 120, 120]])
    assert loops().fits(np.array([0, 0, 20, 20]), above, far, below[None]) == fits


def test_backgrounds_are_the_photographs_that_come_along(tmp_path):
    """To a grey value or two: a JPEG's pixels depend on who decodes it."""
    make(ROOT / "data" / "photos", tmp_path / "made.png")
    with Image.open(tmp_path / "made.png") as picture:
        made = np.asarray(picture).astype(int).reshape(backgrounds().shape)
    assert abs(made - backgrounds()).max() <= 4

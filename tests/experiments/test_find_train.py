"""The training of a detector: scenes that are made meanwhile, and kinds of scenes."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from experiments.find.scenes import EDGE, scenes
from experiments.find.train import Task, run
from experiments.find.varied import bent, loops, varied


def test_varied_scenes_are_the_same_bits_each_time_and_hold_what_scenes_hold():
    images, truth = scenes(12, seed=3, part="varied")
    again = scenes(3, seed=3, part="varied", first=5)
    assert_array_equal(again.images, images[5:8])
    assert_array_equal(again.truth, truth[5:8])
    assert {*np.unique(truth[..., 0])} <= {*range(-1, 10)}
    assert truth[..., 1:].max() <= EDGE
    assert (images != scenes(12, seed=3).images).any(axis=(1, 2, 3)).all()


def test_a_background_of_every_kind_is_a_picture_and_what_came_in_stays():
    scene = np.tile(np.arange(EDGE), (EDGE, 1))
    rng = np.random.default_rng(0)
    changed = 0
    for kinds in (*range(1, 256, 17), *range(256, 1 << 13, 511)):
        found = varied(scene, iter([kinds, *rng.integers(0, 2**63, 20).tolist()]))
        assert (found.shape, found.dtype) == (scene.shape, scene.dtype)
        assert found.min() >= 0
        assert found.max() <= 255
        changed += not np.array_equal(found, scene)
    assert changed > 20
    assert_array_equal(scene, np.tile(np.arange(EDGE), (EDGE, 1)))


def test_a_digit_that_is_not_slanted_stays_and_one_that_is_moves_its_outermost_rows_most():
    digit = np.zeros((28, 28), np.uint8)
    digit[:, 13] = 200

    def slanted(digit, slant):
        return loops().moved(digit, slant, 0, 1, 0).T

    assert_array_equal(slanted(digit, 0), digit)
    middles = slanted(digit, 64).astype(float) @ np.arange(28) / 200
    assert abs(middles[13] - 13) < 0.2
    assert abs(middles[0] - middles[-1]) == pytest.approx(2 * 64 / 23, abs=0.4)
    assert_array_equal(slanted(digit, 64), slanted(digit, -64)[::-1])


def test_a_bent_digit_keeps_its_ink_and_moves_it_by_a_few_pixels():
    digit = np.zeros((28, 28), np.uint8)
    digit[10:18, 10:18] = 200
    rng, moved = np.random.default_rng(0), []
    for draw in rng.integers(1 << 48, size=50).tolist():
        found = bent(digit, draw).astype(float)
        assert found.sum() == pytest.approx(digit.sum(), rel=0.01)
        moved.append([abs(found.sum(axis=1 - axis) @ np.arange(28) / found.sum() - 13.5) for axis in (0, 1)])
    assert 0.1 < np.max(moved) < 3


@pytest.mark.slow
def test_scenes_are_new_as_long_as_time_decides():
    task = Task(n=64, seconds=20, processes=1, engine="numba_conv", form="narrow")
    found = run(task, progress=lambda text: None)
    assert found["images"] > task.n
    assert found["epochs"][0] == len(found["loss"])
    assert 0 <= found["test"]["ap50_95"] <= found["test"]["ap50"] <= 1

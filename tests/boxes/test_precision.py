"""Average precision is COCO's, to 1e-9; by hand where it is small enough."""

import contextlib
import io

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit.boxes import Detections, average_precision, precision_and_recall


def truth_of(*pictures):
    """Return truth (n, k, 5) of lists of boxes with their labels first."""
    most = max([1, *map(len, pictures)])
    found = np.full((len(pictures), most, 5), -1, np.float32)
    for each, boxes in zip(found, pictures, strict=True):
        each[: len(boxes)] = np.reshape(boxes, (-1, 5))
    return found


def found_of(*rows):
    """Return `Detections` of tuples (image, label, score, box)."""
    images, labels, scores, boxes = zip(*rows, strict=True) if rows else ((), (), (), ())
    whole = np.array(images, np.int64), np.array(labels, np.int64)
    return Detections(*whole, np.array(scores, np.float64), np.array(boxes, np.float64).reshape(-1, 4))


SQUARE = (0, 0, 10, 10)


def test_two_of_three_right_by_hand():
    """Right, wrong, right: precision 1, 1/2, 2/3 at recalls 1/2, 1/2, 1; so 1 up to a recall of 1/2, then 2/3."""
    truth = truth_of([(0, *SQUARE), (0, 20, 0, 30, 10)])
    found = found_of((0, 0, 0.9, SQUARE), (0, 0, 0.8, (50, 50, 60, 60)), (0, 0, 0.7, (20, 0, 30, 10)))
    assert_allclose(average_precision(found, truth, 1)[:, 0], (51 + 50 * 2 / 3) / 101)
    ((precision, recall, scores),) = precision_and_recall(found, truth, 0)
    assert_allclose(precision, [1, 1 / 2, 2 / 3])
    assert_allclose(recall, [1 / 2, 1 / 2, 1])
    assert_allclose(scores, [0.9, 0.8, 0.7])


def test_an_object_is_found_once():
    found = found_of((0, 0, 0.9, SQUARE), (0, 0, 0.8, SQUARE))
    ((precision, _, _),) = precision_and_recall(found, truth_of([(0, *SQUARE)]), 0)
    assert_allclose(precision, [1, 1 / 2])


def test_a_class_without_objects_has_no_precision_and_one_that_nobody_finds_has_none_at_all():
    found = average_precision(found_of(), truth_of([(1, *SQUARE)], []), 2)
    assert np.isnan(found[:, 0]).all()
    assert not found[:, 1].any()


RIGHT = found_of((0, 0, 0.9, SQUARE))


@pytest.mark.parametrize(
    ("found", "truth", "crowds", "said"),
    [
        (RIGHT._replace(images=np.array([1])), truth_of([(0, *SQUARE)]), None, "picture 1, and truth has 1"),
        (RIGHT._replace(images=np.array([-1])), truth_of([(0, *SQUARE)]), None, "picture -1"),
        (RIGHT._replace(scores=np.zeros(3)), truth_of([(0, *SQUARE)]), None, "a score and a box"),
        (RIGHT, truth_of([(0, *SQUARE)])[0], None, r"truth must have shape \(n, k, 5\)"),
        (RIGHT, truth_of([(0, *SQUARE)]), np.zeros((3, 2)), r"crowds \(n, k\)"),
    ],
)
def test_detections_of_other_pictures_are_refused(found, truth, crowds, said):
    for ask in (average_precision, precision_and_recall):
        with pytest.raises(ValueError, match=said):
            ask(found, truth, 1, crowds=crowds)


def test_detections_that_are_no_numbers_are_refused():
    truth = truth_of([(0, *SQUARE)])
    with pytest.raises(TypeError, match="counted in whole numbers"):
        average_precision(RIGHT._replace(images=np.zeros(1)), truth, 1)
    with pytest.raises(ValueError, match="scores must be finite"):
        average_precision(RIGHT._replace(scores=np.full(1, np.nan)), truth, 1)
    with pytest.raises(ValueError, match="boxes must be finite"):
        average_precision(RIGHT._replace(boxes=np.full((1, 4), np.nan)), truth, 1)
    with pytest.raises(ValueError, match="classes must be"):
        average_precision(RIGHT, truth, -1)
    assert (average_precision([[], [], [], np.zeros((0, 4))], truth, 1) == 0).all()


def test_nothing_found_and_nothing_to_find_are_no_trouble():
    assert np.isnan(average_precision(found_of(), truth_of([], []), 2)).all()
    assert (average_precision(found_of(), truth_of([(0, *SQUARE)]).tolist(), 1) == 0).all()
    assert (average_precision([list(each) for each in RIGHT], truth_of([(0, *SQUARE)]), 1) == 1).all()


def test_neither_a_crowd_nor_who_finds_one_counts():
    truth = truth_of([(0, *SQUARE), (0, 50, 50, 90, 90)])
    found = found_of((0, 0, 0.9, (55, 55, 60, 60)), (0, 0, 0.8, (65, 65, 70, 70)), (0, 0, 0.7, SQUARE))
    crowds = np.array([[False, True]])
    assert_allclose(average_precision(found, truth, 1, crowds=crowds), 1)
    assert average_precision(found, truth, 1).max() < 0.5


def draw(rng):
    """Return random truth, crowds and detections: few places and scores, so that there are ties."""
    pictures, classes = rng.integers(1, 5), 3
    counts = rng.integers(0, 6, pictures)
    truth = np.full((pictures, 6, 5), -1, np.float32)
    crowds = np.zeros((pictures, 6), bool)
    for each, crowd, count in zip(truth, crowds, counts, strict=True):
        corner, size = rng.integers(0, 20, (count, 2)), rng.integers(1, 12, (count, 2))
        each[:count] = np.c_[rng.integers(classes, size=count), corner, corner + size]
        crowd[:count] = rng.random(count) < 0.15
    n = rng.choice([0, 3, 10, 30, 250])
    image = rng.integers(pictures, size=n)
    corner, size = rng.integers(0, 20, (n, 2)), rng.integers(1, 12, (n, 2))
    boxes = np.c_[corner, corner + size].astype(np.float64)
    near = np.flatnonzero((rng.random(n) < 0.6) & (counts[image] > 0))
    for i in near:  # most detections are an object's, moved a little
        boxes[i] = truth[image[i], rng.integers(counts[image[i]]), 1:]
        boxes[i, 2:] += rng.integers(0, 3, 2)
    scores = rng.choice([rng.integers(1, 5, n) / 4, rng.random(n)])
    order = np.argsort(image, kind="stable")
    return truth, crowds, Detections(image[order], rng.integers(classes, size=n), scores[order], boxes[order])


def judged(pycocotools, truth, crowds, found):
    """Return what COCO's own code says: AP (thresholds, classes), NaN where it says -1."""
    coco, cocoeval = pycocotools
    with contextlib.redirect_stdout(io.StringIO()):
        one = coco.COCO()
        one.dataset = {"images": [{"id": i + 1} for i in range(len(truth))], "annotations": []}
        one.dataset["categories"] = [{"id": label + 1} for label in range(3)]
        for i, j in zip(*np.nonzero(truth[..., 0] >= 0), strict=True):
            about = {"id": len(one.dataset["annotations"]) + 1, "iscrowd": int(crowds[i, j])}
            one.dataset["annotations"].append(about | as_coco(i, *truth[i, j, :1], truth[i, j, 1:]))
        one.createIndex()
        results = [as_coco(i, label, box) | {"score": float(s)} for i, label, s, box in zip(*found, strict=True)]
        judge = cocoeval.COCOeval(one, one.loadRes(results) if results else coco.COCO(), "bbox")
        judge.params.imgIds, judge.params.catIds = [i + 1 for i in range(len(truth))], [1, 2, 3]
        judge.evaluate()
        judge.accumulate()
    precision = judge.eval["precision"][:, :, :, 0, 2]  # thresholds, recalls, classes; of all sizes, at most 100
    return np.where(precision[:, 0] < 0, np.nan, precision.mean(axis=1))


def as_coco(image, label, box):
    """Return a box as COCO's files have it."""
    left, top, right, bottom = map(float, box)
    wide, high = right - left, bottom - top
    return {
        "image_id": int(image) + 1,
        "category_id": int(label) + 1,
        "bbox": [left, top, wide, high],
        "area": wide * high,
    }


@pytest.mark.peers
@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_it_is_cocos_on_random_sets(count):
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not here, to judge")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    with_crowds = empty = 0
    for seed in range(count):
        truth, crowds, found = draw(np.random.default_rng(seed))
        wanted = judged((coco, cocoeval), truth, crowds, found)
        assert_allclose(average_precision(found, truth, 3, crowds=crowds), wanted, atol=1e-9, rtol=0)
        with_crowds, empty = with_crowds + crowds.any(), empty + (not len(found.scores))
    assert with_crowds > count / 3
    assert empty > count / 10

"""Boxes as targets: who is responsible for which, what the loss says of it, and its gradient."""

from importlib import import_module

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence, sweep

from mlpkit.boxes import detections
from mlpkit.engines import numpy_baseline
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.detection import Detection
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.layers import Flatten, Tanh
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network

LOSS = Detection(3, (32, 40))
CELLS = 4 * 5 + 2 * 3


def model(loss=LOSS):
    end = Conv(7, 1), Flatten()
    branches = (*end,), (Conv(6, 3, 2, 1), Tanh(), *end)
    return Model((1, 32, 40), (Conv(4, 8, 8), Tanh(), Concat(*branches)), loss)


def truth_of(*boxes, most=4):
    found = np.full((1, most, 5), -1, np.float32)
    found[0, : len(boxes)] = np.reshape(boxes, (-1, 5))
    return found


def test_a_cell_speaks_of_the_object_whose_middle_is_near():
    targets = LOSS.match(truth_of((2, 8, 4, 24, 20)))  # middle (16, 12): row 1, between columns 1 and 2
    labels = targets[0, 0]
    assert targets.shape == (1, 5, CELLS)
    assert_array_equal(np.flatnonzero(labels >= 0), [5 + 1, 5 + 2])
    assert_allclose(targets[0, 1:, 6], [-0.5, -1, 1.5, 1])  # from (12, 12), in strides of 8
    assert_array_equal(labels[6:8], 2)


def test_a_large_object_belongs_to_the_coarse_grid():
    labels = LOSS.match(truth_of((0, 0, 0, 40, 32)))[0, 0]
    assert (labels[:20] == -1).all()
    assert (labels[20:] == 0).any()


def test_of_two_objects_a_cell_has_the_nearer_one():
    labels = LOSS.match(truth_of((0, 4, 4, 20, 20), (1, 8, 4, 24, 20)))[0, 0]
    assert labels[5 + 1] == 0  # its middle is (12, 12)
    assert labels[5 + 2] == 1


def test_nothing_to_find_is_a_target_too():
    targets = LOSS.match(truth_of())
    assert (targets[:, 0] == -1).all()
    network = Network("numpy_baseline", model(), dtype=np.float64)
    assert np.isfinite(network.loss(np.zeros((1, 1, 32, 40)), targets))


def test_what_is_matched_comes_back_from_outputs_that_say_so():
    truth = truth_of((2, 8, 4, 24, 20), (1, 1, 2, 39, 31))
    targets, rows = LOSS.match(truth), np.zeros((1, 7 * CELLS), np.float32)
    for (*_, before), (z, boxes) in zip(LOSS.grids, LOSS.levels(rows), strict=True):
        of = targets[:, :, before : before + z.shape[2]]
        right = of[:, :1] == np.arange(3)[:, None]
        z[...] = np.where(right, 8, -8)
        edges = np.where(of[:, :1] >= 0, of[:, 3:] - of[:, 1:3], 1)
        boxes[:, :2], boxes[:, 2:] = (of[:, 1:3] + of[:, 3:]) / 2, np.log(edges)
    found = detections(LOSS, rows, score=0.5)
    assert_array_equal(found.labels, [1, 2])
    assert_allclose(found.boxes, truth[0, [1, 0], 1:], atol=1e-4)
    assert len(detections(LOSS, rows, score=0.5, threshold=None).scores) > 2


@pytest.mark.parametrize("seed", sweep(range(5), 0, 1))
def test_its_gradient_is_the_slope(seed):
    rng = np.random.default_rng(seed)
    network = Network("numpy_baseline", model(), dtype=np.float64, seed=seed)
    network.theta[:] += rng.normal(0, 0.2, len(network.theta))
    corner, size = rng.uniform(0, 20, (2, 4, 2)), rng.uniform(3, 20, (2, 4, 2))
    truth = np.concatenate([rng.integers(-1, 3, (2, 4, 1)), corner, corner + size], axis=2)
    assert gradient_error(network, rng.normal(size=(2, 1, 32, 40)), LOSS.match(truth)) < 1e-6


def test_giou_by_hand():
    """Squares of 2 whose middles are 1 apart: 2 in both, 6 in either, 6 around: 1 - 1/3. Then 4 apart: 1 + 4 / 12."""
    boxes = np.array([-1.0, -1, 1, 1]).reshape(1, 4, 1)
    z = np.array([1, 0, np.log(2), np.log(2)]).reshape(1, 4, 1)
    assert_allclose(numpy_baseline.giou(z, boxes, np.ones((1, 1), bool), 1.0)[0], 1 - 1 / 3)
    z[0, 0] = 4
    loss, dz = numpy_baseline.giou(z, boxes, np.ones((1, 1), bool), 1.0)
    assert_allclose(loss, 1 + 4 / 12)
    assert dz[0, 0, 0] > 0  # apart, too, it knows where to go


def test_focal_is_cross_entropy_where_gamma_is_0_and_forgets_what_nobody_asks():
    z, labels = np.array([[[1.0, -2.0, 3.0]]]), np.array([[0.0, -1, -2]])
    wanted = (np.log1p(np.exp(-1.0)) + np.log1p(np.exp(-2.0))) / 2
    loss, dz = numpy_baseline.focal(z, labels, 1.0, 0.0, 0.5)
    assert_allclose(loss, wanted)
    assert dz[0, 0, 2] == 0
    easy, hard = (numpy_baseline.focal(np.array([[[v]]]), labels[:, :1], 1.0, 2.0, 0.5)[0] for v in (3.0, -3.0))
    assert hard / easy > 1000  # cross-entropy says 60


def test_the_model_is_read_as_it_was_written():
    assert Model.from_dict(model().to_dict()) == model()


@pytest.mark.parametrize("engine", ["numpy_im2col", "numba_conv"])
def test_engines_agree(engine):
    rng = np.random.default_rng(3)
    x, targets = rng.normal(size=(3, 1, 32, 40)).astype("f4"), LOSS.match(np.repeat(truth_of((2, 8, 4, 24, 20)), 3, 0))
    losses = [Network(each, model()).loss_and_grad(x, targets) for each in ("numpy_baseline", engine)]
    assert_allclose(*losses, rtol=1e-5)


def test_other_targets_are_refused_in_a_sentence():
    network = Network("numpy_baseline", model())
    x = np.zeros((1, 1, 32, 40), np.float32)
    with pytest.raises(ValueError, match=r"what the loss's match\(\.\.\.\) makes of boxes"):
        network.loss(x, truth_of())
    with pytest.raises(ValueError, match="the outputs of"):
        Network("numpy_baseline", model(Detection(4, (32, 40)))).loss(x, LOSS.match(truth_of()))


@pytest.mark.peers
def test_focal_and_giou_are_pytorchs():
    torch = pytest.importorskip("torch", reason="PyTorch is not here, to judge")
    rng = np.random.default_rng(0)
    z, labels = rng.normal(0, 3, (2, 3, 50)), rng.integers(-1, 3, (2, 50)).astype(float)
    given = torch.tensor(z, requires_grad=True)
    right = torch.tensor(labels[:, None] == np.arange(3)[:, None]).double()
    p = torch.sigmoid(given)
    p_right = p * right + (1 - p) * (1 - right)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(given, right, reduction="none")
    wanted = ((0.25 * right + 0.75 * (1 - right)) * (1 - p_right) ** 2 * entropy).sum() / 7
    wanted.backward()
    loss, dz = numpy_baseline.focal(z, labels, 1 / 7, 2.0, 0.25)
    assert_allclose(loss, wanted.item(), rtol=1e-12)
    assert_allclose(dz, given.grad.numpy(), atol=1e-14)
    z, boxes, counts = rng.normal(0, 0.7, (2, 4, 99)), rng.normal(size=(2, 4, 99)), rng.random((2, 99)) < 0.7
    boxes[:, 2:] = boxes[:, :2] + rng.uniform(0.1, 3, (2, 2, 99))
    given, of = torch.tensor(z, requires_grad=True), torch.tensor(boxes)
    low, high = (given[:, :2] + sign * given[:, 2:].exp() / 2 for sign in (-1, 1))
    both = (torch.minimum(high, of[:, 2:]) - torch.maximum(low, of[:, :2])).clamp(min=0).prod(1)
    around = (torch.maximum(high, of[:, 2:]) - torch.minimum(low, of[:, :2])).prod(1)
    union = (high - low).prod(1) + (of[:, 2:] - of[:, :2]).prod(1) - both
    wanted = ((1 - both / union + (around - union) / around) * torch.tensor(counts)).sum() / 7
    wanted.backward()
    loss, dz = numpy_baseline.giou(z, boxes, counts, 1 / 7)
    assert_allclose(loss, wanted.item(), rtol=1e-12)
    assert_allclose(dz, given.grad.numpy(), atol=1e-13)


GOOD = truth_of((2, 8, 4, 24, 20))


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        *[(each, "shape (n, k, 5)") for each in (GOOD[..., :4], GOOD[0], [[1, 2]])],
        *[(GOOD * each, "finite") for each in (np.nan, np.inf)],
        *[(truth_of((label, 8, 4, 24, 20)), "from 0 to 2, or -1") for label in (3, 0.5)],
        (truth_of((0, 24, 20, 8, 4)), "left <= right"),
    ],
)
def test_what_are_no_objects_is_refused_in_a_sentence(truth, words):
    with pytest.raises(ValueError, match="truth") as caught:
        LOSS.match(truth)
    one_sentence(caught.value, words)


def test_pictures_without_objects_have_targets_too():
    assert (LOSS.match(np.empty((2, 0, 5)))[:, 0] == -1).all()
    assert_array_equal(LOSS.match(GOOD.tolist()), LOSS.match(GOOD))


@pytest.mark.parametrize("outputs", [np.full((1, 7 * CELLS), np.nan, np.float32), np.zeros((1, 7 * CELLS - 1))])
def test_outputs_that_are_none_are_not_taken_for_an_empty_picture(outputs):
    with pytest.raises(ValueError, match=r"outputs must be finite|must have shape") as caught:
        detections(LOSS, outputs)
    one_sentence(caught.value)


@pytest.mark.parametrize("score", [0, 0.02, 0.5, 0.9])
def test_claims_are_all_logits_above_the_score_wherever_they_stand(score):
    outputs = np.random.default_rng(3).normal(size=(3, 7 * CELLS)).astype(np.float32)
    found = detections(LOSS, outputs, score, threshold=None)
    wanted = sum((1 / (1 + np.exp(-z - LOSS.offset)) > score).sum() for z, _ in LOSS.levels(outputs.astype(np.float64)))
    assert len(found.scores) == wanted
    assert (np.diff(found.images * LOSS.classes + found.labels) >= 0).all()


def test_claims_come_by_picture_and_class_the_best_first_and_of_equal_ones_the_finest():
    loss = Detection(2, (72, 72), strides=(8, 16))
    outputs = np.random.default_rng(4).integers(-3, 4, (2, 6 * loss.cells)).astype(np.float32)
    found = detections(loss, outputs, 0.001, threshold=None)
    z = np.concatenate([z for z, _ in loss.levels(outputs)], axis=2)
    groups, scores = (each.ravel() for each in np.broadcast_arrays(np.arange(4).reshape(2, 2, 1), z))
    order = np.lexsort((-scores, groups))
    order = order[scores[order] > np.log(0.001 / 0.999) - loss.offset]
    assert len(order) > 4 * 32
    assert_array_equal(found.images * 2 + found.labels, groups[order])
    assert_allclose(found.scores, 1 / (1 + np.exp(-scores[order] - loss.offset)), rtol=1e-5)
    x = (np.concatenate([boxes for _, boxes in loss.levels(outputs)], axis=2)[:, 0] * loss.middles[:, 2]
         + loss.middles[:, 0])[:, None].repeat(2, axis=1).ravel()[order]  # fmt: skip
    assert_allclose(found.boxes[:, [0, 2]].mean(axis=1), x, atol=1e-3)


@pytest.mark.parametrize("at", [0, 3 * CELLS, 7 * CELLS - 1])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def test_one_number_that_is_not_finite_is_refused_wherever_it_stands(where, odd, at):
    outputs = np.zeros((2, 7 * CELLS), np.float32)
    outputs[1, at] = odd
    with pytest.raises(ValueError, match="outputs must be finite") as caught:
        detections(LOSS, import_module(where).asarray(outputs))
    one_sentence(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("score", [0, 0.02, 0.2, 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_outputs_on_a_gpu_have_the_same_detections(dtype, score):
    import cupy

    outputs = np.random.default_rng(5).normal(size=(17, 7 * CELLS)).astype(dtype)
    for ours, theirs in zip(*(detections(LOSS, each, score) for each in (outputs, cupy.asarray(outputs))), strict=True):
        assert_array_equal(ours, theirs)

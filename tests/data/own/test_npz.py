"""Keras' files are read, others' like them, and none runs code or takes memory for a promise."""

import io
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from shared import damaged, one_sentence

from mlpkit import data

RNG = np.random.default_rng(0)
X, Y = RNG.integers(256, size=(40, 6, 5), dtype=np.uint8), (np.arange(40) % 4).astype(np.uint8)
KERAS = {"x_train": X, "y_train": Y, "x_test": X[:8], "y_test": Y[:8]}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_keras_mnist_is_read(save, tmp_path):
    save(tmp_path / "mnist.npz", **KERAS)
    found = data.from_npz(tmp_path / "mnist.npz")
    assert [split.X.shape for split in found[1:4]] == [(36, 1, 6, 5), (4, 1, 6, 5), (8, 1, 6, 5)]
    assert_array_equal(found.test.X[:, 0], X[:8])
    assert (found.train.X.dtype, found.train.y.dtype) == (np.uint8, np.int64)
    assert (found.name, found.classes) == ("mnist", tuple("0123"))


@pytest.mark.parametrize(
    "names",
    [
        "train_images train_labels val_images val_labels test_images test_labels",
        "X_train Y_train x_valid y_valid x_test y_test",
    ],
)
def test_other_names_do_as_well(names, tmp_path):
    arrays = dict(
        zip(names.split(), (X, Y[:, None], X[:9], Y[:9, None], np.asfortranarray(X[:8]), Y[:8, None]), strict=True)
    )
    np.savez(tmp_path / "a.npz", **arrays)
    found = data.from_npz(tmp_path / "a.npz", name="mine", test=0.3)  # there is one
    assert [len(split.y) for split in found[1:4]] == [40, 9, 8]
    assert_array_equal(found.test.X[:, 0], X[:8])
    assert found.name == "mine"


def test_a_part_that_is_not_there_is_drawn(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=np.array(["ant", "bee", "cat", "dog"])[Y])
    found = data.from_npz(tmp_path / "a.npz", test=0.2, validation=0)
    assert (found.validation, len(found.test.y), found.classes) == (None, 8, ("ant", "bee", "cat", "dog"))


class Evil:
    def __reduce__(self):
        return os._exit, (3,)


ODD = {
    "objects": (KERAS | {"y_train": np.array([Evil()] * 40)}, "run code"),
    "a name that says nothing": (KERAS | {"weights": Y}, "'weights.npy'"),
    "two that say one": (KERAS | {"train_images": X}, "'train_images.npy'"),
    "no labels": ({"x_train": X}, "no x_train and y_train"),
    "a test of labels alone": ({"x_train": X, "y_train": Y, "y_test": Y}, "y_test"),
    "fewer labels": (KERAS | {"y_train": Y[1:]}, "as many examples"),
    "no array": (KERAS | {"y_train": np.uint8(3)}, "as many examples"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_refused_in_one_sentence(name, tmp_path):
    arrays, words = ODD[name]
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", words)


def refused(path, *words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        data.from_npz(path)
    one_sentence(caught.value, path, *words)


def npy(shape, data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize("shape", [(40, 10**12), (10**12, 1), (40, 2**62, 2**62), (40, 29)])
def test_no_memory_is_taken_for_a_promise(shape, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x_train.npy", npy(shape, X.tobytes()))
        file.writestr("y_train.npy", npy((40,), Y.tobytes()))
    monkeypatch.setattr(np.lib.format, "read_array", lambda *arguments, **options: pytest.fail("it was read"))
    refused(tmp_path / "a.npz", "promises")


@pytest.mark.parametrize(
    "text", ["(" * 5000, "-" * 9000 + "1", "{'descr': (), 'fortran_order': 0, 'shape': ()}", "{1: 2, 'a': 3}"]
)
def test_a_header_of_anything_is_refused_in_one_sentence(text, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x_train.npy", b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode())
        file.writestr("y_train.npy", npy((40,), Y.tobytes()))
    refused(tmp_path / "a.npz")


@pytest.mark.parametrize("packed", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_is_packed_as_numpy_does_not_is_refused(packed, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", packed) as file:
        file.writestr("x_train.npy", npy(X.shape, X.tobytes()))
        file.writestr("y_train.npy", npy((40,), Y.tobytes()))
    refused(tmp_path / "a.npz", "np.savez")


def test_more_than_half_of_the_memory_is_refused_before_it_is_taken(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x_train=np.zeros((10**7, 4), np.uint8), y_train=np.arange(10**7) % 3)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *arguments, **options: pytest.fail("it was read"))
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 50_000, raising=False)
    refused(tmp_path / "a.npz", "GiB", "fewer examples")


def test_all_headers_are_looked_at_before_an_array_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x_train=np.zeros((10**7, 4), np.uint8), y_train=Y)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *arguments, **options: pytest.fail("it was read"))
    refused(tmp_path / "a.npz", "as many examples")


@given(st.data())
def test_a_damaged_file_is_refused_or_as_it_was(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    file = io.BytesIO()
    data.draw(st.sampled_from([np.savez, np.savez_compressed]))(file, **KERAS)
    path.write_bytes(damaged(file.getvalue(), data.draw))
    check_damaged(path)


def check_damaged(path):
    try:
        found = data.from_npz(path)
    except ValueError as error:
        one_sentence(error, path)
    else:
        assert_array_equal(found.test.X[:, 0], X[:8])


def test_what_is_no_npz_is_told(tmp_path):
    np.save(tmp_path / "a.npy", X)
    refused(tmp_path / "a.npy", "no .npz")
    with pytest.raises(FileNotFoundError):
        data.from_npz(tmp_path / "b.npz")

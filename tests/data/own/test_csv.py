"""Tables of pixels: Kaggle's, others' like them, and what is none."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import one_sentence

from mlpkit import data

RNG = np.random.default_rng(0)
X, Y = RNG.integers(256, size=(40, 1, 3, 3), dtype=np.uint8), np.arange(40) % 4
PIXELS = [f"pixel{i}" for i in range(9)]


def table(header, *columns, end="\n", between=","):
    rows = np.concatenate([column.reshape(40, -1) for column in columns], axis=1).tolist()
    lines = [between.join(map(str, row)) for row in rows]
    return end.join([between.join(header), *lines, ""] if header else [*lines, ""])


@pytest.fixture
def csv(tmp_path):
    def put(text, name="train.csv", encoding="utf-8"):
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    return put


HEADERS = {
    "Kaggle's": ["label", *PIXELS],
    "Fashion-MNIST's": ["label", *(f"pixel{i}" for i in range(1, 10))],
    "by row and column": ["label", *(f"{i}x{j}" for i in range(1, 4) for j in range(1, 4))],
    "quoted": [f'"{name}"' for name in ("Label", *PIXELS)],
    "none": None,
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_table_is_read_as_it_is_found(header, encoding, end, csv):
    dataset = data.from_csv(csv(table(HEADERS[header], Y, X, end=end), encoding=encoding), validation=0)
    assert_array_equal(dataset.train.X, X)
    assert_array_equal(dataset.train.y, Y)
    assert (dataset.train.X.dtype, dataset.train.y.dtype) == (np.uint8, np.int64)
    assert (dataset.name, dataset.classes, dataset.validation, dataset.test) == ("train", tuple("0123"), None, None)


def test_the_label_may_have_another_name_and_place(csv):
    text = table([*PIXELS, "digit"], X, Y)
    found = data.from_csv(csv(text), label="digit", validation=0)
    assert_array_equal(found.train.X, X)
    assert_array_equal(found.train.y, Y)


def test_kaggles_test_has_no_labels(csv):
    for header in (PIXELS, None):
        test = csv(table(header, X), "test.csv")
        dataset = data.from_csv(csv(table(HEADERS["Kaggle's"], Y, X)), test)
        assert_array_equal(dataset.test.X, X)
        assert dataset.test.y is None
        assert (len(dataset.train.X), len(dataset.validation.X)) == (36, 4)
    with pytest.raises(ValueError, match="no column of labels") as caught:
        data.from_csv(test)
    one_sentence(caught.value, test)


def test_images_may_be_of_another_shape(csv):
    path = csv(table(None, Y, X[..., :2]))
    assert_array_equal(data.from_csv(path, shape=(1, 3, 2), validation=0).train.X, X[..., :2])
    assert data.from_csv(path, shape=(3, 1, 2), validation=0).train.X.shape == (40, 3, 1, 2)
    for shape in (None, (1, 2, 2), (3, 2), (3, 2, -1), 6):
        with pytest.raises((TypeError, ValueError)) as caught:
            data.from_csv(path, shape=shape)
        one_sentence(caught.value)


def test_a_tilde_is_the_readers_home(csv, monkeypatch):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(csv(table(None, Y, X)).parent))
    assert len(data.from_csv("~/train.csv", "~/train.csv").test.X) == 40


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["separated by commas"]),
        ("label\n1\n", ["separated by commas"]),
        ("1;2;3;4;5\n", ["separated by commas", "';'"]),
        ("1\t2\t3\t4\t5\n", ["separated by commas", "'\\t'"]),
        ("label,p0,p1,p2,p3\n", ["no rows"]),
        ("id,label,p0,p1,p2,p3\n1,1,1,1,1,1\n", ["'id'", "leave it out"]),
        ("label,p0,label,p1,p2,p3\n1,1,1,1,1,1\n", ["2 columns called 'label'"]),
        ("label,p1,p0,p2,p3\n1,1,1,1,1\n", ["another order"]),
        ("label,p0,p0,p2,p3\n1,1,1,1,1\n", ["another order, or twice"]),
        ("label,p0,p1,p2,p3\n1,1,1,1\n", ["5 names", "4 numbers a row"]),
        ("p0,p1,p2,p3,label\n1,1,1,1\n", ["5 names", "4 numbers a row"]),
        ("label,p0\n1,1,1\n", ["2 names", "3 numbers a row"]),
        (f"label,p{'1' * 5000},p2,p3,p4\n1,1,1,1,1\n", ["is no pixel"]),
        ("label,p0,p1,p2\n1,1,1,1\n", ["3 columns of pixels", "shape="]),
        ("label\n,1\n", ["separated by commas"]),
        ("1,2,3,4,5\n1,2,3,4\n", ["5 to 4", "row 2"]),
        ("1,2,3,4,5\n1,2,3,4,5,6\n", ["5 to 6", "row 2"]),
        ("1,2,3,4,5\n1,2,3,4,256\n", ["row 2", "256"]),
        ("1,2,3,4,5\n1,2,3,4,-1\n", ["row 2", "'-1'"]),
        ("1,2,3,4,5\n1,2,3,4,99999\n", ["row 2", "'99999'"]),
        ("1,2,3,4,5\n1,2,3,,5\n", ["row 2, column 4"]),
        ("1,2,3,4,5\n1,2,3,0.5,5\n", ["row 2, column 4", "'0.5'"]),
        ("1,2,3,4,5\ncat,2,3,4,5\n", ["row 2, column 1", "'cat'"]),
        ("1,2,3,4,5\n1,2,3,4,5\n", ["one class"]),
        ("a\0b,1\n", ["UTF-8"]),
        ("1," * 2**22, ["UTF-8"]),
        ("PK\x03\x04", ["unpack it first"]),
        ("1,2,3,4,5\n1,2,3,4,\0\n", ["row 2"]),
    ],
)
def test_another_table_is_refused_in_one_sentence(text, words, csv):
    path = csv(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        data.from_csv(path)
    one_sentence(caught.value, *words)
    assert "all labels" in str(caught.value) or str(path) in str(caught.value)


def test_what_is_no_text_is_refused_in_one_sentence(csv):
    path = csv("")
    for content in (b"\x1f\x8b\x08", b"\xff\xfe1\x00,\x00", b"1,2,3,4,5\n1,2,3,4,\xff\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (several sentences)
            data.from_csv(path)
        one_sentence(caught.value, path)
    assert "save it as CSV, UTF-8" in str(caught.value)
    with pytest.raises(TypeError, match="name of a column"):
        data.from_csv(path, label=0)


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "lzma", "GZ"])
def test_what_is_named_as_if_it_were_packed_is_told(ending, csv):
    path = csv(table(None, Y, X), f"train.csv.{ending}")
    with pytest.raises(ValueError, match="unpack it first") as caught:
        data.from_csv(path)
    one_sentence(caught.value, path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        data.from_csv(tmp_path / "train.csv")
    with pytest.raises(IsADirectoryError):
        data.from_csv(tmp_path)

"""A folder of photographs, each of its own size: what is odd is read rightly, or named in one sentence."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image, ImageOps
from shared import one_sentence

from mlpkit.data.own.reading.picture import look_at
from mlpkit.data.pictures import pictures

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(256, size=(7, 5, 3), dtype=np.uint8)


def put(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def refused(folder, *words, **options):
    with pytest.raises((ValueError, OSError)) as caught:
        pictures(folder, **options)
    one_sentence(caught.value, *words)


def test_the_bundled_photographs_are_read_by_name():
    found = pictures(longest=64)
    assert list(found) == sorted(found)
    assert {"astronaut", "chelsea", "coffee"} <= set(found)
    assert all(picture.dtype == np.uint8 and max(picture.shape) == 64 for picture in found.values())


def test_sizes_stay_as_they_are_and_folders_below_count(tmp_path):
    put(tmp_path / "b.png", COLOURS)
    put(tmp_path / "below" / "a.png", COLOURS[:2])
    put(tmp_path / "thin.png", np.zeros((1, 30_000), np.uint8))
    (tmp_path / "notes.txt").write_text("no picture")
    found = pictures(tmp_path)
    assert {name: picture.shape for name, picture in found.items()} == {
        "b": (3, 7, 5),
        "below/a": (3, 2, 5),
        "thin": (3, 1, 30_000),
    }
    assert_array_equal(found["b"], COLOURS.transpose(2, 0, 1))
    assert pictures(tmp_path, longest=100)["thin"].shape == (3, 1, 100)
    assert pictures(tmp_path, grey=True)["b"].shape == (1, 7, 5)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_mode_becomes_bytes_of_three_colours(tmp_path, mode):
    grey = Image.fromarray(np.full((4, 6), 255, np.uint8))
    picture = Image.fromarray(np.full((4, 6), 65535, np.uint16)) if mode == "I;16" else grey.convert(mode)
    picture.save(tmp_path / "white.png")
    assert_array_equal(pictures(tmp_path)["white"], np.full((3, 4, 6), 255))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("longest", [None, 16])
def test_a_value_that_stands_for_nothing_is_white(tmp_path, dtype, longest):
    dark = np.iinfo(dtype).max // 255 * np.full((8, 32), 40, dtype)
    dark[:, :16] = 0
    put(tmp_path / "hole.png", dark, transparency=0)
    if dtype == np.uint8:
        put(tmp_path / "in colour.png", dark[..., None].repeat(3, 2), transparency=(0, 0, 0))
    for found in pictures(tmp_path, longest=longest).values():
        assert_array_equal(found[:, :, 0], 255)
        assert_array_equal(found[:, :, -1], 40)


def test_a_picture_lies_as_its_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    put(tmp_path / "turned.png", COLOURS, exif=exif)
    assert_array_equal(pictures(tmp_path)["turned"], np.rot90(COLOURS, -1).transpose(2, 0, 1))
    assert pictures(tmp_path, longest=5)["turned"].shape == (3, 4, 5)


@pytest.mark.parametrize("number", range(1, 9))
def test_each_way_to_lie_that_exif_knows_is_pillows(tmp_path, number):
    exif = Image.Exif()
    exif[0x0112] = number
    path = put(tmp_path / "a.png", COLOURS, exif=exif)
    wanted = np.asarray(ImageOps.exif_transpose(Image.open(path))).transpose(2, 0, 1)
    assert_array_equal(pictures(tmp_path)["a"], wanted)
    assert look_at(path)[0] == wanted.shape[1:]


@pytest.mark.parametrize("exif", [b"Exif\0\0nonsense", 99, 0], ids=str)
def test_exif_data_that_make_no_sense_leave_a_picture_as_it_is(tmp_path, exif):
    odd = Image.Exif()
    odd[0x0112] = exif if isinstance(exif, int) else 1
    path = put(tmp_path / "a.png", COLOURS, exif=odd if isinstance(exif, int) else exif)
    assert_array_equal(pictures(tmp_path)["a"], COLOURS.transpose(2, 0, 1))
    assert look_at(path)[0] == COLOURS.shape[:2]


def test_links_that_lead_round_and_round_are_followed_once(tmp_path):
    put(tmp_path / "a" / "x.png", COLOURS)
    for name in ("again", "once more"):
        (tmp_path / "a" / name).symlink_to(tmp_path)
    assert list(pictures(tmp_path)) == ["a/x"]


def test_a_link_to_itself_is_no_folder(tmp_path):
    (tmp_path / "round").symlink_to(tmp_path / "round")
    refused(tmp_path / "round", "can't be read as a folder")


def test_folders_as_deep_as_nobody_has_them_are_refused(tmp_path):
    deep = tmp_path / "/".join("a" * 101)
    put(deep.parent / "x.png", COLOURS)
    assert len(pictures(tmp_path / "a")) == 1
    put(deep / "x.png", COLOURS)
    refused(tmp_path, "folders deep")


def test_what_is_no_picture_is_named(tmp_path):
    path = put(tmp_path / "broken.png", RNG.integers(256, size=(90, 90), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:4000])
    (tmp_path / "empty.jpg").write_bytes(b"")
    refused(tmp_path, "empty.jpg")
    (tmp_path / "empty.jpg").unlink()
    refused(tmp_path, "broken.png")


def test_no_pixels_at_all_are_no_picture(tmp_path):
    whole = put(tmp_path / "none.png", COLOURS).read_bytes()
    (tmp_path / "none.png").write_bytes(whole[:16] + bytes(8) + whole[24:])
    refused(tmp_path, "none.png")


def test_a_folder_without_pictures_and_none_at_all_are_told(tmp_path):
    refused(tmp_path, "no pictures")
    refused(tmp_path / "nowhere", "no folder")
    put(tmp_path / "a.png", COLOURS)
    put(tmp_path / "a.jpg", COLOURS)
    refused(tmp_path, "called a")


def test_more_pixels_than_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    put(tmp_path / "a.png", COLOURS)
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    refused(tmp_path, "longest=")
    assert pictures(tmp_path, longest=3)["a"].shape == (3, 3, 2)

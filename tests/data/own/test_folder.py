"""Pictures of one's own: folders say what they show, and what is odd about a file is said with its name."""

import os
import shutil
import sys
import unicodedata
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image, ImageCms
from shared import damaged, one_sentence

from mlpkit import data
from mlpkit.data.own import folder as module
from mlpkit.data.own.reading.picture import read_picture

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other kinds of files")
RNG = np.random.default_rng(0)
COUNT = 10
GREYS = RNG.integers(256, size=(2, COUNT, 8, 6), dtype=np.uint8)
COLOURS = RNG.integers(256, size=(2, COUNT, 8, 6, 3), dtype=np.uint8)


def put(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def pictures(folder, of=GREYS, classes=("cat", "dög"), count=COUNT):
    for name, shown in zip(classes, of, strict=True):
        for i, pixels in enumerate(shown[:count]):
            put(folder / name / f"{i}.png", pixels)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("made") / "pets")


@pytest.fixture
def pets(made, tmp_path):
    """Return a folder of two classes, to which a test adds something odd."""
    return shutil.copytree(made, tmp_path / "pets")


def read(folder, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return data.from_folder(folder, **options)


def refused(folder, *words, **options):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        data.from_folder(folder, **options)
    one_sentence(caught.value, *words)


# How they lie


def test_each_folder_is_a_class(made):
    found = read(made, validation=0)
    assert_array_equal(found.train.X, GREYS.reshape(2 * COUNT, 1, 8, 6))
    assert_array_equal(found.train.y, np.repeat([0, 1], COUNT))
    assert (found.train.X.dtype, found.train.y.dtype) == (np.uint8, np.int64)
    assert (found.name, found.classes, found.validation, found.test) == ("pets", ("cat", "dög"), None, None)


def test_shares_are_drawn_from_the_seed_of_each_class(made):
    found, again, other = (read(made, validation=0.2, test=0.3, seed=seed) for seed in (0, 0, 1))
    assert [np.bincount(split.y).tolist() for split in found[1:4]] == [[5, 5], [2, 2], [3, 3]]
    assert_array_equal(found.test.X, again.test.X)
    assert not np.array_equal(found.test.X, other.test.X)
    whole = np.concatenate([split.X for split in found[1:4]])
    assert len(np.unique(whole.reshape(20, -1), axis=0)) == 20


@pytest.mark.parametrize("validation", ["validation", "val", "valid"])
def test_parts_that_are_there_are_taken(validation, tmp_path):
    for part, count in (("train", COUNT), (validation, 2), ("test", 3)):
        pictures(tmp_path / part, count=count)
    shutil.rmtree(tmp_path / "test" / "cat")
    found = read(tmp_path, test=0.5)
    assert [len(split.y) for split in found[1:4]] == [20, 4, 3]
    assert_array_equal(found.test.y, [1, 1, 1])
    shutil.rmtree(tmp_path / validation)
    assert [len(split.y) for split in read(tmp_path)[1:4]] == [18, 2, 3]


@pytest.mark.parametrize("parts", [[""], ["train", "test"]])
def test_pairs_are_pictures_and_what_is_to_come_of_them(parts, tmp_path):
    for part in parts:
        pictures(tmp_path / part, (COLOURS[0], GREYS[0]), ("inputs", "targets"))
        shutil.copytree(tmp_path / part / "inputs", tmp_path / "aside")
        for path in (tmp_path / "aside").iterdir():  # another ending is the same name
            path.rename((tmp_path / part / "inputs" / path.name).with_suffix(".PNG"))
            (tmp_path / part / "inputs" / path.name).unlink()
        (tmp_path / "aside").rmdir()
    found = read(tmp_path, validation=0.2)
    assert [split and (split.X.shape, split.y.shape) for split in found[1:4]] == [
        ((8, 3, 8, 6), (8, 1, 8, 6)),
        ((2, 3, 8, 6), (2, 1, 8, 6)),
        ((10, 3, 8, 6), (10, 1, 8, 6)) if "test" in parts else None,
    ]
    assert found.classes == ()
    for X, y in found[1:3]:
        for pixels, target in zip(X, y, strict=True):
            row = next(i for i in range(COUNT) if np.array_equal(COLOURS[0, i], pixels.transpose(1, 2, 0)))
            assert_array_equal(target[0], GREYS[0, row])


def test_of_pairs_each_has_its_partner_and_one_name(tmp_path):
    pictures(tmp_path, (COLOURS[0], GREYS[0]), ("inputs", "targets"))
    put(tmp_path / "inputs" / "lonely.png", GREYS[0, 0])
    (tmp_path / "inputs" / "3.png").unlink()
    refused(tmp_path, "no partner", tmp_path / "inputs" / "lonely.png", tmp_path / "targets" / "3.png")
    put(tmp_path / "inputs" / "4.jpg", GREYS[0, 0])
    refused(tmp_path, "one name", tmp_path / "inputs" / "4.jpg", "4.png")


def test_a_name_is_the_same_however_it_is_written(tmp_path):
    """macOS takes an ö apart."""
    apart, whole = (unicodedata.normalize(form, "dög") for form in ("NFD", "NFC"))
    for part, name in (("train", apart), ("test", whole)):
        pictures(tmp_path / part, classes=("cat", name))
    assert read(tmp_path).classes == ("cat", whole)


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names may be one there")
def test_two_folders_of_one_name_are_refused_and_none_is_lost(tmp_path):
    pictures(tmp_path, classes=[unicodedata.normalize(form, "dög") for form in ("NFD", "NFC")])
    refused(tmp_path, "two folders", "'dög'")


def test_hidden_files_are_passed_over_and_others_are_named_once(pets):
    for name in (".DS_Store", "cat/.DS_Store", "cat/Thumbs.db", "cat/._1.png", "desktop.ini"):
        (pets / name).write_bytes(b"no picture")
    (pets / ".git" / "deep").mkdir(parents=True)
    (pets / "__MACOSX").mkdir()
    assert len(read(pets).train.y) == 18
    for name in ("README", "cat/notes.txt", "cat/1.gif", "dög/labels.csv"):
        (pets / name).write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="passed over") as caught:
        assert len(data.from_folder(pets).train.y) == 18
    assert len(caught) == 1
    assert caught[0].filename == __file__
    one_sentence(caught[0].message, pets / "README", "and 1 more")


@posix
def test_links_are_followed(pets, tmp_path):
    (tmp_path / "other").mkdir()
    (pets / "cat").rename(tmp_path / "other" / "cat")
    (pets / "cat").symlink_to(tmp_path / "other" / "cat")
    (pets / "cat" / "10.png").symlink_to(pets / "dög" / "1.png")
    assert_array_equal(read(pets, validation=0).train.X[2, 0], GREYS[1, 1])  # after 0.png, 1.png


def test_a_tilde_is_the_readers_home(pets, monkeypatch):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(pets.parent))
    assert read("~/pets").name == "pets"


def test_folders_that_say_nothing_are_refused_in_one_sentence(pets, tmp_path):
    refused(pets / "cat", "0.png", "and 7 more", "in no class")
    refused(tmp_path, pets / "cat", "the folder above the classes")
    (pets / "empty").mkdir()
    refused(pets, pets / "empty", "no pictures")
    refused(pets / "empty", "no folders in it")
    put(pets / "empty" / "deep" / "1.png", GREYS[0, 0])
    refused(pets, pets / "empty" / "deep", "straight into")
    shutil.rmtree(pets / "empty")
    shutil.rmtree(pets / "cat")
    refused(pets, "one class alone, 'dög'")


def test_parts_that_do_not_fit_are_refused_in_one_sentence(tmp_path):
    pictures(tmp_path / "train")
    pictures(tmp_path / "test", classes=("cat", "eel"))
    refused(tmp_path, "test", "'eel'")
    pictures(tmp_path / "dev")
    refused(tmp_path, tmp_path / "dev", "validation and test")
    (tmp_path / "dev").rename(tmp_path / "val")
    pictures(tmp_path / "valid")
    refused(tmp_path, tmp_path / "valid", "once")
    shutil.rmtree(tmp_path / "valid")
    shutil.rmtree(tmp_path / "test")
    pictures(tmp_path / "test", classes=("inputs", "targets"))
    refused(tmp_path, "inputs and targets")
    put(tmp_path / "1.png", GREYS[0, 0])
    shutil.rmtree(tmp_path / "test")
    refused(tmp_path, tmp_path / "1.png", "in no part")


@pytest.mark.parametrize("path", ["nowhere", "file"])
def test_what_is_no_folder_is_told(path, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises((FileNotFoundError, NotADirectoryError)) as caught:
        data.from_folder(tmp_path / path)
    one_sentence(caught.value, tmp_path / path, "folder")


# What is in a file


@pytest.mark.parametrize("name", ["x.png", "x.PNG", "x.jpg", "x.JPEG", "cat.1.Jpg", "ж 10%.png"])
def test_any_ending_will_do_and_the_content_says_what_it_is(name, tmp_path):
    for kind in ("PNG", "JPEG"):
        put(tmp_path / "cat" / name, np.full((8, 6), 77, np.uint8), format=kind)
        put(tmp_path / "dog" / name, np.full((8, 6), 7, np.uint8), format=kind)
        assert_allclose(read(tmp_path, validation=0).train.X[:, 0, 4, 3], [77, 7], atol=1)


def test_pictures_are_grey_where_all_are(pets):
    put(pets / "cat" / "0.png", COLOURS[0, 0])
    found = read(pets, validation=0)
    assert_array_equal(found.train.X[0], COLOURS[0, 0].transpose(2, 0, 1))
    assert_array_equal(found.train.X[1], np.stack(3 * [GREYS[0, 1]]))
    grey = read(pets, validation=0, grey=True)
    assert_array_equal(grey.train.X[1, 0], GREYS[0, 1])
    luma = COLOURS[0, 0] @ [0.299, 0.587, 0.114]  # ITU-R BT.601
    assert_allclose(grey.train.X[0, 0], luma, atol=1)
    assert read(pets / ".." / "pets", grey=False).train.X.shape == (18, 3, 8, 6)


def modes():
    """Yield a picture in each mode, with what it shows: (height, width, 3)."""
    colours = Image.fromarray(COLOURS[0, 0])
    yield "palette", colours.quantize(48, method=Image.Quantize.MAXCOVERAGE), None
    yield "black and white", Image.fromarray(GREYS[0, 0] > 99), np.where(GREYS[0, 0] > 99, 255, 0)
    deep = Image.fromarray(GREYS[0, 0].astype(np.uint16) * 257)
    yield "16 bits", deep, GREYS[0, 0]
    clear = GREYS[0, 0] > 99
    for kind, pixels in (("L", GREYS[0, 0]), ("RGB", COLOURS[0, 0])):
        picture = Image.fromarray(pixels)
        picture.putalpha(Image.fromarray(np.where(clear, 255, 0).astype(np.uint8)))
        shown = np.where(clear if kind == "L" else clear[..., None], pixels, 255)
        yield f"{kind} and transparency", picture, shown


@pytest.mark.parametrize(("picture", "shown"), [pytest.param(*each[1:], id=each[0]) for each in modes()])
def test_any_mode_becomes_bytes(picture, shown, tmp_path):
    picture.save(tmp_path / "x.png")
    shown = np.asarray(picture.convert("RGB")) if shown is None else shown
    found = read_picture(tmp_path / "x.png", grey=False)
    assert_array_equal(found.transpose(1, 2, 0), shown if shown.ndim == 3 else np.stack(3 * [shown], axis=2))
    if shown.ndim == 2:
        assert_array_equal(read_picture(tmp_path / "x.png", grey=True)[0], shown)


def test_a_palette_with_a_transparent_colour_is_on_white(tmp_path):
    picture = Image.fromarray((GREYS[0, 0] > 99).astype(np.uint8), "P")
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.save(tmp_path / "x.png", transparency=0)
    found = read_picture(tmp_path / "x.png", grey=False)
    assert_array_equal(found[2], np.where(GREYS[0, 0] > 99, 60, 255))


def test_printers_colours_are_ours(tmp_path):
    colours = np.broadcast_to(np.uint8([200, 100, 50]), (8, 6, 3))
    Image.fromarray(colours).convert("CMYK").save(tmp_path / "x.jpg", quality=100)
    assert_allclose(read_picture(tmp_path / "x.jpg", grey=False).transpose(1, 2, 0), colours, atol=3)


@pytest.mark.parametrize("name", ["x.jpg", "x.png"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_lies_as_its_camera_says(orientation, name, tmp_path):
    """Orientations as in Exif 2.3: the first row of the file is the side of the scene that is named there."""
    scene = np.kron(np.uint8([[0, 90], [180, 255], [40, 140]]), np.ones((8, 8), np.uint8))
    as_stored = (
        lambda a: a, np.fliplr, lambda a: np.rot90(a, 2), np.flipud,
        lambda a: a.T, np.rot90, lambda a: np.rot90(a.T, 2), lambda a: np.rot90(a, -1),
    )[orientation - 1]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    for folder in ("cat", "dog"):
        put(tmp_path / folder / name, np.ascontiguousarray(as_stored(scene)), exif=exif, quality=100)
    put(tmp_path / "dog" / "plain.png", scene)  # of the same size, once they are turned
    assert_allclose(read(tmp_path, validation=0).train.X[0, 0], scene, atol=3)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20))
def test_a_size_is_covered_and_the_middle_cut_out(tmp_path_factory, height, width, new_height, new_width):
    path = tmp_path_factory.mktemp("size") / "x.png"
    down, across = np.linspace(0, 250, height)[:, None], np.linspace(0, 250, width)
    put(path, np.stack([down + 0 * across, 0 * down + across, 0 * (down + across) + 9], axis=2).astype(np.uint8))
    found = read_picture(path, False, (new_height, new_width))
    assert found.shape == (3, new_height, new_width)
    assert (found[2] == 9).all()
    for shown, length, other, new, new_other in (
        (found[0, :, 0], height, width, new_height, new_width),
        (found[1, 0], width, height, new_width, new_height),
    ):
        assert np.all(np.diff(shown.astype(int)) >= 0)
        assert abs(int(shown[0]) + int(shown[-1]) - 250) <= 4 + 250 * (min(length, new) < 3)  # the same on both sides
        if length * new_other <= other * new and length > 1 and new > 4 * length:  # nothing is cut here
            assert (shown[0], shown[-1]) == (0, 250)


def test_sizes_that_differ_are_named_where_no_size_is_asked_for(pets):
    odd = put(pets / "dög" / "odd.png", GREYS[0, 0].T.copy())
    refused(pets, "2 sizes", "8 x 6", "6 x 8", odd, "say size=")
    assert read(pets, size=4).train.X.shape == (19, 1, 4, 4)
    assert read(pets, size=(3, 5)).train.X.shape == (19, 1, 3, 5)


@pytest.mark.parametrize("size", [(3,), (3, 4, 5), 0, -1, 2.5, "8", ("8", 8), []])
def test_what_is_no_size_is_refused_in_one_sentence(size, made):
    with pytest.raises((TypeError, ValueError)) as caught:
        data.from_folder(made, size=size)
    one_sentence(caught.value, "size")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"grey": "no"}, TypeError, "grey must be True or False"),
        ({"validation": 1.5}, ValueError, "validation"),
        ({"validation": "0.1"}, ValueError, "validation"),
        ({"validation": 0.6, "test": 0.6}, ValueError, "nothing to train on"),
        ({"validation": 0.01}, ValueError, "is nothing here"),
        ({"seed": None}, TypeError, "seed"),
    ],
)
def test_what_is_no_choice_is_refused_in_one_sentence(options, error, match, made):
    with pytest.raises(error, match=match) as caught:
        data.from_folder(made, **options)
    one_sentence(caught.value)


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def cut_in_its_header(path):
    path.write_bytes(path.read_bytes()[:30])


def emptied(path):
    path.write_bytes(b"")


def flipped(path):
    content = bytearray(path.read_bytes())
    content[60] ^= 255
    path.write_bytes(content)


def a_page(path):
    path.write_bytes(b"<html>Log in</html>")


def a_gif(path):
    Image.fromarray(GREYS[0, 0]).save(path, "GIF")


def a_wide_lie(path):
    """A header of 30,000 x 30,000 pixels."""
    Image.new("1", (30_000, 30_000)).save(path, "PNG")


def a_little_less_of_a_lie(path):
    Image.new("1", (30_000, 4_000)).save(path, "PNG")


def a_link_to_nowhere(path):
    path.unlink()
    path.symlink_to("nowhere")


def a_link_to_itself(path):
    path.unlink()
    path.symlink_to(path.name)


def a_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = (cut, cut_in_its_header, emptied, flipped, a_page, a_gif, a_wide_lie, a_little_less_of_a_lie)
NO_FILES = [pytest.param(each, marks=posix) for each in (a_link_to_nowhere, a_link_to_itself, a_device, a_pipe)]


@pytest.mark.parametrize("damage", [*DAMAGE, *NO_FILES], ids=lambda each: each.__name__)
def test_what_can_not_be_read_is_named(damage, pets):
    damage(pets / "cat" / "4.png")
    for size in (None, 4):
        refused(pets, pets / "cat" / "4.png", "mend or remove it", size=size)


def test_all_that_can_not_be_read_are_named_at_once(pets):
    for i in range(5):
        cut(pets / "dög" / f"{i}.png")
    refused(pets, *(pets / "dög" / f"{i}.png" for i in range(3)), "and 2 more", "remove them")


def test_a_picture_of_30000_pixels_width_is_a_picture(pets):
    put(pets / "cat" / "wide.png", np.zeros((3, 30_000), np.uint8))
    refused(pets, "3 x 30000", "say size=")
    assert read(pets, size=4).train.X.shape == (19, 1, 4, 4)


def test_pillows_limit_is_the_readers_to_change(pets, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 47)
    refused(pets, "47 pixels")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert len(read(pets).train.y) == 18


@posix
def test_more_than_there_is_memory_is_refused_before_it_is_taken(pets, monkeypatch):
    refused(pets, "GiB", "smaller size=", size=(10**6, 10**6))
    monkeypatch.setattr(module, "np", None)  # no array is made either, where a header is wrong
    a_page(pets / "cat" / "4.png")
    refused(pets, "4.png", validation=0)


@given(st.data())
def test_a_flipped_or_missing_byte_is_refused_or_a_picture(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flipped") / f"x.{data.draw(st.sampled_from(['png', 'jpg']))}"
    exif = Image.Exif()
    exif[0x0112] = 6
    put(path, COLOURS[0, 0], exif=exif, icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    path.write_bytes(damaged(path.read_bytes(), data.draw))
    try:
        found = read_picture(path, grey=False)
    except ValueError as error:
        one_sentence(error)
    else:
        assert (found.dtype, len(found)) == (np.uint8, 3)

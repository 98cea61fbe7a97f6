"""Pictures with boxes as Pascal VOC's are read whole, and what is hostile in an XML file is refused in a sentence."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from shared import one_sentence

from experiments.find.voc import from_voc

ONE = """<annotation><object><name>{name}</name><difficult>{difficult}</difficult><bndbox>
<xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object></annotation>"""


@pytest.fixture
def folder(tmp_path):
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a\nb\n")
    (tmp_path / "ImageSets/Main/test.txt").write_text("c\n")
    for name in "abc":
        pixels = np.full((40, 80, 3), (200, 10, 10), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"JPEGImages/{name}.jpg", quality=95)
        write(tmp_path, name)
    return tmp_path


def write(folder, file, name="cell", difficult=0, box=(11, 1, 20, 40)):
    (folder / f"Annotations/{file}.xml").write_text(ONE.format(name=name, difficult=difficult, box=box))


def test_pictures_and_boxes_are_stretched_together(folder):
    write(folder, "b", "nucleus", box=(1, 1, 80, 40))
    found = from_voc(folder, size=(20, 20))
    assert found.classes == ("cell", "nucleus")
    assert found.validation is None
    assert found.train.X.shape == (2, 3, 20, 20)
    assert_allclose(found.train.X[0, :, 5, 5], (200, 10, 10), atol=4)
    assert_array_equal(found.train.y[0], [[0, 2.5, 0, 5, 20]])  # pixels 11 to 20 of 80 are edges 10 and 20
    assert_array_equal(found.train.y[1], [[1, 0, 0, 20, 20]])


def test_a_box_of_no_width_is_left_out_with_a_warning_and_a_difficult_object_without(folder):
    write(folder, "a", box=(30, 5, 30, 20))
    write(folder, "b", difficult=1)
    with pytest.warns(UserWarning, match="1 boxes without width or height"):
        found = from_voc(folder, size=(20, 20))
    assert (found.train.y[..., 0] == -1).all()


def test_a_box_outside_of_its_picture_is_left_out_with_a_warning_too(folder):
    write(folder, "a", box=(100, 50, 120, 70))
    write(folder, "b", box=(-20, -20, 500, 500))
    with pytest.warns(UserWarning, match="1 boxes without width or height"):
        found = from_voc(folder, size=(20, 20))
    assert_array_equal(found.train.y[:, 0], [[-1] * 5, [0, 0, 0, 20, 20]])


def test_a_picture_of_another_size_than_its_annotation_says_is_refused(folder):
    path = folder / "Annotations/a.xml"
    text = path.read_text().replace("<object>", "<size><width>{}</width><height>{}</height></size><object>")
    for sides in ((80, 40), (0, 0)):  # 0 where nobody knew
        path.write_text(text.format(*sides))
        assert len(from_voc(folder, size=(20, 20)).train.y) == 2
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera's picture that stands, with boxes on one that lies
    Image.new("RGB", (80, 40)).save(folder / "JPEGImages/a.jpg", exif=exif)
    for sides in ((80, 40), (81, 80)):
        path.write_text(text.format(*sides))
        with pytest.raises(ValueError, match=rf"a\.jpg has 40 x 80 pixels.*{sides[0]} x {sides[1]}") as caught:
            from_voc(folder, size=(20, 20))
        one_sentence(caught.value)
    path.write_text(text.format(40, 80))
    from_voc(folder, size=(20, 20))


@pytest.mark.parametrize(
    ("names", "size", "reason"),
    [
        (b"\xff\xfe", (20, 20), r"train\.txt is no text in UTF-8"),
        (b"a\0b", (20, 20), "no file's name"),
        (b"a", (20, 20, 20), r"size must be \(height, width\)"),
        (b"a", (10**7, 10**7), "this machine has"),
    ],
)
def test_odd_lists_and_sizes_are_refused_in_a_sentence(folder, names, size, reason):
    (folder / "ImageSets/Main/train.txt").write_bytes(names)
    with pytest.raises(ValueError, match=reason):
        from_voc(folder, size=size)


def test_a_list_as_windows_writes_it_is_read(folder):
    (folder / "ImageSets/Main/train.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert len(from_voc(folder, size=(20, 20)).train.y) == 2


BOMB = '<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;&x;&x;">]><annotation>&z;</annotation>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB.encode(), "document type"),
        (BOMB.encode("utf-16"), "document type"),
        (OUTSIDE.encode(), "document type"),
        (b"<annotation>", "no element found"),
        (b"", "no element found"),
        (b"\xff\x00\x01", "no annotation"),
        (b"<html></html>", "no annotation of at most"),
        (b"<annotation>" + b"<object/>" * 1001 + b"</annotation>", "at most 1,000 objects"),
        (b"<annotation>" + b" " * 2**20 + b"</annotation>", "more than 1,048,576 bytes"),
        (b"<annotation><object><name>a</name></object></annotation>", "an object needs a name"),
        (ONE.format(name="a", difficult=0, box=("nan", 1, 2, 3)).encode(), "an object needs"),
        (ONE.format(name="a", difficult=0, box=("1e99", 1, 2, 3)).encode(), "an object needs"),
        (ONE.format(name="a", difficult=0, box=("one", 1, 2, 3)).encode(), "could not convert"),
    ],
)
def test_hostile_and_odd_annotations_are_refused_in_a_sentence(folder, text, reason):
    (folder / "Annotations/a.xml").write_bytes(text)
    with pytest.raises(ValueError, match=reason) as refused:
        from_voc(folder, size=(20, 20))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "a\\b"])
def test_lists_name_files_of_the_folder_alone(folder, name):
    (folder / "ImageSets/Main/train.txt").write_text(name)
    with pytest.raises(ValueError, match="no file's name"):
        from_voc(folder, size=(20, 20))


def test_a_broken_picture_and_a_missing_one_are_named(folder):
    (folder / "JPEGImages/a.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"a\.jpg: no PNG or JPEG"):
        from_voc(folder, size=(20, 20))
    (folder / "JPEGImages/a.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.jpg"):
        from_voc(folder, size=(20, 20))
    with pytest.raises(FileNotFoundError):
        from_voc(folder / "nowhere", size=(20, 20))

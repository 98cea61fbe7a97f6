"""Photographs as arrays, each of its own size: those that come along, or a folder of the reader's own."""

from collections import Counter
from itertools import chain
from pathlib import Path

from mlpkit.checks import check_count, check_flag
from mlpkit.paths import expanded
from mlpkit.words import short_sentences

from .own.reading.listing import check_memory, look_inside, read_each
from .own.reading.picture import look_at, read_picture

DEEPEST = 100  # of folders in folders
PHOTOS = Path(__file__).resolve().parents[2] / "data" / "photos"  # who took them: README.md there


@short_sentences()
def pictures(folder=PHOTOS, *, grey=False, longest=None):
    """Return the PNG and JPEG pictures in a folder by name, sorted: uint8 (channels, height, width), three or one.

    folder: without one, the photographs that come along. What is in folders below counts as well, under its path.
    grey: True for one channel, Pillow's luma; None for one where a picture is grey, and three where it is not.
    longest: pixels that the longer side may have; what has more is shrunk, by Pillow's bicubic filter. A picture lies
    as its camera says (Exif), and on white where it is transparent; 16 bits become 8. Other files are passed over.

    Raises OSError for a folder that can't be read, ValueError for one without pictures, and, with names, for what is
    no picture, damaged, or above Pillow's limit of pixels.
    """
    folder, grey = expanded(folder), grey if grey is None else check_flag("grey", grey)
    longest = longest if longest is None else check_count("longest", longest)
    paths = list(_below(folder))
    if not paths:
        raise ValueError(f"{folder} has no pictures in it (PNG or JPEG): put some there, or choose another one.")
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    (name, count), *_ = Counter(names).most_common(1)
    if count > 1:
        raise ValueError(f"{folder} has more than one picture called {name}: leave one of them.")
    looks = dict(read_each(look_at, paths))  # all are looked at before there is memory for any
    scales = {path: min(1, longest / max(size)) if longest else 1 for path, (size, _) in looks.items()}
    size = sum(int(height * width * scales[path] ** 2) for path, ((height, width), _) in looks.items())
    check_memory(size * (1 if grey else 3), f"the {len(paths):,} pictures in {folder}", "say a smaller longest=")
    read = read_each(lambda path: read_picture(path, looks[path][1] if grey is None else grey, longest=longest), paths)
    return {name: pixels for name, (_, pixels) in zip(names, read, strict=True)}


def _below(folder, above=frozenset()):
    folders, files = look_inside(folder, [])
    above |= {folder.resolve()}  # a link that leads back there would go round and round
    if len(above) > DEEPEST:
        raise ValueError(f"{folder} is more than {DEEPEST} folders deep: choose one of those below.")
    return chain(files, *(_below(each, above) for each in folders.values() if each.resolve() not in above))

"""A folder of pictures, which says by its folders what they show.

folder/cat/1.png              each folder is a class
folder/train/cat/1.png        as above, already parted: train, validation (or val, valid), test
folder/inputs/1.png           a picture, and below `targets`, under the same name, what is to come of it
"""

import unicodedata
import warnings
from itertools import chain
from math import prod
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_flag, check_sizes
from mlpkit.data.dataset import Dataset, Split
from mlpkit.paths import expanded
from mlpkit.words import short_sentences

from .reading.listing import check_memory, look_inside, named, read_each
from .reading.picture import look_at, read_picture
from .reading.targets import check_shares, drawn

PARTS = {"train": "train", "validation": "validation", "val": "validation", "valid": "validation", "test": "test"}
PAIR = {"inputs", "targets"}


class _Listed(NamedTuple):
    """The files of one part: its pictures, and either their classes or their target pictures."""

    pictures: list[Path]
    classes: list[str]
    targets: list[Path]


@short_sentences()
def from_folder(folder, *, size=None, grey=None, validation=0.1, test=0.0, seed=0, name=None):
    """Return the `Dataset` of the PNG and JPEG pictures in a folder, X (n, channels, height, width) uint8.

    folder: see above. y are labels (n,), and the classes the folders' names, sorted; of pairs y are the targets, uint8
    as X. size: (height, width), or one number for both: each picture is scaled until it just covers that, by Pillow's
    bilinear filter, and the middle is cut out; without it all must have one size. grey: True for one channel, False for
    red, green and blue; without it grey where all are. validation, test: shares that are drawn from the seed, of each
    class as large a one, where there is no folder of that name; of 0 the part is None.

    A picture lies as its camera says (Exif), and on white where it is transparent; 16 bits become 8. Hidden files are
    passed over, and with a warning all others that are no PNG or JPEG by their name. Raises OSError for a folder that
    can't be read, ValueError, with names, for what is no picture, damaged, above Pillow's limit of pixels, of another
    size, without partner, deeper in folders, or of one class alone.
    """
    folder = expanded(folder)
    size = size if size is None else _height_and_width(size)
    grey = grey if grey is None else check_flag("grey", grey)
    check_shares(shares := {"validation": validation, "test": test})
    strays: list[Path] = []
    parts = _listed(folder, strays)
    classes = tuple(sorted(set(parts["train"].classes)))
    _check_classes(folder, parts, classes)
    parts |= _cut(parts["train"], {part: share for part, share in shares.items() if part not in parts}, seed)
    X = _read({part: listed.pictures for part, listed in parts.items()}, size, grey)
    if parts["train"].targets:
        y = _read({part: listed.targets for part, listed in parts.items()}, size, grey)
    else:
        number = {each: label for label, each in enumerate(classes)}
        y = {part: np.array([number[each] for each in listed.classes], np.int64) for part, listed in parts.items()}
    if strays:
        warnings.warn(f"{named(strays)} passed over: no PNG or JPEG by name.", UserWarning, stacklevel=3)
    splits = {part: Split(X[part], y[part]) for part in parts}
    return Dataset(name or folder.name, splits["train"], splits.get("validation"), splits.get("test"), classes)


def _height_and_width(size):
    sizes = check_sizes([size, size] if isinstance(size, Integral) else size, least=1)
    if len(sizes) != 2:
        raise ValueError(f"size must be (height, width), or one number for both, not {size!r}.")
    return sizes


def _listed(folder, strays):
    """Return what is listed of each part."""
    folders, files = look_inside(folder, strays)
    if "train" not in folders:
        return {"train": _part(folder, folders, files, strays)}
    found: dict[str, _Listed] = {}
    for each, path in folders.items():
        if each not in PARTS or PARTS[each] in found:
            raise ValueError(f"{path} stands beside {folder / 'train'}, where validation and test may stand, once.")
        inside, pictures = look_inside(path, strays)
        found[PARTS[each]] = _part(path, inside, pictures, strays)
    if files:
        raise ValueError(f"{named(files)} in {folder} are in no part: put them into folders of train, or of test.")
    if len({bool(listed.targets) for listed in found.values()}) > 1:
        raise ValueError(f"some parts of {folder} have inputs and targets, and others classes: choose one.")
    return found


def _part(folder, folders, files, strays):
    if files:
        raise ValueError(f"{named(files)} in {folder} are in no class: put each into a folder, named by what it shows.")
    if not folders:
        raise ValueError(f"{folder} has no folders in it: each class is one, with its pictures.")
    inside = {name: _pictures(path, strays) for name, path in folders.items()}
    if set(folders) == PAIR:
        return _paired(folder, inside)
    classes = [name for name, pictures in inside.items() for _ in pictures]
    return _Listed(list(chain(*inside.values())), classes, [])


def _pictures(folder, strays):
    folders, files = look_inside(folder, strays)
    if folders:
        raise ValueError(
            f"{folder} has folders in it ({named(folders.values())}): put the pictures of a class straight into its "
            "folder, or give the folder above the classes."
        )
    if not files:
        raise ValueError(f"{folder} has no pictures in it (PNG or JPEG): put some there, or remove it.")
    return files


def _paired(folder, inside):
    """Return the pictures of `inputs`, each with the one of `targets` that has its name, whatever the ending."""
    by_name: dict[str, dict[str, Path]] = {"inputs": {}, "targets": {}}
    for kind, found in by_name.items():
        for path in inside[kind]:
            stem = unicodedata.normalize("NFC", path.stem)
            if stem in found:
                raise ValueError(f"{found[stem]} and {path.name} have one name: leave one of them.")
            found[stem] = path
    inputs, targets = by_name.values()
    alone = [(inputs | targets)[stem] for stem in sorted(inputs.keys() ^ targets.keys())]
    if alone:
        raise ValueError(f"in {folder} there is no partner, in inputs and targets, of {named(alone)}.")
    return _Listed(list(inputs.values()), [], [targets[stem] for stem in inputs])


def _check_classes(folder, parts, classes):
    for part, listed in parts.items():
        if strange := set(listed.classes) - set(classes):
            raise ValueError(f"{part} in {folder} has {min(strange)!r}, which is not among the classes to train on.")
    if len(classes) == 1:
        raise ValueError(f"{folder} has one class alone, {classes[0]!r}: there is nothing to tell apart.")


def _cut(train, shares, seed):
    """Return `train` without what was drawn from it, and what was drawn, by part."""
    if not any(shares.values()):
        return {}
    numbers = np.unique(train.classes, return_inverse=True)[1] if train.classes else np.zeros((len(train.pictures), 1))
    cut = drawn(numbers, shares, seed).items()
    return {part: _Listed(*([of[row] for row in rows] if of else [] for of in train)) for part, rows in cut}


def _read(parts, size, grey):
    """Return the pictures of all parts. All are looked at before one is read, and before there is memory for any."""
    looks = dict(read_each(look_at, chain(*parts.values())))
    sizes = {found: path for path, (found, _) in looks.items()}
    if len(sizes) > 1 and not size:
        told = " and ".join(f"{height} x {width} ({path})" for (height, width), path in list(sizes.items())[:2])
        raise ValueError(f"the pictures have {len(sizes)} sizes, height x width, such as {told}: say size=.")
    grey = all(is_grey for _, is_grey in looks.values()) if grey is None else grey
    shape = 1 if grey else 3, *(size or next(iter(sizes)))
    check_memory(len(looks) * prod(shape), f"{len(looks):,} pictures of {shape[1]} x {shape[2]}", "say a smaller size=")
    found = {part: np.empty((len(paths), *shape), np.uint8) for part, paths in parts.items()}
    for part, paths in parts.items():
        for row, (_, pixels) in enumerate(read_each(lambda path: _read_one(path, shape, size), paths)):
            found[part][row] = pixels
    return found


def _read_one(path, shape, size):
    pixels = read_picture(path, shape[0] == 1, size)
    if pixels.shape != shape:
        raise ValueError(f"its Exif data turn it, and then it is no longer {shape[1]} x {shape[2]}")
    return pixels

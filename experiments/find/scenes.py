"""Scenes of digits: 128 x 128 pixels of a photograph or a texture, and one to six of MNIST's digits somewhere in it.

A scene comes from its seed and its number alone: NumPy's Philox draws 64-bit integers for it, and all arithmetic is
that of integers. So every machine makes the same bits, in any order, as many as are asked for. Digits and backgrounds
of the test scenes are in no training scene.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlpkit.checks import check_choice, check_count
from mlpkit.data import load

from .varied import bent, loops, varied

EDGE, MOST, SMALLEST, LARGEST = 128, 6, 14, 56  # pixels of a scene, digits in it, pixels of a digit's longer edge
PARTS = {"train": slice(0, 12), "validation": slice(0, 12), "test": slice(12, 17)}  # of the backgrounds
PARTS |= {"varied": slice(0, 12)}  # "train" with bent digits and more kinds of backgrounds: see `varied`
INKS = {"varied": "train"}  # whose digits a part has, where these are not its own
TEST_SEED, TEST_SCENES = 2026, 2000
TEST_SHA256 = "7d368479de1fcaaf7f0f6bbf611d0dde723d680a767dd514d3c842a7d6df788c"
BACKGROUNDS = Path(__file__).resolve().parents[2] / "data" / "scenes" / "backgrounds.png"
TRIES = 20  # places that a digit is tried at, before it is left out
DRAWS = 16 + 6 * MOST * TRIES  # more than a scene needs


class Scenes(NamedTuple):
    """images (n, 1, 128, 128) uint8; truth (n, 6, 5) float32: label, left, top, right, bottom, in pixels.

    Edges lie between pixels: a box as wide as the scene goes from 0 to 128. Where no digit is, the label is -1.
    """

    images: np.ndarray
    truth: np.ndarray


def scenes(n, seed=0, part="train", first=0):
    """Return `Scenes` number first, first + 1, ..., n of them, of a seed. part: a name of PARTS.

    Raises ValueError or TypeError for another part, or what are no such numbers.
    """
    check_choice("part of the scenes", part, PARTS)
    n, seed, first = (check_count(*each, 0) for each in (("n", n), ("seed", seed), ("first", first)))
    images, truth = np.empty((n, 1, EDGE, EDGE), np.uint8), np.full((n, MOST, 5), -1, np.float32)
    for i in range(n):
        key = np.array([seed, [*PARTS].index(part)], np.uint64)
        draws = iter(np.random.Philox(key=key, counter=(first + i) << 64).random_raw(DRAWS).tolist())
        images[i, 0] = _scene(draws, part, truth[i])
    return Scenes(images, truth)


@cache
def frozen():
    """Return the 2,000 `Scenes` on which detectors are compared. Raises ValueError where they are not those bits."""
    found = scenes(TEST_SCENES, TEST_SEED, "test")
    digest = sha256(found.images.tobytes() + found.truth.astype("<f4").tobytes()).hexdigest()
    if digest != TEST_SHA256:
        raise ValueError(f"these test scenes are not those of the records, but {digest}: get data/ anew.")
    return found


def _scene(draws, part, truth):
    """Return one scene, (128, 128) uint8, and write its boxes into `truth` (6, 5)."""
    scene = _background(draws, part)
    if part in INKS:
        scene = varied(scene, draws)
    shapes, labels = getattr(_mnist(), INKS.get(part, part))
    boxes, inks, count = np.empty((MOST, 4), np.int64), np.empty((MOST, EDGE, EDGE), np.bool_), 0
    for _ in range(1 + next(draws) % MOST):
        for _ in range(TRIES):
            number, size, down, across = (next(draws) for _ in range(4))
            shape = shapes[number % len(shapes), 0]
            if part in INKS:
                shape = bent(shape, number // len(shapes))
            ink = drawn(shape, SMALLEST + size % (LARGEST - SMALLEST + 1))
            height, width = ink.shape
            top, left = down % (EDGE - height + 1), across % (EDGE - width + 1)
            box = boxes[count] = left, top, left + width, top + height
            inks[count] = False
            inks[count, top : box[3], left : box[2]] = ink >= 128
            if loops().fits(boxes[count], inks[count], boxes[:count], inks[:count]):
                loops().blend_in(scene[top : box[3], left : box[2]], ink, next(draws) % 2 == 1, next(draws) % 97)
                truth[count] = labels[number % len(labels)], *box
                count += 1
                break
    return scene.astype(np.uint8)


def _background(draws, part):
    """Return a piece of a photograph, (128, 128) int64, paler than it is; in training blended with another one.

    Twelve pictures are few: blended, no two scenes have the same, and a network can't learn them by heart. What is
    varied in so many other ways stays whole: half of it blended, too, three seeds gained nothing.
    """
    tiles, pieces = backgrounds()[PARTS[part]], []
    for _ in range(2):
        number, down, across, turn = (next(draws) for _ in range(4))
        down, across = (each % (tiles.shape[1] - EDGE + 1) for each in (down, across))
        piece = tiles[number % len(tiles), down : down + EDGE, across : across + EDGE]
        pieces.append(np.rot90(piece.T if turn & 4 else piece, turn % 4))
    contrast, share = 96 + next(draws) % 97, next(draws) % 257 if part == "train" else 256
    return loops().blended(*pieces, share, contrast)


@cache
def _mnist():
    return load()


@cache
def backgrounds():
    """Return 17 grey pictures (17, 192, 192) uint8; the last five are for tests. data/scenes says whose they are."""
    from PIL import Image

    with Image.open(BACKGROUNDS) as picture:
        return np.asarray(picture).reshape(-1, picture.width, picture.width)


def drawn(digit, size):
    """Return how much ink each pixel has, 0 to 255, of a digit (28, 28) whose longer edge becomes `size` pixels.

    Its ink fills the array, but that is at least half as wide as high, and half as high as wide: a 1 has room.
    """
    ink = loops().inked(digit)
    height, width = ((2 * size * edge + max(ink.shape)) // (2 * max(ink.shape)) for edge in ink.shape)
    rows, columns = (max(edge, (size + 1) // 2) for edge in (height, width))
    found = np.zeros((rows, columns), np.int64)
    loops().resized(ink, height, width, (rows - height) // 2, (columns - width) // 2, found)
    return found

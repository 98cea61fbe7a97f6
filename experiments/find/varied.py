"""What makes of few photographs and digits more kinds to train on: so a network learns less of them by heart.

All in integers, as in `scenes`: every machine makes the same bits.
"""

from math import isqrt

import numpy as np

COARSE = 4, 8, 16, 32  # pixels between the random values of blotches
REACH = 64  # of a line's normal: its parts are integers up to that
PLACE = 0xFFFF << 16  # the bits of a draw that are a line's place


def varied(scene, draws):
    """Return a background (h, h) int64 changed: seen nearer, as a negative, with blotches, noise, an edge, lines.

    draws: an iterator of 64-bit integers. Lines go on to the scene's edge, so none is a digit; some meet in one place,
    as the legs of a tripod do, which a detector else believes to be ones.
    """
    kinds = next(draws)
    if kinds & 1:
        scene = _nearer(scene, next(draws))
    if kinds & 2:
        scene = 255 - scene
    scene = scene.copy()
    if kinds & 12 == 0:  # one in four
        scene += _blotches(len(scene), next(draws))
    if kinds & 48 == 0:
        scene += _noise(scene.shape, next(draws))
    if kinds & 192 == 0:
        scene += _step(len(scene), next(draws))
    first = next(draws)
    for _ in range(max(0, (kinds >> 8) % 8 - 4)):  # none in five of eight, three at most
        draw = next(draws)
        _line(scene, draw ^ (draw ^ first) & PLACE if kinds & 2048 else draw, kinds & 4096)
    return np.clip(scene, 0, 255)


def slanted(digit, slant):
    """Return a digit (28, 28) uint8 whose rows are moved: the outermost by `slant` / 23 pixels, from -64 to 64."""
    rows, columns = digit.shape
    wide = np.pad(digit.astype(np.int64), [(0, 0), (4, 4)])
    moved = (2 * np.arange(rows) - rows + 1) * slant * 256 // (rows * 23) + (4 << 8)  # in 256ths, from the pad's edge
    at = (moved >> 8)[:, None] + np.arange(columns)
    at, share = np.clip(at, 0, columns + 6), (moved & 255)[:, None]
    row = np.arange(rows)[:, None]
    return ((256 - share) * wide[row, at] + share * wide[row, at + 1] + 128 >> 8).astype(np.uint8)


def _between(values, at):
    """Return values (n, ...) at places in 256ths of a step, between each two neighbours in a straight line."""
    low, share = at >> 8, (at & 255).reshape(-1, *[1] * (values.ndim - 1))
    return ((256 - share) * values[low] + share * values[low + 1]) >> 8


def _nearer(scene, draw):
    """A part of the scene, from half its edge on, becomes the scene."""
    edge = len(scene)
    part = edge // 2 + draw % (edge // 2 - 1)
    down, across = ((draw >> shift) % (edge - part) for shift in (16, 32))
    at = np.arange(edge) * ((part << 8) // edge)
    return _between(_between(scene[down : down + part + 1], at).T[across : across + part + 1], at).T


def _bytes(n, draw):
    return np.random.Philox(key=np.array([draw, 25], np.uint64)).random_raw(-(-n // 8)).view(np.uint8)[:n]


def _blotches(edge, draw):
    coarse, strength = COARSE[draw % len(COARSE)], 8 + (draw >> 8) % 41
    n = edge // coarse + 2
    values = _bytes(n * n, draw).reshape(n, n).astype(np.int64) - 128
    at = np.arange(edge) * (256 // coarse)
    return _between(_between(values, at).T, at).T * strength >> 7


def _noise(shape, draw):
    return (_bytes(shape[0] * shape[1], draw).reshape(shape).astype(np.int64) - 128) * (4 + draw % 13) >> 7


def _along(edge, draw):
    """Return of each pixel 16 times its distance from a line through the scene, and from the line's place along it.

    Both have a sign. The place is in the middle half of the scene.
    """
    across, down = draw % (2 * REACH + 1) - REACH, (draw >> 8) % (2 * REACH + 1) - REACH
    x, y = (edge // 4 + (draw >> shift) % (edge // 2) for shift in (16, 24))
    at, length = np.arange(edge), max(1, isqrt(across * across + down * down))
    right, below = at - x, (at - y)[:, None]
    return 16 * (across * right + down * below) // length, 16 * (down * right - across * below) // length


def _step(edge, draw):
    """One side of a line is brighter than the other."""
    return np.clip(_along(edge, draw)[0], -8, 8) * ((draw >> 40) % 65 - 32) >> 3


def _line(scene, draw, ends):
    """Paint a line, as thick as digits are; half of it where it ends in its place."""
    width, level = 8 + (draw >> 40) % 41, (draw >> 48) % 256  # in 16ths of a pixel, from the middle to each side
    off, along = _along(len(scene), draw)
    ink = np.clip(16 * (width + 8 - np.abs(off)), 0, 255)
    if ends:
        ink = np.minimum(ink, np.clip(16 * (along + width), 0, 255))
    scene += ink * (level - scene) // 255

"""What makes of few photographs and digits more kinds to train on: so a network learns less of them by heart.

All in integers, as in `scenes`: every machine makes the same bits.
"""

from functools import cache
from math import isqrt

import numpy as np

from . import loops as _loops

COARSE = 4, 8, 16, 32  # pixels between the random values of blotches
REACH = 64  # of a line's normal: its parts are integers up to that
PLACE = 0xFFFF << 16  # the bits of a draw that are a line's place


@cache
def loops():
    """Return the compiled loops. Numba is imported only here: who reads a record needs none."""
    from mlpkit.engines.loops.compiler import compile_loops

    return compile_loops(__name__, _loops)


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
        draw = next(draws)
        loops().add_edge(scene, _through(len(scene), draw), (draw >> 40) % 65 - 32)
    first = next(draws)
    for _ in range(max(0, (kinds >> 8) % 8 - 4)):  # none in five of eight, three at most
        draw = next(draws)
        line = _through(len(scene), draw ^ (draw ^ first) & PLACE if kinds & 2048 else draw)
        loops().add_line(scene, line, 8 + (draw >> 40) % 41, (draw >> 48) % 256, bool(kinds & 4096))
    return np.clip(scene, 0, 255)


def bent(digit, draw):
    """Return a digit (28, 28) uint8 as another hand would write it: rows are moved, then columns, along a slanted wave.

    draw: a whole number, of which 48 bits count. A slant moves the outermost rows by 64 / 23 pixels at most, columns by
    half as much; a wave moves some by 1.2 pixels more.
    """
    for most in 64, 32:
        slant, size, length, phase = draw % (2 * most + 1) - most, (draw >> 8) % 308, 1 + (draw >> 17) % 2, draw >> 18
        digit, draw = loops().moved(digit, slant, size, length, phase % 64), draw >> 24
    return digit


def _nearer(scene, draw):
    """A part of the scene, from half its edge on, becomes the scene."""
    edge = len(scene)
    part = edge // 2 + draw % (edge // 2 - 1)
    down, across = ((draw >> shift) % (edge - part) for shift in (16, 32))
    part_of_it = np.ascontiguousarray(scene[down : down + part + 1, across : across + part + 1])
    return loops().stretched(part_of_it, edge, (part << 8) // edge)


def _bytes(n, draw):
    return np.random.Philox(key=np.array([draw, 25], np.uint64)).random_raw(-(-n // 8)).view(np.uint8)[:n]


def _blotches(edge, draw):
    coarse, strength = COARSE[draw % len(COARSE)], 8 + (draw >> 8) % 41
    n = edge // coarse + 2
    values = _bytes(n * n, draw).reshape(n, n).astype(np.int64) - 128
    return loops().stretched(values, edge, 256 // coarse) * strength >> 7


def _noise(shape, draw):
    return (_bytes(shape[0] * shape[1], draw).reshape(shape).astype(np.int64) - 128) * (4 + draw % 13) >> 7


def _through(edge, draw):
    """Return a line through a place in the middle half of the scene: see `loops.distance`."""
    across, down = draw % (2 * REACH + 1) - REACH, (draw >> 8) % (2 * REACH + 1) - REACH
    x, y = (edge // 4 + (draw >> shift) % (edge // 2) for shift in (16, 24))
    return across, down, x, y, max(1, isqrt(across * across + down * down))

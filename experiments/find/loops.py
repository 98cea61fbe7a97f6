"""What is done in a scene pixel by pixel, as loops for Numba: all in integers, so every machine makes the same bits."""

import numpy as np


def blended(one, other, share, contrast):
    """Return share / 256 of one picture and the rest of the other, (h, w) int64, paler: contrast / 256 of it."""
    found = np.empty(one.shape, np.int64)
    total = 0
    for i in range(one.shape[0]):
        for j in range(one.shape[1]):
            found[i, j] = (share * np.int64(one[i, j]) + (256 - share) * np.int64(other[i, j])) // 256
            total += found[i, j]
    middle = total // found.size
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            found[i, j] = middle + (found[i, j] - middle) * contrast // 256
    return found


def stretched(values, edge, step):
    """Return values (h, w) int64 at `edge` x `edge` places, `step` 256ths of a value apart: linear between them."""
    rows = np.empty((edge, values.shape[1]), np.int64)
    for i in range(edge):
        low, share = i * step >> 8, i * step & 255
        for j in range(values.shape[1]):
            rows[i, j] = (256 - share) * values[low, j] + share * values[low + 1, j] >> 8
    found = np.empty((edge, edge), np.int64)
    for j in range(edge):
        low, share = j * step >> 8, j * step & 255
        for i in range(edge):
            found[i, j] = (256 - share) * rows[i, low] + share * rows[i, low + 1] >> 8
    return found


def moved(digit, slant, size, length, phase):
    """Return the transpose of a digit (28, 28) uint8 whose rows are moved.

    The outermost by `slant` / 23 pixels, and each along a wave of `length` periods: by `size` / 256 pixels at most.
    """
    rows, columns = digit.shape
    found = np.zeros((columns, rows), np.uint8)
    for i in range(rows):
        place = (length * i + phase) % 64
        wave = 256 - (place % 32 - 16) ** 2  # two parabolas are nearly a sine
        by = (2 * i - rows + 1) * slant * 256 // (rows * 23) + (wave * (size if place < 32 else -size) >> 8)
        first, share = by >> 8, by & 255
        for j in range(max(0, -first - 1), min(columns, columns - first)):
            left = np.int64(digit[i, j + first]) if j + first >= 0 else 0
            right = np.int64(digit[i, j + first + 1]) if j + first + 1 < columns else 0
            found[j, i] = (256 - share) * left + share * right + 128 >> 8
    return found


def inked(digit):
    """Return the part of a digit (28, 28) uint8 that has ink, of 64 at least."""
    top, bottom, left, right = digit.shape[0], 0, digit.shape[1], 0
    for i in range(digit.shape[0]):
        for j in range(digit.shape[1]):
            if digit[i, j] >= 64:
                top, bottom = min(top, i), max(bottom, i + 1)
                left, right = min(left, j), max(right, j + 1)
    return digit[top:bottom, left:right]


def tents(old, new):
    """Return (new, old) integers, some 1,024 in each row: a tent, as wide as a pixel of the coarser of both grids."""
    found = np.empty((new, old), np.int64)
    for i in range(new):
        total = 0
        for j in range(old):
            away = abs((2 * i + 1) * old - (2 * j + 1) * new)
            found[i, j] = max(2 * max(old, new) - away, 0)
            total += found[i, j]
        for j in range(old):
            found[i, j] = (found[i, j] << 10) // total
    return found


def resized(ink, height, width, down, across, found):
    """Write ink (h, w) uint8 as `height` x `width` pixels into `found`, from row `down` and column `across` on."""
    rows, columns = tents(ink.shape[0], height), tents(ink.shape[1], width)
    line = np.empty(ink.shape[1], np.int64)
    for i in range(height):
        line[:] = 0
        for k in range(ink.shape[0]):
            if rows[i, k]:
                for j in range(ink.shape[1]):
                    line[j] += rows[i, k] * ink[k, j]
        for j in range(width):
            total = 0
            for k in range(ink.shape[1]):
                total += line[k] * columns[j, k]
            found[down + i, across + j] = total >> 20


def fits(box, covers, boxes, inks):
    """Return whether a box overlaps others by at most 0.3, and 70 % of their ink stays visible, and of its own.

    box (4,), boxes (n, 4) int64; covers (h, w) bool: its ink; inks (n, h, w): theirs, the newest lies on top.
    """
    for other in boxes:
        across = min(box[2], other[2]) - max(box[0], other[0])
        down = min(box[3], other[3]) - max(box[1], other[1])
        both = max(across, 0) * max(down, 0)
        areas = (other[2] - other[0]) * (other[3] - other[1]) + (box[2] - box[0]) * (box[3] - box[1])
        if 10 * both > 3 * (areas - both):
            return False
    covered = covers.copy()
    for n in range(len(inks) - 1, -1, -1):
        hidden, all_of_it = 0, 0
        for i in range(covered.shape[0]):
            for j in range(covered.shape[1]):
                if inks[n, i, j]:
                    all_of_it += 1
                    hidden += covered[i, j]
                    covered[i, j] = True
        if 10 * hidden > 3 * all_of_it:
            return False
    return True


def blend_in(scene, ink, polarity, contrast):
    """Blend a digit into its part of a scene: brighter or darker than what lies there, by 80 to 176 of 255."""
    total = 0
    for i in range(scene.shape[0]):
        for j in range(scene.shape[1]):
            total += scene[i, j]
    step = 80 + contrast if polarity else -80 - contrast
    if not 0 <= total // scene.size + step <= 255:
        step = -step
    level = min(max(total // scene.size + step, 0), 255)
    for i in range(scene.shape[0]):
        for j in range(scene.shape[1]):
            scene[i, j] += ink[i, j] * (level - scene[i, j]) // 255


def add_edge(scene, line, strength):
    """Make one side of a line brighter than the other, in place. line: see `distance`."""
    for i in range(scene.shape[0]):
        for j in range(scene.shape[1]):
            scene[i, j] += min(max(distance(line, i, j)[0], -8), 8) * strength >> 3


def add_line(scene, line, width, level, ends):
    """Paint a line, `width` 16ths of a pixel to each side, in place; half of it where it ends in its place."""
    for i in range(scene.shape[0]):
        for j in range(scene.shape[1]):
            off, along = distance(line, i, j)
            ink = min(max(16 * (width + 8 - abs(off)), 0), 255)
            if ends:
                ink = min(ink, min(max(16 * (along + width), 0), 255))
            scene[i, j] += ink * (level - scene[i, j]) // 255


def distance(line, i, j):
    """Return 16 times the distance of a pixel from a line, and from the line's place along it, both with a sign.

    line: the two parts of its normal, the place's column and row, and the normal's length.
    """
    across, down, x, y, length = line
    return 16 * (across * (j - x) + down * (i - y)) // length, 16 * (down * (j - x) - across * (i - y)) // length

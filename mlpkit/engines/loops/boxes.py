"""Loops over boxes, left, top, right, bottom, for Numba: what an object at a time decides, and arrays can't."""

import numpy as np

BLOCK = 128  # numbers that are compared at once: of a loop of 64 LLVM makes no vectors, but 64 comparisons


def above(outputs, grids, classes, least, found):
    """Write into `found` where logits are above `least`, positions in outputs (n, m); return how many there are.

    grids (g, 4): where a grid's numbers start in each row, how many cells it has, in how many columns, and how many
    pixels wide; each has `classes` logits a cell, and then four numbers of its box. Return -1 where a number is not
    finite. Most logits are not above: a block of which none is costs a few operations on vectors.
    """
    many, (rows, width) = 0, outputs.shape
    for row in range(rows):
        for grid in range(len(grids)):
            start, cells = grids[grid, 0], grids[grid, 1]
            own = outputs[row, start : start + (classes + 4) * cells]
            for first in range(0, len(own), BLOCK):
                block, some, odd = own[first : first + BLOCK], False, False
                if len(block) == BLOCK:
                    for k in range(BLOCK):
                        value = block[np.uint64(k)]
                        some |= value > least
                        odd |= value - value != 0  # of what is not finite it is NaN
                else:
                    some = True
                    for k in range(len(block)):
                        odd |= block[k] - block[k] != 0
                if odd:
                    return -1
                if some:
                    for k in range(min(len(block), classes * cells - first)):
                        if block[k] > least:
                            found[many] = row * width + start + first + k
                            many += 1
    return many


def claims(at, width, classes, grids, claimed, positions):
    """Say of whom logits at positions `at` (k,) are, and where their boxes stand.

    Write into `claimed` (k, 3): a group, which is a class of a picture; grid; cell. Into `positions` (k, 5): where the
    logit and the four numbers of its cell's box are.
    """
    for i in range(len(at)):
        inside, grid = at[i] % width, len(grids) - 1
        while inside < grids[grid, 0]:
            grid -= 1
        cells = grids[grid, 1]
        label, cell = (inside - grids[grid, 0]) // cells, (inside - grids[grid, 0]) % cells
        claimed[i, 0], claimed[i, 1], claimed[i, 2] = at[i] // width * classes + label, grid, cell
        positions[i, 0] = at[i]
        for side in range(4):
            positions[i, 1 + side] = at[i] + (classes - label + side) * cells


def in_order(claimed, values, order, ends):
    """Write into `order` (k,) an order in which groups follow each other, in each the best first, and where each ends.

    claimed (k, 3): see `claims`; values (k, 5), of which the first counts. Of equal ones the first stays the first.
    """
    ends[:] = 0
    for i in range(len(claimed)):
        ends[claimed[i, 0]] += 1
    begin = 0
    for group in range(len(ends)):
        ends[group], begin = begin, begin + ends[group]
    for i in range(len(claimed)):  # from where a group begins to where it ends
        order[ends[claimed[i, 0]]] = i
        ends[claimed[i, 0]] += 1
    start, merged = 0, np.empty(len(order), np.int64)
    for end in ends:
        best_first(values, order[start:end], merged)
        start = end


def best_first(values, own, merged):
    """Sort numbers of rows of values (k, 5) in place, the largest in column 0 first; `merged` is as long, or longer.

    By merging halves that are sorted, of two each time as many: equal ones stay in their order.
    """
    width = 1
    while width < len(own):
        for start in range(0, len(own), 2 * width):
            middle, end = min(start + width, len(own)), min(start + 2 * width, len(own))
            left, right = start, middle
            for k in range(start, end):
                if right == end or (left < middle and values[own[left], 0] >= values[own[right], 0]):
                    merged[k] = own[left]
                    left += 1
                else:
                    merged[k] = own[right]
                    right += 1
        for k in range(len(own)):  # to compile a copy of the slice takes two seconds
            own[k] = merged[k]
        width *= 2


def decode(claimed, values, grids, order, boxes):
    """Write boxes in pixels into `boxes` (k, 4), in an order: of a middle, from its cell's, and logarithms of sides."""
    for i in range(len(order)):
        grid, cell, own = claimed[order[i], 1], claimed[order[i], 2], values[order[i], 1:]
        columns, stride = grids[grid, 2], grids[grid, 3]
        for axis in range(2):
            middle = own[axis] + 0.5 + (cell // columns if axis else cell % columns)
            reach = 0.5 * np.exp(own[2 + axis])
            boxes[i, axis], boxes[i, 2 + axis] = stride * (middle - reach), stride * (middle + reach)


def keep_best(boxes, ends, threshold, kept):
    """Greedy suppression: write into `kept` (n,) whether each box overlaps no kept one before it by more.

    boxes (n, 4) in groups, each up to one of `ends`, the best first.
    """
    start = 0
    for end in ends:
        for i in range(start, end):
            kept[i] = True
            for j in range(start, i):
                if kept[j] and overlap(boxes[j], boxes[i], False) > threshold:
                    kept[i] = False
                    break
        start = end


def decay(boxes, ends, sigma, scores):
    """Soft suppression: the best box left lowers the others' scores by `exp(-IoU^2 / sigma)`, and so on; in place."""
    start = 0
    for end in ends:
        left = np.ones(end - start, np.bool_)
        for _ in range(start, end):
            best = -1
            for i in range(start, end):
                if left[i - start] and (best < 0 or scores[i] > scores[best]):
                    best = i
            left[best - start] = False
            for i in range(start, end):
                if left[i - start]:
                    scores[i] *= np.exp(-(overlap(boxes[best], boxes[i], False) ** 2) / sigma)
        start = end


def overlap(a, b, crowd):
    """Return the IoU of two boxes, in their type; of a crowd b, what part of a lies in it."""
    zero = a[0] - a[0]
    across = max(zero, min(a[2], b[2]) - max(a[0], b[0]))
    down = max(zero, min(a[3], b[3]) - max(a[1], b[1]))
    both, area = across * down, (a[2] - a[0]) * (a[3] - a[1])
    return both / area if crowd else both / (area + (b[2] - b[0]) * (b[3] - b[1]) - both)


def claim(boxes, truth, crowds, starts, ends, thresholds, found):
    """Let each detection claim an object of its picture, the best detections first, for each threshold.

    boxes (n, 4), truth (m, 4): of one class. starts, ends (n,): which objects are in a detection's picture. found
    (thresholds, n): which object was claimed, -1 for none. Each is claimed once; a crowd, of which the IoU is the
    detection's part in it, by many, but only by who finds no other.
    """
    for t in range(len(thresholds)):
        taken = np.zeros(len(truth), np.bool_)
        for i in range(len(boxes)):
            best, at = min(thresholds[t], 1 - 1e-10), -1
            for crowd in (False, True):
                for j in range(starts[i], ends[i]):
                    if crowds[j] == crowd and (crowd or not taken[j]) and not (crowd and at >= 0 and not crowds[at]):
                        part = overlap(boxes[i], truth[j], crowd)
                        if part >= best:
                            best, at = part, j
            found[t, i] = at
            if at >= 0:
                taken[at] = True

"""Loops over boxes, left, top, right, bottom, for Numba: what an object at a time decides, and arrays can't."""

import numpy as np

BLOCK = 128  # numbers that are compared at once: of a loop of 64 LLVM makes no vectors, but 64 comparisons


def above(outputs, start, length, least, found):
    """Write into `found` where numbers from `start` on, in each row of outputs (n, m), are above `least`.

    They count from 0 in each row, and on from row to row. Return how many there are. Most are not: a block of which
    none is costs one comparison of vectors.
    """
    many = 0
    for row in range(len(outputs)):
        logits = outputs[row, start : start + length]
        for first in range(0, length, BLOCK):
            block, some = logits[first : first + BLOCK], False
            if len(block) == BLOCK:
                for k in range(BLOCK):
                    some |= block[np.uint64(k)] > least
            if some or len(block) < BLOCK:
                for k in range(len(block)):
                    if block[k] > least:
                        found[many] = row * length + first + k
                        many += 1
    return many


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

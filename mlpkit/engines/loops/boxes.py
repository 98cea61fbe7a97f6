"""Loops over boxes, left, top, right, bottom, for Numba: what an object at a time decides, and arrays can't."""

import numpy as np

BLOCK = 128  # numbers that are compared at once: of a loop of 64 LLVM makes no vectors, but 64 comparisons


def above(outputs, start, logits, length, least, found, many):
    """Append to `found`, of which `many` are there, where logits are above `least`; return how many there are then.

    outputs (n, m): in each row the `length` numbers from `start` on are looked at, of which the first `logits` are
    such. found: positions in all of outputs. Return -1 where a number is not finite. Most logits are not above: a block
    of which none is costs a few operations on vectors.
    """
    rows, width = outputs.shape
    for row in range(rows):
        own = outputs[row, start : start + length]
        for first in range(0, length, BLOCK):
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
                for k in range(min(len(block), logits - first)):
                    if block[k] > least:
                        found[many] = row * width + start + first + k
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

"""What the 32 threads of a warp touch at once, and what it costs: sectors, cache lines, turns of shared memory's banks.

Memory is moved in sectors of 32 bytes, of which a line of the caches has four. Shared memory is spread over 32 banks,
number after number; each bank answers with one number of four bytes a turn, for any number of threads that want it.

`touched` says for each of the `RUNGS` which numbers of A, B and C are a thread's, its warp's, its block's.
"""

from dataclasses import dataclass

import numpy as np

from .rungs import RUNGS

WARP = 32
SECTOR, LINE = 32, 128  # bytes
BANKS = 32
NOBODY, BLOCKS, UNASKED, WARPS, THREADS = range(5)  # whose a number is; the later covers the earlier


# What it costs


def sectors(numbers, size=4):
    """Return how many sectors hold these numbers, given as their places in an array. size: bytes of a number."""
    return len(np.unique(np.asarray(numbers) * size // SECTOR))


def lines(numbers, size=4):
    """Return how many lines of the caches hold these numbers, given as their places in an array."""
    return len(np.unique(np.asarray(numbers) * size // LINE))


def turns(numbers):
    """Return how many turns shared memory needs, at least, for numbers of four bytes, given as their places."""
    return int(np.bincount(np.unique(numbers) % BANKS).max())


# Who touches what


@dataclass(frozen=True)
class Hand:
    """What a thread handles in a block's tile: rows and columns of C, and of A and B those that it reads in a step."""

    rows: np.ndarray
    columns: np.ndarray
    a_ks: np.ndarray
    b_ks: np.ndarray
    b_columns: np.ndarray


def _hand(rows, columns, ks=0, b_columns=None):
    b_columns = columns if b_columns is None else b_columns
    return Hand(*(np.atleast_1d(np.asarray(numbers, int)) for numbers in (rows, columns, ks, ks, b_columns)))


def _strided(thread):
    y, x = divmod(thread, 16)
    each = 16 * np.arange(8)
    return _hand(y + each, x + each)


def _fours(at, count, step):
    """Return `count` groups of four neighbours, `step` apart, the first from `at` on."""
    return np.ravel(at + step * np.arange(count)[:, None] + np.arange(4))


def _corner(thread):
    """Return the row and the column where the tile of 64 x 64 of the thread's warp begins, and its number in it."""
    warp, lane = divmod(thread, WARP)
    return warp // 4 * 64, warp % 4 * 64, lane


def _pipelined(thread):
    row, column, lane = _corner(thread)
    return _hand(row + _fours(4 * (lane // 4), 2, 32), column + _fours(4 * (lane % 4), 4, 16))


def _tensor(thread, ks):
    """Return what a thread holds of the pieces of `mma.sync`, m16n8: each 16 x 8 numbers of C."""
    row, column, lane = _corner(thread)
    g, t = divmod(lane, 4)
    pieces = 8 * np.arange(8)  # halves of four pieces down, eight pieces across
    return _hand(
        row + g + pieces, column + np.ravel(pieces[:, None] + 2 * t + np.arange(2)), ks(t), column + g + pieces
    )


def _wgmma(thread):
    """Return the sums of a thread, in two rows of its warp's. It reads nothing of A and B: the instruction does."""
    warp, lane = divmod(thread, WARP)
    g, t = divmod(lane, 4)
    rows = [16 * warp + g, 16 * warp + g + 8] if warp < 8 else []  # the ninth warp only asks for copies
    return _hand(rows, np.ravel(8 * np.arange(32)[:, None] + 2 * t + np.arange(2)), [])


def _slices(thread):
    warp, lane = divmod(thread, WARP)
    ks = _fours(4 * (4 * warp + lane % 4), 1, 0)
    return _hand(_fours(lane // 16 * 4, 1, 0), _fours(lane // 4 % 4 * 4, 1, 0), ks)


HANDS = {
    "naive": lambda thread: _hand(thread % 32, thread // 32),
    "coalesced": lambda thread: _hand(thread // 32, thread % 32),
    "shared": lambda thread: _hand(thread // 32, thread % 32),
    "registers": _strided,
    "vectors": lambda thread: _hand(_fours(4 * (thread // 16), 2, 64), _fours(4 * (thread % 16), 2, 64)),
    "pipelined": _pipelined,
    "tf32": lambda thread: _tensor(thread, lambda t: np.array([t, t + 4])),
    "bf16": lambda thread: _tensor(thread, lambda t: np.array([2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9])),
    "slices": _slices,
    "wgmma": _wgmma,
}
# How many k are drawn, and how many of them a block has at hand in a step.
DEPTHS = {
    "naive": (32, 1),
    "coalesced": (32, 1),
    "shared": (32, 32),
    "registers": (8, 8),
    "vectors": (8, 8),
    "pipelined": (8, 8),
    "tf32": (16, 16),
    "bf16": (64, 64),
    "slices": (64, 64),
    "wgmma": (64, 64),
}


def touched(name, thread=5):
    """Return whose the numbers are, in a step of a rung: three arrays of `NOBODY` ... `THREADS`, by "A", "B" and "C".

    A (rows of the block's tile, k), B (k, columns of the tile), C the tile. A step: what a thread multiplies together
    before it reads again. Where it reads from memory, `UNASKED` numbers come along in the sectors of those of its warp.
    """
    (rows, columns), (shown, resident) = RUNGS[name].tile, DEPTHS[name]
    A, B, C = (np.full(shape, NOBODY) for shape in ((rows, shown), (shown, columns), (rows, columns)))
    A[:, :resident] = B[:resident] = C[:] = BLOCKS
    first = thread // WARP * WARP
    warp = [HANDS[name](other) for other in range(first, first + WARP)]
    if resident == 1:
        for hand in warp:
            A[hand.rows, :8] = B[0, hand.b_columns // 8 * 8 + np.arange(8)] = UNASKED
    for whose, hands in ((WARPS, warp), (THREADS, [HANDS[name](thread)])):
        for hand in hands:
            A[np.ix_(hand.rows, hand.a_ks)] = whose
            B[np.ix_(hand.b_ks, hand.b_columns)] = whose
            C[np.ix_(hand.rows, hand.columns)] = whose
    return {"A": A, "B": B, "C": C}

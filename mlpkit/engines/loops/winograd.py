"""Winograd's convolution of SIMD batches: a 3 x 3 kernel at stride 1, with 36 products where the formula has 144.

A tile of 6 x 6 numbers gives 4 x 4 results. With matrices A, B, G of small numbers, which depend on nothing else, they
are `A' ((G w G') * (B' x B)) A`, the product in the middle number by number: F(4 x 4, 3 x 3) of Lavin and Gray (2016),
whose matrices these are. Over channels and tiles the middle is 36 matrix products. All of it is linear in w and in x,
so the gradients are the same matrices the other way round: of x, `B (U * dM) B'`, and of w, `G' (V * dM) G`, with
`U = G w G'`, `V = B' x B` and `dM = A dz A'`.

The price: rounding errors several times as large, since the matrices have numbers such as 8 and 1/24 side by side; and
tiles that reach beyond the results, whose rest is thrown away.
"""

from functools import partial

import numpy as np
from llvmlite import ir

from .compiler import compiled
from .simd import ADDRESS, BYTES, INDEX, address, written
from .simd_batch import (
    ROWS,
    SLOPE_ROWS,
    add_slopes,
    aligned,
    block_elements,
    copy,
    multiply,
    piece_of,
    places_of,
    rows_of,
    slope_blocks,
    whole_blocks,
)

TILE, SIDE = 4, 6  # results and numbers of a tile, each way
PRODUCTS = SIDE * SIDE
TOGETHER = 4 * ROWS  # channels of a result that are made together: each number of V is fetched once for all of them
LEAST = 16  # channels in and out from which on it pays

B = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
).T
G = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
A = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]).T


def _square(code, matrix, load):
    """Yield (i, j, vector), a number of `matrix x matrix'` at a time; load(i, j): returns one of x."""
    lines, n = matrix.tolist(), matrix.shape[1]
    columns = [[load(i, j) for i in range(n)] for j in range(n)]
    half = [[_combine(code, line, column) for column in columns] for line in lines]
    for i, j in np.ndindex(len(lines), len(lines)):
        yield i, j, _combine(code, lines[j], half[i])


def _combine(code, factors, vectors):
    """Return the sum of factors, Python numbers, times vectors."""
    total, builder = None, code.builder
    for factor, vector in sorted(zip(factors, vectors, strict=True), key=lambda pair: abs(pair[0]) != 1):
        if factor == 0:
            continue
        constant = ir.Constant(code.vector, [float(factor)] * code.vector.count)
        if total is None:
            total = vector if factor == 1 else builder.fmul(constant, vector)
        elif abs(factor) == 1:
            total = builder.fadd(total, vector) if factor == 1 else builder.fsub(total, vector)
        else:
            total = builder.call(code.fma, [constant, vector, total])
    return total


def _transform(matrix, add, code, x, x_row, x_column, out, out_row, out_column):
    """Replace a square x of vectors by `matrix x matrix'`, and add it where `add` says.

    x_row, x_column, out_row, out_column: bytes between the vectors of the squares. Nothing is checked.
    """
    for i, j, value in _square(code, matrix, lambda i, j: code.load(code.within(x, x_row, x_column, i, j))):
        at = code.within(out, out_row, out_column, i, j)
        code.store(code.builder.fadd(value, code.load(at)) if add else value, at)


@written
def _to_z(code, m, step, z, z_row, seen, bias):
    """Write `A' m A` to z, a tile of results: each times its number in seen (16,), a vector, and the bias added.

    step: bytes between two vectors of m (36,); z_row: between two rows of z. bias: of a number. Nothing is checked.
    """
    start = code.everywhere(bias)
    for i, j, value in _square(code, A.T, lambda i, j: code.load(code.within(m, step, step, SIDE * i, j))):
        factor = code.load(code.at(seen, (TILE * i + j) * BYTES))
        code.store(code.builder.call(code.fma, [value, factor, start]), code.within(z, z_row, INDEX(BYTES), i, j))


_to_u, _to_v, _to_dw, _to_dm = (written(partial(_transform, matrix, False)) for matrix in (G, B.T, G.T, A))
_to_dx = written(partial(_transform, B, True))


def suits(c, c_out, k, stride, rows, columns):
    """Say whether it is faster than the formula: for a 3 x 3 kernel at stride 1, and enough of everything."""
    if k != 3 or stride != 1 or min(c, c_out) < LEAST:
        return False
    return 2 * PRODUCTS * -(-rows // TILE) * -(-columns // TILE) < 9 * rows * columns


@compiled(__name__, nogil=True)
def pack(W, first, end, U, back):
    """Write `G w G'` of the channels out from `first` to `end` as blocks of rows: into U, and into back for dx.

    One of them may be empty, and is left out.

    W (c_out, c, 3, 3). U (36, blocks of c_out, c, rows of the block), back (36, blocks of c, c_out, rows of the block),
    vectors. first: a multiple of the lanes.
    """
    c_out, c, _, _ = W.shape
    size = W.itemsize
    lanes = BYTES // size
    w, u = aligned(9 * lanes, W), aligned(ROWS * PRODUCTS * lanes, W)
    w[:] = 0
    each, each_back = len(U) // PRODUCTS, len(back) // PRODUCTS
    for o in range(first, end, lanes):
        here = min(lanes, end - o)
        for block_in in range(0, c, ROWS):
            some, width_in = min(ROWS, c - block_in), rows_of(c - block_in)
            for i in range(some):
                for lane in range(here):
                    for t in range(9):
                        w[t * lanes + lane] = W[o + lane, block_in + i, t // 3, t % 3]
                to = address(u[i * PRODUCTS * lanes :])
                _to_u(W.dtype, address(w), 3 * BYTES, BYTES, to, SIDE * BYTES, BYTES)
                for lane in range(0, here if len(U) else 0, min(ROWS, lanes)):
                    block = (o + lane) // ROWS * ROWS
                    width = rows_of(c_out - block)
                    at = block * c + (block_in + i) * width + o + lane - block
                    for t in range(PRODUCTS):
                        for r in range(min(ROWS, here - lane)):
                            U[t * each + at + r] = u[(i * PRODUCTS + t) * lanes + lane + r]
            for t in range(PRODUCTS if len(back) else 0):
                for lane in range(here):
                    at = t * each_back + block_in * c_out + (o + lane) * width_in
                    for i in range(some):
                        back[at + i] = u[(i * PRODUCTS + t) * lanes + lane]


@compiled(__name__, nogil=True)
def unpack(own, at, first, end, dW):
    """Write `G' dU G` of the channels out from `first` to `end` into dW (c_out, c * 9).

    own (shares, ...): from the number `at` on, each share's dU, as `add_weights` leaves it; they are added up.
    """
    c_out, c = len(dW), dW.shape[1] // 9
    lanes = BYTES // dW.itemsize
    w, u = aligned(9 * lanes, dW), aligned(PRODUCTS * lanes, dW)
    u[:] = 0
    block_size = block_elements(c, lanes)
    for o in range(first, end):
        block = o // SLOPE_ROWS
        places, columns = places_of(c_out - block * SLOPE_ROWS, c, lanes)
        begin = at + block * block_size + o % SLOPE_ROWS * columns
        for i in range(0, c, lanes):
            many = min(lanes, c - i)
            for t in range(PRODUCTS):
                start = begin + t * slope_blocks(c_out) * block_size
                for lane in range(many):
                    total = own[0, start + places[i + lane]]
                    for share in range(1, len(own)):
                        total += own[share, start + places[i + lane]]
                    u[t * lanes + lane] = total
            _to_dw(dW.dtype, address(u), SIDE * BYTES, BYTES, address(w), 3 * BYTES, BYTES)
            for lane in range(many):
                for t in range(9):
                    dW[o, (i + lane) * 9 + t] = w[t * lanes + lane]


# What follows takes a plan, see `convolve.Plan`, and addresses.


@compiled(__name__, nogil=True)
def apart(plan, channels):
    """Return how many vectors lie between two of the 36 matrices of so many channels.

    It is odd: at a power of two all would want the same place in a cache.
    """
    elements = channels * plan.down * plan.across
    return elements + 1 + elements % 2


@compiled(__name__, nogil=True)
def elements_of(plan):
    """Return how many vectors V takes, and behind it what `seen_in` writes."""
    return PRODUCTS * apart(plan, plan.c) + TILE * TILE * plan.down * plan.across


@compiled(__name__, nogil=True)
def seen_in(plan, x, V):
    """Write behind V, see `elements_of`, for each result (tiles, 16) whether its window holds anything: 1, else 0.

    x (c, tall, wide, lanes): a SIMD batch with its margin. Of a window of zeros a transform leaves a rounding error,
    whose sign would decide ReLU's slope while a bias is 0: in the empty border of a digit, for every window at once.
    """
    tiles, lanes = plan.down * plan.across, x.shape[3]
    values = np.zeros(x.shape[1:], x.dtype)
    for i in range(plan.c):
        for y in range(plan.tall):
            for column in range(plan.wide):
                for lane in range(lanes):
                    values[y, column, lane] = 1 if x[i, y, column, lane] != 0 else values[y, column, lane]
    at = PRODUCTS * apart(plan, plan.c)
    for tile in range(tiles):
        for t in range(TILE * TILE):
            top, left = tile // plan.across * TILE + t // TILE, tile % plan.across * TILE + t % TILE
            V[at] = 0
            for y in range(top, top + 3):
                for column in range(left, left + 3):
                    for lane in range(lanes):
                        V[at, lane] = max(V[at, lane], values[y, column, lane])
            at += 1


@compiled(__name__, nogil=True)
def images_in(plan, dtype, x, V):
    """Write V (36, c, tiles) of a SIMD batch x with its margin."""
    step = apart(plan, plan.c) * BYTES
    for i in range(plan.c):
        for p in range(plan.down):
            for q in range(plan.across):
                at = x + ((i * plan.tall + TILE * p) * plan.wide + TILE * q) * BYTES
                _to_v(dtype, at, plan.wide * BYTES, BYTES, V, SIDE * step, step)
                V += BYTES


@compiled(__name__, nogil=True)
def results_out(plan, at, dtype, size, o, U, V, M, z, bias, zero):
    """Write TOGETHER channels of the result, from channel `o` on, into z (TOGETHER, z_tall, z_wide).

    V: with what `seen_in` writes. M: room for (36, TOGETHER, tiles). bias: of these channels.
    """
    tiles = plan.down * plan.across
    seen = V + PRODUCTS * apart(plan, plan.c) * BYTES
    step, rows = apart(plan, TOGETHER) * BYTES, whole_blocks(plan.c_out)
    for t in range(PRODUCTS):
        for i in range(o, min(o + TOGETHER, plan.c_out), ROWS):
            multiply(
                dtype, plan.c_out - i, U + (t * rows + i) * plan.c * size, at + ADDRESS * plan.taps_in, plan.c,
                V + t * apart(plan, plan.c) * BYTES, at + ADDRESS * plan.tiles_at, tiles,
                M + t * step + (i - o) * tiles * BYTES, at + ADDRESS * plan.tiles_at, tiles * BYTES, zero,
            )  # fmt: skip
    for r in range(min(TOGETHER, plan.c_out - o)):
        for p in range(plan.down):
            for q in range(plan.across):
                end = z + ((r * plan.z_tall + TILE * p) * plan.z_wide + TILE * q) * BYTES
                windows = seen + (p * plan.across + q) * TILE * TILE * BYTES
                _to_z(dtype, M, step, end, plan.z_wide * BYTES, windows, bias + r * size)
                M += BYTES


@compiled(__name__, nogil=True)
def slopes_in(plan, dtype, o, channels, dz, dM):
    """Write dM (36, c_out, tiles) of some channels from `o` on, whose dz is (channels, z_tall, z_wide)."""
    tiles = plan.down * plan.across
    step = apart(plan, plan.c_out) * BYTES
    dM += o * tiles * BYTES
    for r in range(channels):
        for p in range(plan.down):
            for q in range(plan.across):
                at = dz + ((r * plan.z_tall + TILE * p) * plan.z_wide + TILE * q) * BYTES
                _to_dm(dtype, at, plan.z_wide * BYTES, BYTES, dM, SIDE * step, step)
                dM += BYTES


@compiled(__name__, nogil=True)
def add_weights(plan, at, dtype, size, dM, V, dU):
    """Add a SIMD batch's dU (36, blocks of c_out): see `simd_batch.add_slopes`."""
    tiles, lanes = plan.down * plan.across, BYTES // size
    block, piece = block_elements(plan.c, lanes) * size, piece_of(lanes) * size
    for t in range(PRODUCTS):
        for o in range(0, plan.c_out, SLOPE_ROWS):
            add_slopes(
                dtype, plan.c_out - o, dM + (t * apart(plan, plan.c_out) + o * tiles) * BYTES, tiles * BYTES,
                at + ADDRESS * plan.tiles_at, V + t * apart(plan, plan.c) * BYTES, at + ADDRESS * plan.tiles_at, tiles,
                at + ADDRESS * plan.taps_in, plan.c, dU, piece,
            )  # fmt: skip
            dU += block


@compiled(__name__, nogil=True)
def slopes_out(plan, at, dtype, size, back, dM, dV, plane, dx, zero):
    """Write dx (c, h, w, lanes), a view. dV: room for (36, c, tiles); plane (tall, wide, lanes): room."""
    tiles = plan.down * plan.across
    step, rows = apart(plan, plan.c) * BYTES, whole_blocks(plan.c)
    for t in range(PRODUCTS):
        for i in range(0, plan.c, ROWS):
            multiply(
                dtype, plan.c - i, back + (t * rows + i) * plan.c_out * size, at + ADDRESS * plan.taps_out, plan.c_out,
                dM + t * apart(plan, plan.c_out) * BYTES, at + ADDRESS * plan.tiles_at, tiles,
                dV + t * step + i * tiles * BYTES, at + ADDRESS * plan.tiles_at, tiles * BYTES, zero,
            )  # fmt: skip
    for i in range(plan.c):
        plane[:] = 0
        for p in range(plan.down):
            for q in range(plan.across):
                end = address(plane) + (TILE * p * plan.wide + TILE * q) * BYTES
                _to_dx(dtype, dV, SIDE * step, step, end, plan.wide * BYTES, BYTES)
                dV += BYTES
        for y in range(plan.h):
            copy(plane[y + plan.margin, plan.margin : plan.margin + plan.w], dx[i, y])

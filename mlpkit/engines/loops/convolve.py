"""Convolution of bundles: forward, and both gradients, for any kernel, stride and padding. See `bundles`.

What a window reads is a matter of distances in memory, which depend on nothing but shapes. They are worked out once for
each shape, as tables; the arithmetic then knows nothing of padding, strides or borders. Around the numbers of an image
lies a margin of zeros, and the gradient of the input, which with a stride s is s * s different convolutions, is that
many tables.

Each core takes bundles of its own, one after another: what it needs beside the arrays is room for one bundle that comes
in and one that goes out, however large the batch.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import prange

from . import winograd
from .bundles import (
    ADDRESS,
    ROWS,
    SPARE,
    add_slopes,
    aligned,
    bundle,
    collect,
    multiply,
    piece_of,
    room_of,
    rows_of,
    unbundle,
)
from .compiler import compiled
from .simd import BYTES


class Plan(NamedTuple):
    """The shapes of a convolution, and where each table begins; all integers.

    A bundle of inputs is kept as (c, tall, wide, lanes) with a margin of zeros above and to the left, and one of output
    gradients, from which the input's is made, as (c_out, dz_tall, dz_wide, lanes) with `dz_margin`.
    """

    c: int
    h: int
    w: int
    c_out: int
    k: int
    stride: int
    rows: int
    columns: int
    margin: int
    tall: int
    wide: int
    dz_margin: int
    dz_tall: int
    dz_wide: int
    taps: int  # (c, k, k): from a window's corner to each of its numbers
    x_at: int  # (rows, columns): from the first number to each window's corner
    z_at: int  # (rows, columns): from the first result to each
    parts: int  # (stride * stride, PART): see `part` in `plan`
    winograd: int  # whether Winograd's convolution suits; then, in tiles:
    down: int
    across: int
    z_tall: int  # rows of a plane of results, which without tiles are `rows`
    z_wide: int
    taps_in: int  # (c,): from the first channel of V to each
    taps_out: int  # (c_out,): from the first channel of dM to each
    tiles_at: int  # (tiles,): from the first tile to each


PRODUCTS, TOGETHER = winograd.PRODUCTS, winograd.TOGETHER
winograd_pack, winograd_unpack = winograd.pack, winograd.unpack
winograd_in, winograd_out, winograd_back = winograd.images_in, winograd.results_out, winograd.slopes_out
winograd_slopes, winograd_weights, winograd_apart = winograd.slopes_in, winograd.add_weights, winograd.apart
winograd_seen, winograd_numbers = winograd.seen_in, winograd.numbers_of
PART = 6  # integers that describe one of the convolutions that the gradient of the input is made of


@lru_cache(maxsize=64)
def plan(c, h, w, c_out, k, stride, padding):
    """Return the `Plan` of a convolution, and its tables: a vector of int64."""
    rows, columns = ((length + 2 * padding - k) // stride + 1 for length in (h, w))
    tall, wide = h + 2 * padding, w + 2 * padding
    tiles = winograd.suits(c, c_out, k, stride, rows, columns)
    down, across = (-(-length // winograd.TILE) for length in (rows, columns))
    z_tall, z_wide = rows, columns
    if tiles:
        z_tall, z_wide = down * winograd.TILE, across * winograd.TILE
        tall, wide = max(tall, z_tall + 2), max(wide, z_wide + 2)  # a tile reads two numbers more than it makes
    dz_margin = (k - 1) // stride
    dz_tall, dz_wide = (
        dz_margin + max(out, (length - 1 + padding) // stride + 1) for out, length in ((rows, h), (columns, w))
    )
    tables: list = []

    def table(array, spare=SPARE):
        """Append a table of distances in numbers of a plane, as bytes of vectors; return where it begins."""
        start = sum(map(len, tables))
        flat = np.ravel(array)
        tables.append(np.concatenate([flat, np.repeat(flat[-1:], spare)]))
        return start

    def places(across, down, right):
        """Return the distances of places in planes of rows of `across` numbers."""
        return BYTES * np.add.outer(across * np.asarray(down), np.asarray(right))

    steps = np.arange(k)
    taps = table(np.add.outer(BYTES * tall * wide * np.arange(c), places(wide, steps, steps)))
    x_at = table(places(wide, stride * np.arange(rows), stride * np.arange(columns)))
    z_at = table(places(columns, np.arange(rows), np.arange(columns)))

    def part(r, s):
        """Return a row of `parts`: the numbers of the input that the taps r, r + stride, ... and s, ... reach."""
        ys, xs = ((np.arange((rest - padding) % stride, length, stride)) for rest, length in ((r, h), (s, w)))
        down, right = (-np.arange(len(range(rest, k, stride))) for rest in (r, s))
        reads = np.add.outer(BYTES * dz_tall * dz_wide * np.arange(c_out), places(dz_wide, down, right))
        corners = (dz_margin + (along + padding) // stride for along in (ys, xs))
        begins = table(reads), table(places(dz_wide, *corners)), table(places(w, ys, xs))
        return r, s, len(ys) * len(xs), *begins

    found = [part(r, s) for r in range(stride) for s in range(stride)]
    parts = table(found, spare=0)
    numbers = c, h, w, c_out, k, stride, rows, columns, padding, tall, wide, dz_margin, dz_tall, dz_wide
    lists = (table(BYTES * step * np.arange(n)) for step, n in ((down * across, c), (down * across, c_out),
                                                                (1, down * across)))  # fmt: skip
    made = Plan(*numbers, taps, x_at, z_at, parts, int(tiles), down, across, z_tall, z_wide, *lists)
    return made, np.concatenate(tables).astype(np.int64)


@compiled(__name__, nogil=True)
def pack_rows(W, packed):
    """Write W (rows, depth) as blocks of rows, each (depth, rows of the block), with zeros where there is no row."""
    rows, depth = W.shape
    for block in prange((rows + ROWS - 1) // ROWS):
        first = block * ROWS
        width = rows_of(rows - first)
        for r in range(width):
            for t in range(depth):
                packed[(first * depth) + t * width + r] = W[first + r, t] if first + r < rows else 0


@compiled(__name__, nogil=True)
def part_of(W, r, s, stride):
    """Return the weights (c, taps) of one of the convolutions that make the input's gradient, from W (c_out, c, k, k).

    They are those of rows r, r + stride, ... and columns s, s + stride, ...
    """
    c_out, c, k, _ = W.shape
    down, right = (k - r + stride - 1) // stride, (k - s + stride - 1) // stride
    found = np.empty((c, c_out * max(down, 0) * max(right, 0)), W.dtype)
    for i in range(c):
        t = 0
        for o in range(c_out):
            for p in range(r, k, stride):
                for q in range(s, k, stride):
                    found[i, t] = W[o, i, p, q]
                    t += 1
    return found


@compiled(__name__, nogil=True)
def whole_blocks(rows):
    """Return how many rows there are once they are filled up to whole blocks."""
    return (rows + ROWS - 1) // ROWS * ROWS


@compiled(__name__, nogil=True)
def frame(x, c, h, w, out, tall, wide, margin):
    """Copy planes x (c * h * w, lanes) to where they lie in larger ones, out (c * tall * wide, lanes)."""
    for i in range(c):
        for y in range(h):
            start, end = (i * h + y) * w, (i * tall + y + margin) * wide + margin
            out[end : end + w] = x[start : start + w]


@compiled(__name__, nogil=True)
def read(images, flat, out, c, h, w, tall, wide, margin):
    """Write images (n, c * h * w) as a bundle with a margin into out. flat: room for the bundle without one."""
    if margin == 0 and tall == h and wide == w:
        bundle(images, out)
    else:
        bundle(images, flat)
        frame(flat, c, h, w, out, tall, wide, margin)


@compiled(__name__, nogil=True)
def bare(numbers, like):
    """Return an array (numbers, lanes), of the dtype of `like`, with any numbers in it."""
    lanes = BYTES // like.itemsize
    return aligned(numbers * lanes, like).reshape(numbers, lanes)


@compiled(__name__, nogil=True)
def room(numbers, like):
    """Return zeros (numbers, lanes), of the dtype of `like`."""
    found = bare(numbers, like)
    found[:] = 0
    return found


@compiled(__name__, parallel=True, nogil=True)
def forward(plan, tables, x, W, b, z, shares):
    """Write the convolution of x (n, c * h * w) with W (c_out, c * k * k), and b (c_out,), into z (n, numbers).

    shares: how many parts of the batch are done at the same time.
    """
    depth, positions, lanes = W.shape[1], plan.rows * plan.columns, BYTES // x.itemsize
    packed = np.empty(whole_blocks(plan.c_out) * depth, x.dtype)
    pack_rows(W, packed)
    start = np.zeros(whole_blocks(plan.c_out), x.dtype)
    start[: plan.c_out] = b
    bundles = (len(x) + lanes - 1) // lanes
    at = tables.ctypes.data
    for share in prange(shares):
        flat, room_x = room(plan.c * plan.h * plan.w, x), room(plan.c * plan.tall * plan.wide, x)
        room_z = room(plan.c_out * positions, x)
        for g in range(bundles * share // shares, bundles * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read(x[images], flat, room_x, plan.c, plan.h, plan.w, plan.tall, plan.wide, plan.margin)
            for o in range(0, plan.c_out, ROWS):
                multiply(
                    x.dtype, plan.c_out - o, packed[o * depth :].ctypes.data, at + ADDRESS * plan.taps, depth,
                    room_x.ctypes.data, at + ADDRESS * plan.x_at, positions,
                    room_z[o * positions :].ctypes.data, at + ADDRESS * plan.z_at, positions * BYTES,
                    start[o:].ctypes.data,
                )  # fmt: skip
            unbundle(room_z, z[images])


@compiled(__name__, parallel=True, nogil=True)
def backward_weights(plan, tables, x, dz, dW, shares):
    """Write the gradient of the weights, dW (c_out, c * k * k), from x (n, c * h * w) and dz (n, numbers)."""
    positions, lanes = plan.rows * plan.columns, BYTES // x.itemsize
    bundles = (len(x) + lanes - 1) // lanes
    at = tables.ctypes.data
    depth = dW.shape[1]
    block = room_of(depth, lanes)
    partial = np.zeros((shares, whole_blocks(plan.c_out) // ROWS * block), x.dtype)
    for share in prange(shares):
        flat, room_x = room(plan.c * plan.h * plan.w, x), room(plan.c * plan.tall * plan.wide, x)
        room_z = room(plan.c_out * positions, x)
        for g in range(bundles * share // shares, bundles * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read(x[images], flat, room_x, plan.c, plan.h, plan.w, plan.tall, plan.wide, plan.margin)
            bundle(dz[images], room_z)
            for o in range(0, plan.c_out, ROWS):
                add_slopes(
                    x.dtype, plan.c_out - o, room_z[o * positions :].ctypes.data, positions * BYTES,
                    at + ADDRESS * plan.z_at, room_x.ctypes.data, at + ADDRESS * plan.x_at, positions,
                    at + ADDRESS * plan.taps, depth, partial[share, o // ROWS * block :].ctypes.data,
                    piece_of(lanes) * x.itemsize,
                )  # fmt: skip
    for o in prange(plan.c_out):
        collect(partial, 0, plan.c_out, o, dW[o : o + 1])


@compiled(__name__, parallel=True, nogil=True)
def backward_input(plan, tables, dz, W, dx, shares):
    """Write the gradient of the input, dx (n, c * h * w), from dz (n, numbers) and W (c_out, c, k, k)."""
    positions, numbers, lanes = plan.rows * plan.columns, plan.h * plan.w, BYTES // dz.itemsize
    bundles = (len(dz) + lanes - 1) // lanes
    at = tables.ctypes.data
    parts = tables[plan.parts : plan.parts + PART * plan.stride**2].reshape(-1, PART)
    rows = whole_blocks(plan.c)
    packed, begins = np.zeros(rows * W.size // plan.c, dz.dtype), np.zeros(len(parts) + 1, np.int64)
    for i in range(len(parts)):
        weights = part_of(W, parts[i, 0], parts[i, 1], plan.stride)
        begins[i + 1] = begins[i] + rows * weights.shape[1]
        pack_rows(weights, packed[begins[i] :])
    start = np.zeros(rows, dz.dtype)
    for share in prange(shares):
        flat, room_z = room(plan.c_out * positions, dz), room(plan.c_out * plan.dz_tall * plan.dz_wide, dz)
        room_x = room(plan.c * numbers, dz)
        for g in range(bundles * share // shares, bundles * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read(
                dz[images], flat, room_z, plan.c_out, plan.rows, plan.columns, plan.dz_tall, plan.dz_wide,
                plan.dz_margin,
            )  # fmt: skip
            for i in range(len(parts)):
                depth = (begins[i + 1] - begins[i]) // rows
                count, taps, dz_at, x_at = parts[i, 2], parts[i, 3], parts[i, 4], parts[i, 5]
                for o in range(0, plan.c, ROWS):
                    multiply(
                        dz.dtype, plan.c - o, packed[begins[i] + o * depth :].ctypes.data, at + ADDRESS * taps, depth,
                        room_z.ctypes.data, at + ADDRESS * dz_at, count,
                        room_x[o * numbers :].ctypes.data, at + ADDRESS * x_at, numbers * BYTES, start.ctypes.data,
                    )  # fmt: skip
            unbundle(room_x, dx[images])


# The same three with Winograd's convolution, for plans that it suits


@compiled(__name__, parallel=True, nogil=True)
def packed_winograd(W, U, back):
    """Write the transformed weights, see `winograd.pack`, on all cores."""
    chunk = 2 * ROWS  # a multiple of the lanes
    for i in prange((len(W) + chunk - 1) // chunk):
        winograd_pack(W, i * chunk, min((i + 1) * chunk, len(W)), U, back)


@compiled(__name__, parallel=True, nogil=True)
def forward_winograd(plan, tables, x, W, b, z, shares):
    """Do what `forward` does; W (c_out, c, k, k)."""
    lanes, size, at = BYTES // x.itemsize, x.itemsize, tables.ctypes.data
    bundles, tiles = (len(x) + lanes - 1) // lanes, plan.down * plan.across
    U = np.zeros(PRODUCTS * whole_blocks(plan.c_out) * plan.c, x.dtype)
    packed_winograd(W, U, U[:0])
    start = np.zeros(whole_blocks(plan.c_out) + ROWS, x.dtype)
    start[: plan.c_out] = b
    zero = start[whole_blocks(plan.c_out) :].ctypes.data
    for share in prange(shares):
        flat, room_x = room(plan.c * plan.h * plan.w, x), room(plan.c * plan.tall * plan.wide, x)
        room_z, room_flat = (
            room(TOGETHER * plan.z_tall * plan.z_wide, x),
            room(plan.c_out * plan.rows * plan.columns, x),
        )
        V, M = bare(winograd_numbers(plan.c, tiles), x), bare(PRODUCTS * winograd_apart(TOGETHER, tiles), x)
        for g in range(bundles * share // shares, bundles * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read(x[images], flat, room_x, plan.c, plan.h, plan.w, plan.tall, plan.wide, plan.margin)
            winograd_in(plan, x.dtype, room_x.ctypes.data, V.ctypes.data)
            winograd_seen(plan, room_x.reshape(plan.c, plan.tall, plan.wide, lanes), V)
            for o in range(0, plan.c_out, TOGETHER):
                winograd_out(
                    plan, at, x.dtype, size, o, U.ctypes.data, V.ctypes.data, M.ctypes.data, room_z.ctypes.data,
                    start[o:].ctypes.data, zero,
                )  # fmt: skip
                for i in range(min(TOGETHER, plan.c_out - o)):
                    for y in range(plan.rows):
                        begin, end = (i * plan.z_tall + y) * plan.z_wide, ((o + i) * plan.rows + y) * plan.columns
                        room_flat[end : end + plan.columns] = room_z[begin : begin + plan.columns]
            unbundle(room_flat, z[images])


@compiled(__name__, parallel=True, nogil=True)
def backward_weights_winograd(plan, tables, x, dz, dW, shares):
    """Do what `backward_weights` does; dW (c_out, c, k, k)."""
    lanes, size, at = BYTES // x.itemsize, x.itemsize, tables.ctypes.data
    bundles, tiles = (len(x) + lanes - 1) // lanes, plan.down * plan.across
    blocks = whole_blocks(plan.c_out) // ROWS
    partial = np.zeros((shares, PRODUCTS * blocks * room_of(plan.c, lanes)), x.dtype)
    for share in prange(shares):
        flat, room_x = room(plan.c * plan.h * plan.w, x), room(plan.c * plan.tall * plan.wide, x)
        flat_z = room(plan.c_out * plan.rows * plan.columns, x)
        room_z = room(plan.c_out * plan.z_tall * plan.z_wide, x)
        V, dM = bare(PRODUCTS * winograd_apart(plan.c, tiles), x), bare(PRODUCTS * winograd_apart(plan.c_out, tiles), x)
        for g in range(bundles * share // shares, bundles * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read(x[images], flat, room_x, plan.c, plan.h, plan.w, plan.tall, plan.wide, plan.margin)
            read(dz[images], flat_z, room_z, plan.c_out, plan.rows, plan.columns, plan.z_tall, plan.z_wide, 0)
            winograd_in(plan, x.dtype, room_x.ctypes.data, V.ctypes.data)
            winograd_slopes(plan, x.dtype, 0, plan.c_out, room_z.ctypes.data, dM.ctypes.data)
            winograd_weights(
                plan, at, x.dtype, size, dM.ctypes.data, V.ctypes.data, partial[share].ctypes.data
            )  # fmt: skip
    for o in prange(plan.c_out):
        winograd_unpack(partial, 0, o, o + 1, dW)


@compiled(__name__, parallel=True, nogil=True)
def backward_input_winograd(plan, tables, dz, W, dx, shares):
    """Do what `backward_input` does."""
    lanes, size, at = BYTES // dz.itemsize, dz.itemsize, tables.ctypes.data
    bundles, tiles, zeros = (len(dz) + lanes - 1) // lanes, plan.down * plan.across, np.zeros(ROWS, dz.dtype)
    back = np.zeros(PRODUCTS * whole_blocks(plan.c) * plan.c_out, dz.dtype)
    packed_winograd(W, back[:0], back)
    for share in prange(shares):
        flat, room_z = room(plan.c_out * plan.rows * plan.columns, dz), room(plan.c_out * plan.z_tall * plan.z_wide, dz)
        dM, dV = (
            bare(PRODUCTS * winograd_apart(plan.c_out, tiles), dz),
            bare(PRODUCTS * winograd_apart(plan.c, tiles), dz),
        )
        plane, room_x = room(plan.tall * plan.wide, dz), room(plan.c * plan.h * plan.w, dz)
        zero = zeros.ctypes.data
        for g in range(bundles * share // shares, bundles * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read(dz[images], flat, room_z, plan.c_out, plan.rows, plan.columns, plan.z_tall, plan.z_wide, 0)
            winograd_slopes(plan, dz.dtype, 0, plan.c_out, room_z.ctypes.data, dM.ctypes.data)
            winograd_back(
                plan, at, dz.dtype, size, back.ctypes.data, dM.ctypes.data, dV.ctypes.data,
                plane.reshape(plan.tall, plan.wide, lanes), room_x.reshape(plan.c, plan.h, plan.w, lanes), zero,
            )  # fmt: skip
            unbundle(room_x, dx[images])

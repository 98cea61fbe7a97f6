"""Convolution of SIMD batches: forward, and both gradients, for any kernel, stride and padding. See `simd_batch`.

What a window reads is a matter of distances in memory, which depend on nothing but shapes. They are worked out once for
each shape, as tables; the arithmetic then knows nothing of padding, strides or borders. Around the elements of an image
lies a margin of zeros, and the gradient of the input, which with a stride s is s * s different convolutions, is that
many tables.

Each core takes SIMD batches of its own, one after another: what it needs beside the arrays is a buffer for one that
comes in and one that goes out, however large the batch.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import prange
from numba.np.unsafe.ndarray import to_fixed_tuple

from . import winograd
from .compiler import compiled
from .simd import ADDRESS, BYTES, address
from .simd_batch import (
    ROWS,
    SLOPE_ROWS,
    SPARE,
    add_slopes,
    aligned,
    block_elements,
    collect,
    copy,
    multiply,
    pack_simd,
    piece_of,
    rows_of,
    slope_blocks,
    unpack_simd,
    whole_blocks,
    zeros,
)
from .winograd import PRODUCTS, TOGETHER


class Plan(NamedTuple):
    """The shapes of a convolution, and where each table begins; all integers.

    Inputs are kept as (c, tall, wide, lanes) with a margin of zeros above and to the left, and output
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
    winograd: int  # whether Winograd's convolution suits
    down: int  # tiles
    across: int
    z_tall: int  # rows of a plane of results: of whole tiles where there are any, else `rows`
    z_wide: int
    taps: int = 0  # (c, k, k): from a window's corner to each of its elements
    x_at: int = 0  # (rows, columns): from the first number to each window's corner
    z_at: int = 0  # (rows, columns): from the first result to each
    parts: int = 0  # (stride * stride, PART): rows of a `Part` each; none where there are tiles
    taps_in: int = 0  # (c,): from the first channel of V to each
    taps_out: int = 0  # (c_out,): from the first channel of dM to each
    tiles_at: int = 0  # (tiles,): from the first tile to each


class Part(NamedTuple):
    """One of the convolutions that the gradient of the input is made of, as integers.

    It makes the elements of the input that the taps r, r + stride, ... and s, s + stride, ... reach.
    """

    r: int
    s: int
    elements: int  # how many of a plane these are
    reads: int  # how many products each is the sum of
    taps: int  # table (reads,): from a corner in dz with its margin to each number that is read
    dz_at: int  # table (elements,): from the first number of dz to each corner
    x_at: int  # table (elements,): from the first number of the input to each of these


PART = len(Part._fields)


class Tables:
    """Collects tables of distances, one after another: a vector of int64."""

    def __init__(self):
        self.found, self.size = list[np.ndarray](), 0

    def put(self, array, spare=0):
        """Append a table, with so many more of its last entry, and return where it begins."""
        flat, start = np.ravel(array), self.size
        self.found.append(np.concatenate([flat, np.repeat(flat[-1:], spare)]).astype(np.int64))
        self.size += len(self.found[-1])
        return start

    def concatenated(self):
        """Return all tables."""
        return np.concatenate(self.found)


@lru_cache(maxsize=64)
def plan(c, h, w, c_out, k, stride, padding):
    """Return the `Plan` of a convolution, and its tables."""
    tables = Tables()
    return planned(tables, c, h, w, c_out, k, stride, padding), tables.concatenated()


def planned(tables, c, h, w, c_out, k, stride, padding):
    """Return the `Plan` of a convolution, whose tables are put into `tables`."""
    one = _shapes(c, h, w, c_out, k, stride, padding)
    steps, rows, columns, tiles = (np.arange(n) for n in (k, one.rows, one.columns, one.down * one.across))
    parts = [] if one.winograd else [_part(tables, one, r, s) for r, s in np.ndindex(stride, stride)]
    return one._replace(
        taps=tables.put(np.add.outer(BYTES * one.tall * one.wide * np.arange(c), distances(one.wide, steps)), SPARE),
        x_at=tables.put(distances(one.wide, stride * rows, stride * columns), SPARE),
        z_at=tables.put(distances(one.columns, rows, columns), SPARE),
        parts=tables.put(parts),
        taps_in=tables.put(BYTES * len(tiles) * np.arange(c), SPARE),
        taps_out=tables.put(BYTES * len(tiles) * np.arange(c_out), SPARE),
        tiles_at=tables.put(BYTES * tiles, SPARE),
    )


def _shapes(c, h, w, c_out, k, stride, padding):
    """Return a `Plan` without tables."""
    rows, columns = ((length + 2 * padding - k) // stride + 1 for length in (h, w))
    down, across = (-(-length // winograd.TILE) for length in (rows, columns))
    image = c, h, w, c_out, k, stride, rows, columns, padding
    tall, wide = h + 2 * padding, w + 2 * padding
    if winograd.suits(c, c_out, k, stride, rows, columns):
        z = z_tall, z_wide = down * winograd.TILE, across * winograd.TILE
        framed = max(tall, z_tall + 2), max(wide, z_wide + 2)  # a tile reads two elements more than it makes
        return Plan(*image, *framed, 0, *z, 1, down, across, *z)
    margin = (k - 1) // stride
    dz_tall, dz_wide = (margin + max(out, (n - 1 + padding) // stride + 1) for out, n in ((rows, h), (columns, w)))
    return Plan(*image, tall, wide, margin, dz_tall, dz_wide, 0, down, across, rows, columns)


def _part(tables, plan, r, s):
    """Return the `Part` of a plan without tables that belongs to r and s."""
    k, stride, padding, margin, wide = plan.k, plan.stride, plan.margin, plan.dz_margin, plan.dz_wide
    ys, xs = (np.arange((rest - padding) % stride, length, stride) for rest, length in ((r, plan.h), (s, plan.w)))
    taps = (-np.arange(len(range(rest, k, stride))) for rest in (r, s))
    reads = np.add.outer(BYTES * plan.dz_tall * wide * np.arange(plan.c_out), distances(wide, *taps))
    corners = (margin + (along + padding) // stride for along in (ys, xs))
    begins = (tables.put(each, SPARE) for each in (reads, distances(wide, *corners), distances(plan.w, ys, xs)))
    return Part(r, s, len(ys) * len(xs), reads.size, *begins)


def distances(wide, down, right=None):
    """Return how many bytes of vectors on the places (down, right) lie, in planes of rows of `wide` elements.

    right: as `down` where None.
    """
    return BYTES * np.add.outer(wide * down, down if right is None else right)


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
def parts_of(plan, tables):
    """Return the rows of the parts that make the gradient of the input."""
    return tables[plan.parts : plan.parts + PART * plan.stride**2].reshape(-1, PART)


@compiled(__name__, nogil=True)
def pack_parts(plan, tables, W, packed):
    """Write the weights of all parts as blocks of rows, one part after another."""
    parts, begin = parts_of(plan, tables), 0
    for i in range(len(parts)):
        some = part_of(W, parts[i, 0], parts[i, 1], plan.stride)
        pack_rows(some, packed[begin:])
        begin += whole_blocks(plan.c) * some.shape[1]


@compiled(__name__, nogil=True)
def parts_back(plan, tables, packed, dz, dx, zero):
    """Write the gradient of the input, from dz with its margin. packed: see `pack_parts`; others: addresses."""
    parts, at, begin, plane = parts_of(plan, tables), address(tables), 0, plan.h * plan.w * BYTES
    for i in range(len(parts)):
        part = Part(*to_fixed_tuple(parts[i], PART))
        for c in range(0, plan.c, ROWS):
            multiply(
                packed.dtype, plan.c - c, address(packed[begin + c * part.reads :]), at + ADDRESS * part.taps,
                part.reads, dz, at + ADDRESS * part.dz_at, part.elements,
                dx + c * plane, at + ADDRESS * part.x_at, plane, zero,
            )  # fmt: skip
        begin += whole_blocks(plan.c) * part.reads


@compiled(__name__, nogil=True)
def frame(x, c, h, w, out, tall, wide, margin):
    """Copy planes x (c * h * w, lanes) to where they lie in larger ones, out (c * tall * wide, lanes)."""
    for i in range(c):
        for y in range(h):
            start, end = (i * h + y) * w, (i * tall + y + margin) * wide + margin
            copy(x[start : start + w], out[end:])


@compiled(__name__, nogil=True)
def read(images, flat, out, c, h, w, tall, wide, margin):
    """Write images (n, c * h * w) as a SIMD batch with a margin into out. flat: room for the SIMD batch without one."""
    framed = margin > 0 or tall > h or wide > w
    pack_simd(images, flat if framed else out)
    if framed:
        frame(flat, c, h, w, out, tall, wide, margin)


@compiled(__name__, nogil=True)
def read_x(plan, images, flat, out):
    """Write images (n, c * h * w) as a SIMD batch with its margin. flat, out: see `buffers_of_x`."""
    read(images, flat, out, plan.c, plan.h, plan.w, plan.tall, plan.wide, plan.margin)


@compiled(__name__, nogil=True)
def read_dz(plan, dz, flat, out):
    """Write gradients of outputs (n, elements) as a SIMD batch with its margin. flat, out: see `buffers_of_dz`."""
    read(dz, flat, out, plan.c_out, plan.rows, plan.columns, plan.dz_tall, plan.dz_wide, plan.dz_margin)


@compiled(__name__, nogil=True)
def bare(elements, like):
    """Return an array (elements, lanes), of the dtype of `like`, with any values in it."""
    lanes = BYTES // like.itemsize
    return aligned(elements * lanes, like).reshape(elements, lanes)


@compiled(__name__, nogil=True)
def buffer(elements, like):
    """Return zeros (elements, lanes), of the dtype of `like`."""
    found = bare(elements, like)
    found[:] = 0
    return found


@compiled(__name__, nogil=True)
def buffers_of_x(plan, like):
    """Return room for a SIMD batch of inputs without its margin, and with it."""
    return buffer(plan.c * plan.h * plan.w, like), buffer(plan.c * plan.tall * plan.wide, like)


@compiled(__name__, nogil=True)
def buffers_of_dz(plan, like):
    """Return room for a SIMD batch of gradients of outputs without its margin, and with it."""
    return buffer(plan.c_out * plan.rows * plan.columns, like), buffer(plan.c_out * plan.dz_tall * plan.dz_wide, like)


@compiled(__name__, nogil=True)
def buffer_of_products(plan, channels, like):
    """Return room for the 36 matrices of so many channels, where there are tiles."""
    return bare(plan.winograd * PRODUCTS * winograd.apart(plan, channels), like)


@compiled(__name__, parallel=True, nogil=True)
def pack_winograd(W, U, back):
    """Write the transformed weights, see `winograd.pack`, on all cores."""
    chunk = 2 * ROWS  # a multiple of the lanes
    for i in prange((len(W) + chunk - 1) // chunk):
        winograd.pack(W, i * chunk, min((i + 1) * chunk, len(W)), U, back)


@compiled(__name__, parallel=True, nogil=True)
def forward(plan, tables, x, W, b, z, shares):
    """Write the convolution of x (n, c * h * w) with W (c_out, c, k, k), and b (c_out,), into z (n, elements).

    shares: how many parts of the batch are done at the same time.
    """
    rows, lanes = whole_blocks(plan.c_out), BYTES // x.itemsize
    packed = zeros((PRODUCTS if plan.winograd else plan.k**2) * rows * plan.c, x)
    if plan.winograd:
        pack_winograd(W, packed, packed[:0])
    else:
        pack_rows(W.reshape(plan.c_out, -1), packed)
    start = zeros(rows + ROWS, x)  # the bias, and a block of zeros
    copy(b, start)
    simd_batches = (len(x) + lanes - 1) // lanes
    for share in prange(shares):
        flat, buffer_x = buffers_of_x(plan, x)
        buffer_z = buffer(plan.c_out * plan.rows * plan.columns, x)
        tiles = buffer(plan.winograd * TOGETHER * plan.z_tall * plan.z_wide, x)
        V, M = bare(plan.winograd * winograd.elements_of(plan), x), buffer_of_products(plan, TOGETHER, x)
        for g in range(simd_batches * share // shares, simd_batches * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read_x(plan, x[images], flat, buffer_x)
            if plan.winograd:
                results_of_tiles(plan, address(tables), packed, start, buffer_x, V, M, tiles, buffer_z)
            else:
                results(plan, address(tables), packed, start, buffer_x, buffer_z)
            unpack_simd(buffer_z, z[images])


@compiled(__name__, nogil=True)
def results(plan, at, packed, start, x, z):
    """Write what a SIMD batch x, with its margin, gives into z (elements, lanes)."""
    depth, positions = plan.c * plan.k**2, plan.rows * plan.columns
    for o in range(0, plan.c_out, ROWS):
        multiply(
            x.dtype, plan.c_out - o, address(packed[o * depth :]), at + ADDRESS * plan.taps, depth,
            address(x), at + ADDRESS * plan.x_at, positions,
            address(z[o * positions :]), at + ADDRESS * plan.z_at, positions * BYTES, address(start[o:]),
        )  # fmt: skip


@compiled(__name__, nogil=True)
def results_of_tiles(plan, at, U, start, x, V, M, tiles, z):
    """Do what `results` does, with Winograd's convolution. V, M, tiles: room for these."""
    zero = address(start[whole_blocks(plan.c_out) :])
    winograd.images_in(plan, x.dtype, address(x), address(V))
    winograd.seen_in(plan, x.reshape(plan.c, plan.tall, plan.wide, x.shape[1]), V)
    for o in range(0, plan.c_out, TOGETHER):
        winograd.results_out(
            plan, at, x.dtype, x.itemsize, o, address(U), address(V), address(M), address(tiles),
            address(start[o:]), zero,
        )  # fmt: skip
        for i in range(min(TOGETHER, plan.c_out - o)):
            for y in range(plan.rows):
                begin, end = (i * plan.z_tall + y) * plan.z_wide, ((o + i) * plan.rows + y) * plan.columns
                copy(tiles[begin : begin + plan.columns], z[end:])


@compiled(__name__, parallel=True, nogil=True)
def backward_weights(plan, tables, x, dz, dW, shares):
    """Write the gradient of the weights, dW (c_out, c * k * k), from x (n, c * h * w) and dz (n, elements)."""
    at, size, lanes = address(tables), x.itemsize, BYTES // x.itemsize
    depth, positions = plan.c * plan.k**2, plan.rows * plan.columns
    block = PRODUCTS * block_elements(plan.c, lanes) if plan.winograd else block_elements(depth, lanes)
    partial = zeros(shares * slope_blocks(plan.c_out) * block, x).reshape(shares, -1)
    simd_batches = (len(x) + lanes - 1) // lanes
    for share in prange(shares):
        flat, buffer_x = buffers_of_x(plan, x)
        flat_z, buffer_z = (
            buffer(plan.c_out * positions, x),
            buffer(plan.winograd * plan.c_out * plan.dz_tall * plan.dz_wide, x),
        )
        V, dM = buffer_of_products(plan, plan.c, x), buffer_of_products(plan, plan.c_out, x)
        for g in range(simd_batches * share // shares, simd_batches * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read_x(plan, x[images], flat, buffer_x)
            if plan.winograd:
                read_dz(plan, dz[images], flat_z, buffer_z)
                winograd.images_in(plan, x.dtype, address(buffer_x), address(V))
                winograd.slopes_in(plan, x.dtype, 0, plan.c_out, address(buffer_z), address(dM))
                winograd.add_weights(plan, at, x.dtype, size, address(dM), address(V), address(partial[share]))
                continue
            pack_simd(dz[images], flat_z)
            for o in range(0, plan.c_out, SLOPE_ROWS):
                add_slopes(
                    x.dtype, plan.c_out - o, address(flat_z[o * positions :]), positions * BYTES,
                    at + ADDRESS * plan.z_at, address(buffer_x), at + ADDRESS * plan.x_at, positions,
                    at + ADDRESS * plan.taps, depth, address(partial[share, o // SLOPE_ROWS * block :]),
                    piece_of(lanes) * size,
                )  # fmt: skip
    for o in prange(plan.c_out):
        if plan.winograd:
            winograd.unpack(partial, np.intp(0), np.intp(o), np.intp(o + 1), dW)
        else:
            collect(partial, np.intp(0), plan.c_out, np.intp(o), dW[o : o + 1])


@compiled(__name__, parallel=True, nogil=True)
def backward_input(plan, tables, dz, W, dx, shares):
    """Write the gradient of the input, dx (n, c * h * w), from dz (n, elements) and W (c_out, c, k, k)."""
    at, lanes = address(tables), BYTES // dz.itemsize
    packed = zeros((PRODUCTS if plan.winograd else plan.k**2) * whole_blocks(plan.c) * plan.c_out, dz)
    if plan.winograd:
        pack_winograd(W, packed[:0], packed)
    else:
        pack_parts(plan, tables, W, packed)
    none, simd_batches = zeros(ROWS, dz), (len(dz) + lanes - 1) // lanes
    for share in prange(shares):
        (flat, buffer_z), buffer_x = buffers_of_dz(plan, dz), buffer(plan.c * plan.h * plan.w, dz)
        dM, dV = buffer_of_products(plan, plan.c_out, dz), buffer_of_products(plan, plan.c, dz)
        plane = buffer(plan.winograd * plan.tall * plan.wide, dz)
        for g in range(simd_batches * share // shares, simd_batches * (share + 1) // shares):
            images = slice(g * lanes, (g + 1) * lanes)
            read_dz(plan, dz[images], flat, buffer_z)
            if plan.winograd:
                winograd.slopes_in(plan, dz.dtype, 0, plan.c_out, address(buffer_z), address(dM))
                winograd.slopes_out(
                    plan, at, dz.dtype, dz.itemsize, address(packed), address(dM), address(dV),
                    plane.reshape(plan.tall, plan.wide, lanes), buffer_x.reshape(plan.c, plan.h, plan.w, lanes),
                    address(none),
                )  # fmt: skip
            else:
                parts_back(plan, tables, packed, address(buffer_z), address(buffer_x), address(none))
            unpack_simd(buffer_x, dx[images])

"""A training step of a chain of convolutions, then dense layers: each core takes its bundles through all of them.

A block is a convolution with what follows it, ReLU and the largest of each window in either order, which is the same:
both are done as soon as ROWS channels of a result are made, while they are in a near cache, and the result itself is
kept nowhere. From the first block to the last a bundle stays a bundle; the dense layers get rows, see `step`.

Each core leaves a gradient of its own, from its bundles, and of the dense layers' what the whole batch needs. Then the
cores share out the parameters, and not the images: see `parameter_gradients`.

A chain is described by integers, a row for each block or dense layer, so that all models share the compiled code.
"""

from math import prod
from typing import NamedTuple

import numpy as np
from numba import prange
from numba.np.unsafe.ndarray import to_fixed_tuple

from . import fused as _fused
from . import winograd
from .bundles import (
    ADDRESS,
    NONE,
    ROWS,
    add_slopes,
    bundle,
    collect,
    multiply,
    piece_of,
    pool,
    pool_backward,
    room_of,
    unbundle,
)
from .compiler import FASTMATH, compile_loops, compiled
from .convolve import (
    PART,
    pack_rows,
    part_of,
    plan,
    read,
    whole_blocks,
    winograd_back,
    winograd_in,
    winograd_out,
    winograd_pack,
    winograd_seen,
    winograd_slopes,
    winograd_unpack,
    winograd_weights,
)
from .gemm import multiply as product
from .simd import BYTES

_one_core = compile_loops(__name__, _fused, fastmath=FASTMATH, error_model="numpy")
add_bias_relu, cross_entropy = _one_core.add_bias_relu, _one_core.cross_entropy
relu_backward_in_place, sum_rows = _one_core.relu_backward_in_place, _one_core.sum_rows


class Block(NamedTuple):
    """A convolution and what follows it, as integers: those of its `Plan`, and where its arrays and tables begin."""

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
    taps: int
    x_at: int
    z_at: int
    parts: int
    winograd: int
    down: int
    across: int
    z_tall: int
    z_wide: int
    taps_in: int
    taps_out: int
    tiles_at: int
    dz_at: int  # table (rows, columns): from the first number of dz with its margin to each result's
    window: int  # how many numbers a window of the pooling has: 1 where there is none
    pool_stride: int
    pool_rows: int
    pool_columns: int
    overlap: int  # whether windows overlap
    relu: int
    pool_taps: int  # table (window,): from a window's corner in a result to each of its numbers
    back_taps: int  # the same, in dz with its margin
    W: int  # where the weights begin in theta
    b: int  # where the bias begins, -1 where there is none
    own: int  # where the gradient of W, or dU, begins in a share's own
    own_b: int  # where that of b begins
    packed: int  # where the weights begin as blocks of rows, for the forward pass
    bias: int  # where the bias begins, filled up to whole blocks
    back: int  # where the weights begin for the gradient of the input
    x: int  # where the bundle's input begins in `kept`
    y: int  # where its output begins, y_margin and all
    y_tall: int
    y_wide: int
    y_margin: int
    marks: int  # where the bytes of the pooling begin
    dz: int  # where dz begins in a share's scratch, of all channels, or of ROWS where that is enough
    dz_whole: int  # whether it is of all channels
    wants_dx: int


PRODUCTS, TOGETHER = winograd.PRODUCTS, winograd.TOGETHER
SLICES = 8  # parts in which a block's weights are packed
FIELDS = len(Block._fields)
TABLES = ("taps", "x_at", "z_at", "parts", "taps_in", "taps_out", "tiles_at")  # of a plan


class Dense(NamedTuple):
    """A dense layer, as integers."""

    inputs: int
    outputs: int
    W: int  # where the weights begin in theta
    b: int
    x: int  # where the batch's inputs (n, inputs) begin in `rows`
    dx: int  # where their gradient begins


class Room(NamedTuple):
    """How much memory a chain takes: numbers a bundle, bytes a bundle, numbers a share, and of `packed` and `own`."""

    kept: int
    marks: int
    scratch: int
    packed: int
    own: int
    zeros: int  # where in `packed` a block of zeros begins
    flat: int  # where room for the input without its margin begins in the scratch
    z: int  # where room for ROWS channels of a result begins
    dy: int  # where room for the gradient of a block's output begins
    V: int  # where room for V of Winograd's convolution begins, and so on
    M: int
    dV: int
    plane: int


def blocks_of(rows):
    """Return how many rows there are once they are filled up to whole blocks."""
    return -(-rows // ROWS) * ROWS


def step_of(plan):
    """Return how many channels of a result are made before they are pooled."""
    return TOGETHER if plan.winograd else ROWS


def lay_out(shape, blocks, dense, lanes):
    """Return the rows of integers of blocks and dense layers, their tables, and the `Room` they take.

    shape: of an image. blocks: tuples (channels out, k, stride, padding, pool size, pool stride, relu, W, b); dense:
    tuples (outputs, W, b). W, b: where they begin in theta.
    """
    space, plans, found = _Space(lanes), [], []
    take, table = space.take, space.table
    for channels, k, stride, padding, size, hop, *_ in blocks:
        one = space.planned(*plan(*shape, channels, k, stride, padding))
        plans.append(one)
        shape = channels, *((length - size) // hop + 1 for length in (one.rows, one.columns))
    features = prod(shape)

    def spread(plan):
        """Return where a block's input begins, the numbers of a plane's rows and columns, and the margin."""
        return take("kept", plan.c * plan.tall * plan.wide * lanes), plan.tall, plan.wide, plan.margin

    inputs = [spread(one) for one in plans]
    inputs.append((take("kept", features * lanes), *shape[1:], 0))
    first = plans[0]
    flat = take("scratch", first.c * first.h * first.w * lanes)
    z = take("scratch", lanes * max(step_of(one) * one.z_tall * one.z_wide for one in plans))
    dy = take("scratch", lanes * max([features, *(one.c * one.h * one.w for one in plans[1:])]))
    for i, (one, (channels, k, _, _, size, hop, relu, W, b)) in enumerate(zip(plans, blocks, strict=True)):
        down, right = ((length - size) // hop + 1 for length in (one.rows, one.columns))
        steps = np.arange(size)
        places = one.dz_margin + np.arange(one.rows), one.dz_margin + np.arange(one.columns)
        dz_at = np.add.outer(one.dz_wide * places[0], places[1]).ravel()
        whole = i > 0 and not one.winograd
        depth, back = (PRODUCTS * one.c, PRODUCTS * channels) if one.winograd else (one.c * k * k, channels * k * k)
        own = PRODUCTS * room_of.py_func(one.c, lanes) if one.winograd else room_of.py_func(depth, lanes)
        x, (y, y_tall, y_wide, y_margin) = inputs[i][0], inputs[i + 1]
        found.append(Block._make([
            *one, table(BYTES * dz_at), size * size, hop, down, right, int(hop < size), int(relu),
            table(BYTES * np.add.outer(one.z_wide * steps, steps)),
            table(BYTES * np.add.outer(one.dz_wide * steps, steps)),
            W, b, take("own", blocks_of(channels) // ROWS * own), take("own", channels),
            take("packed", blocks_of(channels) * depth),
            take("packed", blocks_of(channels)), take("packed", blocks_of(one.c) * back), x, y, y_tall, y_wide,
            y_margin, take("marks", channels * down * right * lanes),
            take("scratch", (channels if whole else ROWS) * one.dz_tall * one.dz_wide * lanes), int(whole), int(i > 0),
        ]))  # fmt: skip
    of_winograd = [take("scratch", lanes * numbers) for numbers in _room_of_winograd(plans)]
    zeros = take("packed", ROWS)
    layers, at, wide = [], 0, features
    for outputs, W, b in dense:
        layers.append(Dense(wide, outputs, W, b, at, at))  # both vectors are laid out alike
        at, wide = at + wide, outputs
    layers.append(Dense(wide, 0, 0, 0, at, at))  # the logits
    sizes = (space.taken[what] for what in Room._fields[:5])
    room = Room._make([*sizes, zeros, flat, z, dy, *of_winograd])
    return np.array(found), np.array(layers), np.concatenate(space.tables), room


class _Space:
    """Hands out places in a chain's vectors, and collects its tables."""

    def __init__(self, lanes):
        self.lanes, self.tables = lanes, list[np.ndarray]()
        self.taken = dict.fromkeys((*Room._fields[:5], "tables"), 0)

    def take(self, what, numbers):
        """Return where so many numbers begin; vectors begin where a register's worth of memory does."""
        start, lanes = self.taken[what], 1 if what == "tables" else self.lanes
        self.taken[what] += -(-int(numbers) // lanes) * lanes
        return start

    def table(self, array):
        """Append a table, and return where it begins."""
        self.tables.append(np.ascontiguousarray(array, np.int64).ravel())
        return self.take("tables", len(self.tables[-1]))

    def planned(self, one, numbers):
        """Return a plan whose tables, which are appended, begin where they are among all of them."""
        begin, numbers = self.taken["tables"], numbers.copy()
        parts = numbers[one.parts : one.parts + PART * one.stride**2].reshape(-1, PART)
        parts[:, 3:] += begin
        self.table(numbers)
        one = one._replace(**{name: getattr(one, name) + begin for name in TABLES})
        if one.winograd:  # its dz has no margin, and is whole tiles
            one = one._replace(dz_margin=0, dz_tall=one.z_tall, dz_wide=one.z_wide)
        return one


def _room_of_winograd(plans):
    """Yield the numbers, of a bundle's one image, that V, M, dV and a plane take where there are tiles."""
    tiled, apart = [one for one in plans if one.winograd], winograd.apart.py_func
    V = max((winograd.numbers_of.py_func(one.c, one.down * one.across) for one in tiled), default=0)
    yield V
    yield max((PRODUCTS * apart(max(one.c_out, TOGETHER), one.down * one.across) for one in tiled), default=0)
    yield V
    yield max((one.tall * one.wide for one in tiled), default=0)


@compiled(__name__, nogil=True)
def block_of(row):
    """Return a row of integers as a `Block`."""
    return Block(*to_fixed_tuple(row, FIELDS))


@compiled(__name__, nogil=True)
def parts_of(block, tables):
    """Return the table of the convolutions that make the gradient of a block's input."""
    return tables[block.parts : block.parts + PART * block.stride**2].reshape(-1, PART)


@compiled(__name__, parallel=True, nogil=True)
def pack(blocks, tables, theta, packed):
    """Write the weights of all blocks as blocks of rows, for both directions, and transformed where that is needed."""
    lanes = BYTES // theta.itemsize
    for task in prange(SLICES * len(blocks)):
        block, piece = block_of(blocks[task // SLICES]), task % SLICES
        W = weights_of(theta, block)
        if piece == 0 and block.b >= 0:
            packed[block.bias : block.bias + block.c_out] = theta[block.b : block.b + block.c_out]
        if block.winograd:
            chunks = (block.c_out + lanes - 1) // lanes
            first, end = chunks * piece // SLICES * lanes, min(chunks * (piece + 1) // SLICES * lanes, block.c_out)
            U = packed[block.packed : block.packed + PRODUCTS * whole_blocks(block.c_out) * block.c]
            back = packed[block.back : block.back + PRODUCTS * whole_blocks(block.c) * block.c_out]
            winograd_pack(W, first, end, U, back)
        elif piece == 0:
            pack_rows(W.reshape(block.c_out, -1), packed[block.packed :])
        elif piece == 1 and block.wants_dx:
            parts, begin = parts_of(block, tables), block.back
            for i in range(len(parts)):
                some = part_of(W, parts[i, 0], parts[i, 1], block.stride)
                pack_rows(some, packed[begin:])
                begin += whole_blocks(block.c) * some.shape[1]


@compiled(__name__, nogil=True)
def weights_of(theta, block):
    """Return the view of a block's weights (c_out, c, k, k) in a vector that is laid out as theta is."""
    size = block.c_out * block.c * block.k * block.k
    return theta[block.W : block.W + size].reshape(block.c_out, block.c, block.k, block.k)


@compiled(__name__, nogil=True)
def block_forward(block, tables, packed, kept, marks, scratch, room):
    """Take a bundle through a block: from `kept`, with what comes out to there, and to `marks`."""
    size, at, depth = kept.itemsize, tables.ctypes.data, block.c * block.k**2
    lanes, plane = BYTES // size, block.z_tall * block.z_wide * BYTES
    x, z = kept[block.x :].ctypes.data, scratch[room.z :].ctypes.data
    V, zero = scratch[room.V :].ctypes.data, packed[room.zeros :].ctypes.data
    if block.winograd:
        winograd_in(block, kept.dtype, x, V)
        begin, numbers = block.x, block.c * block.tall * block.wide * lanes
        images = kept[begin : begin + numbers].reshape(block.c, block.tall, block.wide, lanes)
        winograd_seen(block, images, scratch[room.V : room.M].reshape(-1, lanes))
    step = TOGETHER if block.winograd else ROWS
    for o in range(0, block.c_out, step):
        if block.winograd:
            winograd_out(
                block, at, kept.dtype, size, o, packed[block.packed :].ctypes.data, V, scratch[room.M :].ctypes.data,
                z, packed[block.bias + o :].ctypes.data, zero,
            )  # fmt: skip
        else:
            multiply(
                kept.dtype, block.c_out - o, packed[block.packed + o * depth :].ctypes.data,
                at + ADDRESS * block.taps, depth, x, at + ADDRESS * block.x_at, block.rows * block.columns,
                z, at + ADDRESS * block.z_at, plane, packed[block.bias + o :].ctypes.data,
            )  # fmt: skip
        y = ((o * block.y_tall + block.y_margin) * block.y_wide + block.y_margin) * BYTES
        pool(
            kept.dtype, lanes, z, block.z_wide * BYTES, plane, block.pool_stride, at + ADDRESS * block.pool_taps,
            block.window, block.relu, min(step, block.c_out - o), block.pool_rows, block.pool_columns,
            kept[block.y :].ctypes.data + y, block.y_wide * BYTES, block.y_tall * block.y_wide * BYTES,
            marks[block.marks + o * block.pool_rows * block.pool_columns * lanes :].ctypes.data,
        )  # fmt: skip


@compiled(__name__, nogil=True)
def block_backward(block, tables, packed, kept, marks, scratch, room, own):
    """Add a bundle's gradients of a block to `own`; from the gradient of its output make that of its input."""
    size, at, depth = kept.itemsize, tables.ctypes.data, block.c * block.k**2
    lanes, plane, pooled = BYTES // size, block.dz_tall * block.dz_wide, block.pool_rows * block.pool_columns
    corner = (block.dz_margin * block.dz_wide + block.dz_margin) * BYTES
    x, zero = kept[block.x :].ctypes.data, packed[room.zeros :].ctypes.data
    V, dM = scratch[room.V :].ctypes.data, scratch[room.M :].ctypes.data
    for o in range(0, block.c_out, ROWS):
        channels = min(ROWS, block.c_out - o)
        start = block.dz + (o * plane * lanes if block.dz_whole else 0)
        dz = scratch[start : start + channels * plane * lanes]
        if block.overlap:
            dz[:] = 0
        pool_backward(
            kept.dtype, lanes, scratch[room.dy + o * pooled * lanes :].ctypes.data,
            marks[block.marks + o * pooled * lanes :].ctypes.data, block.pool_stride, at + ADDRESS * block.back_taps,
            block.window, channels, block.pool_rows, block.pool_columns, block.overlap,
            dz.ctypes.data + corner, block.dz_wide * BYTES, plane * BYTES,
        )  # fmt: skip
        if block.winograd:
            winograd_slopes(block, kept.dtype, o, channels, dz.ctypes.data, dM)
        else:
            add_slopes(
                kept.dtype, channels, dz.ctypes.data, plane * BYTES, at + ADDRESS * block.dz_at,
                x, at + ADDRESS * block.x_at, block.rows * block.columns,
                at + ADDRESS * block.taps, depth,
                own[block.own + o // ROWS * room_of(depth, lanes) :].ctypes.data, piece_of(lanes) * size,
            )  # fmt: skip
        for i in range(channels):
            own[block.own_b + o + i] += total(dz[i * plane * lanes : (i + 1) * plane * lanes])
    numbers = block.h * block.w
    if block.winograd:
        winograd_in(block, kept.dtype, x, V)
        winograd_weights(block, at, kept.dtype, size, dM, V, own[block.own :].ctypes.data)
        if block.wants_dx:
            dx = scratch[room.dy : room.dy + block.c * numbers * lanes].reshape(block.c, block.h, block.w, lanes)
            around = scratch[room.plane : room.plane + block.tall * block.wide * lanes]
            winograd_back(
                block, at, kept.dtype, size, packed[block.back :].ctypes.data, dM, scratch[room.dV :].ctypes.data,
                around.reshape(block.tall, block.wide, lanes), dx, zero,
            )  # fmt: skip
    elif block.wants_dx:
        parts, begin = parts_of(block, tables), block.back
        for i in range(len(parts)):
            taps = (block.k - parts[i, 0] + block.stride - 1) // block.stride
            taps *= (block.k - parts[i, 1] + block.stride - 1) // block.stride
            reads = block.c_out * max(taps, 0) if parts[i, 0] < block.k and parts[i, 1] < block.k else 0
            for c in range(0, block.c, ROWS):
                multiply(
                    kept.dtype, block.c - c, packed[begin + c * reads :].ctypes.data, at + ADDRESS * parts[i, 3],
                    reads, scratch[block.dz :].ctypes.data, at + ADDRESS * parts[i, 4], parts[i, 2],
                    scratch[room.dy + c * numbers * lanes :].ctypes.data, at + ADDRESS * parts[i, 5], numbers * BYTES,
                    zero,
                )  # fmt: skip
            begin += whole_blocks(block.c) * reads


@compiled(__name__, nogil=True, fastmath=FASTMATH)
def total(values):
    """Return the sum of a vector."""
    found = values.dtype.type(0)
    for i in range(len(values)):
        found += values[i]
    return found


@compiled(__name__, nogil=True)
def area(rows, at, wide, most, n):
    """Return the part (n, wide) of `rows` that begins at `at` numbers for each of the `most` images."""
    return rows[at * most : at * most + n * wide].reshape(n, wide)


@compiled(__name__, parallel=True, nogil=True)
def backpropagate(blocks, dense, tables, room, x, labels, theta, packed, kept, marks, scratch, own, rows, slopes, most,
                  losses):  # fmt: skip
    """Take the images x (n, numbers) through all layers, and the gradient back; write a share of the mean loss a turn.

    labels (n,). What `Room` says: packed; kept, marks (bundles, ...); scratch, own (shares, ...). rows, slopes: what
    goes into the dense layers and comes out of the last one, and the gradients of that, for `most` images.
    """
    n, shares, last = len(x), len(losses), len(dense) - 2
    lanes = BYTES // x.itemsize
    bundles = (n + lanes - 1) // lanes
    for share in prange(shares):
        some, mine = scratch[share], own[share]
        mine[:] = 0
        start, end = bundles * share // shares, bundles * (share + 1) // shares
        first, beyond = start * lanes, min(end * lanes, n)
        block = block_of(blocks[0])
        numbers = block.c * block.h * block.w
        flat = some[room.flat : room.flat + numbers * lanes].reshape(numbers, lanes)
        features = dense[0, 0]
        inputs = area(rows, 0, features, most, n)
        for g in range(start, end):
            into = kept[g, block.x : block.x + block.c * block.tall * block.wide * lanes].reshape(-1, lanes)
            images = slice(g * lanes, (g + 1) * lanes)
            read(x[images], flat, into, block.c, block.h, block.w, block.tall, block.wide, block.margin)
            for i in range(len(blocks)):
                one = block_of(blocks[i])
                block_forward(one, tables, packed, kept[g], marks[g], some, room)
            y = block_of(blocks[len(blocks) - 1]).y
            unbundle(kept[g, y : y + features * lanes].reshape(features, lanes), inputs[images])
        for i in range(last + 1):
            wide, out = dense[i, 0], dense[i, 1]
            W, b = theta[dense[i, 2] : dense[i, 2] + wide * out].reshape(wide, out), theta[dense[i, 3] :][:out]
            a = area(rows, dense[i, 4], wide, most, n)[first:beyond]
            z = area(slopes if i == last else rows, dense[i + 1, 4], out, most, n)[first:beyond]
            product(a, W, z)
            if i < last:
                add_bias_relu(z, b)
            else:
                losses[share] = cross_entropy(z, b, labels[first:beyond], n)
        for i in range(last, -1, -1):
            wide, out = dense[i, 0], dense[i, 1]
            W = theta[dense[i, 2] : dense[i, 2] + wide * out].reshape(wide, out)
            dx = area(slopes, dense[i, 4], wide, most, n)[first:beyond]
            product(area(slopes, dense[i + 1, 4], out, most, n)[first:beyond], W.T, dx)
            if i > 0:
                relu_backward_in_place(area(rows, dense[i, 4], wide, most, n)[first:beyond], dx)
        dy = some[room.dy : room.dy + features * lanes].reshape(features, lanes)
        back = area(slopes, 0, features, most, n)
        for g in range(start, end):
            bundle(back[g * lanes : min((g + 1) * lanes, n)], dy)
            for i in range(len(blocks) - 1, -1, -1):
                one = block_of(blocks[i])
                block_backward(one, tables, packed, kept[g], marks[g], some, room, mine)


@compiled(__name__, parallel=True, nogil=True)
def parameter_gradients(blocks, dense, n, own, rows, slopes, most, grad, parts):
    """Write the gradient of the loss, laid out as theta is, from what `backpropagate` wrote; a part of it a turn."""
    for part in prange(parts):
        for i in range(len(dense) - 1):
            wide, out = dense[i, 0], dense[i, 1]
            a, dz = area(rows, dense[i, 4], wide, most, n), area(slopes, dense[i + 1, 4], out, most, n)
            packages = (wide + ROWS - 1) // ROWS
            top, bottom = packages * part // parts * ROWS, min(packages * (part + 1) // parts * ROWS, wide)
            if top < bottom:
                dW = grad[dense[i, 2] : dense[i, 2] + wide * out].reshape(wide, out)
                product(a.T[top:bottom], dz, dW[top:bottom])
            if part == parts - 1:
                sum_rows(dz, grad[dense[i, 3] : dense[i, 3] + out])
        for i in range(len(blocks)):
            block = block_of(blocks[i])
            first, end = block.c_out * part // parts, block.c_out * (part + 1) // parts
            dW = weights_of(grad, block)
            if block.winograd:
                winograd_unpack(own, block.own, first, end, dW)
            else:
                collect(own, block.own, block.c_out, first, dW.reshape(block.c_out, -1)[first:end])
            if block.b >= 0:
                add_up(own, block.own_b + first, grad[block.b + first : block.b + end])


@compiled(__name__, nogil=True)
def add_up(own, at, out):
    """Write the sum over the shares of own (shares, ...), from the number `at` on, into out, a vector."""
    out[:] = own[0, at : at + len(out)]
    for share in range(1, len(own)):
        for t in range(len(out)):
            out[t] += own[share, at + t]

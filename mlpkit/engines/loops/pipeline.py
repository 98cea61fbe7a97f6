"""A training step of a chain of convolutions, then dense layers: each core takes its SIMD batches through all of them.

A block is a convolution with what follows it, ReLU and the largest of each window in either order, which is the same:
both are done as soon as ROWS channels of a result are made, while they are in a near cache, and the result itself is
kept nowhere. From the first block to the last a SIMD batch stays a SIMD batch; the dense layers get rows, see `step`.

Each core leaves a gradient of its own, from its images, and of the dense layers' what the whole batch needs. Then the
cores share out the parameters, and not the images: see `parameter_gradients`.

A chain is described by integers, a row for each block or dense layer, so that all models share the compiled code.
"""

from math import prod
from typing import NamedTuple

import numpy as np
from numba import prange
from numba.np.unsafe.ndarray import to_fixed_tuple

from . import convolve, simd_batch, winograd
from . import fused as _fused
from .compiler import FASTMATH, compile_loops, compiled
from .convolve import Plan, Tables, distances
from .gemm import multiply as product
from .simd import ADDRESS, BYTES, address
from .simd_batch import ROWS, SLOPE_ROWS, block_elements, copy, slope_blocks, whole_blocks
from .winograd import PRODUCTS, TOGETHER

_one_core = compile_loops(__name__, _fused, fastmath=FASTMATH, error_model="numpy")
add_bias_relu, cross_entropy = _one_core.add_bias_relu, _one_core.cross_entropy
relu_backward_in_place, sum_rows = _one_core.relu_backward_in_place, _one_core.sum_rows


class Block(NamedTuple):
    """A convolution and what follows it, as integers: its `Plan`, and where its arrays and other tables begin."""

    plan: Plan
    dz_at: int  # table (rows, columns): from the first number of dz with its margin to each result's
    window: int  # how many elements a window of the pooling has: 1 where there is none
    pool_stride: int
    pool_rows: int
    pool_columns: int
    overlap: int  # whether windows overlap
    relu: int
    pool_taps: int  # table (window,): from a window's corner in a result to each of its elements
    back_taps: int  # the same, in dz with its margin
    W: int  # where the weights begin in theta
    b: int  # where the bias begins, -1 where there is none
    own: int  # where the gradient of W, or dU, begins in a share's own
    own_b: int  # where that of b begins
    packed: int  # where the weights begin as blocks of rows, for the forward pass
    bias: int  # where the bias begins, filled up to whole blocks
    back: int  # where the weights begin for the gradient of the input
    x: int  # where the SIMD batch's input begins in `kept`
    y: int  # where its output begins, y_margin and all
    y_tall: int
    y_wide: int
    y_margin: int
    marks: int  # where the bytes of the pooling begin
    dz: int  # where dz begins in a share's scratch, of all channels, or of ROWS where that is enough
    dz_whole: int  # whether it is of all channels
    wants_dx: int


SLICES = 8  # parts in which a block's weights are packed


class Dense(NamedTuple):
    """A dense layer, as integers."""

    inputs: int
    outputs: int
    W: int  # where the weights begin in theta
    b: int
    x: int  # where the batch's inputs (n, inputs) begin in `rows`, and their gradient in `slopes`
    y: int  # where its outputs do


OF_PLAN, OF_BLOCK, OF_DENSE = len(Plan._fields), len(Block._fields) - 1, len(Dense._fields)


class Workspace(NamedTuple):
    """How much memory a chain takes, and where in it begins what all blocks use."""

    kept: int  # elements a SIMD batch
    marks: int  # bytes a SIMD batch
    scratch: int  # elements a share
    packed: int
    own: int  # elements a share
    rows: int  # elements an image, of the dense layers
    zeros: int  # where in `packed` a block of zeros begins
    flat: int  # where room for the input without its margin begins in the scratch
    z: int  # where room for the channels of a result that are made together begins
    dy: int  # where room for the gradient of a block's output begins
    V: int  # where room for V of Winograd's convolution begins, and so on
    M: int
    dV: int
    plane: int


def lay_out(shape, blocks, dense, lanes):
    """Return the rows of integers of blocks and dense layers, their tables, and the `Workspace` they take.

    shape: of an image. blocks: tuples (channels out, k, stride, padding, pool size, pool stride, relu, W, b); dense:
    tuples (outputs, W, b). W, b: where they begin in theta.
    """
    space, plans = _Space(lanes), list[Plan]()
    for channels, k, stride, padding, size, hop, *_ in blocks:
        c, h, w = shape
        plans.append(convolve.planned(space.tables, c, h, w, channels, k, stride, padding))
        shape = channels, *_pooled(plans[-1], size, hop)
    features = prod(shape)
    inputs = [(space.take("kept", one.c * one.tall * one.wide), one.tall, one.wide, one.margin) for one in plans]
    inputs.append((space.take("kept", features), *shape[1:], 0))
    shared = _shared(space, plans, features)
    each = zip(plans, blocks, inputs, inputs[1:], strict=False)
    found = [_block(space, *one, wants_dx=i > 0) for i, one in enumerate(each)]
    layers, at, wide = [], 0, features
    for outputs, W, b in dense:
        layers.append(Dense(wide, outputs, W, b, at, at + wide))
        at, wide = at + wide, outputs
    rows = np.array([(*one.plan, *one[1:]) for one in found])
    return rows, np.array(layers), space.tables.concatenated(), Workspace(**space.taken, rows=at + wide, **shared)


class _Space:
    """Hands out places in a chain's vectors, and collects its tables."""

    def __init__(self, lanes):
        self.lanes, self.tables = lanes, Tables()
        self.taken = dict.fromkeys(("kept", "marks", "scratch", "packed", "own"), 0)

    def take(self, what, elements):
        """Return where so many elements begin; in `kept`, `marks` and `scratch`, of each image of a SIMD batch.

        They begin where a register's worth of memory does.
        """
        start, each = self.taken[what], 1 if what in ("packed", "own") else self.lanes
        self.taken[what] += -(-int(elements) * each // self.lanes) * self.lanes
        return start


def _pooled(plan, size, stride):
    """Return how many windows a plane of results has, down and right."""
    return tuple((length - size) // stride + 1 for length in (plan.rows, plan.columns))


def _shared(space, plans, features):
    """Return where begins what all blocks use, one after another: fields of `Workspace`."""
    first, apart = plans[0], winograd.apart.py_func
    V = [one.winograd * winograd.elements_of.py_func(one) for one in plans]
    M = [one.winograd * PRODUCTS * apart(one, max(one.c_out, TOGETHER)) for one in plans]
    sizes = {
        "flat": [first.c * first.h * first.w],
        "z": [step_of.py_func(one) * one.z_tall * one.z_wide for one in plans],
        "dy": [features, *(one.c * one.h * one.w for one in plans[1:])],
        "V": V,
        "M": M,
        "dV": V,
        "plane": [one.winograd * one.tall * one.wide for one in plans],
    }
    places = {name: space.take("scratch", max(elements)) for name, elements in sizes.items()}
    return {"zeros": space.take("packed", ROWS), **places}


def _block(space, plan, wanted, x, y, wants_dx):
    """Return the `Block` of a plan. wanted: one of the `blocks` of `lay_out`.

    x, y: of its input and its output, where in `kept` they begin, the rows and columns of a plane, and the margin.
    """
    channels, k, _, _, size, hop, relu, W, b = wanted
    take, table, filled, size_of = space.take, space.tables.put, whole_blocks.py_func, block_elements.py_func
    (down, right), steps = _pooled(plan, size, hop), np.arange(size)
    taps = PRODUCTS if plan.winograd else k * k
    own = PRODUCTS * size_of(plan.c, space.lanes) if plan.winograd else size_of(taps * plan.c, space.lanes)
    dz_whole = wants_dx and not plan.winograd
    return Block(
        plan,
        dz_at=table(distances(plan.dz_wide, *(plan.dz_margin + np.arange(n) for n in (plan.rows, plan.columns)))),
        window=size * size, pool_stride=hop, pool_rows=down, pool_columns=right, overlap=int(hop < size),
        relu=int(relu), pool_taps=table(distances(plan.z_wide, steps)), back_taps=table(distances(plan.dz_wide, steps)),
        W=W, b=b, own=take("own", slope_blocks.py_func(channels) * own), own_b=take("own", channels),
        packed=take("packed", filled(channels) * taps * plan.c), bias=take("packed", filled(channels)),
        back=take("packed", filled(plan.c) * taps * channels), x=x[0],
        y=y[0], y_tall=y[1], y_wide=y[2], y_margin=y[3], marks=take("marks", channels * down * right),
        dz=take("scratch", (channels if dz_whole else ROWS) * plan.dz_tall * plan.dz_wide), dz_whole=int(dz_whole),
        wants_dx=int(wants_dx),
    )  # fmt: skip


@compiled(__name__, nogil=True)
def step_of(plan):
    """Return how many channels of a result are made before they are pooled."""
    return TOGETHER if plan.winograd else ROWS


@compiled(__name__, nogil=True)
def block_of(row):
    """Return a row of integers as a `Block`."""
    return Block(Plan(*to_fixed_tuple(row, OF_PLAN)), *to_fixed_tuple(row[OF_PLAN:], OF_BLOCK))


@compiled(__name__, nogil=True)
def dense_of(row):
    """Return a row of integers as a `Dense`."""
    return Dense(*to_fixed_tuple(row, OF_DENSE))


@compiled(__name__, nogil=True)
def weights_of(theta, block):
    """Return the view of a block's weights (c_out, c, k, k) in a vector that is laid out as theta is."""
    plan = block.plan
    size = plan.c_out * plan.c * plan.k * plan.k
    return theta[block.W : block.W + size].reshape(plan.c_out, plan.c, plan.k, plan.k)


@compiled(__name__, nogil=True)
def arrays_of(theta, layer):
    """Return views of a dense layer's weights (inputs, outputs) and bias in a vector that is laid out as theta is."""
    W = theta[layer.W : layer.W + layer.inputs * layer.outputs].reshape(layer.inputs, layer.outputs)
    return W, theta[layer.b : layer.b + layer.outputs]


@compiled(__name__, nogil=True)
def simd_at(vector, at, elements):
    """Return the SIMD batch (elements, lanes) that begins at a place in a vector."""
    lanes = BYTES // vector.itemsize
    return vector[at : at + elements * lanes].reshape(elements, lanes)


@compiled(__name__, nogil=True)
def area(rows, at, wide, most, first, beyond):
    """Return what `rows` has, at `at` elements for each of `most` images, of the images from `first` to `beyond`."""
    return rows[at * most + first * wide : at * most + beyond * wide].reshape(beyond - first, wide)


@compiled(__name__, parallel=True, nogil=True)
def pack(blocks, tables, theta, packed):
    """Write the weights of all blocks as blocks of rows, for both directions, and transformed where that is needed."""
    lanes = BYTES // theta.itemsize
    for task in prange(SLICES * len(blocks)):
        block, piece = block_of(blocks[task // SLICES]), task % SLICES
        plan, W = block.plan, weights_of(theta, block)
        if piece == 0 and block.b >= 0:
            copy(theta[block.b : block.b + plan.c_out], packed[block.bias :])
        if plan.winograd:
            chunks = (plan.c_out + lanes - 1) // lanes
            first, end = chunks * piece // SLICES * lanes, min(chunks * (piece + 1) // SLICES * lanes, plan.c_out)
            U = packed[block.packed : block.packed + PRODUCTS * whole_blocks(plan.c_out) * plan.c]
            back = packed[block.back : block.back + PRODUCTS * whole_blocks(plan.c) * plan.c_out]
            winograd.pack(W, first, end, U, back)
        elif piece == 0:
            convolve.pack_rows(W.reshape(plan.c_out, -1), packed[block.packed :])
        elif piece == 1 and block.wants_dx:
            convolve.pack_parts(plan, tables, W, packed[block.back :])


@compiled(__name__, nogil=True)
def block_forward(block, tables, packed, kept, marks, scratch, workspace):
    """Take a SIMD batch through a block: from `kept`, with what comes out to there, and to `marks`."""
    plan, size, at = block.plan, kept.itemsize, address(tables)
    depth, lanes, plane = plan.c * plan.k**2, BYTES // size, plan.z_tall * plan.z_wide * BYTES
    x, z = address(kept[block.x :]), address(scratch[workspace.z :])
    V, zero = address(scratch[workspace.V :]), address(packed[workspace.zeros :])
    if plan.winograd:
        winograd.images_in(plan, kept.dtype, x, V)
        images = simd_at(kept, block.x, plan.c * plan.tall * plan.wide).reshape(plan.c, plan.tall, plan.wide, lanes)
        winograd.seen_in(plan, images, simd_at(scratch, workspace.V, winograd.elements_of(plan)))
    step = step_of(plan)
    for o in range(0, plan.c_out, step):
        if plan.winograd:
            winograd.results_out(
                plan, at, kept.dtype, size, o, address(packed[block.packed :]), V, address(scratch[workspace.M :]),
                z, address(packed[block.bias + o :]), zero,
            )  # fmt: skip
        else:
            simd_batch.multiply(
                kept.dtype, plan.c_out - o, address(packed[block.packed + o * depth :]),
                at + ADDRESS * plan.taps, depth, x, at + ADDRESS * plan.x_at, plan.rows * plan.columns,
                z, at + ADDRESS * plan.z_at, plane, address(packed[block.bias + o :]),
            )  # fmt: skip
        y = ((o * block.y_tall + block.y_margin) * block.y_wide + block.y_margin) * BYTES
        simd_batch.pool(
            kept.dtype, lanes, z, plan.z_wide * BYTES, plane, block.pool_stride, at + ADDRESS * block.pool_taps,
            block.window, block.relu, min(step, plan.c_out - o), block.pool_rows, block.pool_columns,
            address(kept[block.y :]) + y, block.y_wide * BYTES, block.y_tall * block.y_wide * BYTES,
            address(marks[block.marks + o * block.pool_rows * block.pool_columns * lanes :]),
        )  # fmt: skip


@compiled(__name__, nogil=True)
def block_backward(block, tables, packed, kept, marks, scratch, workspace, own):
    """Add a SIMD batch's gradients of a block to `own`; from the gradient of its output make that of its input."""
    plan, size, at = block.plan, kept.itemsize, address(tables)
    depth, lanes, plane = plan.c * plan.k**2, BYTES // size, plan.dz_tall * plan.dz_wide
    x, V, dM = address(kept[block.x :]), address(scratch[workspace.V :]), address(scratch[workspace.M :])
    for o in range(0, plan.c_out, ROWS):
        channels = min(ROWS, plan.c_out - o)
        dz = unpooled(block, tables, marks, scratch, workspace, o, channels)
        if plan.winograd:
            winograd.slopes_in(plan, kept.dtype, o, channels, address(dz), dM)
        for i in range(0, 0 if plan.winograd else channels, SLOPE_ROWS):
            to = own[block.own + (o + i) // SLOPE_ROWS * block_elements(depth, lanes) :]
            simd_batch.add_slopes(
                kept.dtype, channels - i, address(dz[i * plane * lanes :]), plane * BYTES, at + ADDRESS * block.dz_at,
                x, at + ADDRESS * plan.x_at, plan.rows * plan.columns, at + ADDRESS * plan.taps, depth,
                address(to), simd_batch.piece_of(lanes) * size,
            )  # fmt: skip
        for i in range(channels):
            own[block.own_b + o + i] += total(dz[i * plane * lanes : (i + 1) * plane * lanes])
    if plan.winograd:
        winograd.images_in(plan, kept.dtype, x, V)
        winograd.add_weights(plan, at, kept.dtype, size, dM, V, address(own[block.own :]))
    if block.wants_dx:
        input_gradient(block, tables, packed, scratch, workspace)


@compiled(__name__, nogil=True)
def unpooled(block, tables, marks, scratch, workspace, o, channels):
    """Return the gradients of some channels of a block's result, from `o` on, made from that of its output."""
    plan, at, lanes = block.plan, address(tables), BYTES // scratch.itemsize
    plane, pooled = plan.dz_tall * plan.dz_wide, block.pool_rows * block.pool_columns
    start = block.dz + (o * plane * lanes if block.dz_whole else 0)
    dz = scratch[start : start + channels * plane * lanes]
    if block.overlap:
        dz[:] = 0
    simd_batch.pool_backward(
        scratch.dtype, lanes, address(scratch[workspace.dy + o * pooled * lanes :]),
        address(marks[block.marks + o * pooled * lanes :]), block.pool_stride, at + ADDRESS * block.back_taps,
        block.window, channels, block.pool_rows, block.pool_columns, block.overlap,
        address(dz) + plan.dz_margin * (plan.dz_wide + 1) * BYTES, plan.dz_wide * BYTES, plane * BYTES,
    )  # fmt: skip
    return dz


@compiled(__name__, nogil=True)
def input_gradient(block, tables, packed, scratch, workspace):
    """Write the gradient of a block's input, from dz or dM, to where that of its output was."""
    plan, zero = block.plan, address(packed[workspace.zeros :])
    if plan.winograd:
        lanes = BYTES // scratch.itemsize
        dx = simd_at(scratch, workspace.dy, plan.c * plan.h * plan.w).reshape(plan.c, plan.h, plan.w, lanes)
        plane = simd_at(scratch, workspace.plane, plan.tall * plan.wide).reshape(plan.tall, plan.wide, lanes)
        winograd.slopes_out(
            plan, address(tables), scratch.dtype, scratch.itemsize, address(packed[block.back :]),
            address(scratch[workspace.M :]), address(scratch[workspace.dV :]), plane, dx, zero,
        )  # fmt: skip
    else:
        dz, dx_at = address(scratch[block.dz :]), address(scratch[workspace.dy :])
        convolve.parts_back(plan, tables, packed[block.back :], dz, dx_at, zero)


@compiled(__name__, nogil=True, fastmath=FASTMATH)
def total(values):
    """Return the sum of a vector."""
    found = values.dtype.type(0)
    for i in range(len(values)):
        found += values[i]
    return found


@compiled(__name__, nogil=True)
def blocks_forward(blocks, tables, workspace, images, packed, kept, marks, scratch, features):
    """Take images (n, elements), at most a SIMD batch, through all blocks; write features (n, ...), what comes out."""
    first, last = block_of(blocks[0]), block_of(blocks[len(blocks) - 1])
    plan = first.plan
    flat = simd_at(scratch, workspace.flat, plan.c * plan.h * plan.w)
    convolve.read_x(plan, images, flat, simd_at(kept, first.x, plan.c * plan.tall * plan.wide))
    for i in range(len(blocks)):
        block_forward(block_of(blocks[i]), tables, packed, kept, marks, scratch, workspace)
    simd_batch.unpack_simd(simd_at(kept, last.y, features.shape[1]), features)


@compiled(__name__, nogil=True)
def blocks_backward(blocks, tables, workspace, slopes, packed, kept, marks, scratch, own):
    """Add to `own` what a SIMD batch gives, from slopes (n, ...), the gradients of what came out of the last block."""
    simd_batch.pack_simd(slopes, simd_at(scratch, workspace.dy, slopes.shape[1]))
    for i in range(len(blocks) - 1, -1, -1):
        block_backward(block_of(blocks[i]), tables, packed, kept, marks, scratch, workspace, own)


@compiled(__name__, nogil=True)
def through_dense(dense, theta, rows, slopes, most, labels, n, first, beyond):
    """Take some of n images through the dense layers, and the gradient back; return their share of the mean loss."""
    last, loss = len(dense) - 1, 0.0
    for i in range(last + 1):
        layer = dense_of(dense[i])
        W, b = arrays_of(theta, layer)
        z = area(slopes if i == last else rows, layer.y, layer.outputs, most, first, beyond)
        product(area(rows, layer.x, layer.inputs, most, first, beyond), W, z)
        if i < last:
            add_bias_relu(z, b)
        else:
            loss = cross_entropy(z, b, labels[first:beyond], n)
    for i in range(last, -1, -1):
        layer = dense_of(dense[i])
        dx = area(slopes, layer.x, layer.inputs, most, first, beyond)
        dz = area(slopes, layer.y, layer.outputs, most, first, beyond)
        product(dz, arrays_of(theta, layer)[0].T, dx)
        if i > 0:
            relu_backward_in_place(area(rows, layer.x, layer.inputs, most, first, beyond), dx)
    return loss


@compiled(__name__, parallel=True, nogil=True)
def backpropagate(blocks, dense, tables, workspace, x, labels, theta, packed, kept, marks, scratch, own, rows, slopes,
                  most, losses):  # fmt: skip
    """Take the images x (n, elements) through all layers, and the gradient back; write a share of the mean loss a turn.

    labels (n,). Of `Workspace`: packed; kept, marks (SIMD batches, ...); scratch, own (shares, ...). rows, slopes: what
    goes into the dense layers and comes out of the last one, and the gradients of that, for `most` images.
    """
    n, shares, lanes, features = len(x), len(losses), BYTES // x.itemsize, dense[0, 0]
    simd_batches = (n + lanes - 1) // lanes
    for share in prange(shares):
        some, mine = scratch[share], own[share]
        mine[:] = 0
        start, end = simd_batches * share // shares, simd_batches * (share + 1) // shares
        y, dy = area(rows, 0, features, most, 0, n), area(slopes, 0, features, most, 0, n)
        for g in range(start, end):
            images = slice(g * lanes, (g + 1) * lanes)
            blocks_forward(blocks, tables, workspace, x[images], packed, kept[g], marks[g], some, y[images])
        first, beyond = start * lanes, min(end * lanes, n)
        losses[share] = through_dense(dense, theta, rows, slopes, most, labels, n, first, beyond)
        for g in range(start, end):
            images = slice(g * lanes, (g + 1) * lanes)
            blocks_backward(blocks, tables, workspace, dy[images], packed, kept[g], marks[g], some, mine)


@compiled(__name__, parallel=True, nogil=True)
def parameter_gradients(blocks, dense, n, own, rows, slopes, most, grad, parts):
    """Write the gradient of the loss, laid out as theta is, from what `backpropagate` wrote; a part of it a turn."""
    for part in prange(parts):
        for i in range(len(dense)):
            layer = dense_of(dense[i])
            dW, db = arrays_of(grad, layer)
            a = area(rows, layer.x, layer.inputs, most, 0, n)
            dz = area(slopes, layer.y, layer.outputs, most, 0, n)
            packages = (layer.inputs + ROWS - 1) // ROWS
            top, bottom = packages * part // parts * ROWS, min(packages * (part + 1) // parts * ROWS, layer.inputs)
            if top < bottom:
                product(a.T[top:bottom], dz, dW[top:bottom])
            if part == parts - 1:
                sum_rows(dz, db)
        for i in range(len(blocks)):
            block = block_of(blocks[i])
            c_out = block.plan.c_out
            dW_rows = weights_of(grad, block).reshape(c_out, -1)
            first, end = c_out * part // parts, c_out * (part + 1) // parts
            if block.plan.winograd:
                winograd.unpack(own, block.own, first, end, dW_rows)
            else:
                simd_batch.collect(own, block.own, c_out, first, dW_rows[first:end])
            if block.b >= 0:
                add_up(own, block.own_b + first, grad[block.b + first : block.b + end])


@compiled(__name__, nogil=True)
def add_up(own, at, out):
    """Write the sum over the shares of own (shares, ...), from the number `at` on, into out, a vector."""
    copy(own[0, at : at + len(out)], out)
    for share in range(1, len(own)):
        for t in range(len(out)):
            out[t] += own[share, at + t]

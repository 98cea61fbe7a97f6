"""Predictions of a whole network in one call: convolutions that read images as they lie, channels last. See `dot`.

An image (rows, columns, channels) has a margin for the convolution that reads it. So a row of a window is one piece of
memory, and windows differ by where they begin: a table of distances. A linear layer is a window that is its whole row,
and its batch is one image. Pooling of 2 x 2 comes for nothing: a tile has the four pixels in registers.
"""

from typing import NamedTuple

import numpy as np
from numba import prange, types
from numba.extending import overload

from .compiler import compiled
from .dot import PIXELS, tiles
from .simd import ADDRESS, address, named


class Products(NamedTuple):
    """A step of products: all integers. Distances are bytes."""

    op: int  # PRODUCTS
    variant: int  # of `dot.VARIANTS`
    x: int  # from the beginning of all buffers to the first window of the first image, and to its first output
    y: int
    x_image: int  # from an image to the next
    y_image: int
    dense: int  # whether the batch is one image, whose pixels are the examples
    pixels: int  # windows of an image; those that pool in one stand together
    tile: int  # pixels of a tile
    group: int  # pixels of a pooling window
    x_at: int  # where the tables begin
    y_at: int
    channels: int
    width: int  # channels of a block
    item: int  # bytes of an output
    weights: int  # where the weights begin
    block: int  # from a block's weights to the next's
    begin: int  # where biases begin, and multipliers
    end: int
    pairs: int  # of steps that are done by two, the first ones
    steps: int  # of 4 bytes of a window
    along: int  # where the table of their distances begins, and how far it is to another block's
    apart: int
    low: int
    shift: int = 1
    zero: int = 0


class Between(NamedTuple):
    """A step without weights: of each window the largest `(a - za) * ma + (b - zb) * mb`.

    Of bytes it is requantized; of float32 it is that of `a + b`, or of `a` where mb is 0, or the mean; then the ReLU.
    """

    op: int  # BETWEEN, or of float32 SUMS
    a: int
    b: int
    y: int
    a_image: int
    b_image: int
    y_image: int
    a_row: int
    b_row: int
    y_row: int
    rows: int  # of the output
    columns: int
    channels: int
    down: int  # rows of a window, and columns
    across: int
    stride: int
    mb: int
    low: int  # of float32: -1 for any number
    mean: int = 0
    ma: int = 1
    za: int = 0
    zb: int = 0
    shift: int = 1
    zero: int = 0


FIELDS = len(Products._fields)  # of a step's row
PRODUCTS, BETWEEN, SUMS = range(3)
TOGETHER = max(PIXELS)
ZERO, MOST = np.float32(0), np.float32(255)  # of a byte


@compiled(__name__, nogil=True)
def products(step, start, images, tables, weights, work, share, shares):
    """Write one share of a step's outputs, of so many images from `start` on. step, tables, ..., work: addresses."""
    step = named(Products, step)
    x, y = work + step.x + start * step.x_image, work + step.y + start * step.y_image
    pixels, images = (images, 1) if step.dense else (step.pixels, images)
    n = (pixels + step.tile - 1) // step.tile
    units = (step.channels + step.width - 1) // step.width * images * n
    first, last = units * share // shares, units * (share + 1) // shares
    block, rest = divmod(first, images * n)
    image, t = divmod(rest, n)
    while first < last:
        channel, run = block * step.width, min(n - t, last - first)
        tiles(
            np.float32, step.variant, run, x + image * step.x_image,
            tables + (step.x_at + t * step.tile) * ADDRESS,
            y + image * step.y_image + channel * step.item,
            tables + (step.y_at + t * (step.tile // step.group)) * ADDRESS, weights + step.weights + block * step.block,
            weights + step.begin + channel * 4, weights + step.end + channel * 4, step.pairs, step.steps,
            tables + (step.along + block * step.apart) * ADDRESS,
            step.channels - channel, step.low, step.shift, step.zero,
        )  # fmt: skip
        first += run
        t, image = 0, image + 1
        if image == images:
            image, block = 0, block + 1


@compiled(__name__, nogil=True)
def between(step, work, image):
    """Write the outputs of an image. step: its address; work: the array of all buffers, uint8."""
    step = named(Between, step)
    half = 1 << (step.shift - 1)
    for r in range(step.rows):
        for c in range(step.columns):
            y = step.y + image * step.y_image + r * step.y_row + c * step.channels
            for k in range(step.channels):
                found = -(2**62)
                for i in range(step.down):
                    a = step.a + image * step.a_image + (r * step.stride + i) * step.a_row
                    b = step.b + image * step.b_image + (r * step.stride + i) * step.b_row
                    for j in range(step.across):
                        at = (c * step.stride + j) * step.channels + k
                        one, other = np.int64(work[a + at]) - step.za, np.int64(work[b + at]) - step.zb
                        found = max(found, one * step.ma + other * step.mb)
                work[y + k] = min(max(((found + half) >> step.shift) + step.zero, step.low), 255)


@compiled(__name__, nogil=True)
def sums(step, work, image):
    """Write the outputs of an image. step: its address; work: the array of all buffers, uint8."""
    step, values = named(Between, step), work.view(np.float32)
    line, last = np.empty(step.channels, np.float32), np.float32(1 / (step.down * step.across) if step.mean else 1)
    for r in range(step.rows):
        for c in range(step.columns):
            y = pixel(values, step.y + image * step.y_image + r * step.y_row, c, step.channels)
            for i in range(step.down):
                row = r * step.stride + i
                for j in range(step.across):
                    column = c * step.stride + j
                    a = pixel(values, step.a + image * step.a_image + row * step.a_row, column, step.channels)
                    if step.mb:
                        b = pixel(values, step.b + image * step.b_image + row * step.b_row, column, step.channels)
                        for k in range(step.channels):
                            line[k] = a[k] + b[k]
                        meet(line, y, i + j == 0, step.mean)
                    else:
                        meet(a, y, i + j == 0, step.mean)
            for k in range(step.channels):
                y[k] = np.float32(0) if step.low == 0 and y[k] < 0 else y[k] * last


@compiled(__name__, nogil=True)
def pixel(values, row, column, channels):
    """Return the channels of a pixel: row is its row's distance in bytes from the beginning of all values, float32."""
    first = row // 4 + column * channels
    return values[first : first + channels]


@compiled(__name__, nogil=True)
def meet(x, y, first, mean):
    """Let a window's pixel x meet those before it, of which y is the largest, or the sum: a NaN stays."""
    for k in range(len(y)):
        if first:
            y[k] = x[k]
        elif mean:
            y[k] += x[k]
        else:
            y[k] = x[k] if x[k] > y[k] or x[k] != x[k] else y[k]


@compiled(__name__, nogil=True)
def between_of(op, step, work, image):
    """Do a step without weights for an image: `between`, or `sums`."""
    if op == BETWEEN:
        between(step, work, image)
    else:
        sums(step, work, image)


@compiled(__name__, nogil=True)
def fill(x, inputs, next_image, next_row, pixels, scale, zero):
    """Write images x (n, channels, rows, columns) channels last into `inputs`, from whose first element on they lie.

    next_image, next_row: distances in elements to an image's and a row's. pixels (256,): what bytes become. scale and
    zero are float64: to find out that one is float32 takes a call longer. Return whether all are finite.
    """
    n, channels, rows, columns = x.shape
    scale, zero, odd = np.float32(scale), np.float32(zero), False
    for image in range(n):
        for r in range(rows):
            row = inputs[image * next_image + r * next_row :]
            for k in range(channels):
                if channels == 1:  # then the compiler knows that columns are neighbours
                    for c in range(columns):
                        row[c] = entry(x[image, 0, r, c], pixels, scale, zero)
                else:
                    for c in range(columns):
                        row[c * channels + k] = entry(x[image, k, r, c], pixels, scale, zero)
                for c in range(columns):
                    odd |= not abs(np.float32(x[image, k, r, c])) < np.inf
    return not odd


def entry(value, pixels, scale, zero):
    """Return an input as the network keeps it: a pixel by a table, a float32 as it is, or quantized."""
    raise NotImplementedError


@overload(entry)
def _entry(value, pixels, scale, zero):
    if isinstance(value, types.Integer):
        return lambda value, pixels, scale, zero: pixels[value]
    if isinstance(pixels.dtype, types.Float):
        return lambda value, pixels, scale, zero: value
    return lambda value, pixels, scale, zero: np.uint8(min(max(np.rint(value * scale) + zero, ZERO), MOST))


@compiled(__name__, nogil=True)
def predict(start, images, steps, tables, weights, work):
    """Do the steps for some images, on one core: `work`, the array of all buffers, has the inputs, and then all.

    start: a multiple of TOGETHER, as a tile writes as many rows.
    """
    for i in range(len(steps)):
        if steps[i, 0] == PRODUCTS:
            products(address(steps[i]), start, images, address(tables), address(weights), address(work), 0, 1)
        else:
            for image in range(start, start + images):
                between_of(steps[i, 0], address(steps[i]), work, image)


@compiled(__name__, nogil=True, parallel=True)
def predict_shared(images, steps, tables, weights, work, shares, enough):
    """Do what `predict` does: each core takes images of its own, or a share of each step where there are few.

    enough: bytes to multiply; a step of fewer is one core's.
    """
    each = (images + shares - 1) // shares
    each = (each + TOGETHER - 1) // TOGETHER * TOGETHER
    if each < images and 4 * each * shares <= 5 * images:
        for share in prange((images + each - 1) // each):
            predict(share * each, min(each, images - share * each), steps, tables, weights, work)
        return
    for i in range(len(steps)):
        if steps[i, 0] != PRODUCTS:
            for image in prange(images):
                between_of(steps[i, 0], address(steps[i]), work, image)
            continue
        step = named(Products, address(steps[i]))
        windows = images * (1 if step.dense else step.pixels)
        if windows * step.channels * step.steps * 4 < enough:
            products(address(steps[i]), 0, images, address(tables), address(weights), address(work), 0, 1)
        else:
            for share in prange(shares):
                products(address(steps[i]), 0, images, address(tables), address(weights), address(work), share, shares)

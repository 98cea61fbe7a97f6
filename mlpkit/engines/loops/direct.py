"""Predictions of a network in one call: convolutions that read images as they lie, channels last. See `dot`.

An image (rows, columns, channels) has a margin for the convolution that reads it. So a row of a window is one piece of
memory, and windows differ by where they begin: a table of distances. A linear layer is a window that is the whole row,
of a batch that is one image. Pooling of 2 x 2 comes for nothing: the tile has the four pixels in its registers.
"""

from typing import NamedTuple

import numpy as np
from numba import prange
from numba.np.unsafe.ndarray import to_fixed_tuple

from .compiler import compiled
from .dot import tile
from .simd import ADDRESS, address


class Step(NamedTuple):
    """One step of a prediction: all integers. Distances are bytes, from the beginning of the buffer for all images."""

    op: int  # 0: products, 1: sums of two, 2: the largest of windows
    variant: int  # of `dot.VARIANTS`
    x: int  # where the inputs begin, the margin left out of nothing
    y: int  # where the outputs begin, behind the margin
    x_image: int  # from an image to the next
    y_image: int
    dense: int  # whether the batch is one image, of as many pixels as there are rows
    pixels: int  # that an image's windows have, those that pool in one window together
    tile: int  # pixels of a tile
    group: int  # pixels of a pooling window in it
    x_at: int  # tables, in entries
    y_at: int
    channels: int
    width: int  # channels of a block
    weights: int  # where the weights begin, and how many bytes a block has
    block: int
    begin: int
    end: int
    rows: int
    run: int
    step: int
    low: int
    shift: int = 1
    zero: int = 0


FIELDS = len(Step._fields)


@compiled(__name__, nogil=True)
def products(step, images, tables, weights, work, share, shares):
    """Write one share of a step's outputs, of so many images. tables, weights, work: addresses."""
    pixels, images = (images, 1) if step.dense else (step.pixels, images)
    tiles = (pixels + step.tile - 1) // step.tile
    blocks = (step.channels + step.width - 1) // step.width
    units = blocks * images * tiles
    first, last = units * share // shares, units * (share + 1) // shares
    block, rest = divmod(first, images * tiles)
    image, t = divmod(rest, tiles)
    for _ in range(first, last):
        channel = block * step.width
        size = 1 if step.shift > 1 else 4
        tile(
            np.float32, step.variant, work + step.x + image * step.x_image,
            tables + (step.x_at + t * step.tile) * ADDRESS,
            work + step.y + image * step.y_image + channel * size,
            tables + (step.y_at + t * step.tile // step.group) * ADDRESS, weights + step.weights + block * step.block,
            weights + step.begin + channel * 4, weights + step.end + channel * 4, step.rows, step.run, step.step,
            step.channels - channel, step.low, step.shift, step.zero,
        )  # fmt: skip
        t += 1
        if t == tiles:
            t, image = 0, image + 1
            if image == images:
                image, block = 0, block + 1


@compiled(__name__, nogil=True)
def run(steps, images, tables, weights, work, x, table, out):
    """Predict."""
    for i in range(len(steps)):
        products(Step(*to_fixed_tuple(steps[i], FIELDS)), images, tables, weights, work, 0, 1)

"""A chain of convolutions without padding, for few images of many pixels: a vector register holds pixels of one row.

The layout of a SIMD batch wants as many images as there are lanes. Here neighbours in a row take their places, so one
image is enough, and the arithmetic is the same, `simd_batch.multiply`: only the tables of distances are others. All
planes of a chain have rows of one length, in whole vectors. What is right of an image is computed along, from whatever
lies there, and never read by what counts, since a window without padding reaches no further than its image.

Channels that a convolution reads may lie anywhere: the last one can read those of the image beside those of the layer
before it, which makes a sum of two ways through a network one convolution.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import prange

from .compiler import Threads, compiled
from .convolve import pack_rows
from .simd import ADDRESS, BYTES, address
from .simd_batch import ROWS, SPARE, aligned, multiply, multiply_relu, whole_blocks

FIELDS = 8  # of a layer in the table


class Step(NamedTuple):
    """A convolution: W (channels out, channels in, k, k), b (channels out,), and whether there is ReLU.

    beside: None, or (W, size): of another convolution, of the image without `size` pixels at each edge, which is added.
    """

    W: np.ndarray
    b: np.ndarray
    relu: bool
    beside: tuple | None = None


class Chain:
    """Steps one after another, ready for images (n, *shape). scale: of the pixel shuffle at the end, or 1."""

    def __init__(self, steps, scale, shape, dtype):
        self.scale, self.dtype, lanes = scale, dtype, BYTES // dtype.itemsize
        c, h, w = shape
        self.row = -(-w // lanes) * lanes
        most = max(c, *(len(step.W) for step in steps))
        self.plane = h * self.row
        self.buffer = most * self.plane + 2 * max(steps[0].W.shape[-1] * self.row, SPARE * lanes)
        tables, packed, start, rows, place = [], [], [], [], [0, 0, 0]
        for number, step in enumerate(steps):
            filters, taps = self._taps(step, 0 if number == 0 else 1 + (number - 1) % 2)
            h, w = h - step.W.shape[-1] + 1, w - step.W.shape[-1] + 1
            corners = np.add.outer(np.arange(h) * self.row, np.arange(0, w, lanes)).ravel() * dtype.itemsize
            found = [np.concatenate([each, np.repeat(each[-1:], SPARE)]) for each in (taps, corners)]
            rows.append([place[0], len(taps), place[0] + len(found[0]), len(corners), place[1], place[2],
                         len(step.W), step.relu])  # fmt: skip
            tables += found
            packed.append(np.zeros(whole_blocks(len(filters)) * len(taps), dtype))
            pack_rows(filters, packed[-1])
            start.append(np.pad(step.b, (0, whole_blocks(len(step.b)) - len(step.b))).astype(dtype))
            place = [at + len(more) for at, more in
                     zip(place, (np.concatenate(found), packed[-1], start[-1]), strict=True)]  # fmt: skip
        self.layers, self.tables = np.array(rows, np.int64), np.concatenate(tables).astype(np.int64)
        self.packed, self.start = np.concatenate(packed), np.concatenate(start)
        self.output = len(steps[-1].W) // scale**2, h * scale, w * scale
        self.rows, self.columns = h, w

    def _taps(self, step, source):
        """Return filters (channels out, products), and the distance in bytes of what each is multiplied with."""
        parts = [(step.W, source, 0)]
        if step.beside:
            parts.append((step.beside[0], 0, step.beside[1]))
        taps = []
        for W, number, inside in parts:
            _, c, k, _ = W.shape
            within = np.add.outer(np.arange(k) * self.row, np.arange(k)) + inside * (self.row + 1)
            taps.append(number * self.buffer + np.add.outer(np.arange(c) * self.plane, within).ravel())
        filters = np.concatenate([W.reshape(len(W), -1) for W, _, _ in parts], axis=1)
        return np.ascontiguousarray(filters, self.dtype), np.concatenate(taps) * self.dtype.itemsize

    def __call__(self, x):
        """Return the outputs (n, *output) of x (n, *shape)."""
        x, z = np.ascontiguousarray(x), np.empty((len(x), *self.output), self.dtype)
        predict(self.layers, self.tables, self.packed, self.start, self.row, self.plane, self.buffer, x, z,
                self.rows, self.columns, self.scale, min(Threads.most, len(x)))  # fmt: skip
        return z


@compiled(__name__, parallel=True, nogil=True)
def predict(layers, tables, packed, start, row, plane, size, x, z, rows, columns, scale, shares):
    """Write what the layers make of x (n, c, h, w) into z (n, channels, scale * rows, scale * columns).

    layers (steps, FIELDS): see `Chain`. size: elements of a buffer, of which there are three: the image's, and two in
    turns. shares: how many parts of the batch are done at the same time.
    """
    at, step = address(tables), x.itemsize
    for share in prange(shares):
        work = aligned(3 * size, x)
        work[:] = 0
        for i in range(len(x) * share // shares, len(x) * (share + 1) // shares):
            for c in range(x.shape[1]):
                for y in range(x.shape[2]):
                    begin = c * plane + y * row
                    work[begin : begin + x.shape[3]] = x[i, c, y]
            for n in range(len(layers)):
                taps, depth, corners, count, weights, bias, channels, relu = (
                    layers[n, 0], layers[n, 1], layers[n, 2], layers[n, 3],
                    layers[n, 4], layers[n, 5], layers[n, 6], layers[n, 7],
                )  # fmt: skip
                out = (1 + n % 2) * size
                for o in range(0, channels, ROWS):
                    of = (
                        x.dtype, channels - o, address(packed[weights + o * depth :]), at + ADDRESS * taps, depth,
                        address(work), at + ADDRESS * corners, count, address(work[out + o * plane :]),
                        at + ADDRESS * corners, plane * step, address(start[bias + o :]),
                    )  # fmt: skip
                    if relu:
                        multiply_relu(*of)
                    else:
                        multiply(*of)
            out = (1 + (len(layers) - 1) % 2) * size
            shuffle(work[out:], row, plane, rows, columns, scale, z[i])


@compiled(__name__, nogil=True)
def shuffle(work, row, plane, rows, columns, scale, z):
    """Write planes of `work` into z (channels, scale * rows, scale * columns), as `PixelShuffle` does."""
    for c in range(len(z)):
        for y in range(rows):
            for p in range(scale):
                for q in range(scale):
                    begin = (c * scale * scale + p * scale + q) * plane + y * row
                    line = z[c, scale * y + p]
                    for j in range(columns):
                        line[scale * j + q] = work[begin + j]

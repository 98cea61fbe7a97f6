"""A chain of convolutions without padding, for few images of many pixels: a vector register holds pixels of one row.

The layout of a SIMD batch wants as many images as there are lanes. Here neighbours in a row take their places, so one
image is enough, and the arithmetic is the same, `simd_batch.multiply`: only the tables of distances are others. All
planes of a chain have rows of one length, in whole vectors. What is right of an image is computed along, from whatever
lies there, and never read by what counts, since a window without padding reaches no further than its image.

A picture is done some rows at a time: each step makes of them the rows that it can, and the next step takes these while
they lie in the cache. The last rows of each plane are kept, since a window will read them again.

Channels that a convolution reads may lie anywhere: the last one can read those of the image beside those of the layer
before it, which makes a sum of two ways through a network one convolution.
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from .compiler import Threads, compiled
from .convolve import Tables, pack_rows
from .simd import ADDRESS, BYTES, address
from .simd_batch import ROWS, SPARE, aligned, multiply, multiply_relu, whole_blocks

FIELDS = 10  # of a layer in the table
BAND = 1 << 18  # bytes of rows that a step makes at a time: they, and what they are made of, fit into a core's cache


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
        channels, sizes = [c, *(len(step.W) for step in steps)], [step.W.shape[-1] for step in steps]
        self.ends = ends_of(h, sizes, max(1, BAND // (max(channels) * self.row * dtype.itemsize)))
        most = np.diff(self.ends).max(axis=1)
        self.planes = self.row * ((self.ends - first_rows(self.ends))[:, :-1].max(axis=1) + most)
        self.begins = np.cumsum([0, *(channels * self.planes)]) + SPARE * lanes * np.arange(len(steps) + 2)
        self.size = self.begins[-1] + max(sizes) * self.row
        tables, packed, start, rows, place = Tables(), [], [], [], [0, 0]
        for number, (step, size) in enumerate(zip(steps, sizes, strict=True)):
            filters, taps = self._taps(step, number)
            w -= size - 1
            corners = np.add.outer(np.arange(most[number + 1]) * self.row, np.arange(0, w, lanes)) * dtype.itemsize
            rows.append([tables.put(taps, SPARE), len(taps), tables.put(corners, SPARE), corners.shape[1], *place,
                         len(step.W), step.relu, self.begins[number + 1], self.planes[number + 1]])  # fmt: skip
            packed.append(np.zeros(whole_blocks(len(filters)) * len(taps), dtype))
            pack_rows(filters, packed[-1])
            start.append(np.pad(step.b, (0, whole_blocks(len(step.b)) - len(step.b))).astype(dtype))
            place = [at + len(more) for at, more in zip(place, (packed[-1], start[-1]), strict=True)]
        self.layers, self.tables = np.array(rows, np.int64), tables.concatenated()
        self.packed, self.start = np.concatenate(packed), np.concatenate(start)
        self.output = len(steps[-1].W) // scale**2, int(self.ends[-1, -1]) * scale, w * scale

    def _taps(self, step, source):
        """Return filters (channels out, products), and the distance in bytes of what each is multiplied with."""
        parts = [(step.W, source, 0)]
        if step.beside:
            parts.append((step.beside[0], 0, step.beside[1]))
        taps = []
        for W, number, inside in parts:
            _, c, k, _ = W.shape
            within = np.add.outer(np.arange(k) * self.row, np.arange(k)) + inside * (self.row + 1)
            taps.append(self.begins[number] + np.add.outer(np.arange(c) * self.planes[number], within).ravel())
        filters = np.concatenate([W.reshape(len(W), -1) for W, _, _ in parts], axis=1)
        return np.ascontiguousarray(filters, self.dtype), np.concatenate(taps) * self.dtype.itemsize

    def __call__(self, x):
        """Return the outputs (n, *output) of x (n, *shape)."""
        x, z = np.ascontiguousarray(x), np.empty((len(x), *self.output), self.dtype)
        predict(self.layers, self.tables, self.packed, self.start, self.row, self.ends, first_rows(self.ends),
                self.begins, self.planes, self.size, x, z, self.scale, min(Threads.most, len(x)))  # fmt: skip
        return z


def ends_of(h, sizes, band):
    """Return how many rows there are of the image and of each step's planes, before each time and after the last one.

    The image has h rows, of the first step's planes are made `band` at a time, and of another one's what can be made
    then. sizes: of the steps' windows.
    """
    made = np.append(np.arange(0, h - sizes[0] + 1, band), h - sizes[0] + 1)
    ends = [np.where(made, made + sizes[0] - 1, 0), made]
    for size in sizes[1:]:
        ends.append(np.maximum(ends[-1] - (size - 1), 0))
    return np.array(ends)


def first_rows(ends):
    """Return the first row that is kept of the image and of each step's planes, at each time: the next that is read.

    Those of the image are kept for the last step, too, and the last step's are read at once.
    """
    return ends[[-1, *range(2, len(ends)), -1]]


@compiled(__name__, parallel=True, nogil=True)
def predict(layers, tables, packed, start, row, ends, firsts, begins, planes, size, x, z, scale, shares):
    """Write what the layers make of x (n, c, h, w) into z (n, channels, scale * rows, scale * columns).

    layers (steps, FIELDS): see `Chain`. ends, firsts (1 + steps, times + 1): see `ends_of` and `first_rows`. begins,
    planes: where in a buffer of `size` elements the planes of the image and of each step begin, and how large one is.
    shares: how many parts of the batch are done at the same time.
    """
    last = len(layers)
    for share in prange(shares):
        work = aligned(size, x)
        work[:] = 0
        for i in range(len(x) * share // shares, len(x) * (share + 1) // shares):
            for time in range(ends.shape[1] - 1):
                for c in range(x.shape[1]):
                    for y in range(ends[0, time], ends[0, time + 1]):
                        begin = c * planes[0] + (y - firsts[0, time]) * row
                        work[begin : begin + x.shape[3]] = x[i, c, y]
                for n in range(last):
                    first, end = ends[n + 1, time], ends[n + 1, time + 1]
                    source, target = (first - firsts[n, time]) * row, (first - firsts[n + 1, time]) * row
                    add_rows(layers[n], tables, packed, start, work, source, target, end - first)
                first, end = ends[last, time], ends[last, time + 1]
                shuffle(work[begins[last] :], row, planes[last], end - first, scale, z[i, :, first * scale :])
                for n in range(last):
                    keep(work[begins[n] : begins[n + 1]], row, planes[n], firsts[n, time + 1] - firsts[n, time],
                         ends[n, time + 1] - firsts[n, time + 1])  # fmt: skip


@compiled(__name__, nogil=True)
def add_rows(layer, tables, packed, start, work, source, target, rows):
    """Make so many rows of a step's planes. layer (FIELDS,): see `Chain`.

    source, target: elements from what the tables call the first window to the first one of these rows, and from the
    beginning of the first plane to these.
    """
    taps, depth, corners, across, weights, bias, channels, relu, begin, plane = (
        layer[0], layer[1], layer[2], layer[3], layer[4], layer[5], layer[6], layer[7], layer[8], layer[9],
    )  # fmt: skip
    at = address(tables)
    for o in range(0, channels, ROWS):
        of = (
            work.dtype, channels - o, address(packed[weights + o * depth :]), at + ADDRESS * taps, depth,
            address(work[source:]), at + ADDRESS * corners, rows * across, address(work[begin + target + o * plane :]),
            at + ADDRESS * corners, plane * work.itemsize, address(start[bias + o :]),
        )  # fmt: skip
        if relu:
            multiply_relu(*of)
        else:
            multiply(*of)


@compiled(__name__, nogil=True)
def keep(work, row, plane, gone, kept):
    """Move so many rows of each plane to its beginning, over as many as are gone."""
    if gone:
        for begin in range(0, len(work) // plane * plane, plane):
            here, there = work[begin:], work[begin + gone * row :]
            for at in range(kept * row):  # forward: what is moved may be written over later
                here[at] = there[at]


@compiled(__name__, nogil=True)
def shuffle(work, row, plane, rows, scale, z):
    """Write rows of the planes of `work` into z (channels, scale * rows, scale * columns), as `PixelShuffle` does."""
    columns = z.shape[2] // scale
    for c in range(len(z)):
        for y in range(rows):
            for p in range(scale):
                for q in range(scale):
                    begin = (c * scale * scale + p * scale + q) * plane + y * row
                    line = z[c, scale * y + p]
                    for j in range(columns):
                        line[scale * j + q] = work[begin + j]

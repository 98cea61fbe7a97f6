"""Networks padded for kernels that are built for three hidden layers of one width, and images as bytes.

Smaller layers are padded with units that stay exactly zero: their weights are zero, so nothing flows through them.
"""

from itertools import pairwise

import cupy as cp
import numpy as np

from ..plain import mlps_only
from .rates import why_unknown

WIDTH, MOST_CLASSES = 128, 16  # as in persistent.cu and cluster.cu


def why_not_padded(model, optimizer, batch_size, most, engine, sends=False):
    """Return None, or what the kernel is not made for, in one sentence. most: rows of a batch; sends: as in `rates`."""
    if reason := mlps_only(engine, model) or why_unknown(optimizer, engine, sends):
        return reason
    sizes = model.sizes()
    if len(sizes) != 5 or max(sizes[1:-1]) > WIDTH or sizes[-1] > MOST_CLASSES:
        return (
            f"{engine} takes three hidden layers of at most {WIDTH} units and at most {MOST_CLASSES} classes, "
            f"not a network of sizes {sizes}: take another engine."
        )
    if batch_size > most:
        return f"{engine} takes batches of at most {most}, not {batch_size}: take smaller ones."
    return None


def check_dtype(network, engine):
    """Raise ValueError for a network that does not compute in float32."""
    if network.dtype != np.float32:
        raise ValueError(f"{engine} computes in float32, not {network.dtype}: take another engine.")


def as_bytes(X, inputs, engine):
    """Return images (n, ...) as uint8, in rows that are padded with zeros to `inputs` pixels.

    X: uint8, or floating-point values that are bytes / 255. Raises ValueError for others.
    """
    X = X.reshape(len(X), -1)
    pixels = X if X.dtype == np.uint8 else cp.rint(X * 255).astype(np.uint8)
    if X.dtype != np.uint8 and not bool((pixels.astype(np.float32) / np.float32(255) == X).all()):
        raise ValueError(f"{engine} multiplies with bytes: give it uint8 pixels, or such pixels divided by 255.")
    if X.shape[1] < inputs:
        pixels = cp.pad(pixels, ((0, 0), (0, inputs - X.shape[1])))
    return cp.ascontiguousarray(pixels)


def padded_sizes(sizes):
    """Return the padded sizes, which the kernel computes with, for a network of these sizes."""
    return (-(-sizes[0] // 16) * 16, WIDTH, WIDTH, WIDTH, sizes[-1])


class Padded:
    """A vector laid out as a network's theta, and `array`, in which a kernel finds it with the padded sizes.

    That is the vector itself, where they are the network's.
    """

    def __init__(self, vector, network):
        sizes, layout = network.model.sizes(), network.layout
        self.array, self.parts = vector, []
        if padded_sizes(sizes) != sizes:
            weights, biases = iter(pairwise(padded_sizes(sizes))), ((units,) for units in padded_sizes(sizes)[1:])
            shapes = {name: next(weights if len(shape) == 2 else biases) for name, shape in layout.shapes.items()}
            padded = type(layout)(shapes)
            self.array = cp.zeros(padded.size, vector.dtype)
            whole = padded.views(self.array)
            for name, part in layout.views(vector).items():
                self.parts.append((part, whole[name][tuple(map(slice, part.shape))]))

    def put(self):
        """Bring the array up to date with the vector."""
        if self.parts:
            self.array.fill(0)  # a NaN that a step left among the zeros would stay
        for part, whole in self.parts:
            whole[...] = part

    def take(self):
        """Bring the vector up to date with the array."""
        for part, whole in self.parts:
            part[...] = whole


def macros_for(batches, network, optimizer, batch_size):
    """Return the macros that a kernel is compiled with; `batches`: the numbers of rows that it can be made for."""
    sizes = padded_sizes(network.model.sizes())
    rows = next(rows for rows in batches if rows >= batch_size)
    return {"INPUTS": sizes[0], "CLASSES": sizes[-1], "BATCH": rows, "ADAM": int(bool(optimizer.state))}

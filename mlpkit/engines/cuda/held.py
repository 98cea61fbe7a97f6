"""Networks laid out for kernels that are built for three hidden layers of one width, and images as bytes.

Smaller layers are filled up with units that stay exactly zero: their weights are zero, so nothing flows through them.
"""

from contextlib import contextmanager

import cupy as cp
import numpy as np

from mlpkit.nn.layers import parameter_count, views

WIDTH, MOST_CLASSES = 128, 16  # as in persistent.cu and cluster.cu


def check_network(network, batch_size, most, engine):
    """Raise ValueError for what the kernel is not made for, in one sentence. most: rows of a batch."""
    hidden = network.sizes[1:-1]
    if len(hidden) != 3 or max(hidden) > WIDTH or network.sizes[-1] > MOST_CLASSES:
        raise ValueError(
            f"{engine} holds three hidden layers of at most {WIDTH} units and at most {MOST_CLASSES} classes, "
            f"not a network of sizes {network.sizes}: take another engine."
        )
    if network.dtype != np.float32:
        raise ValueError(f"{engine} computes in float32, not {network.dtype}: take another engine.")
    if batch_size > most:
        raise ValueError(f"{engine} takes batches of at most {most}, not {batch_size}: take smaller ones.")


def as_bytes(X, inputs, engine):
    """Return images (n, pixels) as uint8, each row filled up with zeros to `inputs` pixels.

    X: uint8, or floating-point numbers that are bytes / 255. Raises ValueError for others.
    """
    pixels = X if X.dtype == np.uint8 else cp.rint(X * 255).astype(np.uint8)
    if X.dtype != np.uint8 and not bool((pixels.astype(np.float32) / np.float32(255) == X).all()):
        raise ValueError(f"{engine} multiplies with bytes: give it uint8 pixels, or such pixels divided by 255.")
    if X.shape[1] < inputs:
        pixels = cp.pad(pixels, ((0, 0), (0, inputs - X.shape[1])))
    return cp.ascontiguousarray(pixels)


def held_sizes(sizes):
    """Return the sizes that the kernel holds for a network of these sizes."""
    return (-(-sizes[0] // 16) * 16, WIDTH, WIDTH, WIDTH, sizes[-1])


def hold(vector, sizes):
    """Return a vector laid out for the sizes that the kernel holds: itself, where they are the network's."""
    held = held_sizes(sizes)
    if held == sizes:
        return vector
    longer = cp.zeros(parameter_count(held), vector.dtype)
    for part, whole in _parts(vector, longer, sizes):
        whole[...] = part
    return longer


def take_back(vector, held, sizes):
    """Copy what the kernel has made of a vector from `held`, which `hold` returned, back into it."""
    if held is not vector:
        for part, whole in _parts(vector, held, sizes):
            part[...] = whole


def _parts(vector, held, sizes):
    """Yield each array of a vector, with the part of the held vector that stands for it."""
    for (W, b), (held_W, held_b) in zip(views(vector, sizes), views(held, held_sizes(sizes)), strict=True):
        yield W, held_W[: W.shape[0], : W.shape[1]]
        yield b, held_b[: len(b)]


def macros_for(batches, marks, sizes, optimizer, batch_size):
    """Return the macros that a kernel is compiled with; `batches`: the numbers of rows that it can be made for."""
    rows = next(rows for rows in batches if rows >= batch_size)
    has_state = bool(optimizer.state)
    return {"INPUTS": held_sizes(sizes)[0], "CLASSES": sizes[-1], "BATCH": rows, "ADAM": int(has_state)} | marks


@contextmanager
def marks_in(marks, steps):
    """Within this context a kernel with the macros `marks` writes down the times of so many steps, after 100."""
    marks["MARKED_STEPS"] = steps
    try:
        yield
    finally:
        marks.clear()

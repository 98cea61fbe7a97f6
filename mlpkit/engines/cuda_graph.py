"""A graph of eleven kernels a step, all of them ours: a product's kernel also does what follows element by element.

See `kernels/products.cu` for the products, and `_graph` for how a step is recorded and replayed.
"""

import math
from functools import cache, partial
from itertools import pairwise

import cupy as cp
import numpy as np

from .cuda.graph import step_by_step
from .cuda.kernel import kernel
from .cupy_fused import *
from .cupy_fused import cross_entropy

TILE = (8, 16)  # of `forward` and `backward` in products.cu: rows, columns
GRADIENT_TILE = (32, 32)
THREADS = 256
SHARED_BYTES = 96 << 10  # that a block may ask for on any GPU since 2020


def gradient(network, x, labels, losses, step=None):
    """Write the gradient of the batch's loss into `network.grad`, and the loss into losses[step].

    x (n, inputs) in the network's type, labels (n,) int64; step: an int32 on the GPU, which then goes on by one.
    """
    n, outputs, linear = len(x), network.sizes[1:], network.layers[::2]
    launch = partial(_launch, network)
    a, dz = (cp.empty(n * sum(outputs), network.dtype) for _ in range(2))
    activations, gradients = (_by_layer(vector, n, outputs) for vector in (a, dz))
    for i, layer in enumerate(linear):
        hidden = i < len(linear) - 1
        source, z = activations[i - 1] if i else x, (activations if hidden else gradients)[i]
        launch("forward", _grid(z.shape), TILE, len(layer.W), source, layer.W, layer.b, z, n, *layer.W.shape, hidden)
    cross_entropy(gradients[-1], None, labels, losses, step)
    for i in range(len(linear) - 1, 0, -1):
        W, below = linear[i].W, activations[i - 1]
        launch("backward", _grid(below.shape), TILE, W.shape[1], gradients[i], W, below, gradients[i - 1], n, *W.shape)
    tiles = sum(math.prod(_grid(shape, GRADIENT_TILE)) for shape in pairwise(network.sizes))
    launch("parameter_gradients", (tiles,), GRADIENT_TILE, n, x, a, dz, network.grad, n)


def _by_layer(vector, n, features):
    """Return views of a vector that holds an array (n, features) for one layer after another."""
    ends = np.cumsum([0, *features]) * n
    return [vector[start:end].reshape(n, -1) for start, end in pairwise(ends.tolist())]


def _grid(shape, tile=TILE):
    """Return how many tiles a matrix of this shape has, across and down."""
    return tuple(-(-length // edge) for length, edge in zip(reversed(shape), reversed(tile), strict=True))


def _launch(network, name, grid, tile, depth, *arguments):
    """Launch a kernel of products.cu, for sums of `depth` products: as many at once as shared memory holds."""
    chunk, shared_bytes = _chunk(tile, depth, network.dtype.itemsize)
    values = [value if isinstance(value, cp.ndarray) else np.int32(value) for value in (*arguments, chunk)]
    _kernel(name, network.dtype, network.sizes)(grid, (THREADS,), tuple(values), shared_mem=shared_bytes)


@cache
def _chunk(tile, depth, itemsize):
    """Return how much of the depth a block takes at once, a multiple of 32, and the bytes of shared memory for it."""
    rows, columns = tile
    most = (SHARED_BYTES // itemsize - 4 * rows) // (rows + columns + 2)
    chunk = min(-(-depth // 32) * 32, most // 32 * 32)
    return chunk, itemsize * max(rows * (chunk + 4) + chunk * (columns + 2), THREADS // 32 * rows * (columns + 1))


@cache
def _kernel(name, dtype, sizes):
    found = kernel("products", name, dtype, SIZES=",".join(map(str, sizes)))
    found.max_dynamic_shared_size_bytes = SHARED_BYTES
    return found


train_epoch = step_by_step(gradient)

"""CUDA graph of our kernels: eleven a step, in which a product's kernel also does what follows element by element.

See `kernels/mlp/products.cu` for the products, and `cuda/graph` for how a step is recorded and replayed.
"""

import math
from functools import cache
from itertools import pairwise

import cupy as cp
import numpy as np

from mlpkit.kernels import gpu

from .cuda.graph import GradientTrainer
from .cuda.kernel import kernel, linear_layers
from .cupy_fused import *
from .cupy_fused import cross_entropy
from .stepping import mlps_only

gpu.require_capability(8.0)  # products.cu copies asynchronously

NAME = "cuda_graph"
TILE = (8, 16)  # of `forward` and `backward` in products.cu: rows, columns
GRADIENT_TILE = (32, 32)
THREADS = 256
SHARED_BYTES = 96 << 10  # that a block may ask for on any GPU since 2020


def why_not(model, optimizer, batch_size):
    """Return None for a multilayer perceptron, else a sentence. See `protocol`."""
    return mlps_only(NAME, model)


class Gradient:
    """A network's products for batches of n, and the arrays that they write. Call it as `cupy_fused.Gradient`."""

    def __init__(self, network, n):
        sizes, self.dtype, self.grad, self.n = network.model.sizes(), network.dtype, network.grad, n
        self.layers = linear_layers(network)
        self.a, self.dz = (cp.empty(n * sum(sizes[1:]), self.dtype) for _ in range(2))
        self.activations, self.gradients = (_by_layer(vector, n, sizes[1:]) for vector in (self.a, self.dz))
        names = "forward", "backward", "parameter_gradients"
        self.kernels = {name: _kernel(name, self.dtype, sizes) for name in names}
        self.tiles = sum(math.prod(_grid(shape, GRADIENT_TILE)) for shape in pairwise(sizes))

    def __call__(self, x, labels, losses, step=None):
        last, n = len(self.layers) - 1, self.n
        for i, layer in enumerate(self.layers):
            source, z = self.activations[i - 1] if i else x, (self.activations if i < last else self.gradients)[i]
            arrays = source, layer.W, layer.b, z
            self.launch("forward", _grid(z.shape), TILE, len(layer.W), *arrays, n, *layer.W.shape, i < last)
        cross_entropy(self.gradients[-1], None, labels, losses, step)
        for i in range(last, 0, -1):
            W, below = self.layers[i].W, self.activations[i - 1]
            arrays = self.gradients[i], W, below, self.gradients[i - 1]
            self.launch("backward", _grid(below.shape), TILE, W.shape[1], *arrays, n, *W.shape)
        arrays = x, self.a, self.dz, self.grad
        self.launch("parameter_gradients", (self.tiles,), GRADIENT_TILE, n, *arrays, n)

    def launch(self, name, grid, tile, depth, *arguments):
        """Launch a kernel of products.cu, for sums of `depth` products: as many at once as shared memory holds."""
        chunk, shared_bytes = _chunk(tile, depth, self.dtype.itemsize)
        values = [value if isinstance(value, cp.ndarray) else np.int32(value) for value in (*arguments, chunk)]
        self.kernels[name](grid, (THREADS,), tuple(values), shared_mem=shared_bytes)


class Trainer(GradientTrainer):
    """Replays one step at a time. See `protocol.Trainer`."""

    Gradient = Gradient


def _by_layer(vector, n, features):
    """Return views of a vector that holds an array (n, features) for one layer after another."""
    ends = np.cumsum([0, *features]) * n
    return [vector[start:end].reshape(n, -1) for start, end in pairwise(ends.tolist())]


def _grid(shape, tile=TILE):
    """Return how many tiles a matrix of this shape has, across and down."""
    return tuple(-(-length // edge) for length, edge in zip(reversed(shape), reversed(tile), strict=True))


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

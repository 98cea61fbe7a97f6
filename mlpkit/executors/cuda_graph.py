"""CUDA graph of our kernels: nine a step, in which a product's kernel also does what follows element by element.

See `kernels/mlp/products.cu` for the products, and `cuda/graph` for how a step is recorded and replayed. The kernels
begin before the ones ahead of them have ended: see `kernels/overlap`.
"""

import math
from functools import cache, partial
from itertools import pairwise

import cupy as cp
import numpy as np

from mlpkit.engines.cuda.kernel import kernel, overlapping
from mlpkit.kernels import gpu

from .cuda.graph import GradientTrainer
from .cupy_fused import Evaluation as Evaluation
from .cupy_fused import Prediction as Prediction
from .cupy_fused import linear_layers
from .plain import mlps_only

NAME = "cuda_graph"
TILE = (8, 16)  # of `forward` and `backward` in products.cu: rows, columns
GRADIENT_TILE = (32, 32)
THREADS = 256
EXAMPLES = 4  # of a block of `last_layer`
SHARED_BYTES = 96 << 10  # that a block may ask for on any GPU since 2020; on one of 2018, 64 << 10


def shared_bytes():
    """Return how many bytes of shared memory a block may ask for here."""
    return min(SHARED_BYTES, gpu.shared_memory())


def why_not_as(engine, model, optimizer, batch_size):
    """Return None for a multilayer perceptron whose sums and classes a block holds, else a sentence."""
    if reason := mlps_only(engine, model):
        return reason
    dtype, there = optimizer.network.dtype, shared_bytes()
    _, sums = _chunk(GRADIENT_TILE, batch_size, dtype.itemsize)
    if sums > there:
        return (
            f"{engine} needs {sums >> 10} KiB of a multiprocessor's shared memory in {dtype}, and this GPU gives "
            f"a block {there >> 10}: take float32, or cuda_graph_cublas."
        )
    classes, most = model.sizes()[-1], shared_bytes() // (2 * EXAMPLES * 8)  # float64 outputs, and their gradients
    if classes > most:
        return f"{engine} takes at most {most} classes, and this network has {classes}: take another engine."
    return None


why_not = partial(why_not_as, NAME)


class Gradient:
    """A network's products for batches of n, and the arrays that they write. Call it as `cupy_fused.Gradient`."""

    def __init__(self, network, n):
        sizes, self.dtype, self.grad, self.n = network.model.sizes(), network.dtype, network.grad, n
        self.layers = linear_layers(network)
        self.a, self.dz = (cp.empty(n * sum(features), self.dtype) for features in (sizes[1:-1], sizes[1:]))
        self.activations, self.gradients = _by_layer(self.a, n, sizes[1:-1]), _by_layer(self.dz, n, sizes[1:])
        self.row_losses = cp.empty(n, self.dtype)
        names = "forward", "last_layer", "backward", "parameter_gradients"
        self.kernels = {name: _kernel(name, self.dtype, sizes) for name in names}
        self.tiles = sum(_tiles(shape, GRADIENT_TILE) for shape in pairwise(sizes))

    def __call__(self, x, labels, losses, step=None):
        *hidden, last = self.layers
        sources, n = [x, *self.activations], self.n
        for layer, source, a in zip(hidden, sources, self.activations, strict=False):
            arrays = source, layer.W, layer.b, a
            self.multiply("forward", _tiles(a.shape, TILE), TILE, len(layer.W), *arrays, n, *layer.W.shape)
        below = self.gradients[-2] if hidden else None
        self.launch_last(sources[-1], last.W, last.b, labels, self.gradients[-1], below, self.row_losses, n)
        for i in range(len(hidden) - 1, 0, -1):
            W, a = self.layers[i].W, self.activations[i - 1]
            arrays = self.gradients[i], W, a, self.gradients[i - 1]
            self.multiply("backward", _tiles(a.shape, TILE), TILE, W.shape[1], *arrays, n, *W.shape)
        all_layers = x, self.a, self.dz, self.grad, self.row_losses, losses, step
        self.multiply("parameter_gradients", self.tiles + 1, GRADIENT_TILE, n, *all_layers, n)

    def multiply(self, name, blocks, tile, depth, *arguments):
        """Launch a product of products.cu, for sums of `depth` elements: as many at once as shared memory holds."""
        chunk, size = _chunk(tile, depth, self.dtype.itemsize)
        self.launch(name, blocks, THREADS, *arguments, chunk, shared=size)

    def launch_last(self, x, W, b, *arguments):
        """Launch `last_layer`, with W resident in shared memory where there is room."""
        without, with_W = (self.dtype.itemsize * (2 * EXAMPLES * len(b) + size) for size in (0, W.size))
        resident = with_W <= shared_bytes()
        size = with_W if resident else without
        blocks = -(-self.n // EXAMPLES)
        self.launch("last_layer", blocks, 32 * EXAMPLES, x, W, b, *arguments, resident, shared=size)

    def launch(self, name, blocks, threads, *arguments, shared):
        """Launch a kernel of products.cu. arguments: integers, arrays, and None for no array."""
        values = [np.int32(value) if isinstance(value, int) else value for value in arguments]
        values = [0 if value is None else value for value in values]
        self.kernels[name]((blocks,), (threads,), tuple(values), shared_mem=shared)


class Trainer(GradientTrainer):
    """Replays one step at a time. See `executors.protocol.Trainer`."""

    Gradient = Gradient


def _by_layer(vector, n, features):
    """Return views of a vector that holds an array (n, features) for one layer after another."""
    ends = np.cumsum([0, *features]) * n
    return [vector[start:end].reshape(n, -1) for start, end in pairwise(ends.tolist())]


def _tiles(shape, tile):
    """Return how many tiles a matrix of this shape has."""
    return math.prod(-(-length // edge) for length, edge in zip(shape, tile, strict=True))


@cache
def _chunk(tile, depth, itemsize):
    """Return how much of the depth a block takes at once, a multiple of 32, and the bytes of shared memory for it."""
    rows, columns = tile
    most = (shared_bytes() // itemsize - 4 * rows) // (rows + columns + 2)
    chunk = min(-(-depth // 32) * 32, most // 32 * 32)
    parts = THREADS // 32 * (rows + 1) * (columns + 1)
    return chunk, itemsize * max(rows * (chunk + 4) + chunk * (columns + 2), parts)


@cache
def _kernel(name, dtype, sizes):
    found = gpu.with_shared_memory(kernel("products", name, dtype, SIZES=",".join(map(str, sizes))), shared_bytes())
    return overlapping(found)

"""CUDA graph, three kernels a step: one for each time that a step has to wait for the whole batch.

See `kernels/mlp/three_kernels.cu` for the kernels, and `cuda/graph` for how steps are recorded and replayed.
"""

from itertools import pairwise

import cupy as cp
import numpy as np

from mlpkit.engines.cuda.kernel import C_TYPES, kernel, overlapping
from mlpkit.kernels import gpu

from .cuda.graph import GraphTrainer
from .cuda.rates import rates, settings, why_unknown
from .cuda.transfers import Feed, RowLosses, as_labels
from .cupy_fused import Evaluation as Evaluation
from .cupy_fused import Prediction as Prediction
from .plain import mlps_only

NAME = "cuda_three_kernels"
WARPS, ROWS, TILE, EDGE, WIDE = 16, 2, (8, 16), 32, 128  # as in three_kernels.cu


def why_not(model, optimizer, batch_size):
    """Return None, or one sentence: another model or optimizer, or layers too wide for shared memory in float32."""
    return mlps_only(NAME, model) or why_unknown(optimizer, NAME) or _too_wide(model.sizes(), np.dtype("f4"))


class Trainer(GraphTrainer):
    """Replays all steps with a full batch at once. See `executors.protocol.Trainer`.

    The last of a step's kernels is the update. Raises ValueError for layers too wide for shared memory.
    """

    steps_a_graph = None

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, as_labels(y), batch_size)
        self.sizes, dtype = network.model.sizes(), network.dtype
        if reason := _too_wide(self.sizes, dtype):
            raise ValueError(reason)
        macros = {"PIXEL": C_TYPES[X.dtype], "SIZES": ",".join(map(str, self.sizes))}
        self.kernels = [kernel("three_kernels", name, dtype, **macros) for name in ("first_layer", "rows", "update")]
        self.shared_bytes = _shared_bytes(self.sizes, dtype)
        for function, size in zip(self.kernels[:2], self.shared_bytes, strict=True):
            function.max_dynamic_shared_size_bytes = size
        self.kernels = [overlapping(function) for function in self.kernels]
        self.step_number = cp.zeros(2, np.int32)  # the update's own copy, too: it counts on while others read
        self.feed = Feed(rates=(3 * self.steps, np.float64), order=(len(y), np.int64))
        self.losses = RowLosses(self.steps, batch_size, dtype)
        self.outputs, self.gradients = (cp.empty(batch_size * sum(self.sizes[1:]), dtype) for _ in range(2))
        self.graphs_for(len(y))

    def send(self, order, steps):
        self.feed.send(rates=rates(self.optimizer, steps), order=order)

    def enqueue(self, n):
        first_layer, through, update = self.kernels
        images, batch = (self.X, self.feed["order"], self.step_number), (np.int32(self.batch_size), np.int32(n))
        theta, grid = self.network.theta, (-(-self.sizes[1] // TILE[1]), -(-n // TILE[0]))
        first_layer(grid, (32 * WARPS,), (*images, *batch, theta, self.outputs), shared_mem=self.shared_bytes[0])
        results = self.outputs, self.gradients, self.losses.rows
        labels = self.y, self.feed["order"], self.step_number
        through((-(-n // ROWS),), (32 * WARPS,), (*labels, *batch, theta, *results), shared_mem=self.shared_bytes[1])
        tiles = sum(-(-inputs // EDGE) * -(-columns // EDGE) for inputs, columns in pairwise(self.sizes))
        m, v = self.optimizer.state.values() or (0, 0)
        arrays = *images, *batch, self.outputs, self.gradients, theta, m, v, self.feed["rates"]
        update((tiles,), (EDGE * EDGE // 4,), (*arrays, *settings(self.optimizer)))

    def losses_of(self, steps, examples):
        return self.losses.means((steps,), examples)


def _shared_bytes(sizes, dtype):
    """Return the bytes of shared memory that a block of the first kernel needs, and one of the second."""
    first = sizes[0] * (TILE[0] + 4) + WARPS * TILE[0] * TILE[1]
    widest, outputs = (-(-count // unit) * unit for count, unit in ((max(sizes[1:]), WIDE), (sum(sizes[1:]), 4)))
    last = sizes[-2] * sizes[-1] if len(sizes) > 2 and sizes[-1] <= 32 else 1
    rows = ROWS * widest * (2 * (len(sizes) - 1) + WARPS) + outputs + last
    return first * dtype.itemsize, rows * dtype.itemsize


def _too_wide(sizes, dtype):
    need, there = max(_shared_bytes(sizes, dtype)), gpu.shared_memory()
    if need > there:
        return (
            f"{NAME} needs {-(-need >> 10)} KiB of a multiprocessor's shared memory for sizes {sizes}, "
            f"and this GPU gives a block {there >> 10}: take another engine."
        )
    return None

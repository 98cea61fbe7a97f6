"""A graph of two kernels a step: what the one kernel an epoch does, when kernels that end are the barriers."""

import cupy as cp
import numpy as np

from mlpkit import kernels
from mlpkit.executors.cuda.graph import GraphTrainer
from mlpkit.executors.cuda.rates import rates, settings
from mlpkit.executors.cuda.transfers import Feed, RowLosses, as_labels
from mlpkit.executors.cuda_conv_fused import macros_for


class Trainer(GraphTrainer):
    """Trains with two kernels a step: see `kernels/cnn/limit_graph.cu`. Arguments and errors: as the one kernel's."""

    steps_a_graph = None

    def __init__(self, network, optimizer, X, y, batch_size, **macros):
        super().__init__(network, optimizer, X, as_labels(y), batch_size)
        alone = {"PAIRS": 0, "IMAGE_BLOCKS": 1}
        self.macros = macros_for(network.model, optimizer, batch_size, self.X.dtype) | alone | macros
        module = kernels.load("limit_graph", **self.macros)
        answer = cp.empty(5, np.int32)
        module.get_function("requirements")((1,), (1,), (answer,))
        exchange_bytes, *self.shared_bytes, self.blocks, self.threads = answer.tolist()
        self.images, self.update, self.pack = map(module.get_function, ("images", "update", "pack"))
        for function, size in zip((self.images, self.update), self.shared_bytes, strict=True):
            function.max_dynamic_shared_size_bytes = size
        self.step_number, self.failed = cp.zeros(2, np.int32), cp.zeros(1, np.uint64)
        self.exchange = cp.zeros(exchange_bytes, np.uint8)
        self.feed = Feed(rates=(3 * self.steps, np.float32), order=(len(y), np.int64))
        self.losses = RowLosses(self.steps, batch_size, np.float32)
        m, v = optimizer.state.values() or (0, 0)
        self.vectors = network.theta, m, v
        self.graphs_for(len(y))

    def restart(self):
        super().restart()
        self.pack((self.blocks,), (self.threads,), (self.exchange, *self.vectors))

    def send(self, order, steps):
        self.feed.send(rates=rates(self.optimizer, steps), order=order)

    def enqueue(self, n):
        n = np.int32(n)
        images = self.X, self.y, self.feed["order"], self.step_number, n, self.losses.rows, self.failed, self.exchange
        self.images((int(n),), (self.threads,), images, shared_mem=self.shared_bytes[0])
        update = self.step_number, n, self.exchange, *self.vectors, self.feed["rates"], *settings(self.optimizer)
        self.update((self.blocks,), (self.threads,), update, shared_mem=self.shared_bytes[1])

    def losses_of(self, steps, examples):
        return self.losses.means((steps,), examples)

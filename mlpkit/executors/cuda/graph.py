"""Steps are recorded once, as a graph of kernels, and replayed: Python no longer launches the kernels one by one.

A graph repeats the same kernels with the same arguments. So whatever changes from step to step is read from the GPU's
memory: the number of the step, the order of the examples, and the rates of all of the epoch's steps.
"""

from contextlib import suppress
from functools import cache, partial
from typing import Any

import cupy as cp
import numpy as np

from mlpkit.engines.cuda.kernel import C_TYPES, kernel, overlapping
from mlpkit.kernels import overlap
from mlpkit.kernels.compiling import settle

from .transfers import Feed, as_labels


def recorded(work, pool):
    """Return the kernels that `work` asks for as a graph; arrays that it makes on the way come from `pool`."""
    stream = cp.cuda.Stream(non_blocking=True)
    settle()
    with cp.cuda.using_allocator(pool.malloc), stream:
        stream.begin_capture()
        try:
            with overlap.recording():
                work()
        except BaseException:  # Ctrl-C, too: who waits for this stream would be taken for a part of the graph
            with suppress(Exception):
                stream.end_capture()
            raise
        return stream.end_capture()


class GraphTrainer:
    """Trains a network with steps that are recorded and replayed. See `executors.protocol.Trainer`.

    A subclass says what a step is with `enqueue`; its losses go to `losses`. Where it must, it says what it reads with
    `send`, and where its losses are with `losses_of`. It makes the `feed`, and calls `graphs_for(len(y))` at the end of
    its constructor, so that all is recorded then.

    steps_a_graph: of the graphs, the largest number first, as often as it is left; or None for all of an epoch's steps
    with a full batch. `graphs`: those that are recorded, by the number of their steps and the size of their batches.
    `pool`: of what a recorded step uses, which must be given to nobody else. `step_number`: of the epoch's next step,
    on the GPU.
    """

    steps_a_graph: tuple[int, ...] | None = (1,)
    feed: Feed
    losses: Any

    def __init__(self, network, optimizer, X, y, batch_size):
        self.network, self.optimizer, self.batch_size = network, optimizer, batch_size
        self.X, self.y = map(cp.ascontiguousarray, (X.reshape(len(X), -1), y))
        self.steps = -(-len(y) // batch_size)  # of an epoch of all examples
        self.step_number = cp.zeros(1, np.int32)
        self.pool, self.graphs = cp.cuda.MemoryPool(), {}

    def enqueue(self, n):
        """Ask for one step on a batch of n: the kernels run when the GPU comes to them."""
        raise NotImplementedError

    def enqueue_several(self, count, n):
        """Ask for so many steps."""
        for _ in range(count):
            self.enqueue(n)

    def send(self, order, steps):
        """Send the order of the examples and the rates of so many steps to the GPU, and count the steps."""
        first_t = np.array([self.optimizer.steps + 1])
        self.feed.send(first_t=first_t, rates=self.optimizer.advance(steps), order=order)

    def losses_of(self, steps, examples):
        """Return a new array of the losses of so many steps, on so many examples."""
        return self.losses[:steps].copy()

    def epoch(self, order):
        """Train on the rows of X that `order` (n,) names, and return the losses, one a step."""
        steps = -(-len(order) // self.batch_size)
        self.restart()
        self.send(order, steps)
        for graph, times in self.graphs_for(len(order)):
            for _ in range(times):
                graph.launch()
        return self.losses_of(steps, len(order))

    def restart(self):
        """Let the next step be the first one of an epoch."""
        self.step_number.fill(0)

    def graphs_for(self, examples):
        """Return the graphs of an epoch of so many examples, each with the number of times that it is launched."""
        full, rest = divmod(examples, self.batch_size)
        wanted = []
        for size in self.steps_a_graph or (max(1, full),):
            times, full = divmod(full, size)
            wanted.append((size, self.batch_size, times))
        wanted.append((1, rest, int(rest > 0)))
        return [(self.graph(count, n), times) for count, n, times in wanted if times]

    def graph(self, count, n):
        """Return the graph of `count` steps with batches of n, recorded the first time that it is asked for."""
        if (count, n) not in self.graphs:
            pool = self.prepare(n)
            self.graphs[count, n] = recorded(partial(self.enqueue_several, count, n), pool)
        return self.graphs[count, n]

    def prepare(self, n):
        """Make what a step with a batch of n needs and keeps, and return from where its arrays come."""
        return self.pool

    def close(self):
        """Wait for all that was asked for, and give the graphs back."""
        self.feed.close()
        self.graphs.clear()
        self.pool.free_all_blocks()  # CuPy never frees what a pool keeps when the pool itself is gone


class GradientTrainer(GraphTrainer):
    """Trains with steps of three parts: the next batch, its gradient, the optimizer's update.

    A subclass names the class of the gradient, which is called as `cupy_fused.Gradient` is.
    """

    Gradient: type

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, as_labels(y), batch_size)
        dtype = network.dtype
        self.next_batch = overlapping(kernel("layers", "next_batch", dtype, PIXEL=C_TYPES[X.dtype]))
        self.feed = Feed(first_t=(1, np.int64), rates=(self.steps, np.float64), order=(len(y), np.int64))
        self.rate, self.t, self.losses = cp.empty(1, dtype), cp.empty(1, dtype), cp.empty(self.steps, dtype)
        self.gradient = cache(partial(self.Gradient, network))  # for each size of a batch
        self.graphs_for(len(y))

    def prepare(self, n):
        self.gradient(n)
        return self.pool

    def enqueue(self, n):
        inputs = self.X.shape[1]
        x, labels = cp.empty((n, inputs), self.network.dtype), cp.empty(n, np.int64)
        batches = self.X, self.y, self.feed["order"], self.step_number, np.int32(self.batch_size), np.int32(inputs)
        rates = self.feed["rates"], self.feed["first_t"], self.rate, self.t
        self.next_batch((n,), (256,), (*batches, x, labels, *rates))
        self.gradient(n)(x, labels, self.losses, self.step_number)
        self.optimizer.apply(self.rate, self.t)

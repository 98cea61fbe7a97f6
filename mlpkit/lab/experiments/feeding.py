"""Ways to get a batch to a step on the GPU, from a copy a step to a data set that is there already.

The step itself is the engine's, recorded as a graph which reads its batch from arrays that are always the same. A way
to feed fills them, or lets the graph do it. All ways train on the same examples in the same order.
"""

import time
from typing import Any

import numpy as np

from mlpkit.data import batches, epoch_order
from mlpkit.engines import numpy_baseline
from mlpkit.nn.network import SIZES

ENGINE = "cuda_graph"  # whose kernels are a step, and whose way of feeding is the last
PIXELS, CLASS = SIZES[0], np.dtype(np.int64)


class Images:
    """The training set on the host: labels y (n,) int64, and X (n, 784) in both types."""

    def __init__(self, pixels, y):
        self.y = y
        self.X = {"uint8": pixels, "float32": numpy_baseline.scale(pixels, np.dtype(np.float32))}

    def full_batches(self, recipe, epoch=0):
        """Return an epoch's order, without the short batch at its end."""
        order = epoch_order(len(self.y), recipe.seed, epoch)
        return order[: len(order) // recipe.batch_size * recipe.batch_size]


def synchronize():
    """Wait for all of the GPU's work, on every stream."""
    import cupy as cp

    cp.cuda.Device().synchronize()


def clocked(call, times=1):
    """Return the microseconds until the calls have returned, and until the GPU has done their work."""
    synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    called = time.perf_counter()
    synchronize()
    return (called - start) * 1e6, (time.perf_counter() - start) * 1e6


def graph_of(work, pool):
    """Return the kernels that `work` asks for as a graph; the first time they run, and are compiled."""
    from mlpkit.engines.cuda.graph import recorded

    work()
    return recorded(work, pool)


class Step:
    """A network on the GPU, and its step as a graph that reads a batch from arrays which are always the same."""

    def __init__(self, recipe, steps):
        import cupy as cp

        self.network = recipe.make_network(ENGINE)
        self.optimizer = recipe.make_optimizer(self.network, recipe.batch_size)
        self.first = self.network.engine.to_numpy(self.network.theta).copy()
        self.losses, self.number = cp.zeros(steps, np.float32), cp.zeros((), np.int32)
        self.rate = cp.full(1, recipe.lr, np.float32)
        self.pool = cp.cuda.MemoryPool()  # what a recorded step uses must be given to nobody else
        self.kept: list[Any] = []  # for the same reason: a graph knows addresses, and no arrays

    def graph(self, x, labels, before=lambda: None):
        """Return the graph of one step on x (n, 784), labels (n,), both on the GPU; `before` comes first."""

        def work():
            before()
            self.network.engine.gradient(self.network, x, labels, self.losses, self.number)
            self.optimizer.apply(self.rate, 1)

        self.kept += [x, labels, before]
        return graph_of(work, self.pool)

    def restart(self):
        """Return to the first parameters."""
        self.network.set_theta(self.first)
        self.number[...] = 0
        synchronize()


class Batch:
    """Room for a batch in one piece of memory, so that one copy carries labels and pixels."""

    def __init__(self, n, dtype, empty):
        self.memory = empty(n * (CLASS.itemsize + PIXELS * np.dtype(dtype).itemsize), np.uint8)
        self.labels = self.memory[: n * CLASS.itemsize].view(CLASS)
        self.x = self.memory[n * CLASS.itemsize :].view(dtype).reshape(n, PIXELS)

    def gather(self, X, y, index):
        """Copy the rows that `index` names. (With mode="raise", `take` would copy through a buffer of its own.)"""
        np.take(X, index, axis=0, out=self.x, mode="clip")
        np.take(y, index, out=self.labels, mode="clip")


class Way:
    """A way to feed a step. `epoch` asks for the steps of an epoch, and returns losses on the GPU before they are."""

    title = ""
    dtype = "float32"
    parts: tuple[str, ...] = ("launch",)  # of what the host does for a step

    def __init__(self, images, recipe):
        self.images, self.recipe, self.n = images, recipe, recipe.batch_size
        self.X, self.y = images.X[self.dtype], images.y
        self.step = Step(recipe, len(self.y) // self.n)
        self.prepare()
        self.step.restart()

    def prepare(self):
        """Make the arrays that a step reads, and its graph."""
        import cupy as cp

        self.x, self.labels = cp.zeros((self.n, PIXELS), self.dtype), cp.zeros(self.n, CLASS)
        self.graph = self.step.graph(self.x, self.labels)

    def turns(self, order):
        """Return for each step of an epoch its number, and the rows of its batch."""
        self.step.number[...] = 0
        return enumerate(batches(order, self.n))

    def epoch(self, order):
        """Ask for a step on each batch of `order` (n,), which is on the host; return the losses (steps,) on the GPU."""
        for turn, index in self.turns(order):
            for part in self.parts:
                getattr(self, part)(turn, index)
        return self.step.losses[: len(order) // self.n]

    def launch(self, turn, index):
        """Ask for a step: one of the `parts`, each of which gets the step's number and the rows of its batch."""
        self.graph.launch()

    def watched(self, order):
        """Take an epoch's steps, and return the microseconds of the host's time that each part takes, a step."""
        turns, spent = self.turns(order), dict.fromkeys(self.parts, 0.0)
        synchronize()
        for turn, index in turns:
            for part in self.parts:
                start = time.perf_counter()
                getattr(self, part)(turn, index)
                spent[part] += time.perf_counter() - start
        synchronize()
        return {part: seconds * 1e6 * self.n / len(order) for part, seconds in spent.items()}


class NotFed(Way):
    """The same batch again and again: what the steps take by themselves."""

    title = "not fed"

    def prepare(self):
        super().prepare()
        self.x.set(self.X[: self.n])
        self.labels.set(self.y[: self.n])


class Pageable(Way):
    """NumPy gathers rows into a new array, and CuPy copies it."""

    title = "pageable"
    parts = ("gather", "copy", "launch")

    def gather(self, turn, index):
        self.rows, self.classes = self.X[index], self.y[index]

    def copy(self, turn, index):
        self.x.set(self.rows)
        self.labels.set(self.classes)


class Pinned(Way):
    """NumPy gathers rows into pinned memory, as soon as the last batch has left it; one copy carries them."""

    title = "pinned"
    parts = ("wait", "gather", "send")
    n_slots = 1

    def prepare(self):
        self.slots = [Slot(self) for _ in range(self.n_slots)]

    def slot(self, turn):
        """Return the slot of a step's batch; they take turns."""
        return self.slots[turn % self.n_slots]

    def wait(self, turn, index):
        self.slot(turn).copied.synchronize()

    def gather(self, turn, index):
        self.slot(turn).host.gather(self.X, self.y, index)

    def send(self, turn, index):
        """Ask for the copy of a slot's batch, and for the step on it."""
        slot = self.slot(turn)
        slot.device.memory.set(slot.host.memory)
        slot.copied.record()
        slot.graph.launch()


class Overlapped(Pinned):
    """Two slots: a second stream carries a batch into one while the step computes with the other."""

    title = "overlapped"
    n_slots = 2

    def prepare(self):
        import cupy as cp

        super().prepare()
        self.compute, self.copies = cp.cuda.get_current_stream(), cp.cuda.Stream(non_blocking=True)

    def send(self, turn, index):
        """Ask for a slot's copy, once the last step with it is done, and for its step."""
        slot = self.slot(turn)
        self.copies.wait_event(slot.computed)
        slot.device.memory.set(slot.host.memory, self.copies)
        slot.copied.record(self.copies)
        self.compute.wait_event(slot.copied)
        slot.graph.launch()
        slot.computed.record(self.compute)


class OverlappedPixels(Overlapped):
    """The same with uint8: a quarter of the bytes, and one more kernel, which scales them."""

    title = "overlapped, uint8"
    dtype = "uint8"


class Slot:
    """Where a batch waits on the host, where it goes on the GPU, the step that reads it there, and how far they are."""

    def __init__(self, way):
        import cupy as cp
        import cupyx

        self.host = Batch(way.n, way.dtype, cupyx.empty_pinned)
        self.device = Batch(way.n, way.dtype, cp.zeros)
        x, scale = _as_float32(self.device.x)
        self.graph = way.step.graph(x, self.device.labels, scale)
        self.copied, self.computed = (cp.cuda.Event(disable_timing=True) for _ in range(2))


def _as_float32(x):
    """Return the array that a step reads, and what writes it: nothing where x is float32 already."""
    import cupy as cp

    if x.dtype == np.float32:
        return x, lambda: None
    scaled = cp.empty(x.shape, np.float32)
    return scaled, lambda: cp.divide(x, np.float32(255), out=scaled)


class Indexed(Way):
    """The data set is on the GPU, and CuPy takes the rows, two more launches a step."""

    title = "resident, taken"
    parts = ("take", "launch")

    def prepare(self):
        import cupy as cp

        super().prepare()
        self.X, self.y = cp.asarray(self.X), cp.asarray(self.y)

    def turns(self, order):
        import cupy as cp

        return super().turns(cp.asarray(order))

    def take(self, turn, index):
        import cupy as cp

        cp.take(self.X, index, axis=0, out=self.x)
        cp.take(self.y, index, out=self.labels)


class Resident(Way):
    """The data set is on the GPU, and so is the order of an epoch; to gather is the first kernel of the graph."""

    title = "resident"
    parts = ()

    def prepare(self):
        import cupy as cp

        self.X, self.y = cp.asarray(self.X), cp.asarray(self.y)

    def epoch(self, order):
        import cupy as cp

        step = self.step
        return step.network.engine.train_epoch(step.network, step.optimizer, self.X, self.y, cp.asarray(order), self.n)


class ResidentPixels(Resident):
    """The same with uint8: what the engine `cuda_graph` does where it is given pixels."""

    title = "resident, uint8"
    dtype = "uint8"


WAYS: tuple[type[Way], ...] = (
    NotFed,
    Pageable,
    Pinned,
    Overlapped,
    OverlappedPixels,
    Indexed,
    Resident,
    ResidentPixels,
)

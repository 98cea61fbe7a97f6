"""Ways to get a batch to a step on the GPU, from a copy a step to a data set that is there already."""

import time

import numpy as np

from mlpkit.data import batches
from mlpkit.executors import trainer_of

from .step import CLASS, PIXELS, Batch, Step, synchronize


class Variant:
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


class NotFed(Variant):
    """The same batch again and again: what the steps take by themselves."""

    title = "not fed"

    def prepare(self):
        super().prepare()
        self.x.set(self.X[: self.n])
        self.labels.set(self.y[: self.n])


class Pageable(Variant):
    """NumPy gathers rows into a new array, and CuPy copies it."""

    title = "pageable"
    parts = ("gather", "copy", "launch")

    def gather(self, turn, index):
        self.rows, self.classes = self.X[index], self.y[index]

    def copy(self, turn, index):
        self.x.set(self.rows)
        self.labels.set(self.classes)


class Pinned(Variant):
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


class Indexed(Variant):
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


class Resident(Variant):
    """The data set is on the GPU, and so is the order of an epoch; to gather is the first kernel of the graph."""

    title = "resident"
    parts = ()

    def prepare(self):
        import cupy as cp

        self.X, self.y = cp.asarray(self.X), cp.asarray(self.y)
        self.trainer = trainer_of(self.step.network, self.step.optimizer, self.X, self.y, self.n)

    def epoch(self, order):
        return self.trainer.epoch(order)


class ResidentPixels(Resident):
    """The same with uint8: what the engine `cuda_graph` does where it is given pixels."""

    title = "resident, uint8"
    dtype = "uint8"


VARIANTS: tuple[type[Variant], ...] = (
    NotFed,
    Pageable,
    Pinned,
    Overlapped,
    OverlappedPixels,
    Indexed,
    Resident,
    ResidentPixels,
)

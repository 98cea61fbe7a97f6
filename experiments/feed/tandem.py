"""The CPU and the GPU at work at the same time: on two parts of one batch, or on two epochs.

Parts of a batch have their gradients added up, each with the weight of its rows, so the CPU needs the parameters and
the GPU the CPU's gradient at every step. Of two epochs the GPU trains on one while the CPU prepares the next.
"""

from itertools import product
from types import SimpleNamespace

import numpy as np

from mlpkit.data import batches
from mlpkit.engines import BASELINE, numpy_baseline
from mlpkit.executors import trainer_of

from .step import CLASS, ENGINE, PIXELS, Step, graph_of, synchronize
from .variants import ResidentPixels

SHIFT = 2  # pixels that an image is moved, at most


class Tandem:
    """The first rows of each batch are the GPU's, the last `cpu_rows` the CPU's; neither has none.

    In a step the GPU begins with its rows. Meanwhile its parameters are copied to the host, where the baseline takes
    the gradient of the other rows; that is copied to the GPU, which adds the two up and updates.
    """

    def __init__(self, images, recipe, cpu_rows):
        import cupy as cp

        self.n, self.cpu_rows, self.gpu_rows = recipe.batch_size, cpu_rows, recipe.batch_size - cpu_rows
        self.X, self.y = images.X["float32"], images.y
        self.step = Step(recipe, len(self.y) // self.n)
        self.host = recipe.make_network(_pinned_baseline())
        self.order = cp.zeros(len(self.y), CLASS)
        self.grad = cp.zeros_like(self.step.network.grad)  # the CPU's
        self.share, self.update = self._share(cp.asarray(self.X), cp.asarray(self.y)), self._update()
        self.copies = cp.cuda.Stream(non_blocking=True)
        self.copied, self.updated = (cp.cuda.Event(disable_timing=True) for _ in range(2))
        self.step.restart()

    def _share(self, X, y):
        """Return the graph of the gradient of the GPU's rows."""
        import cupy as cp

        from mlpkit.engines.cuda.kernel import kernel

        step, (n, rows) = self.step, (self.n, self.gpu_rows)
        x, labels = cp.zeros((rows, PIXELS), np.float32), cp.zeros(rows, CLASS)
        rates, first = cp.zeros(len(y) // n), cp.zeros((), np.int64)  # the kernel looks up a rate as well
        rate, t = (cp.zeros(1, np.float32) for _ in range(2))
        sizes = np.int32(n), np.int32(PIXELS)
        given = X, y, self.order, step.number, *sizes, x, labels, rates, first, rate, t
        step.kept += given
        gather, gradient = kernel("layers", "next_batch", np.float32, PIXEL="float"), step.gradient(x, labels)

        def work():
            gather((rows,), (256,), given)
            gradient()

        return graph_of(work, step.pool)

    def _update(self):
        """Return the graph that adds the gradients up, each with the weight of its rows, and updates."""
        import cupy as cp

        grad, weight = self.step.network.grad, self.cpu_rows / self.n

        def work():
            cp.multiply(grad, np.float32(1 - weight), out=grad)
            self.step.engine.axpy(np.float32(weight), self.grad, grad)
            self.step.optimizer.apply(self.step.rate, 1)

        return graph_of(work, self.step.pool)

    def epoch(self, order):
        """Take a step on each batch of the order, and return the losses of the GPU's rows and of the CPU's."""
        self.order[: len(order)].set(order)
        self.step.number[...] = 0
        losses = [self.take(index[self.gpu_rows :]) for index in batches(order, self.n)]
        return self.step.losses[: len(losses)], losses

    def take(self, index):
        """Take a step, for which the CPU has the rows `index`, and return the mean loss of those."""
        import cupy as cp

        self.copies.wait_event(self.updated)
        self.step.network.theta.get(self.copies, out=self.host.theta, blocking=False)
        self.share.launch()
        self.copies.synchronize()
        loss = self.host.loss_and_grad(self.X[index], self.y[index])
        self.grad.set(self.host.grad, self.copies)
        self.copied.record(self.copies)
        cp.cuda.get_current_stream().wait_event(self.copied)
        self.update.launch()
        self.updated.record()
        return loss

    def losses(self, order):
        """Take the steps of an order, and return the losses of whole batches."""
        gpu, cpu = self.epoch(order)
        weight = self.cpu_rows / self.n
        return (1 - weight) * gpu.get() + weight * np.array(cpu)


def _pinned_baseline():
    """Return the baseline, whose networks keep their parameters in pinned memory."""
    import cupyx

    def pinned(array, dtype=None):
        made = cupyx.empty_pinned(array.shape, dtype or array.dtype)
        made[...] = array
        return made

    return SimpleNamespace(**vars(numpy_baseline) | {"asarray": pinned})


class Alone:
    """One of the two has all rows, and nothing is copied between them."""

    def __init__(self, engine, images, recipe):
        network = recipe.make_network(engine)
        self.engine = network.engine
        X, y = map(self.engine.asarray, (images.X["float32"], images.y))
        self.trainer = trainer_of(network, recipe.make_optimizer(network, len(y)), X, y, recipe.batch_size)

    def epoch(self, order):
        """Take a step on each batch of the order, and return their losses, as the engine has them."""
        return self.trainer.epoch(order)

    def losses(self, order):
        """Take the steps of an order, and return the losses (steps,), a NumPy array."""
        return self.engine.to_numpy(self.epoch(order))


def in_tandem(images, recipe, share):
    """Return what trains with a share of each batch on the CPU."""
    cpu_rows = round(share * recipe.batch_size)
    if cpu_rows in (0, recipe.batch_size):
        return Alone(BASELINE if cpu_rows else ENGINE, images, recipe)
    return Tandem(images, recipe, cpu_rows)


def shifted(pixels, moves, out):
    """Write images (n, 784), each moved by its own (down, right) pixels, into `out`; what leaves comes in opposite."""
    images, target = pixels.reshape(-1, 28, 28), out.reshape(-1, 28, 28)
    for move in product(range(-SHIFT, SHIFT + 1), repeat=2):
        rows = np.flatnonzero((moves == move).all(axis=1))
        target[rows] = np.roll(images[rows], move, axis=(1, 2))


class Ahead:
    """Epochs on the GPU; for each of them the CPU has prepared something: an order, or an order and images."""

    def __init__(self, images, recipe, augment):
        import cupy as cp
        import cupyx

        self.images, self.recipe, self.augment = images, recipe, augment
        self.way = ResidentPixels(images, recipe)
        self.staging = cupyx.empty_pinned(images.X["uint8"].shape, np.uint8)
        self.rng, self.sent = np.random.default_rng(recipe.seed), cp.cuda.Event(disable_timing=True)
        self.prepare(0)

    def prepare(self, epoch):
        """Make an epoch's order, and its images in the staging memory once the last ones have left it."""
        self.order = self.images.full_batches(self.recipe, epoch)
        if self.augment:
            moves = self.rng.integers(-SHIFT, SHIFT + 1, (len(self.staging), 2))
            self.sent.synchronize()
            shifted(self.images.X["uint8"], moves, self.staging)

    def train(self):
        """Ask for the epoch that is prepared, its images first."""
        if self.augment:
            self.way.X.set(self.staging)
            self.sent.record()
        self.way.epoch(self.order)

    def epochs(self, count, at_once):
        """Train epochs, and prepare the one after each. at_once: while it is trained, and not afterwards."""
        for epoch in range(count):
            self.train()
            if not at_once:
                synchronize()
            self.prepare(epoch)
            synchronize()

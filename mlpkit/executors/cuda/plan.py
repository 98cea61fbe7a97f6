"""A network's gradient by blocks, and a step of any network as a graph, with memory that is planned."""

from contextlib import nullcontext
from functools import cache, partial
from math import gcd
from typing import Any

import cupy as cp
import numpy as np

from mlpkit.engines.cuda.kernel import C_TYPES, kernel
from mlpkit.engines.cupy_fused import cross_entropy
from mlpkit.kernels import overlap
from mlpkit.kernels.cnn import updates
from mlpkit.kernels.compiling import rehearsal
from mlpkit.nn.losses import SoftmaxCrossEntropy

from . import dense
from .arena import Arena, Recorder
from .blocks import Value, pipeline
from .graph import GraphTrainer
from .matches import mode_for
from .rates import KINDS
from .transfers import Feed, as_labels

PARTS = 8  # blocks that copy an example, at most
PIECES = {8: "unsigned long long", 4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}  # of so many bytes


class Gradient:
    """A network's blocks for batches of n.

    Call it with x (n, *model.input) in the network's type, contiguous, and targets: it writes the gradient of the
    batch's loss into `network.grad`, and the loss into losses[step]. step: an int32 on the GPU, which then goes on by
    one; without it the loss is losses[0]. ready: is called with the gradient of the head's first weights when it is
    there, and that of all weights behind. beside: a `Branch` that is joined before the gradient is read, or None.
    midway: is called between the way there and the head, or None. largest: of x, see `Value`. update: an `Update` of
    all parameters, or None, that the last kernel does, too, if it can; what is returned is whether it does.
    precision: one of `blocks.MODES`. matches: see `blocks.pipeline`.
    """

    def __init__(self, network, n, precision, matches):
        self.network, self.layers = network, network.layers
        layers, model, mode = network.layers, network.model, mode_for(precision)
        self.softmax = type(model.loss) is SoftmaxCrossEntropy and len(model.output) == 1
        self.head: dense.Head | None = None
        inner = layers
        if self.softmax:
            count, self.head = dense.head(layers, n, mode)
            inner = layers[: len(layers) - count]
        self.pipeline = pipeline(inner, network.model.input, n, mode, (*matches, dense.match))

    def __call__(self, x, targets, losses, step=None, ready=None, beside=None, midway=None, largest=None, update=None):
        prepare = partial(self.pipeline.prepare, beside)
        beside.ask(prepare) if beside else prepare()
        z = self.pipeline.forward(Value(x, "nchw", x.shape[1], largest))
        if midway:
            midway()
        came = [self.head(z, targets, losses, step) if self.head else self.loss(z.array, targets, losses, step)]
        del z
        if ready and self.head:
            ready(self.head.linear[0].dW)
        if came[0] is None:
            return False
        update = update if self.pipeline.finishes else None
        self.pipeline.backward(came.pop(), update)
        return update is not None

    def loss(self, z, targets, losses, step):
        """Keep the loss of the outputs z, and return their gradient."""
        if self.softmax:
            dz = z if getattr(self.pipeline.blocks[-1], "lends", False) else z.copy()
            cross_entropy(dz, None, as_labels(targets), losses, step)
        else:
            loss, dz = self.network.model.loss(self.network.at_loss, z, targets)
            _steps("keep_loss", z.dtype)((1,), (1,), (loss, losses, step if step is not None else np.uintp(0)))
        return Value(dz, "nchw", dz.shape[1])


def watched(work, *vectors, rehearsed=()):
    """Return the `arena.Plan` of what `work()` asks for. What it does to vectors is undone, after an error, too.

    It is called twice: the first time, it makes what lasts. rehearsed: what is rehearsed before, so that all its
    kernels are compiled at once; what is made then, with kernels, must not last.
    """
    before, recorder = [vector.copy() for vector in vectors], Recorder()
    try:
        with rehearsal() if rehearsed else nullcontext():
            for each in rehearsed:
                each()
        work()
        with recorder.watching():
            work()
    finally:
        for vector, copy in zip(vectors, before, strict=True):
            vector[...] = copy
    return recorder.plan()


def update_of(optimizer, rates):
    """Return an optimizer's step as an `Update`, or None where the kernels that know it can't take it.

    rates: of the step, as `Batch` has them.
    """
    if type(optimizer) not in KINDS or optimizer.weight_decay:
        return None
    (lr, t), vectors = rates, (optimizer.network.theta, optimizer.network.grad)
    if not updates.fits(lr, *vectors, *optimizer.state.values()):
        return None
    of_adam = optimizer.state | optimizer.settings | {"t": t} if optimizer.state else {}
    return updates.Update(*vectors, lr, **of_adam)


class Branch:
    """What is done beside the work of the current stream, on another one.

    Memory is handed out in the order of the calls on one stream, see `arena`: so what is asked for here, and the arrays
    that it needs, are kept until both streams are joined.
    """

    def __init__(self, stream):
        self.stream, self.kept = stream, []

    def ask(self, work, early=True):
        """Ask for `work()`, behind all that the current stream has been asked for.

        early: whether its kernels may begin early; they would take the place of those that all wait for.
        """
        self.stream.wait_event(cp.cuda.get_current_stream().record())
        with self.stream, nullcontext() if early else overlap.apart():
            work()
        self.kept.append(work)

    def join(self):
        """Let the current stream wait for what has been asked for here."""
        cp.cuda.get_current_stream().wait_event(self.stream.record())
        self.kept.clear()


class Batch:
    """A batch of n, x and targets, and what is new in its step.

    number: of the step in its epoch. taken: all steps before it. rates: the learning rate, and its number from 1.
    other: a batch at least as large, which is never needed at the same time, and where this one's x may lie.
    """

    def __init__(self, network, y, n, other=None):
        self.x = cp.empty((n, *network.model.input), network.dtype) if other is None else other.x[:n]
        self.targets = cp.empty((n, *y.shape[1:]), y.dtype)
        self.number, self.taken = cp.empty(1, np.int32), cp.empty(1, np.int64)
        self.rates = tuple(cp.empty(1, network.dtype) for _ in range(2))


class PlannedTrainer(GraphTrainer):
    """Trains with steps of three parts: the next batch, its gradient, the optimizer's update; as a graph.

    Three things are done on a branch beside the gradient. Filters are put in order beside the first convolution; within
    a graph of several steps each fetches the batch of the next one beside the dense layers; and slices of gradients may
    be added up beside the next gradient. None of it needs all of the GPU. A size of batches has two that take turns.
    Where GPUs add up gradients, they may send those of the head's weights, most of all that there are, meanwhile. A
    subclass names its precision, one of `blocks.MODES`, and the `match` functions of the blocks that it has. arenas: by
    the size of a batch.
    """

    precision = "float32"
    matches: tuple = ()
    steps_a_graph: tuple[int, ...] | None = (8, 1)

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, y, batch_size)
        row = self.y[0].nbytes  # bytes of a target, which are copied in the largest pieces that it is made of
        piece = gcd(row, 8)
        self.target_size = row // piece
        self.next_batch = _steps("next_batch", network.dtype, C_TYPES[X.dtype], PIECES[piece])
        fields = {"first_t": (1, np.int64), "rates": (self.steps, network.dtype), "order": (len(y), np.int32)}
        self.feed = Feed(beside=False, **fields)  # the copy takes a thousandth of an epoch
        self.feed.memory.fill(0)  # before the first epoch a step is tried on the first example, at a rate of 0
        self.feed.send(first_t=np.ones(1, np.int64))
        self.losses = cp.empty(self.steps, network.dtype)
        largest = 1 if X.dtype == np.uint8 else max(-float(self.X.min()), float(self.X.max()))
        self.largest = cp.asarray(np.array([largest], np.float32)).view(np.uint32)
        self.beside = Branch(cp.cuda.Stream(non_blocking=True))
        self.sends: Any = getattr(optimizer.reduce, "begin", None)
        if self.sends:  # copies between GPUs make each end of a graph take longer
            self.steps_a_graph = (64, 32, 16, 8, 4, 2, 1)
        self.gradients, self.batches, self.arenas, self.memory = {}, {}, {}, None
        for n in min(batch_size, len(y)), len(y) % batch_size:  # the last one of an epoch may be short
            self.make(n)
        self.graphs_for(len(y))

    def make(self, n):
        """Make what computes a gradient of n examples, and their batches, if there is a batch of so many."""
        if n > 0 and n not in self.gradients:
            self.gradients[n] = Gradient(self.network, n, self.precision, self.matches)
            others = self.batches.get(self.batch_size, (None, None))
            self.batches[n] = [Batch(self.network, self.y, n, other) for other in others]

    def prepare(self, n):
        if n in self.arenas:
            return self.arenas[n]
        self.make(n)
        vectors = self.network.theta, self.network.statistics, *self.optimizer.state.values(), self.losses
        steps = [partial(self.enqueue_first, each) for each in self.gradients if each not in self.arenas]
        with getattr(self.optimizer.reduce, "apart", nullcontext)():  # other ranks may have this graph already
            found = watched(partial(self.enqueue_first, n), *vectors, rehearsed=steps)
            self.arenas[n] = Arena(found, self.memory)
        self.memory = self.arenas[n].memory
        self.restart()  # an epoch may be about to begin
        return self.arenas[n]

    def enqueue_first(self, n):
        """Ask for an epoch's first step."""
        self.restart()
        self.enqueue_several(1, n, nullcontext)

    def enqueue_several(self, count, n, step=None):
        self.fetch(self.batches[n][0], self.step_number)
        for i in range(count):
            with (step or self.arenas[n].step)():
                self.enqueue_step(self.batches[n][i % 2], self.batches[n][1 - i % 2] if i + 1 < count else None)
        if self.sends:
            self.optimizer.reduce.join()

    def enqueue_step(self, batch, following=None):
        """Ask for a step. following: the batch that is fetched meanwhile, or None."""

        def midway():
            self.beside.ask(partial(self.fetch, following, batch.number, 1))

        updated = self.enqueue_gradient(batch, midway if following else None)
        self.beside.join()
        if not updated:
            self.update(batch)

    def update(self, batch):
        """Ask for the optimizer's update; where GPUs add up gradients, the kernel that does so takes it, if it can."""
        update = update_of(self.optimizer, batch.rates)
        if not (self.sends and update and self.optimizer.reduce.step(update)):
            self.optimizer.apply(*batch.rates)

    def fetch(self, batch, step, further=0):
        """Ask for the batch of the epoch's step of a number that is on the GPU, or of one that is so much further."""
        inputs = self.X.shape[1]
        parts = max(1, min(PARTS, inputs // 256))
        examples = self.X, self.y, self.feed["order"], step
        rates = self.feed["rates"], self.feed["first_t"], batch.number, *batch.rates, batch.taken
        sizes = map(np.int32, (further, len(self.y), self.batch_size, inputs, self.target_size, parts))
        arguments = *examples, *sizes, batch.x, batch.targets, *rates
        self.next_batch((len(batch.x) * parts,), (256,), arguments)

    def enqueue_gradient(self, batch, midway=None):
        """Ask for the gradient; return whether the update is asked for, too. midway: see `Gradient`."""
        self.network.mode.step = batch.taken
        of = batch.x, batch.targets, self.losses, self.step_number
        update = None if self.optimizer.reduce else update_of(self.optimizer, batch.rates)
        gradient = self.gradients[len(batch.x)]
        return gradient(*of, self.sends, self.beside, midway, self.largest, update)


@cache
def _steps(name, dtype, pixel="unsigned char", target="unsigned long long"):
    return kernel("steps", name, dtype, PIXEL=pixel, TARGET=target)

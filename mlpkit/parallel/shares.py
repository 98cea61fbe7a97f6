"""Which rows of a batch are a rank's, and a trainer that takes its steps on those alone."""

from contextlib import contextmanager
from copy import copy
from types import SimpleNamespace

import numpy as np

from mlpkit import executors


def share(order, batch_size, rank, ranks):
    """Return a rank's rows of all whole batches, one batch behind the other, and of the short one at the end."""
    whole = len(order) - len(order) % batch_size
    ours = order[:whole].reshape(-1, ranks, batch_size // ranks)[:, rank].ravel()
    return ours, np.array_split(order[whole:], ranks)[rank]


def engine_of(engine, communicator):
    """Return an engine like another one, whose trainers are this rank's."""
    theirs, ranks = executors.of(engine), communicator.ranks

    def why_not(model, optimizer, batch_size):
        reducing = copy(optimizer)
        reducing.reduce = communicator.Reduction
        return theirs.why_not(model, reducing, batch_size // ranks)

    executor = SimpleNamespace(
        why_not=why_not,
        Trainer=lambda *arguments: Sharded(theirs, communicator, *arguments),
        Evaluation=theirs.Evaluation,
        Prediction=theirs.Prediction,
    )
    return SimpleNamespace(**vars(engine) | {"executor": executor})


class Reduction:
    """An optimizer's `reduce`: makes the gradient of a rank's share that of the whole batch.

    A gradient is the mean over a share; weighted by how much of the batch that is, and summed, it is that of the batch.
    weight: of this rank's share; weights (ranks,): of all, an array of the engine's, which a recorded step reads.
    """

    def __init__(self, communicator, network):
        self.communicator, self.rank, self.ranks = communicator, communicator.rank, communicator.ranks
        self.engine, self.dtype = network.engine, network.dtype
        self.weights = self.engine.asarray(np.zeros(self.ranks, self.dtype))
        self.is_apart, self.sizes = False, []
        self.weigh([1] * self.ranks)

    def weigh(self, sizes):
        """Weight the shares by how many examples each has, `sizes` (ranks,)."""
        if sizes == self.sizes:
            return  # a copy is waited for
        self.sizes, weights = sizes, np.array(sizes) / sum(sizes)
        self.weight = weights[self.rank]
        self.weights[:] = self.engine.asarray(weights.astype(self.dtype))

    def __call__(self, grad):
        """Replace a gradient by the weighted sum of all ranks'."""
        if not self.is_apart:
            grad *= self.weights[self.rank]
            self.communicator.sum(grad)

    @contextmanager
    def apart(self):
        """Let a step be tried meanwhile that other ranks do not take: nothing is added up."""
        self.is_apart = True
        try:
            yield
        finally:
            self.is_apart = False

    def mark(self, losses):
        """Make losses infinite where another rank was waited for in vain: nobody shall keep what was trained then."""

    def check(self, wait=False):
        """Raise RankLost where another rank was waited for in vain: by what is done, or all that was asked for."""


class Sharded:
    """A trainer of a rank's shares: see `executors.protocol.Trainer`. Its losses are those of whole batches."""

    def __init__(self, theirs, communicator, network, optimizer, X, y, batch_size):
        self.communicator, self.network, self.batch_size = communicator, network, batch_size
        self.reduction = optimizer.reduce = communicator.Reduction(communicator, network)
        network.mode.seed += communicator.rank << 64  # or dropout would drop the same cells of each share
        self.trainer = theirs.Trainer(network, optimizer, X, y, batch_size // communicator.ranks)

    def epoch(self, order):
        """Take a step on this rank's share of each batch; return the mean losses of whole batches, one a step."""
        engine, ranks = self.network.engine, self.communicator.ranks
        self.reduction.check()
        order = engine.to_numpy(order)
        rows, last = share(order, self.batch_size, self.communicator.rank, ranks)
        full, short = divmod(len(order), self.batch_size)
        found = []
        if full:
            found.append(self._train(rows, [1] * ranks))
        if short:  # a rank without a row of it takes one that does not count
            sizes = [len(part) for part in np.array_split(range(short), ranks)]
            found.append(self._train(last if len(last) else order[-1:], sizes))
        losses, end = engine.asarray(np.zeros(full + (short > 0))), 0
        for part, weight in found:
            here = slice(end, end := end + len(part))
            losses[here] = part
            losses[here] *= weight
        self.reduction.mark(losses)
        self.communicator.sum(losses)
        if len(self.network.statistics):  # of each rank's own shares: from here on their mean
            self.network.statistics[:] /= ranks
            self.communicator.sum(self.network.statistics)
        return losses

    def _train(self, rows, sizes):
        """Take the steps on some rows; return their losses, and the weight of these."""
        self.reduction.weigh(sizes)
        return self.network.engine.asarray(self.trainer.epoch(rows)), self.reduction.weight

    def close(self):
        """Give back what the trainer holds. Raises RankLost as an epoch does."""
        self.trainer.close()
        self.reduction.check(wait=True)

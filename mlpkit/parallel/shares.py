"""Which rows of a batch are a rank's, and a trainer that takes its steps on those alone."""

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
    theirs = executors.of(engine)
    executor = SimpleNamespace(
        why_not=lambda model, optimizer, batch_size: theirs.why_not(model, optimizer, batch_size // communicator.ranks),
        Trainer=lambda *arguments: Sharded(theirs, communicator, *arguments),
        Evaluation=theirs.Evaluation,
        Prediction=theirs.Prediction,
    )
    return SimpleNamespace(**vars(engine) | {"executor": executor})


class Sharded:
    """A trainer of a rank's shares: see `executors.protocol.Trainer`. Its losses are those of whole batches.

    A gradient is the mean over a share; weighted by how much of the batch that is, and summed, it is that of the batch.
    """

    def __init__(self, theirs, communicator, network, optimizer, X, y, batch_size):
        self.communicator, self.network, self.optimizer, self.batch_size = communicator, network, optimizer, batch_size
        optimizer.reduce = self.reduce
        network.mode.seed += communicator.rank << 64  # or dropout would drop the same cells of each share
        self.trainer = theirs.Trainer(network, optimizer, X, y, batch_size // communicator.ranks)

    def reduce(self, grad):
        """Make a share's gradient that of the whole batch."""
        grad *= self.weight
        self.communicator.sum(grad)

    def epoch(self, order):
        """Take a step on this rank's share of each batch; return the mean losses of whole batches, one a step."""
        engine, ranks = self.network.engine, self.communicator.ranks
        rows, last = share(engine.to_numpy(order), self.batch_size, self.communicator.rank, ranks)
        losses = self._losses(rows, 1 / ranks)
        if short := len(order) % self.batch_size:
            losses += self._losses(last, len(last) / short)
        summed = np.array(losses)
        self.communicator.sum(summed)
        if len(self.network.statistics):  # of each rank's own shares: from here on their mean
            self.network.statistics[:] /= ranks
            self.communicator.sum(self.network.statistics)
        return engine.asarray(summed)

    def _losses(self, rows, weight):
        """Take the steps on some rows, and return the weighted losses, a list. Without rows the others wait for it."""
        self.weight = weight
        if len(rows):
            losses = self.trainer.epoch(self.network.engine.asarray(rows))
            return [float(loss) * weight for loss in self.network.engine.to_numpy(self.network.engine.asarray(losses))]
        if weight:
            return []
        self.network.grad[:] = 0
        self.optimizer.step()
        return [0.0]

    def close(self):
        """Give back what the trainer holds."""
        self.trainer.close()

"""The whole step of `numba_step`: four calls of compiled code, each shared out among all cores."""

import numpy as np

from mlpkit.engines.loops.compiler import Threads
from mlpkit.engines.numba_serial import check_labels
from mlpkit.engines.numba_step import step

from .plain import Evaluation as Evaluation
from .plain import Prediction as Prediction
from .plain import StepByStep, mlps_only


def why_not(model, optimizer, batch_size):
    """Return None for a multilayer perceptron, else a sentence. See `executors`."""
    return mlps_only("numba_step", model)


class Trainer(StepByStep):
    """Takes a step in four calls of compiled code; keeps arrays for a batch, for what layers put out, and for `dz`."""

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, y, batch_size)
        self.sizes, rows = network.model.sizes(), min(batch_size, len(y))
        check_labels(y, len(X), self.sizes[-1])
        self.x, first, *others = (np.empty((rows, features), network.dtype) for features in self.sizes)
        self.sums = np.empty((min(Threads.count(), self.sizes[0]), *first.shape), network.dtype)
        self.outputs = self.sums[0], *others
        self.gradients = *map(np.empty_like, self.outputs[:-1]), self.outputs[-1]

    def step(self, x, labels):
        check_labels(labels, len(x), self.sizes[-1])
        return self.take(x, np.arange(len(x)), labels)

    def step_on(self, index):
        return self.take(self.X, index, self.y[index])

    def take(self, X, index, labels):
        """Take one step on the rows `index` (n,) of X, with labels (n,), and return the mean loss."""
        network, n, most = self.network, len(index), self.x.shape
        if n > most[0] or X.shape[1:] != most[1:]:  # compiled loops would read beyond their arrays
            raise ValueError(f"a batch here has at most the shape {most}, not {(n, *X.shape[1:])}.")
        shares = max(self.team.most, Threads.count())  # a smaller team takes as many: one order of the sums
        parts, losses = min(shares, len(self.sums)), np.empty(min(shares, n))
        step.first_products(X, index, network.theta, self.sizes, self.x, self.sums, parts)
        step.backpropagate(self.sums, parts, labels, network.theta, self.sizes, self.outputs, self.gradients, losses)
        step.parameter_gradients(n, self.x, self.outputs, self.gradients, self.sizes, network.grad, shares)
        self.optimizer.step()
        return losses.sum()

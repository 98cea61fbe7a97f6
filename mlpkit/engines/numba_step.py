"""Numba, a whole step: a few calls of compiled code, each shared out among all cores, with the products of `gemm`.

Of the first layer's inputs, each core has a part; of the batch, a share; of the gradient and its update, a part: see
`loops.step`. Only one Python thread at a time may use it: see `numba_parallel`.
"""

import numpy as np

from .loops import fused as _fused
from .loops import gemm as _gemm
from .loops import step as _step
from .loops.compiler import FASTMATH, Threads, compile_loops
from .numba_blocked import *
from .numba_serial import check_labels
from .stepping import StepByStep, mlps_only

_FAST = {"fastmath": FASTMATH, "error_model": "numpy"}
fused = compile_loops(__name__, _fused, parallel=True, **_FAST)
one_core = compile_loops(f"{__name__}_one_core", _fused, **_FAST)
_CALLS = vars(one_core) | {"multiply": _gemm.multiply, "prefetch": _gemm.prefetch}
step = compile_loops(__name__, _step, parallel=True, calls=_CALLS, **_FAST)
gather = fused.gather
axpy = fused.axpy
sgd_update = fused.sgd_update
momentum_update = fused.momentum_update
nesterov_update = fused.nesterov_update
rmsprop_update = fused.rmsprop_update
adam_update = fused.adam_update


def why_not(model, optimizer, batch_size):
    """Return None for a multilayer perceptron, else a sentence. See `protocol`."""
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
        shares = max(self.crew.most, Threads.count())  # a smaller crew takes as many: one order of the sums
        parts, losses = min(shares, len(self.sums)), np.empty(min(shares, n))
        step.first_products(X, index, network.theta, self.sizes, self.x, self.sums, parts)
        step.backpropagate(self.sums, parts, labels, network.theta, self.sizes, self.outputs, self.gradients, losses)
        step.parameter_gradients(n, self.x, self.outputs, self.gradients, self.sizes, network.grad, shares)
        self.optimizer.step()
        return losses.sum()

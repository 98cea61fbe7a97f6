"""Numba, a whole step: a few calls of compiled code, each shared out among all cores, with the products of `gemm`.

Of the batch, each core has a share; of the gradient and its update, each has a part: see `loops.step`. Only one
Python thread at a time may use it: see `numba_parallel`.
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
    """Takes a step in three calls of compiled code; keeps arrays for activations, gradients `dz` and losses."""

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, y, batch_size)
        self.sizes = network.model.sizes()
        *hidden, classes = self.sizes[1:]
        rows = min(batch_size, len(y))
        self.activations = [np.empty((rows, features), network.dtype) for features in hidden]
        self.gradients = [np.empty((rows, features), network.dtype) for features in (*hidden, classes)]
        self.nothing = np.empty((0, classes), network.dtype)  # Numba can't tell what an empty tuple would hold

    def step(self, x, labels):
        network, n = self.network, len(x)
        shares = max(self.crew.most, Threads.count())  # a smaller crew takes as many: one order of the losses' sum
        most = len(self.gradients[0]), self.sizes[0]
        if n > most[0] or x.shape[1:] != most[1:]:  # compiled loops would read beyond their arrays
            raise ValueError(f"a batch here has at most the shape {most}, not {x.shape}.")
        check_labels(labels, n, self.sizes[-1])
        activations = (*(a[:n] for a in self.activations), self.nothing)
        gradients, losses = tuple(dz[:n] for dz in self.gradients), np.empty(min(shares, n))
        step.backpropagate(x, labels, network.theta, self.sizes, activations, gradients, losses)
        step.parameter_gradients(x, activations, gradients, self.sizes, network.grad, shares)
        self.optimizer.step()
        return losses.sum()

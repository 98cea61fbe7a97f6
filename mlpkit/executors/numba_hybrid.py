"""The whole step of `numba_hybrid`: BLAS's products, and one pass of compiled code between two of them."""

import numpy as np

from mlpkit.engines.numba_hybrid import fused
from mlpkit.engines.numba_serial import check_labels

from .plain import Evaluation as Evaluation
from .plain import Prediction as Prediction
from .plain import StepByStep, mlps_only


def why_not(model, optimizer, batch_size):
    """Return None for a multilayer perceptron, else a sentence. See `executors`."""
    return mlps_only("numba_hybrid", model)


class Trainer(StepByStep):
    """Takes a step with as few passes over memory between products as can be."""

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, y, batch_size)
        self.linear = network.layers[::2]

    def step(self, x, labels):
        check_labels(labels, len(x), self.network.model.output[0])
        *hidden, last = self.linear
        inputs = [x]
        for at in hidden:
            z = inputs[-1] @ at.W
            fused.add_bias_relu(z, at.b)
            inputs.append(z)
        dz = inputs[-1] @ last.W
        loss = fused.cross_entropy(dz, last.b, labels, len(x))
        for at, a in zip([last, *reversed(hidden)], reversed(inputs), strict=True):
            np.matmul(a.T, dz, out=at.dW)
            fused.sum_rows(dz, at.db)
            if at.wants_dx:
                dz = dz @ at.W.T
                fused.relu_backward_in_place(a, dz)
        self.optimizer.step()
        return loss

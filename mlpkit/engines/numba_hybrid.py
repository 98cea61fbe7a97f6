"""Each does what it does best: BLAS multiplies matrices, and Numba all that lies between, in as few passes as it can.

The compiled loops run on one core: OpenBLAS keeps threads of its own waiting on the others.
"""

import numpy as np

from .loops import fused as _fused
from .loops.compiler import FASTMATH, compile_loops
from .numba_serial import check_labels
from .numpy_baseline import *

fused = compile_loops(__name__, _fused, fastmath=FASTMATH, error_model="numpy")
axpy = fused.axpy
sgd_update = fused.sgd_update
momentum_update = fused.momentum_update
nesterov_update = fused.nesterov_update
rmsprop_update = fused.rmsprop_update
adam_update = fused.adam_update


def train_step(network, optimizer, x, labels):
    """Take one step; see `train.train_step`. Raises for a batch that does not fit the network."""
    x = network.as_input(x)
    check_labels(labels, len(x), network.sizes[-1])
    *hidden, last = network.layers[::2]
    inputs = [x]
    for layer in hidden:
        z = inputs[-1] @ layer.W
        fused.add_bias_relu(z, layer.b)
        inputs.append(z)
    dz = inputs[-1] @ last.W
    loss = fused.cross_entropy(dz, last.b, labels, len(x))
    for layer, a in zip([last, *reversed(hidden)], reversed(inputs), strict=True):
        np.matmul(a.T, dz, out=layer.dW)
        fused.sum_rows(dz, layer.db)
        if a is not x:
            dz = dz @ layer.W.T
            fused.relu_backward_in_place(a, dz)
    optimizer.step()
    return loss

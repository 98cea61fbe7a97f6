"""An optimizer's update in a recorded graph, four values a thread: see `updates.cu`."""

import math
from functools import cache

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import overlap

THREADS = 256  # a block


def fits(lr, *vectors):
    """Return whether these kernels can: vectors of float32 that begin at multiples of 16 bytes, the rate on the GPU."""
    import cupy as cp

    on_gpu = isinstance(lr, cp.ndarray) and lr.dtype == np.float32
    return on_gpu and all(
        each.dtype == np.float32 and each.flags.c_contiguous and each.data.ptr % 16 == 0 for each in vectors
    )


def sgd(theta, grad, lr):
    """Take one step of gradient descent. theta, grad (n,); lr: an array of one value."""
    _launch(theta, "sgd", grad, lr, np.int32(theta.size))


def adam(theta, grad, m, v, t, lr, beta1, beta2, eps):
    """Take step number `t`, an array of one number as lr is, of Adam. theta, grad, m, v (n,)."""
    values = [number for beta in (beta1, beta2) for number in (beta, 1 - beta, math.log(beta) if beta else -math.inf)]
    settings = np.array([*values, eps], np.float32).view("V28")
    _launch(theta, "adam", grad, m, v, t, lr, np.int32(theta.size), settings)


def _launch(theta, name, *arguments):
    _kernel(name)((-(-theta.size // (4 * THREADS)),), (THREADS,), (theta, *arguments))


@cache
def _kernel(name):
    return overlap.InTurn(kernels.load("updates").get_function(name))

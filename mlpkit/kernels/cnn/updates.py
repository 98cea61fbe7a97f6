"""An optimizer's update in a recorded graph: a kernel by itself, or what another kernel does, too. See `updates.cuh`.

The rates are read from memory when the kernel runs.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import overlap

THREADS = 256  # a block
UPDATE = np.dtype(
    [(name, "u8") for name in ("theta", "grad", "lr", "t", "m", "v")]
    + [("settings", "f4", 7), ("n", "i4"), ("blocks", "i4"), ("own", "i4", (4, 2)), ("padding", "i4")]
)


class Update(NamedTuple):
    """A step of SGD, or, with m, v and what follows, of Adam. theta, grad, m, v: (n,), as `fits` has it.

    lr, t: arrays of one value, the rate and the number of the step, the first being 1.
    """

    theta: Any
    grad: Any
    lr: Any
    m: Any = None
    v: Any = None
    t: Any = None
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0

    @property
    def kind(self):
        """The number of a kernel's macro UPDATES: 1 for SGD, 2 for Adam."""
        return 1 if self.t is None else 2

    def argument(self, written=(), blocks=0):
        """Return the kernels' argument `Update`.

        written: at most four parts of `grad`, or None each, that the kernel's threads write, and whose parameters these
        then update. blocks: that update all others.
        """
        about = np.zeros(1, UPDATE)
        for name in ("theta", "grad", "lr", "t", "m", "v"):
            about[name] = 0 if (vector := getattr(self, name)) is None else vector.data.ptr
        about["settings"] = *_of_beta(self.beta1), *_of_beta(self.beta2), self.eps
        about["n"], about["blocks"] = self.theta.size, blocks
        for number, part in enumerate(written):
            if part is not None:
                first = (part.data.ptr - self.grad.data.ptr) // 4
                about["own"][0, number] = first, first + part.size
        return about.view(f"V{UPDATE.itemsize}")


def _of_beta(beta):
    return beta, 1 - beta, math.log(beta) if beta else -math.inf


NO_UPDATE = np.zeros(1, UPDATE).view(f"V{UPDATE.itemsize}")


def fits(lr, *vectors):
    """Return whether these kernels can: vectors of float32 that begin at multiples of 16 bytes, the rate on the GPU."""
    import cupy as cp

    on_gpu = isinstance(lr, cp.ndarray) and lr.dtype == np.float32
    return on_gpu and all(
        each.dtype == np.float32 and each.flags.c_contiguous and each.data.ptr % 16 == 0 for each in vectors
    )


def sgd(theta, grad, lr):
    """Take one step of gradient descent. theta, grad (n,); lr: an array of one value."""
    _launch(Update(theta, grad, lr), "sgd")


def adam(theta, grad, m, v, t, lr, beta1, beta2, eps):
    """Take step number `t`, an array of one number as lr is, of Adam. theta, grad, m, v (n,)."""
    _launch(Update(theta, grad, lr, m, v, t, beta1, beta2, eps), "adam")


def _launch(update, name):
    _kernel(name)((-(-update.theta.size // (4 * THREADS)),), (THREADS,), (update.argument(),))


@cache
def _kernel(name):
    return overlap.InTurn(kernels.load("updates").get_function(name))

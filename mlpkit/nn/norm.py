"""Batch normalization: every channel gets mean 0 and deviation 1 over the batch, then a scale and a shift of its own.

Ioffe and Szegedy (2015), algorithms 1 and 2. While training, the statistics are the batch's, and running averages of
them are kept; afterwards these are used, so that an example's output does not depend on its neighbours.
"""

from dataclasses import dataclass
from functools import partial

from mlpkit.checks import check_fraction, check_positive

from .layers import Layer


@dataclass(frozen=True, repr=False)
class BatchNorm(Layer):
    """For rows (n, features), over the batch; for images (n, channels, height, width), over batch, height and width.

    gamma, beta (channels,): scale and shift. mean, variance (channels,): the running averages, which move by `momentum`
    of the difference at each step. eps: added to the variance before its root is taken.
    """

    momentum: float = 0.1
    eps: float = 1e-5

    operations = ("batch_norm", "batch_norm_backward", "batch_norm_evaluate")
    ones = ("gamma", "variance")
    checks = (("momentum", check_fraction), ("eps", partial(check_positive, dtype="f4")))

    def output(self, shape):
        if len(shape) not in (1, 3):
            raise ValueError(f"it takes rows or images (channels, height, width), and gets arrays of shape {shape}")
        return shape

    def parameters(self, shape):
        return {"gamma": shape[:1], "beta": shape[:1]}

    def statistics(self, shape):
        return {"mean": shape[:1], "variance": shape[:1]}

    def forward(self, at, x):
        if not at.mode.training:
            return at.engine.batch_norm_evaluate(x, at.gamma, at.beta, at.mean, at.variance, self.eps)
        settings = at.mean, at.variance, self.momentum, self.eps
        y, at.normalized, at.inverse_deviation = at.engine.batch_norm(x, at.gamma, at.beta, *settings)
        return y

    def backward(self, at, dy):
        if not at.mode.training:  # the statistics do not depend on x: y is a factor times x, and so is dx
            none = 0 * at.beta
            return at.engine.batch_norm_evaluate(dy, at.gamma, none, none, at.variance, self.eps)
        kept = at.normalized, at.inverse_deviation
        return at.engine.batch_norm_backward(dy, *kept, at.gamma, at.dgamma, at.dbeta)

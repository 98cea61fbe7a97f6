"""A norm, and the ReLU behind it if there is one, in one pass: what is between them is never written into memory.

Such passes wait for memory, not for arithmetic, so the way back computes once more what it needs of them. This is for
trainings: nobody can see an activation that is not written.
"""

from copy import copy
from math import inf

from .layers import ReLU
from .norm import BatchNorm
from .per_image import InstanceNorm


class NormReLU:
    """In the place of a layer: `max(norm(x), least)`, where `least` is 0 with ReLU and minus infinity without.

    Of an engine with `normalize` and `normalize_backward`. x stays what it was until the way back.
    """

    def __init__(self, norm, least=-inf):
        self.norm, self.least = norm, least

    def forward(self, at, x):
        norm = self.norm
        if type(norm) is BatchNorm:
            settings = at.gamma, at.beta, at.mean, at.variance, norm.momentum
        else:  # over each image's own pixels, with no running averages
            settings = at.gamma, at.beta, None, None, 0.0
        a, at.statistics = at.engine.normalize(x, *settings, norm.eps, self.least)
        at.x = x
        return a

    def backward(self, at, da):
        return at.engine.normalize_backward(da, at.x, at.statistics, at.gamma, at.beta, at.dgamma, at.dbeta, self.least)


def in_one_pass(layers):
    """Return bound layers with the same arrays, in which norms, and the ReLUs behind them, are a `NormReLU`."""
    found: list = []
    for at in layers:
        if type(at.layer) is ReLU and found and type(found[-1].layer) is NormReLU and found[-1].layer.least < 0:
            found[-1].layer = NormReLU(found[-1].layer.norm, 0.0)
            continue
        one = copy(at)
        one.branches = tuple(map(in_one_pass, at.branches))
        if type(at.layer) is BatchNorm or (type(at.layer) is InstanceNorm and at.layer.affine):
            one.layer = NormReLU(at.layer)
        found.append(one)
    return found

"""Layers that look at a whole channel of one image at a time: its mean, and how far its pixels are from it."""

from dataclasses import dataclass
from functools import partial

from mlpkit.checks import check_flag, check_positive

from .conv import check_image
from .layers import Layer


@dataclass(frozen=True, repr=False)
class InstanceNorm(Layer):
    """Every channel of every image gets mean 0 and deviation 1 over its own pixels: `(x - E[x]) / sqrt(Var[x] + eps)`.

    No image sees its neighbours, so training and evaluation are the same. affine: whether a scale and a shift follow,
    gamma, beta (channels,). Ulyanov, Vedaldi and Lempitsky (2016), "Instance normalization: the missing ingredient for
    fast stylization".
    """

    eps: float = 1e-5
    affine: bool = False

    operations = (
        *("instance_norm", "instance_norm_backward", "instance_norm_evaluate"),
        *("multiply", "add", "channel_sums"),
    )
    ones = ("gamma",)
    checks = (("eps", partial(check_positive, dtype="f4")), ("affine", check_flag))

    def output(self, shape):
        check_image(shape)
        if shape[1:] == (1, 1):
            raise ValueError("an image of one pixel has no deviation")
        return shape

    def parameters(self, shape):
        return {"gamma": shape[:1], "beta": shape[:1]} if self.affine else {}

    def forward(self, at, x):
        if self.affine and not at.mode.training and at.mode.tape is None:  # nobody will ask for the way back
            return at.engine.instance_norm_evaluate(x, at.gamma, at.beta, self.eps)
        at.normalized, at.inverse_deviation = at.engine.instance_norm(x, self.eps)
        if not self.affine:
            return at.normalized
        scaled = at.engine.multiply(at.normalized, at.gamma.reshape(-1, 1, 1))
        return at.engine.add(scaled, at.beta.reshape(-1, 1, 1))

    def backward(self, at, dy):
        if self.affine:
            at.engine.channel_sums(dy, at.dbeta)
            at.engine.channel_sums(at.engine.multiply(dy, at.normalized), at.dgamma)
            dy = at.engine.multiply(dy, at.gamma.reshape(-1, 1, 1))
        return at.engine.instance_norm_backward(dy, at.normalized, at.inverse_deviation) if at.wants_dx else None


@dataclass(frozen=True, repr=False)
class GlobalAvgPool(Layer):
    """The mean of each channel over all pixels: images (channels, height, width) become rows (channels,).

    Lin, Chen and Yan (2014), "Network in network".
    """

    operations = ("global_avg_pool", "global_avg_pool_backward")

    def output(self, shape):
        check_image(shape)
        return shape[:1]

    def forward(self, at, x):
        at.shape = x.shape
        return at.engine.global_avg_pool(x)

    def backward(self, at, dy):
        return at.engine.global_avg_pool_backward(dy, at.shape)

"""Layers of images, (n, channels, height, width): convolution, and the two kinds of pooling."""

from dataclasses import dataclass
from functools import partial

from mlpkit.checks import check_count, check_flag

from .layers import Layer

from_0 = partial(check_count, least=0)


def if_given(name, value):
    return None if value is None else check_count(name, value)


def check_image(shape):
    """Raise ValueError unless `shape` is that of an image."""
    if len(shape) != 3:
        raise ValueError(f"it takes images (channels, height, width), and gets arrays of shape {shape}")


def windows(shape, size, stride, padding=0):
    """Return how many windows an image (channels, height, width) has, down and across. ValueError where it has none."""
    check_image(shape)
    if min(shape[1:]) + 2 * padding < size:
        raise ValueError(f"a window of {size} x {size} does not fit into an image of {shape[1]} x {shape[2]}")
    return tuple((length + 2 * padding - size) // stride + 1 for length in shape[1:])


@dataclass(frozen=True, repr=False)
class Conv(Layer):
    """Each channel out is a sum over windows of all channels in, times weights that are the same for every window.

    W (channels, channels in, size, size), b (channels,), none without `bias`. stride: from a window to the next one.
    padding: rows and columns of zeros around the image. Windows that would leave the image are left out.
    """

    channels: int
    size: int
    stride: int = 1
    padding: int = 0
    bias: bool = True

    operations = ("conv", "conv_backward_weights", "conv_backward_input")
    checks = (
        *(("channels", check_count), ("size", check_count), ("stride", check_count)),
        *(("padding", from_0), ("bias", check_flag)),
    )

    def output(self, shape):
        return (self.channels, *windows(shape, self.size, self.stride, self.padding))

    def parameters(self, shape):
        W = (self.channels, shape[0], self.size, self.size)
        return {"W": W, "b": (self.channels,)} if self.bias else {"W": W}

    def forward(self, at, x):
        at.x = x
        return at.engine.conv(x, at.W, at.b if self.bias else None, *self.steps(x.shape))

    def backward(self, at, dz):
        if not at.mode.frozen:
            at.engine.conv_backward_weights(at.x, dz, at.dW, at.db if self.bias else None, *self.steps(at.x.shape))
        return at.engine.conv_backward_input(dz, at.W, at.x.shape, *self.steps(at.x.shape)) if at.wants_dx else None

    def steps(self, shape):
        """Return stride and padding; beyond the image all strides do the same, and some engines take time for each."""
        return min(self.stride, max(shape[2:]) + 2 * self.padding), self.padding


@dataclass(frozen=True, repr=False)
class MaxPool(Layer):
    """The largest number of each window of size x size; the windows lie side by side unless `stride` says otherwise.

    Of equal ones the first counts: it gets the gradient.
    """

    size: int
    stride: int | None = None

    operations = ("max_pool", "max_pool_backward")
    checks = (
        ("size", check_count),
        ("stride", if_given),
    )

    def output(self, shape):
        return (*shape[:1], *windows(shape, self.size, self.stride or self.size))

    def forward(self, at, x):
        at.shape = x.shape
        y, at.index = at.engine.max_pool(x, self.size, self.stride or self.size)
        return y

    def backward(self, at, dy):
        return at.engine.max_pool_backward(dy, at.index, at.shape, self.size, self.stride or self.size)


@dataclass(frozen=True, repr=False)
class AvgPool(MaxPool):
    """The mean of each window of size x size; the windows lie side by side unless `stride` says otherwise."""

    operations = ("avg_pool", "avg_pool_backward")

    def forward(self, at, x):
        at.shape = x.shape
        return at.engine.avg_pool(x, self.size, self.stride or self.size)

    def backward(self, at, dy):
        return at.engine.avg_pool_backward(dy, at.shape, self.size, self.stride or self.size)

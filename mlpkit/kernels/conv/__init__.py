"""Three convolutions on the GPU: the passes, and the shapes of their arrays.

With x (n, c, h, w), W (o, c, k, k) and y (n, o, h', w') as in `engines.numpy_baseline`, without a bias:

    forward             x, W  -> y     y[n, o, i, j] = sum(W[o, c, p, q] x[n, c, s i + p - pad, s j + q - pad])
    input_gradient      dy, W -> dx
    weight_gradient     x, dy -> dW

All three are sums of n o h' w' c k k products. The CUDA C files are a ladder of variants of them. `blocked` has
those that engines are made of, the experiment "conv_ladder" all of them.
"""

from dataclasses import dataclass

PASSES = ("forward", "input_gradient", "weight_gradient")


@dataclass(frozen=True)
class Shape:
    """A convolution of images (batch, channels, height, width) with square windows, one every `stride`.

    Raises ValueError where a number is out of range, or where no window fits into the padded image.
    """

    batch: int
    channels: int
    channels_out: int
    height: int
    width: int
    kernel: int
    stride: int = 1
    padding: int = 0

    def __post_init__(self):
        for name, least in dict.fromkeys(("batch", "channels", "channels_out", "height", "width"), 1).items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        for name, least, most in (("kernel", 1, 7), ("stride", 1, 2), ("padding", 0, 2)):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {getattr(self, name)}.")
        if min(self.height, self.width) + 2 * self.padding < self.kernel:
            raise ValueError(
                f"no window of {self.kernel} x {self.kernel} fits into an image of {self.height} x {self.width} "
                f"with {self.padding} zeros around it."
            )

    @property
    def out_height(self):
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self):
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def x(self):
        """The shape of the images, and of their gradient."""
        return self.batch, self.channels, self.height, self.width

    @property
    def w(self):
        """The shape of the filters, and of their gradient."""
        return self.channels_out, self.channels, self.kernel, self.kernel

    @property
    def y(self):
        """The shape of the result, and of its gradient."""
        return self.batch, self.channels_out, self.out_height, self.out_width

    def operands(self, which):
        """Return the shapes of the two operands of a pass, and of its result."""
        return {
            "forward": (self.x, self.w, self.y),
            "input_gradient": (self.y, self.w, self.x),
            "weight_gradient": (self.x, self.y, self.w),
        }[which]

    @property
    def flops(self):
        """The multiplications and additions of each of the three passes, done the direct way, padding included."""
        places = self.batch * self.out_height * self.out_width
        return 2 * places * self.channels * self.channels_out * self.kernel**2

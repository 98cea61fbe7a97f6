"""Three convolutions on the GPU, rung by rung: what a rung is, what it is given, and the layers that all are timed at.

With x (n, c, h, w), W (o, c, k, k) and y (n, o, h', w') as in `engines.numpy_baseline`, without a bias:

    forward             x, W  -> y     y[n, o, i, j] = sum(W[o, c, p, q] x[n, c, s i + p - pad, s j + q - pad])
    input_gradient      dy, W -> dx
    weight_gradient     x, dy -> dW

All three are sums of n o h' w' c k k products. A rung may store images as it likes (its `layout`), for NVIDIA's library
may, too: operands are put in that order before a clock starts. What changes the numbers is timed: to round or split
them, or to transform filters. Rungs of the class "bf16" have operands, y and dx in bfloat16, and dW in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PASSES = ("forward", "input_gradient", "weight_gradient")
# How far off a result may be, as a part of its norm: as float32's own sums, as 11 bits allow, and as 8.
ERRORS = {"float32": 1e-5, "tf32": 2e-3, "bf16": 1e-2}


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


@dataclass(frozen=True)
class Prepared:
    """A pass that is ready. call(): ask for its kernels and nothing else; a graph can record it.

    result(): the last call's result as float32 in the order of `Shape`, a CuPy array. workspace: bytes of the GPU's
    memory that it takes beside its operands and its result. keeps: what must stay alive as long as it.
    """

    call: Callable[[], None]
    result: Callable[[], Any]
    workspace: int = 0
    keeps: tuple = ()


@dataclass(frozen=True)
class Rung:
    """A way to compute the passes.

    files: its kernels. precision: its class, a key of `ERRORS`. layout: how it stores images: "nchw", "nhwc" or
    "planes". prepare(shape, which, a, b): returns `Prepared` for the two operands, float32 CuPy arrays stored by rows.
    why_not(shape, which): why it can't, a sentence, or None.
    """

    label: str
    files: tuple[str, ...]
    precision: str
    layout: str
    prepare: Callable[[Shape, str, Any, Any], Prepared]
    why_not: Callable[[Shape, str], str | None] = lambda shape, which: None


LAYERS = {
    "64 to 128, 13 x 13": Shape(128, 64, 128, 13, 13, 3),
    "32 to 32, 28 x 28": Shape(128, 32, 32, 28, 28, 3, padding=1),
    "64 to 64, 14 x 14": Shape(128, 64, 64, 14, 14, 3, padding=1),
    "1 to 64, 28 x 28": Shape(128, 1, 64, 28, 28, 3),
    "256 to 256, 28 x 28": Shape(128, 256, 256, 28, 28, 3, padding=1),
}

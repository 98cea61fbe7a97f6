"""Layers that change an image's size and look at no more than a few neighbours: larger ones, and borders."""

from dataclasses import dataclass

from mlpkit.checks import check_choice, check_count

from .conv import Conv, check_image, from_0
from .layers import Layer


@dataclass(frozen=True, repr=False)
class Upsample(Layer):
    """An image `scale` times as high and as wide, with no parameters. mode: "nearest" or "bilinear".

    nearest: `y[i, j] = x[i // scale, j // scale]`. bilinear: between the four nearest pixels, pixels being squares with
    half a pixel around their centres, `(i + 1/2) / scale - 1/2` is where row i reads; beyond the outermost centres all
    is level. PyTorch's default (align_corners=False), and ONNX's "half_pixel".
    """

    scale: int
    mode: str = "nearest"

    operations = (
        *("upsample_nearest", "upsample_nearest_backward"),
        *("upsample_bilinear", "upsample_bilinear_backward"),
    )
    checks = (("scale", check_count),)

    def __post_init__(self):
        super().__post_init__()
        check_choice("mode of an Upsample", self.mode, ("nearest", "bilinear"))

    def output(self, shape):
        check_image(shape)
        return shape[0], self.scale * shape[1], self.scale * shape[2]

    def forward(self, at, x):
        return getattr(at.engine, f"upsample_{self.mode}")(x, self.scale)

    def backward(self, at, dy):
        return getattr(at.engine, f"upsample_{self.mode}_backward")(dy, self.scale)


@dataclass(frozen=True, repr=False)
class PixelShuffle(Layer):
    """`scale * scale` channels become one of an image `scale` times as high and as wide ("depth to space").

    `y[c, scale i + p, scale j + q] = x[scale^2 c + scale p + q, i, j]`. Shi et al. (2016), "Real-time single image and
    video super-resolution using an efficient sub-pixel convolutional neural network".
    """

    scale: int

    operations = ("pixel_shuffle", "pixel_unshuffle")
    checks = (("scale", check_count),)

    def output(self, shape):
        check_image(shape)
        if shape[0] % self.scale**2:
            raise ValueError(f"it takes a multiple of {self.scale**2} channels, and gets {shape[0]}")
        return shape[0] // self.scale**2, self.scale * shape[1], self.scale * shape[2]

    def forward(self, at, x):
        return at.engine.pixel_shuffle(x, self.scale)

    def backward(self, at, dy):
        return at.engine.pixel_unshuffle(dy, self.scale)


@dataclass(frozen=True, repr=False)
class ConvTranspose(Layer):
    """Each pixel that comes in is a window of `size` x `size` that goes out; windows that overlap are added.

    This is a convolution read backwards: what that does to a gradient on its way to its input, this does to x. So its
    forward pass is `conv_backward_input`, and the gradient of its input a `conv`. W (channels in, channels, size, size)
    is that convolution's, for the rules of first weights, too, as in PyTorch; b (channels,), none without `bias`. An
    edge of h pixels becomes `(h - 1) stride - 2 padding + size + output_padding`: a convolution makes h pixels of edges
    of several lengths, and output_padding says of which. Dumoulin and Visin (2016), "A guide to convolution arithmetic
    for deep learning", chapter 4.
    """

    channels: int
    size: int
    stride: int = 1
    padding: int = 0
    output_padding: int = 0
    bias: bool = True

    operations = ("conv", "conv_backward_weights", "conv_backward_input", "add", "channel_sums")
    checks = (*Conv.checks, ("output_padding", from_0))

    def __post_init__(self):
        super().__post_init__()
        if self.output_padding >= self.stride:
            raise ValueError(
                "the output_padding of ConvTranspose must be below its stride, "
                f"{self.stride}, not {self.output_padding}."
            )

    def output(self, shape):
        check_image(shape)
        added = self.size + self.output_padding - 2 * self.padding
        height, width = ((length - 1) * self.stride + added for length in shape[1:])
        if min(height, width) < 1:
            raise ValueError(f"a padding of {self.padding} leaves nothing of an image of {shape[1]} x {shape[2]}")
        return self.channels, height, width

    def parameters(self, shape):
        W = (shape[0], self.channels, self.size, self.size)
        return {"W": W, "b": (self.channels,)} if self.bias else {"W": W}

    def forward(self, at, x):
        at.x = x
        shape = len(x), *self.output(x.shape[1:])
        z = at.engine.conv_backward_input(x, at.W, shape, *self.steps(shape))
        return at.engine.add(z, at.b.reshape(-1, 1, 1)) if self.bias else z

    def backward(self, at, dz):
        steps = self.steps(dz.shape)
        at.engine.conv_backward_weights(dz, at.x, at.dW, None, *steps)
        if self.bias:
            at.engine.channel_sums(dz, at.db)
        return at.engine.conv(dz, at.W, None, *steps) if at.wants_dx else None

    def steps(self, shape):
        """Return stride and padding of the convolution, of images of this shape: see `Conv.steps`."""
        return min(self.stride, max(shape[2:]) + 2 * self.padding), self.padding


@dataclass(frozen=True, repr=False)
class Padding(Layer):
    """An image with `size` more rows and columns at each edge. mode: "reflect", "replicate" or "zero".

    reflect: what is as far inside of the outermost pixel, which is not repeated; replicate: the outermost pixel. So
    there is no dark frame for a convolution to see, as zeros are.
    """

    size: int
    mode: str = "reflect"

    operations = ("pad", "pad_backward")
    checks = (("size", check_count),)

    def __post_init__(self):
        super().__post_init__()
        check_choice("mode of a Padding", self.mode, ("reflect", "replicate", "zero"))

    def output(self, shape):
        check_image(shape)
        if self.mode == "reflect" and min(shape[1:]) <= self.size:
            raise ValueError(f"an image of {shape[1]} x {shape[2]} has no {self.size} pixels to reflect behind an edge")
        return shape[0], shape[1] + 2 * self.size, shape[2] + 2 * self.size

    def forward(self, at, x):
        return at.engine.pad(x, self.size, self.mode)

    def backward(self, at, dy):
        return at.engine.pad_backward(dy, self.size, self.mode)


@dataclass(frozen=True, repr=False)
class Crop(Layer):
    """An image without `size` rows and columns at each edge: what fits to convolutions of another way through it."""

    size: int

    operations = ("pad", "pad_backward")
    checks = (("size", check_count),)

    def output(self, shape):
        check_image(shape)
        if min(shape[1:]) <= 2 * self.size:
            raise ValueError(f"of an image of {shape[1]} x {shape[2]} nothing is left without {self.size} at each edge")
        return shape[0], shape[1] - 2 * self.size, shape[2] - 2 * self.size

    def forward(self, at, x):
        return at.engine.pad_backward(x, self.size, "zero")  # a padding by zeros, read backwards

    def backward(self, at, dy):
        return at.engine.pad(dy, self.size, "zero")

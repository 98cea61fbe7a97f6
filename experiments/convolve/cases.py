"""What is convolved: the cases of the record "convolve", and how much arithmetic and memory each of them is."""

from dataclasses import dataclass
from itertools import product

OPERATIONS = ("conv", "conv_backward_weights", "conv_backward_input")


@dataclass(frozen=True)
class Case:
    """A convolution of images (batch, channels, size, size), with windows of kernel x kernel, one every `stride`."""

    batch: int
    channels: int
    channels_out: int
    size: int
    kernel: int
    padding: int = 0
    stride: int = 1

    @property
    def places(self):
        """How many windows there are, across and down."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flops(self):
        """The multiplications and additions of each of the three operations, done the direct way."""
        return 2 * self.batch * self.channels * self.channels_out * (self.places * self.kernel) ** 2

    @property
    def nbytes(self):
        """The bytes of float32 that each of the three has to read or write at least once."""
        images = self.batch * (self.channels * self.size**2 + self.channels_out * self.places**2)
        return 4 * (images + self.channels * self.channels_out * self.kernel**2)


GRID = tuple(  # as many channels out as in, and images that stay as large as they are
    Case(batch, channels, channels, size, kernel, kernel // 2)
    for batch, channels, size, kernel in product((1, 16, 64), (1, 4, 16, 64), (7, 14, 28), (1, 3, 5))
)
LAYERS = {
    "LeNet-5's first": Case(128, 1, 6, 28, 5, 2),
    "LeNet-5's second": Case(128, 6, 16, 14, 5),
    "the garments' first": Case(64, 1, 64, 28, 3),
    "the garments' second": Case(64, 64, 128, 13, 3),
    "a residual block's, 28 x 28": Case(128, 32, 32, 28, 3, 1),
    "a residual block's, 14 x 14": Case(128, 64, 64, 14, 3, 1),
}

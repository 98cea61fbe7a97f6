"""The models that the workbook trains, and the maker of multilayer perceptrons."""

from mlpkit.checks import check_choice, check_sizes

from .conv import AvgPool, Conv, MaxPool
from .layers import Flatten, Linear, ReLU, Sigmoid
from .losses import MeanSquaredError
from .model import Model as Model
from .norm import BatchNorm
from .per_image import InstanceNorm
from .residual import Residual
from .resize import Upsample


def mlp(*sizes):
    """Return a multilayer perceptron: Linear layers with ReLU between them.

    sizes: the number of inputs, of units in each hidden layer, of classes. Raises ValueError for fewer than two.
    """
    inputs, *hidden, classes = check_sizes(sizes)
    return Model((inputs,), (*(one for units in hidden for one in (Linear(units), ReLU())), Linear(classes)))


MLP = mlp(784, 128, 128, 128, 10)

# LeCun, Bottou, Bengio and Haffner (1998), with ReLU and the largest of each window instead of sigmoids and means
LENET5 = Model((1, 28, 28), (
    Conv(6, 5, padding=2), ReLU(), MaxPool(2), Conv(16, 5), ReLU(), MaxPool(2),
    Flatten(), Linear(120), ReLU(), Linear(84), ReLU(), Linear(10),
))  # fmt: skip

FASHION_CNN = Model((1, 28, 28), (
    Conv(64, 3), MaxPool(2), ReLU(), Conv(128, 3), MaxPool(2), ReLU(),
    Flatten(), Linear(256), ReLU(), Linear(10),
))  # fmt: skip


def _normed(channels):
    return Conv(channels, 3, padding=1, bias=False), BatchNorm()  # which takes a bias out again, and adds its own


def _block(channels):
    return Residual((*_normed(channels), ReLU(), *_normed(channels))), ReLU()


# Two of the blocks of He, Zhang, Ren and Sun (2016), figure 2, on an image that is halved twice
RESIDUAL = Model((1, 28, 28), (
    *_normed(32), ReLU(), *_block(32), MaxPool(2),
    *_normed(64), ReLU(), *_block(64), MaxPool(2),
    Flatten(), Linear(10),
))  # fmt: skip


def vgg(shape, last="relu3_3", width=64, pool=AvgPool):
    """Return the form of VGG-16's convolutions up to `last`, and a dict of the paths of its ReLUs, "relu1_1" and so on.

    Simonyan and Zisserman (2015), column D, behind a convolution of 1 x 1 that gives the channels of pictures
    (3, height, width) another mean and deviation. width: channels of the first block, 64 in the paper. pool: MaxPool in
    the paper, and in the one on style AvgPool. Raises ValueError for a layer that there is not.
    """
    layers, paths = [Conv(3, 1)], {}
    for block, (count, factor) in enumerate(zip((2, 2, 3, 3, 3), (1, 2, 4, 8, 8), strict=True), 1):
        layers += [pool(2)] * (block > 1)
        for number in range(1, count + 1):
            layers += [Conv(factor * width, 3, padding=1), ReLU()]
            paths[f"relu{block}_{number}"] = str(len(layers) - 1)
    check_choice("last layer of VGG", last, paths)
    kept = {name: path for name, path in paths.items() if int(path) <= int(paths[last])}
    return Model(shape, tuple(layers[: int(paths[last]) + 1]), MeanSquaredError()), kept


def painter(shape, loss=MeanSquaredError(), channels=(16, 48), blocks=4):  # noqa: B008 (frozen)
    """Return a network that makes a picture of a picture (3, height, width), edges multiples of 4.

    A small relative of that of Johnson, Alahi and Fei-Fei (2016), that makes pictures larger by copies of pixels, as
    Odena, Dumoulin and Olah (2016) do. channels: at a half of the size, and at a quarter. blocks: of two
    convolutions with a way past them. Raises ValueError for other edges, as the result would have another shape.
    """
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise ValueError(f"a painter's pictures have edges that are multiples of 4, not {shape}: cut them.")
    half, quarter = channels
    inside = *_restyled(quarter, 3, padding=1), ReLU(), *_restyled(quarter, 3, padding=1)
    return Model(shape, (
        *_restyled(half, 5, stride=2, padding=2), ReLU(), *_restyled(quarter, 3, stride=2, padding=1), ReLU(),
        *[Residual(inside)] * blocks,
        Upsample(2), *_restyled(half, 3, padding=1), ReLU(),
        Upsample(2), Conv(3, 5, padding=2), Sigmoid(),
    ), loss)  # fmt: skip


def _restyled(channels, size, **steps):
    return Conv(channels, size, bias=False, **steps), InstanceNorm(affine=True)


MODELS = {"mlp": MLP, "lenet5": LENET5, "fashion_cnn": FASHION_CNN, "residual": RESIDUAL}

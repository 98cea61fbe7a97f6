"""The models of style transfer: the form of VGG-16, whose activations are looked at, and a network that paints."""

from mlpkit.checks import check_choice, check_sizes

from .conv import AvgPool, Conv
from .layers import Layer, ReLU, Sigmoid
from .losses import MeanSquaredError
from .model import Model
from .per_image import InstanceNorm
from .residual import Residual
from .resize import Upsample


def vgg(shape, last="relu3_3", width=64, pool=AvgPool):
    """Return the form of VGG-16's convolutions up to `last`, and a dict of the paths of its ReLUs, "relu1_1" and so on.

    Simonyan and Zisserman (2015), column D, behind a convolution of 1 x 1 that gives the channels of pictures
    (3, height, width) another mean and deviation. width: channels of the first block, 64 in the paper. pool: MaxPool in
    the paper, and in the one on style AvgPool. Raises ValueError for a layer that there is not.
    """
    layers: list[Layer] = [Conv(3, 1)]
    paths: dict[str, str] = {}
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
    shape = check_sizes(shape, least=1)
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

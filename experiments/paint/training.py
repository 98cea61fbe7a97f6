"""Pieces of photographs to train on, the picture as parameters, and a network that paints at once."""

from dataclasses import dataclass

import numpy as np

from mlpkit.checks import check_array
from mlpkit.engines.numpy_baseline import upsample_bilinear
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.perceptual import Canvas, Perceptual
from mlpkit.optim import Adam
from mlpkit.optim.schedules import Cosine

STYLE_LAYERS = ("relu1_1", "relu2_1", "relu3_1")
WEIGHTS = {"content_weight": 1.0, "style_weight": 100.0, "smoothness": 0.1}


def crops(pictures, count, size, seed=0, jitter=False, larger=1):
    """Return pieces (count, 3, size, size) uint8 of pictures, half of them mirrored, and whose each is.

    jitter: whether channels change places and contrasts vary, so that colour tells nothing. larger: every third piece
    is that many times as large, and as smooth as that makes it.
    """
    rng = np.random.default_rng(seed)
    pictures = [picture for picture in pictures if min(picture.shape[1:]) >= size]
    found, whose = np.empty((count, 3, size, size), np.uint8), rng.integers(len(pictures), size=count)
    for i, (piece, number) in enumerate(zip(found, whose, strict=True)):
        picture, scale = pictures[number], 1 if i % 3 else larger
        edge = size // scale
        top, left = (rng.integers(length - edge + 1) for length in picture.shape[1:])
        cut = picture[:, top : top + edge, left : left + edge][..., :: rng.choice([-1, 1])]
        if scale > 1:
            cut = upsample_bilinear(cut[None].astype(np.float32), scale)[0]
        if jitter:
            cut = cut[rng.permutation(3)] * rng.uniform(0.5, 1.2, (3, 1, 1)) + rng.uniform(-40, 40, (3, 1, 1))
        piece[...] = np.clip(cut, 0, 255)
    return found, whose


def style_loss(trunk, paths, style, layers=STYLE_LAYERS, content="relu3_1", kind=Perceptual, **weights):
    """Return the loss for a style (3, height, width), bytes or floats from 0 to 1, and the weights of its parts.

    Raises ValueError and TypeError for another one.
    """
    check_array("a style", style)
    if style.dtype != np.uint8:
        check_pixels(style)
    return kind.of_style(trunk, style, [paths[name] for name in layers], paths[content], **WEIGHTS | weights)


@dataclass(frozen=True, repr=False, eq=False)
class Even(Perceptual):
    """The mean of the logarithms of a batch's losses: each picture counts alike, however far off its style is.

    A loss is relative to its content's size. So of the sum over pieces of photographs some smooth ones make the most,
    and a network that lowers it leaves the others as they are.
    """

    def __call__(self, at, outputs, targets):
        total, d_outputs = 0, 0 * outputs
        for i in range(len(outputs)):
            one = slice(i, i + 1)
            parts, slope = self.parts(at, outputs[one], targets[one], backward=True)
            loss = sum(parts.values())
            total, d_outputs[one] = total + np.log(loss), slope / (loss * len(outputs))
        return total / len(outputs), d_outputs


def canvas(loss, picture):
    """Return a network of one layer whose parameters are the pixels of a picture (3, height, width) from 0 to 1.

    Raises ValueError and TypeError for another one.
    """
    check_pixels(picture)
    engine = loss.trunk.engine
    network = Network(engine, Model(picture.shape, (Canvas(),), loss))
    network.theta[:] = engine.asarray(picture.reshape(-1).astype(np.float32))
    return network


def check_pixels(picture):
    """Raise ValueError or TypeError for what is no picture (3, height, width) of floats from 0 to 1."""
    check_array("a picture", picture)
    if (
        picture.ndim != 3
        or picture.dtype.kind != "f"
        or not picture.size
        or not 0 <= picture.min() <= picture.max() <= 1
    ):
        told = f"{picture.dtype} {picture.shape}"
        raise ValueError(f"a picture to paint is floats (3, height, width) from 0 to 1, not {told}: see `show.fitted`.")


def paint(loss, picture, steps=300, lr=0.03, start=None):
    """Yield (step, canvas, loss) after each of Adam's steps on the pixels, which begin as `start` or the picture.

    Both are as `canvas` takes them.
    """
    check_pixels(picture)
    network = canvas(loss, picture if start is None else start)
    optimizer, x = Adam(network, Cosine(lr, steps)), network.engine.asarray(picture[None].astype(np.float32))
    for step in range(1, steps + 1):
        value = network.forward_backward(x, x)
        optimizer.step()
        network.theta[:] = network.theta.clip(0, 1)  # there is no whiter white
        yield step, network, value

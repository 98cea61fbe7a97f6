"""Detectors: a chain of convolutions that two others end, one for each grid; or one chain that sees two sizes."""

from mlpkit.machine import ROOT
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.detection import Detection
from mlpkit.nn.layers import Flatten, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.pyramid import Levels, Pyramid

DETECTOR = ROOT / "data" / "scenes" / "detector.npz"


def detector(classes=10, shape=(1, 128, 128), widths=(16, 32, 32, 32, 48, 48, 48, 48, 48), **settings):
    """Return a `Model` that looks for boxes of so many classes in images of a shape: some 120,000 parameters.

    widths: channels of the six convolutions that both grids share, of the fine one's own, of the coarse one's two.
    settings: of the loss, `Detection`.
    """
    loss = Detection(classes, shape[1:], **settings)
    a, b, c, d, e, f, fine, *coarse = widths
    shared = *normed(a, 2), *normed(b, 2), *normed(c), *normed(d), *normed(e, 2), *normed(f)
    end = Conv(classes + 4, 1), Flatten()
    return Model(
        shape, (*shared, Concat((*normed(fine), *end), (*normed(coarse[0], 2), *normed(coarse[1]), *end))), loss
    )


def pyramid(classes=10, shape=(1, 128, 128), widths=(16, 32, 32, 48, 48, 48, 48, 48), towers=(), third=3, **settings):
    """Return a `Model` that looks at images and at their halves with the same weights: some 110,000 parameters.

    What is large is found in the half, where it is as large as what is small. widths: channels of convolutions, of
    which number 0, 1 and `third` halve what they see. towers: channels of two more chains behind them,
    classes' and boxes'; without any, both come from the last one. settings: of the loss, `Detection`.
    """
    loss = Detection(classes, shape[1:], **{"reach": 3.5} | settings)
    chain = [one for i, width in enumerate(widths) for one in normed(width, 2 if i in (0, 1, third) else 1)]
    end: tuple = (Conv(classes + 4, 1),)
    if towers:
        of = zip(towers, (classes, 4), strict=True)
        end = (Concat(*((*(one for width in tower for one in normed(width)), Conv(n, 1)) for tower, n in of)),)
    return Model(shape, (Pyramid(), *chain, *end, Levels(1)), loss)


def normed(channels, stride=1):
    return Conv(channels, 3, stride, 1, bias=False), BatchNorm(), ReLU()


FORMS = {"detector": detector, "pyramid": pyramid}


def come_along(engine="numba_conv"):
    """Return the detector that comes along, trained on scenes as in the record "find", on an engine."""
    return Network.load(DETECTOR, engine)

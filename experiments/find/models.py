"""The detector of the chapter: a chain of convolutions, and two that end it, one for each grid."""

from mlpkit.machine import ROOT
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.detection import Detection
from mlpkit.nn.layers import Flatten, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm

DETECTOR = ROOT / "data" / "scenes" / "detector.npz"


def detector(classes=10, shape=(1, 128, 128), widths=(16, 32, 32, 32, 48, 48, 48, 48, 48), **settings):
    """Return a `Model` that looks for boxes of so many classes in images of a shape: some 120,000 parameters.

    widths: channels of the six convolutions that both grids share, of the fine one's own, of the coarse one's two.
    settings: of the loss, `Detection`.
    """
    loss = Detection(classes, shape[1:], **settings)

    def normed(channels, stride=1):
        return Conv(channels, 3, stride, 1, bias=False), BatchNorm(), ReLU()

    a, b, c, d, e, f, fine, *coarse = widths
    shared = *normed(a, 2), *normed(b, 2), *normed(c), *normed(d), *normed(e, 2), *normed(f)
    end = Conv(classes + 4, 1), Flatten()
    return Model(
        shape, (*shared, Concat((*normed(fine), *end), (*normed(coarse[0], 2), *normed(coarse[1]), *end))), loss
    )


def come_along(engine="numba_conv"):
    """Return the detector that comes along, trained on scenes as in the record "find", on an engine."""
    return Network.load(DETECTOR, engine)

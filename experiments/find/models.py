"""The detector of the chapter: a chain of convolutions, and two that end it, one for each grid."""

from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

from mlpkit.machine import ROOT
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.detection import Detection
from mlpkit.nn.layers import Flatten, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm

DETECTOR = ROOT / "data" / "scenes" / "detector.npz"


class Form(NamedTuple):
    """A detector's convolutions of 3 x 3, as tuples (channels, stride), and what its fine grid is for.

    shared: those of both grids, the fine one's own, the coarse one's. reach: see `Detection`.
    """

    shared: tuple[tuple[int, int], ...]
    fine: tuple[tuple[int, int], ...]
    coarse: tuple[tuple[int, int], ...]
    reach: float

    @property
    def strides(self):
        """Pixels from cell to cell, of both grids."""
        return tuple(accumulate((prod(stride for _, stride in part) for part in (self.shared, self.coarse)), mul))

    def narrow(self, channels):
        """Return the same form with so many channels everywhere."""
        parts = self.shared, self.fine, self.coarse
        shared, fine, coarse = (tuple((channels, stride) for _, stride in part) for part in parts)
        return Form(shared, fine, coarse, self.reach)


FORMS = {
    # Cells of 4 and 8 pixels: with 8 and 16, one digit in nine claims a cell that another one claims, too.
    "scenes": Form(((16, 2), (32, 2), *[(32, 1)] * 4), ((32, 1),), ((48, 2), (48, 1), (48, 1)), 8.0),
    "photographs": Form(((16, 2), (32, 2), (32, 1), (32, 1), (48, 2), (48, 1)), ((48, 1),), ((48, 2), (48, 1)), 4.0),
}
FORMS |= {"narrow": FORMS["scenes"].narrow(4)}


def detector(classes=10, shape=(1, 128, 128), form=FORMS["scenes"], **settings):
    """Return a `Model` that looks for boxes of so many classes in images of a shape: some 110,000 parameters.

    settings: of the loss, `Detection`.
    """
    loss = Detection(classes, shape[1:], strides=form.strides, reach=form.reach, **settings)

    def normed(part):
        found = [(Conv(channels, 3, stride, 1, bias=False), BatchNorm(), ReLU()) for channels, stride in part]
        return tuple(layer for layers in found for layer in layers)

    end = Conv(classes + 4, 1), Flatten()
    return Model(shape, (*normed(form.shared), Concat((*normed(form.fine), *end), (*normed(form.coarse), *end))), loss)


def come_along(engine="numba_conv"):
    """Return the detector that comes along, trained on scenes as in the record "find", on an engine."""
    return Network.load(DETECTOR, engine)

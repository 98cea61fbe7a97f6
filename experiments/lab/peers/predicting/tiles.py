"""The workbook's own, a picture in tiles: its kernels know rows of some hundred pixels, and many of them at a time.

The picture comes as it is. To cut it up and to put the tiles together is a kernel each, and counts.
"""

from functools import partial
from itertools import product

import cupy as cp
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from experiments.lab.clock import device_us
from experiments.lab.launched import kernels_of
from mlpkit.nn.enlarging import geometry
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network

from . import Variant

HIGH, WIDE = (30, 45, 54, 60, 90), (48, 60, 96)  # pixels of a tile, of those by which the picture can be cut


def variants(task, n, precision, engine):
    """Yield a way for each size of tiles. precision: is the engine's own, and not looked at."""
    saved = Network.load(task.path, engine)
    halo, scale = geometry(saved.model)
    height, width = (length - 2 * halo for length in saved.model.input[1:])
    for high, wide in product(HIGH, WIDE):
        if not (height % high or width % wide):
            yield _variant(saved, task.x[:1], halo, scale, high, wide)


def _variant(saved, x, halo, scale, high, wide):
    size = high + 2 * halo, wide + 2 * halo
    network = Network(saved.engine, Model((1, *size), saved.model.layers, saved.model.loss), dtype=saved.dtype)
    network.set_theta(saved.engine.to_numpy(saved.theta))
    picture, views = cp.asarray(x), sliding_window_view(x[0, 0], size)[::high, ::wide]
    down, across = views.shape[:2]
    tiles = cp.lib.stride_tricks.as_strided(picture, views.shape, views.strides)
    predict = network.compiled(down * across)
    batch = predict.batch(np.uint8)
    cut = batch.x.reshape(views.shape)
    out = cp.empty((1, 1, down * high * scale, across * wide * scale), np.float32)
    parts = out.reshape(down, high * scale, across, wide * scale)
    made = batch.z.reshape(down, across, high * scale, wide * scale).swapaxes(1, 2)

    def frame():
        cut[...] = tiles
        batch.replay()
        parts[...] = made

    def whole(pixels):
        picture.set(pixels)
        frame()
        return out.get()

    frame()
    names = [kernel["kernel"] for kernel in kernels_of(batch.graph)]
    keeps = predict, batch, picture, out
    return Variant(f"tiles of {high} x {wide}", partial(device_us, frame), whole, keeps, names)

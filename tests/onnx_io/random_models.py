"""Random models of all layers, for round trips: shapes are kept small."""

import numpy as np

from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Crop, Padding, PixelShuffle, Upsample
from mlpkit.nn.squash import Clip, Softmax

MOST = 4_000  # values of an example between two layers


def random_network(seed, dtype=np.float32):
    """Return a network with random layers and random arrays, which computes in evaluation what no training has made."""
    rng = np.random.default_rng(seed)
    shape = tuple(map(int, rng.integers(3, 11, size=3))) if rng.random() < 0.8 else (int(rng.integers(1, 20)),)
    layers, out = chain(rng, shape, int(rng.integers(1, 9)))
    if len(out) > 1 and rng.random() < 0.6:
        layers += (GlobalAvgPool() if rng.random() < 0.4 else Flatten(), Linear(int(rng.integers(1, 6))))
    network = Network("numpy_baseline", Model(shape, layers), seed=seed, dtype=dtype)
    for name, view in {**network.views(network.theta), **network.model.statistics.views(network.statistics)}.items():
        if view.ndim == 1:
            positive = name.endswith(("gamma", "variance"))
            view[...] = rng.uniform(0.5, 2, view.shape) if positive else rng.normal(size=view.shape)
    return network


def chain(rng, shape, n, deep=0):
    """Return a tuple of layers, and the shape that they make of one."""
    layers = []
    while len(layers) < n:
        layer = one_of(rng, shape, deep)
        try:
            out = layer.output(shape)
        except ValueError:
            continue
        if np.prod(out) <= MOST:
            layers.append(layer)
            shape = out
    return tuple(layers), shape


def one_of(rng, shape, deep):
    k, s, p, c = (int(rng.integers(low, high)) for low, high in ((1, 5), (1, 4), (0, 3), (1, 7)))
    bias = bool(rng.random() < 0.7)
    images = [
        *(Conv(c, k, s, p, bias), ConvTranspose(c, k, s, min(p, k - 1), int(rng.integers(s)), bias)),
        *(MaxPool(k, s), AvgPool(k), MaxPool(k), InstanceNorm(0.1, bias), BatchNorm(0.2, 1e-3)),
        *(Upsample(s, str(rng.choice(["nearest", "bilinear"]))), PixelShuffle(s)),
        *(Padding(1 + p, str(rng.choice(["reflect", "replicate", "zero"]))), Crop(s)),
    ]
    rows = [Linear(c), BatchNorm()]
    any_shape = [ReLU(), LeakyReLU(0.2), Sigmoid(), Tanh(), Dropout(0.3), Clip(-0.5, 1.5), Softmax()]
    kind = rng.random()
    if kind < 0.2 and deep < 2:
        inside, out = chain(rng, shape, int(rng.integers(0, 4)), deep + 1)
        if rng.random() < 0.5 and len(out) == 3 and out[1:] == shape[1:]:
            return Concat(inside, (), (ReLU(),))
        return Residual(inside) if out == shape else Residual(inside, inside)
    pool = any_shape if kind < 0.45 else images if len(shape) == 3 else rows
    return pool[rng.integers(len(pool))]

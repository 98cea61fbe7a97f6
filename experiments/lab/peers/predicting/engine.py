"""The workbook's own: an engine that compiles answers into a graph."""

import numpy as np

from experiments.lab.clock import device_us
from experiments.lab.launched import kernels_of
from mlpkit.nn.network import Network

from . import Variant


def variants(task, n, precision, engine):
    """Yield the one way of an engine, by its name. precision: is the engine's own, and not looked at."""
    network = Network.load(task.path, engine)
    predict = network.compiled(n)
    batch = predict.batch(np.uint8)
    batch.fill(task.x[:n])
    batch.replay()
    names = [kernel["kernel"] for kernel in kernels_of(batch.graph)]
    yield Variant("graph", lambda times: device_us(batch.replay, times), predict, kernels=names)

"""Products of bytes on the GPU are those of NumPy, bit for bit: here by the emulator, with no GPU."""

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("cupy")

import emulator
from emulator import needs_compiler
from shared import one_sentence

from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.engines import BASELINE
from mlpkit.executors.cuda import integers
from mlpkit.kernels import gpu, overlap
from mlpkit.kernels.int8 import conv, dense, filters_in_pieces, in_order, in_pieces
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.quantize import quantize
from mlpkit.nn.residual import Residual

SMALL = {
    "rows": mlp(37, 70, 19, 5),
    "one layer": mlp(150, 7),
    "pixels": Model((1, 6, 5), (Flatten(), Linear(9), ReLU(), Linear(4))),
    "lenet": Model((1, 12, 12), (
        Conv(6, 5, padding=2), ReLU(), MaxPool(2), Conv(16, 3), ReLU(), MaxPool(2), Flatten(), Linear(21), ReLU(),
        Linear(3),
    )),
    "colours": Model((3, 9, 8), (
        Conv(70, 3, stride=2, padding=1), ReLU(), Conv(5, 1, bias=False), Flatten(), ReLU(), Linear(4),
    )),
    "pooled": Model((2, 11, 11), (Conv(65, 4), MaxPool(2), ReLU(), Conv(7, 3, padding=2), Flatten(), Linear(3))),
    "residual": Model((1, 8, 8), (
        Conv(8, 3, padding=1), Residual((Conv(8, 3, padding=1), ReLU(), Conv(8, 3, padding=1))), ReLU(),
        MaxPool(2), Residual((Conv(9, 3, 2, 1),), (Conv(9, 1, 2),)), Flatten(), Linear(3),
    )),
    "images out": Model((1, 6, 6), (Conv(20, 3), ReLU(), Conv(2, 3, padding=1))),
    "a conv last": Model((5, 7, 9), (Conv(33, 2), MaxPool(2), Conv(3, 2))),
}  # fmt: skip


def network_of(model):
    network = Network(BASELINE, model, seed=1)
    rng = np.random.default_rng(0)
    network.set_theta(network.theta + rng.normal(0, 0.1, len(network.theta)).astype("f4"))
    return network


def inputs_of(model, n, dtype):
    pixels = np.random.default_rng(2).integers(0, 256, (n, *model.input)).astype(np.uint8)
    return pixels if dtype == np.uint8 else (pixels / np.float32(128) - 1).astype("f4")


@pytest.fixture
def cupy(folder, monkeypatch):
    """Put NumPy in the place of CuPy, and the emulator in that of a GPU of four multiprocessors."""
    with emulator.with_blocked(folder) as found:
        monkeypatch.setattr(overlap, "is_possible", lambda: False)
        monkeypatch.setattr(gpu, "_device", lambda: found.cuda.Device())
        monkeypatch.setattr(gpu, "is_restricted", lambda: False)
        monkeypatch.setattr(integers, "cp", found)
        yield found


def predicted(model, n, dtype, cupy, change=None):
    """Return the outputs of n examples, and those of `Quantized`; change: is called with the blocks before."""
    x = inputs_of(model, n, dtype)
    quantized = quantize(network_of(model), inputs_of(model, 50, dtype))
    runs = integers.Integers(quantized, n)
    if change:
        change(runs.blocks)
    z = cupy.empty((n, *model.output), np.float32)
    runs(cupy.asarray(x), z)
    return np.asarray(z), quantized(x)


@needs_compiler
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_network_has_the_bits_of_numpy(name, dtype, cupy):
    found, wanted = predicted(SMALL[name], 5, dtype, cupy)
    assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 4


@needs_compiler
@pytest.mark.parametrize(("model", "n"), [(FASHION_CNN, 1), (FASHION_CNN, 13), (LENET5, 9)])
def test_the_workbooks_networks_have_the_bits_of_numpy(model, n, cupy):
    found, wanted = predicted(model, n, np.uint8, cupy)
    assert_array_equal(found, wanted)


@needs_compiler
@pytest.mark.parametrize("tiling", [(4, 1, 7, 1), (2, 2, 3, 2), (1, 3, 2, 1), (4, 1, 5, 3), (4, 2, 4, 1)])
def test_every_tiling_gives_the_same(tiling, cupy):
    model = Model((1, 14, 13), (
        Conv(40, 3), MaxPool(2), ReLU(), Conv(100, 3, padding=1), ReLU(), Conv(65, 3), Flatten(), Linear(3),
    ))  # fmt: skip

    def change(blocks):
        for block in blocks:
            if isinstance(block, conv.Conv):
                block.tiling = conv.Tiling(*tiling)

    found, wanted = predicted(model, 7, np.uint8, cupy, change)
    assert_array_equal(found, wanted)

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.one_pass import NormReLU, in_one_pass
from mlpkit.nn.per_image import InstanceNorm
from mlpkit.nn.residual import Residual

END = Flatten(), Linear(3)
LAYERS = {
    "batch norm, ReLU": (Conv(5, 3, bias=False), BatchNorm(momentum=0.3, eps=1e-3), ReLU(), *END),
    "batch norm alone": (Conv(5, 3), BatchNorm(), *END),
    "batch norm first": (BatchNorm(), ReLU(), Conv(4, 3), *END),
    "of rows": (Flatten(), Linear(6), BatchNorm(), ReLU(), Linear(3)),
    "two ReLUs": (Conv(5, 3), BatchNorm(), ReLU(), ReLU(), *END),
    "instance norm, ReLU": (Conv(5, 3, bias=False), InstanceNorm(affine=True), ReLU(), *END),
    "instance norm alone": (Conv(5, 3, bias=False), InstanceNorm(eps=1e-3, affine=True), *END),
    "instance norm without a scale": (Conv(5, 3, bias=False), InstanceNorm(), ReLU(), *END),
    "a residual": (
        Conv(4, 3),
        ReLU(),
        Residual((Conv(4, 3, padding=1), BatchNorm(), ReLU(), BatchNorm())),
        ReLU(),
        *END,
    ),
    "two chains": (Conv(4, 3), Concat((BatchNorm(), ReLU()), (InstanceNorm(affine=True), ReLU())), BatchNorm(), *END),
}


def with_and_without(chain, n, dtype=np.float64, engine="numba_conv"):
    """Return, without and with it, the loss, the gradient and the running statistics of a second step."""
    model, rng, found = Model((2, 7, 6), chain), np.random.default_rng(0), []
    x, y = rng.normal(size=(n, 2, 7, 6)).astype(dtype), np.arange(n) % 3
    start = rng.normal(size=model.layout.size).astype(dtype)  # no scale is 1, no shift is 0
    for variant in (list, in_one_pass):
        network = Network(engine, model, dtype=np.dtype(dtype))
        network.set_theta(start)
        layers = variant(network.layers)
        for _ in range(2):
            loss = network.forward_backward(x, y, layers=layers)
        found.append((float(loss), network.grad.copy(), network.statistics.copy()))
    return found


@pytest.mark.parametrize("n", [1, 2, 19])
@pytest.mark.parametrize("chain", LAYERS)
def test_one_pass_computes_what_the_layers_do(chain, n):
    for one, other in zip(*with_and_without(LAYERS[chain], n), strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_float32_is_as_near():
    for one, other in zip(*with_and_without(LAYERS["a residual"], 19, np.float32), strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_norms_and_the_relus_behind_them_are_one_and_the_network_keeps_its_layers():
    network = Network("numba_conv", Model((2, 7, 6), LAYERS["a residual"]))
    found = in_one_pass(network.layers)
    inside = found[2].branches[0]
    assert [type(at.layer) for at in inside] == [Conv, NormReLU, NormReLU]
    assert [at.layer.least for at in inside[1:]] == [0, -np.inf]
    assert type(found[3].layer) is ReLU  # behind a sum
    assert [type(at.layer) for at in network.layers[2].branches[0]] == [Conv, BatchNorm, ReLU, BatchNorm]


@pytest.mark.parametrize("chain", ["batch norm, ReLU", "instance norm, ReLU"])
def test_what_is_not_a_number_stays_so(chain):
    network = Network("numba_conv", Model((2, 7, 6), LAYERS[chain]))
    x = np.ones((4, 2, 7, 6), np.float32)
    x[2, 1, 3, 3] = np.nan
    assert np.isnan(network.forward_backward(x, np.zeros(4, int), layers=in_one_pass(network.layers)))

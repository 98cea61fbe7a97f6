"""Networks that enlarge: as many parameters as the papers', and our own begins as bicubic."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit.data.bicubic import resize, weights
from mlpkit.nn.enlarging import begin_as_bicubic, enlarger, espcn, geometry, srcnn
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.image_losses import Charbonnier
from mlpkit.nn.network import Network

RNG = np.random.default_rng(0)
CHANNELS = {2: 16, 3: 16, 4: 15}


def test_the_papers_networks_have_the_papers_weights():
    for middle, count in ((1, 8_032), (5, 57_184)):
        model = srcnn(33, middle)
        assert Network(model=model).n_weights == count
        assert model.output == (1, 21 if middle == 1 else 17, 21 if middle == 1 else 17)
    assert espcn(17, 3).layout.size == 22_729


@pytest.mark.parametrize("scale", CHANNELS)
def test_our_own_has_at_most_12_000_parameters_and_eats_a_halo(scale):
    model = enlarger(30, scale, CHANNELS[scale])
    assert model.layout.size <= 12_000
    assert geometry(model) == (7, scale)
    assert model.output == (1, 16 * scale, 16 * scale)


@pytest.mark.parametrize("scale", CHANNELS)
def test_it_begins_as_bicubic(scale):
    small = RNG.random((1, 1, 30, 30)).astype(np.float32)
    network = Network(model=enlarger(30, scale, CHANNELS[scale]))
    begin_as_bicubic(network, weights(9, 9 * scale)[4 * scale : 5 * scale, 2:7])
    theta = network.theta.copy()
    last = [name for name, view in network.views(theta).items() if view.ndim == 4][-2]
    network.views(theta)[last][:] = 0
    network.set_theta(theta)
    wanted = resize(small, (30 * scale, 30 * scale))[..., 7 * scale : -7 * scale, 7 * scale : -7 * scale]
    assert_allclose(network.forward(small), wanted, atol=1e-6)


def test_its_gradient_is_the_slope():
    model = enlarger(11, 2, channels=3, depth=1, loss=Charbonnier(eps=0.1))
    network = Network(model=model, dtype=np.float64)
    x, targets = RNG.random((2, *model.input)), RNG.random((2, *model.output))
    assert gradient_error(network, x, targets) < 1e-7

"""A reader sees what is between the layers, on the way there and on the way back, and may add to it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence
from test_layers import noisy

from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual

MODEL = Model((2, 5, 4), (
    Conv(3, 2), BatchNorm(), Tanh(), Residual((Conv(3, 3, padding=1), Sigmoid()), (Conv(3, 1), BatchNorm())),
    Dropout(0.3), Concat((Conv(2, 1), Tanh()), (Concat((Tanh(),), ()),)), MaxPool(2), Flatten(), Linear(4),
))  # fmt: skip
PATHS = "0", "1", "3", "3.1", "3.3", "5", "5.1", "5.2", "5.2.0", "8"
ENGINES = ("numpy_baseline", "numba_conv")


@pytest.fixture(params=ENGINES)
def network(request):
    found = noisy(request.param, MODEL)
    rng = np.random.default_rng(3)
    found.statistics[:] = rng.uniform(0.5, 2, len(found.statistics))
    found.grad[:] = 7
    return found


def batch(n=3):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, *MODEL.input)), rng.integers(4, size=n)


def slopes(function, x, indices, h=1e-6):
    """Return the central differences of a function at some elements of x."""
    found = []
    for index in indices:
        values = []
        for step in (h, -h):
            moved = x.copy()
            moved[index] += step
            values.append(float(function(moved)))
        found.append((values[0] - values[1]) / (2 * h))
    return found


def some(shape, n=12):
    rng = np.random.default_rng(2)
    return [tuple(int(rng.integers(size)) for size in shape) for _ in range(n)]


def test_activations_are_what_the_layers_put_out(network):
    x, _ = batch()
    outputs, found = network.forward(x, keep=PATHS)
    assert_array_equal(outputs, network.forward(x))
    assert_array_equal(found["8"], outputs)
    assert_array_equal(found["input"], x)
    assert found.keys() == {"input", *PATHS}
    assert_allclose(found["3"], found["3.1"] + found["3.3"], rtol=1e-12)
    assert_allclose(found["5"], np.concatenate([found["5.1"], found["5.2"]], axis=1), rtol=1e-12)


def test_the_gradient_of_the_input_is_its_slope_and_the_networks_gradient_stays(network):
    x, y = batch()
    loss, found = network.gradients(x, y)
    assert float(loss) == pytest.approx(float(network.loss(x, y)), rel=1e-12)
    at = some(x.shape)
    assert_allclose([found["input"][i] for i in at], slopes(lambda x: network.loss(x, y), x, at), rtol=1e-5, atol=1e-9)
    assert_array_equal(network.grad, 7)


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_of_an_activation_is_its_slope(path):
    """The slope is taken by a layer's own output, nudged on its way."""
    network = noisy("numpy_baseline", MODEL)
    x, y = batch()
    _, found = network.gradients(x, y, of=(path, "input"))
    nudge = np.zeros(network.forward(x, keep=(path,))[1][path].shape)
    at = some(nudge.shape, 6)

    def loss(nudge):
        nudged = Nudged(network, path, nudge)
        return network.model.loss(network.at_loss, nudged.forward(x), y)[0]

    assert_allclose([found[path][i] for i in at], slopes(loss, nudge, at), rtol=1e-5, atol=1e-9)


class Nudged:
    """A network of which one layer's output is changed."""

    def __init__(self, network, path, nudge):
        self.network, self.path, self.nudge = network, path, nudge

    def forward(self, x):
        network = Network(self.network.engine, MODEL, dtype=np.float64)
        network.theta[:], network.statistics[:] = self.network.theta, self.network.statistics
        bound = network.layers
        for number in map(int, self.path.split(".")):
            (at,) = (at for at in bound if at.path[-1] == number)
            bound = [each for branch in at.branches for each in branch]
        at.layer, layer, nudge = type("Moved", (), {})(), at.layer, self.nudge
        at.layer.forward = lambda at, x: layer.forward(at, x) + nudge
        return network.forward(x)


def test_a_gradient_that_is_added_is_that_of_a_loss_on_an_activation(network):
    """As a style's or a feature's loss: sum(c * activation) beside the network's own."""
    x, y = batch()
    rng = np.random.default_rng(4)
    _, kept = network.forward(x, keep=("3", "5.1"))
    add = {path: rng.normal(size=kept[path].shape) for path in ("3", "5.1")}

    def loss(x):
        outputs, kept = network.forward(x, keep=("3", "5.1"))
        own = network.model.loss(network.at_loss, outputs, y)[0]
        return own + sum((add[path] * kept[path]).sum() for path in add)

    run = network.run(x)
    d_outputs = network.model.loss(network.at_loss, run.outputs, y)[1]
    found = run.backward(d_outputs, of=("input", "3"), add=add)
    at = some(x.shape)
    assert_allclose([found["input"][i] for i in at], slopes(loss, x, at), rtol=1e-5, atol=1e-8)
    again = run.backward(d_outputs, of=("input", "3"))  # what was added is not kept
    assert_allclose(again["input"], network.gradients(x, y)[1]["input"], rtol=1e-12)
    assert not np.allclose(again["3"], found["3"])
    assert_array_equal(network.grad, 7)


def test_in_evaluation_a_norm_is_a_factor_on_the_way_back():
    """And no batch's statistics: one image's gradient does not depend on its neighbours."""
    network = noisy("numpy_baseline", MODEL)
    network.statistics[:] = np.random.default_rng(3).uniform(0.5, 2, len(network.statistics))
    before = network.statistics.copy()
    x, y = batch(5)
    _, found = network.gradients(x, y)
    for i in range(5):
        alone = network.gradients(x[i : i + 1], y[i : i + 1])[1]["input"]
        assert_allclose(alone / 5, found["input"][i : i + 1], rtol=1e-9, atol=1e-15)
    assert_array_equal(network.statistics, before)
    assert not np.allclose(network.gradients(x, y, training=True)[1]["input"], found["input"])


def test_a_pass_has_the_gradient_of_the_parameters_and_the_network_keeps_its_own():
    model = Model((5,), (Linear(4), Tanh(), Residual((Linear(4), ReLU())), Linear(3)))
    network = noisy("numpy_baseline", model)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 5)), rng.integers(3, size=6)
    run = network.run(x)
    run.backward(network.model.loss(network.at_loss, run.outputs, y)[1])
    assert_array_equal(network.grad, 0)
    network.loss_and_grad(x, y)
    assert_allclose(run.grad, network.grad, rtol=1e-12)


@pytest.mark.parametrize("path", ["9", "3.9", "0.0", "x", "", "3.", 3])
def test_a_path_that_leads_nowhere_is_refused(path):
    network, (x, y) = noisy("numpy_baseline", MODEL), batch()
    for call in (lambda: network.forward(x, keep=(path,)), lambda: network.gradients(x, y, of=(path,))):
        with pytest.raises(ValueError, match="there is no layer") as caught:
            call()
        one_sentence(caught.value, repr(path), "'5.1' is layer 1 in 5")


@pytest.mark.peers
def test_gradients_are_pytorchs():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    F = torch.nn.functional
    network = noisy("numpy_baseline", MODEL)
    network.statistics[:] = np.random.default_rng(3).uniform(0.5, 2, len(network.statistics))
    x, y = batch()
    arrays = {**network.views(network.theta), **MODEL.statistics.views(network.statistics)}
    p = {name: torch.tensor(array) for name, array in arrays.items()}

    def norm(x, path):
        return F.batch_norm(x, *(p[f"{path}.{name}"] for name in ("mean", "variance", "gamma", "beta")))

    theirs = torch.tensor(x, requires_grad=True)
    a = torch.tanh(norm(F.conv2d(theirs, p["0.W"], p["0.b"]), "1"))
    inner = torch.sigmoid(F.conv2d(a, p["3.0.W"], p["3.0.b"], padding=1))
    three = inner + norm(F.conv2d(a, p["3.2.W"], p["3.2.b"]), "3.3")
    one = torch.tanh(F.conv2d(three, p["5.0.W"], p["5.0.b"]))
    five = torch.cat([one, torch.tanh(three), three], dim=1)
    z = F.max_pool2d(five, 2).flatten(1) @ p["8.W"] + p["8.b"]
    of = {"input": theirs, "3": three, "3.1": inner, "5.1": one, "5": five, "8": z}
    add = {path: np.random.default_rng(4).normal(size=of[path].shape) for path in ("3", "5.1")}
    loss = F.cross_entropy(z, torch.tensor(y))
    total = loss + sum((torch.tensor(add[path]) * of[path]).sum() for path in add)
    run = network.run(x)
    ours, d_outputs = network.model.loss(network.at_loss, run.outputs, y)
    assert float(ours) == pytest.approx(loss.item(), rel=1e-12)
    for wanted, added in ((loss, {}), (total, add)):
        found = run.backward(d_outputs, tuple(of), added)
        for path, gradient in zip(of, torch.autograd.grad(wanted, [*of.values()], retain_graph=True), strict=True):
            assert_allclose(found[path], gradient, rtol=0, atol=1e-12, err_msg=path)

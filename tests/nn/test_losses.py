"""A loss is data: its gradient is the slope, for rows and for maps, and its metrics are what their names say."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence, sweep
from test_layers import noisy, targets_of

from mlpkit.nn.conv import Conv
from mlpkit.nn.detection import Detection
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.heads import Heads
from mlpkit.nn.image_losses import Charbonnier
from mlpkit.nn.layers import Flatten, Layer, Linear, ReLU, Tanh
from mlpkit.nn.losses import BinaryCrossEntropy, Hinge, Loss, MeanSquaredError, OfClasses, SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.squash import Clip
from mlpkit.optim import SGD
from mlpkit.training.fit import fit

ROWS, MAPS = ((5,), (Linear(4), Tanh(), Linear(3))), ((2, 4, 3), (Conv(3, 3, padding=1), Tanh(), Conv(3, 1)))
EACH = (
    *(SoftmaxCrossEntropy(top=(2,)), Hinge(), BinaryCrossEntropy()),
    *(MeanSquaredError(peak=1.0), Charbonnier(peak=1.0), Charbonnier(eps=0.5)),
)
ENGINES = ("numpy_baseline", "numba_conv")


def inputs(model, n=4):
    return np.random.default_rng(0).normal(size=(n, *model.input))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", [ROWS, MAPS], ids=["rows", "maps"])
@pytest.mark.parametrize("loss", EACH, ids=repr)
def test_a_gradient_is_the_slope_of_the_loss(loss, form, engine):
    model = Model(*form, loss)
    targets = targets_of(model, 4, np.random.default_rng(1))
    assert targets.shape == (4, *model.output[len(model.output) - targets.ndim + 1 :])
    assert gradient_error(noisy(engine, model), inputs(model), targets) < 1e-6


@pytest.mark.parametrize("form", [ROWS, MAPS], ids=["rows", "maps"])
def test_pixels_as_targets_count_from_0_to_1(form):
    model = Model(*form, MeanSquaredError(peak=1.0))
    network, x = noisy("numpy_baseline", model), inputs(model)
    pixels = np.random.default_rng(1).integers(256, size=(4, *model.output), dtype=np.uint8)
    assert gradient_error(network, x, pixels) < 1e-6
    found, grad = network.loss_and_grad(x, pixels), network.grad.copy()
    assert found == pytest.approx(network.loss_and_grad(x, pixels / 255), rel=1e-12)
    assert_allclose(network.grad, grad, rtol=1e-12)
    assert network.evaluate(x, pixels) == pytest.approx(network.evaluate(x, pixels / 255), rel=1e-12)


@pytest.mark.parametrize("dtype", sweep([np.uint8, np.int32, np.uint16, np.int64], np.uint8))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", [ROWS, MAPS], ids=["rows", "maps"])
def test_labels_may_be_any_integers(form, engine, dtype):
    network = noisy(engine, Model(*form))
    x, labels = inputs(network.model), targets_of(network.model, 4, np.random.default_rng(1))
    wanted = network.loss_and_grad(x, labels), network.grad.copy(), network.evaluate(x, labels)
    assert network.loss_and_grad(x, labels.astype(dtype)) == wanted[0]
    assert_array_equal(network.grad, wanted[1])
    assert network.evaluate(x, labels.astype(dtype)) == wanted[2]


def test_of_a_map_every_pixel_counts_alike():
    network = noisy("numpy_baseline", Model(*MAPS))
    x, labels = inputs(network.model), targets_of(network.model, 4, np.random.default_rng(1))
    z = network.forward(x)
    right = np.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    found = network.evaluate(x, labels, batch_size=3)
    assert found["loss"] == pytest.approx(np.mean(np.log(np.exp(z).sum(axis=1)) - right), rel=1e-12)
    assert found["accuracy"] == pytest.approx(np.mean(z.argmax(axis=1) == labels))
    assert_array_equal(network.predict(x), z.argmax(axis=1))


def test_charbonnier_is_the_absolute_error_from_eps_on_and_the_square_within():
    network = noisy("numpy_baseline", Model(*MAPS, Charbonnier(eps=1e-6)))
    x = inputs(network.model)
    z = network.forward(x)
    np.testing.assert_allclose(network.loss(x, z + 0.3), 0.3, rtol=1e-6)
    assert network.loss(x, z) == pytest.approx(1e-6)
    with pytest.raises(ValueError, match="eps"):
        Charbonnier(eps=0)


def test_psnr_is_the_mean_over_images_in_decibels():
    network = noisy("numpy_baseline", Model(*MAPS, MeanSquaredError(peak=2.0)))
    x, targets = inputs(network.model, 5), np.random.default_rng(1).normal(size=(5, 3, 4, 3))
    errors = ((network.forward(x) - targets) ** 2).mean(axis=(1, 2, 3))
    found = network.evaluate(x, targets, batch_size=2)
    assert found == pytest.approx({"loss": errors.mean(), "psnr": np.mean(10 * np.log10(4 / errors))}, rel=1e-12)
    assert network.model.loss != MeanSquaredError()
    assert Model.from_dict(json.loads(json.dumps(network.model.to_dict()))) == network.model


# Against PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.peers
def test_cross_entropy_of_maps_is_pytorchs(torch):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n, classes, *size = rng.integers(1, 6, size=4)
        z, labels = 5 * rng.normal(size=(n, classes, *size)), rng.integers(classes, size=(n, *size))
        theirs = torch.tensor(z, requires_grad=True)
        wanted = torch.nn.functional.cross_entropy(theirs, torch.tensor(labels))
        wanted.backward()
        network = Network(model=Model((int(classes), *map(int, size)), ()), dtype=np.float64)
        loss, d_outputs = network.model.loss(network.at_loss, z, labels)
        assert float(loss) == pytest.approx(wanted.item(), rel=1e-12)
        assert_allclose(d_outputs, theirs.grad, rtol=0, atol=1e-12)


@pytest.mark.peers
@pytest.mark.parametrize("form", [ROWS, MAPS], ids=["rows", "maps"])
def test_the_accuracy_of_the_first_k_is_that_of_pytorchs_topk(form, torch):
    network = noisy("numpy_baseline", Model(*form, SoftmaxCrossEntropy(top=(1, 2, 3))))
    x, labels = inputs(network.model, 30), targets_of(network.model, 30, np.random.default_rng(1))
    found, outputs = network.evaluate(x, labels, batch_size=7), torch.tensor(network.forward(x))
    for k in (1, 2, 3):
        wanted = (outputs.topk(k, dim=1).indices == torch.tensor(labels)[:, None]).any(dim=1).double().mean().item()
        assert found[f"top {k} accuracy"] == pytest.approx(wanted)
    assert found["top 1 accuracy"] == pytest.approx(found["accuracy"])
    assert 0 < found["accuracy"] < found["top 2 accuracy"] < found["top 3 accuracy"] == 1


@pytest.mark.peers
def test_the_error_of_pixels_is_pytorchs(torch):
    network = noisy("numpy_baseline", Model(*MAPS, MeanSquaredError()))
    x, pixels = inputs(network.model), np.random.default_rng(1).integers(256, size=(4, 3, 4, 3), dtype=np.uint8)
    outputs = torch.tensor(network.forward(x), requires_grad=True)
    wanted = torch.nn.functional.mse_loss(outputs, torch.tensor(pixels) / torch.tensor(255, dtype=torch.float64))
    wanted.backward()
    loss, d_outputs = network.model.loss(network.at_loss, outputs.detach().numpy(), pixels)
    assert float(loss) == pytest.approx(wanted.item(), rel=1e-12)
    assert_allclose(d_outputs, outputs.grad, rtol=0, atol=1e-15)


# Several losses on one network

TWO = Heads(((3, SoftmaxCrossEntropy()), (4, MeanSquaredError(), 0.5)))
THREE = Heads(((3, SoftmaxCrossEntropy(top=(2,))), (1, BinaryCrossEntropy(), 2.0), (2, Hinge())))


def of_heads(loss, output, n, rng):
    """Return targets, side by side: labels are one column."""
    columns = []
    for channels, one, _ in loss.parts:
        part = Model((channels, *output[1:]), (), one)
        columns.append(targets_of(part, n, rng).reshape(n, -1, *output[1:]).astype(np.float64))
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loss", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("layers", [((5,), Linear), ((2, 4, 3), lambda n: Conv(n, 3))], ids=["rows", "maps"])
def test_a_gradient_of_heads_is_the_slope(layers, loss, engine):
    channels = sum(channels for channels, *_ in loss.parts)
    model = Model(
        layers[0], (layers[1](4), Tanh(), *([Linear(channels)] if len(layers[0]) == 1 else [Conv(channels, 1)])), loss
    )
    targets = of_heads(loss, model.output, 4, np.random.default_rng(1))
    network = noisy(engine, model)
    assert gradient_error(network, inputs(model), targets) < 1e-6


def test_heads_are_the_weighted_sum_of_their_losses_and_name_their_metrics():
    network = noisy("numpy_baseline", Model((5,), (Linear(7),), TWO))
    x, rng = inputs(network.model, 9), np.random.default_rng(1)
    labels, boxes = rng.integers(3, size=9), rng.normal(size=(9, 4))
    z = network.forward(x)
    entropy = np.log(np.exp(z[:, :3]).sum(axis=1)) - z[range(9), labels]
    found = network.evaluate(x, np.c_[labels, boxes], batch_size=4)
    assert found["loss"] == pytest.approx(entropy.mean() + 0.5 * np.mean((z[:, 3:] - boxes) ** 2), rel=1e-12)
    assert found == {"loss": found["loss"], "0 accuracy": pytest.approx(np.mean(z[:, :3].argmax(axis=1) == labels))}
    network = noisy("numpy_baseline", Model((5,), (Linear(6),), THREE))
    found = network.evaluate(x, of_heads(THREE, (6,), 9, rng))
    assert [*found] == ["loss", "0 accuracy", "0 top 2 accuracy", "1 accuracy", "2 accuracy"]


def test_heads_are_written_and_read():
    for loss in (TWO, THREE):
        model = Model((5,), (Linear(sum(channels for channels, *_ in loss.parts)),), loss)
        assert Model.from_dict(json.loads(json.dumps(model.to_dict()))) == model


TARGETS = np.zeros((4, 5))
BAD_HEADS = {
    "one column too few": (7, TARGETS[:, :4], ValueError, "targets must have shape (4, 5), not (4, 4)"),
    "labels alone": (7, TARGETS[:, 0], ValueError, "not (4,)"),
    "outputs of another width": (8, TARGETS, ValueError, "the heads take 7 channels, and the network puts out (8,)"),
    "a class too many": (7, TARGETS + 3, ValueError, "from 0 to 2"),
    "half a class": (7, TARGETS + 0.5, ValueError, "labels must be whole numbers"),
    "no class": (7, TARGETS * np.nan, ValueError, "labels must be whole numbers"),
    "NaN": (7, np.where(np.arange(5) > 2, np.nan, TARGETS), ValueError, "targets must be finite"),
    "another precision": (7, TARGETS.astype("f4"), TypeError, "float32 but the network computes in float64"),
}


@pytest.mark.parametrize(("units", "targets", "error", "words"), BAD_HEADS.values(), ids=BAD_HEADS)
def test_what_heads_can_not_compare_is_refused(units, targets, error, words):
    network = Network(model=Model((5,), (Linear(units),), TWO), dtype=np.float64)
    x = np.zeros((4, 5))
    for call in (network.loss_and_grad, network.evaluate, lambda *data: fit(network, SGD(network, 0.1), data)):
        with pytest.raises(error) as caught, np.errstate(invalid="ignore"):
            call(x, targets)
        one_sentence(caught.value, words)


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ((), ValueError, "at least one part"),
        (((3, "hinge"),), TypeError, "a loss is an object"),
        (((0, Hinge()),), ValueError, "the channels of a head must be at least 1"),
        (((3, Hinge(), -1.0),), ValueError, "the weight of a head"),
    ],
)
def test_what_makes_no_heads_is_refused(parts, error, words):
    with pytest.raises(error) as caught:
        Heads(parts)
    one_sentence(caught.value, words)


def test_labels_for_images_without_flatten_are_refused_with_advice():
    network = Network(model=Model((1, 6, 6), (Conv(2, 3), ReLU())))
    with pytest.raises(ValueError, match=r"put Flatten\(\) or Linear") as caught:
        network.check_targets(np.zeros(4, int), 4)
    one_sentence(caught.value)
    Network(model=Model((1, 6, 6), (Conv(2, 3), Flatten(), Linear(2)))).check_targets(np.zeros(4, int), 4)


HUGE = 10**400  # no float is as large
NONE = ("a", (), (1,), -1.0, 0, np.nan, np.inf, 1e300, HUGE, [1], b"x", np.array([1, 2]))
ODD = [
    *[(make, value) for make in (MeanSquaredError, Charbonnier) for value in NONE],
    *[(lambda value: Charbonnier(eps=value), value) for value in NONE],
    *[(SoftmaxCrossEntropy, value) for value in (5, "ab", (1, "a"), (0,), (2.5,), (None,), (True, -1), np.array([1]))],
    *[(lambda value: Detection(3, (32, 32), prior=value), value) for value in (0, 1, 2.0, -1, np.nan, "a", HUGE)],
    *[(lambda value: Detection(3, (32, 32), alpha=value), value) for value in (0, 1, 2.0, -1, np.nan, "a", HUGE)],
    *[(Heads, value) for value in (3, (1, 2), ((10,),), "ab", None, ((1, SoftmaxCrossEntropy(), 1, 1),))],
    *[(lambda value: Clip(value, 1), value) for value in ("a", np.nan, HUGE, None)],
]


@pytest.mark.parametrize(("make", "value"), ODD)
def test_a_setting_that_is_none_is_refused_as_it_is_made(make, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        make(value)
    one_sentence(caught.value, "must be" if make is not Heads else "a head")


@pytest.mark.parametrize("loss", [Loss(), OfClasses()])
def test_a_loss_that_computes_nothing_is_refused(loss):
    with pytest.raises(TypeError, match="no loss yet") as caught:
        Model((3,), (Linear(3),), loss)
    one_sentence(caught.value)


def test_a_layer_that_is_not_written_yet_says_so():
    network = Network(model=Model((3,), (Linear(3), Layer())))
    with pytest.raises(NotImplementedError, match="has no forward") as caught:
        network.forward(np.ones((2, 3), np.float32))
    one_sentence(caught.value, "Layer()")

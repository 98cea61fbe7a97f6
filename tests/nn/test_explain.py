"""Where a network looked: saliency is a derivative, Grad-CAM is what its paper says, and both are captum's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import one_sentence

from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.explain import grad_cam, saliency
from mlpkit.nn.layers import Dropout, Flatten, Linear, ReLU, Tanh
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP, RESIDUAL
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool
from mlpkit.nn.residual import Residual

SMALL = Model((2, 6, 5), (Conv(4, 3), Tanh(), Dropout(0.5), Conv(5, 2), Flatten(), Linear(3)))


def of(model, dtype=np.float64, n=4):
    network = Network("numpy_baseline", model, seed=2, dtype=dtype)
    rng = np.random.default_rng(3)
    for name, view in model.statistics.views(network.statistics).items():
        view[...] = rng.uniform(0.5, 2, view.shape) if name.endswith("variance") else 0.1 * rng.normal(size=view.shape)
    return network, rng.random((n, *model.input)).astype(dtype)


def test_saliency_is_the_derivative_of_a_logit():
    network, x = of(SMALL)
    classes, h = np.array([0, 2, 1, 1]), 1e-6
    found = saliency(network, x, classes)
    for place in [(0, 0, 0, 0), (1, 1, 3, 2), (2, 0, 5, 4), (3, 1, 2, 2)]:
        moved = x.copy()
        moved[place] += h
        slope = (network.forward(moved) - network.forward(x))[place[0], classes[place[0]]] / h
        assert_allclose(found[place], abs(slope), rtol=1e-5)


def test_grad_cam_is_the_class_activation_map_where_a_mean_and_weights_follow():
    """Zhou et al. (2016): there the gradient of a logit is the class's weight, over as many pixels."""
    network, x = of(Model((2, 6, 5), (Conv(4, 3), Tanh(), GlobalAvgPool(), Linear(3))))
    classes = np.array([0, 2, 1, 1])
    A = network.forward(x, keep=("1",))[1]["1"]
    wanted = np.einsum("nkij,kn->nij", A, network.layers[3].W[:, classes]) / A[0, 0].size
    assert_allclose(grad_cam(network, x, classes=classes), np.maximum(wanted, 0), atol=1e-12)


def test_the_predicted_class_is_the_one_that_is_explained():
    network, x = of(SMALL)
    classes = network.predict(x)
    assert len(set(classes)) > 1
    assert (saliency(network, x) == saliency(network, x, classes)).all()
    assert (grad_cam(network, x) == grad_cam(network, x, "3", classes)).all()


def test_a_look_changes_nothing_in_the_network():
    network, x = of(SMALL)
    network.grad[:] = 7
    before = network.theta.copy()
    grad_cam(network, x)
    saliency(network, x)
    assert (network.theta == before).all()
    assert (network.grad == 7).all()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda network, x: grad_cam(network, x, "5"), "needs images"),
        (lambda network, x: grad_cam(network, x, "9"), "there is no layer"),
        (lambda network, x: grad_cam(network, x, classes=np.full(4, 3)), "0 to 2"),
        (lambda network, x: saliency(network, x, np.zeros(3, int)), "shape"),
        (lambda network, x: saliency(network, x[:, :1]), "shape"),
    ],
)
def test_what_can_not_be_explained_is_refused_in_a_sentence(ask, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        ask(*of(SMALL))
    one_sentence(caught.value, words)


def test_networks_without_images_or_rows_are_refused():
    with pytest.raises(ValueError, match="take saliency"):
        grad_cam(*of(MLP))
    with pytest.raises(ValueError, match="no row of classes"):
        saliency(*of(Model((1, 4, 4), (Conv(3, 3),))))


# PyTorch's twins of our layers, for captum


def twin(layers, torch):
    """Return PyTorch's modules for bound layers, in a Sequential, with their weights."""
    nn, made = torch.nn, []
    for at in layers:
        kind = type(at.layer)
        if kind is Residual:
            made.append(summed(twin(at.branches[0], torch), torch))
        elif kind is Conv:
            made.append(
                nn.Conv2d(at.W.shape[1], len(at.W), at.layer.size, padding=at.layer.padding, bias=at.layer.bias)
            )
        elif kind is Linear:
            made.append(nn.Linear(*at.W.shape))
        elif kind is BatchNorm:
            made.append(nn.BatchNorm2d(len(at.gamma)))
        else:
            made.append({ReLU: nn.ReLU, Flatten: nn.Flatten}[kind]() if kind is not MaxPool else nn.MaxPool2d(2))
        fill(made[-1], at, torch)
    return nn.Sequential(*made).double().eval()


def fill(module, at, torch):
    theirs = {"W": "weight", "b": "bias", "gamma": "weight", "beta": "bias"}
    theirs |= {"mean": "running_mean", "variance": "running_var"}
    for ours, name in theirs.items():
        if ours in at.lasting:
            array = at.W.T if (ours, type(at.layer)) == ("W", Linear) else getattr(at, ours)
            getattr(module, name).data = torch.tensor(np.ascontiguousarray(array))


def summed(body, torch):
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body

        def forward(self, x):
            return x + self.body(x)

    return Sum()


@pytest.mark.peers
@pytest.mark.parametrize("model", [LENET5, FASHION_CNN, RESIDUAL], ids=["lenet5", "fashion_cnn", "residual"])
def test_both_are_captums(model):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    captum = pytest.importorskip("captum.attr", reason="captum is not installed")
    network, x = of(model, n=3)
    theirs, classes = twin(network.layers, torch), np.array([3, 0, 9])
    given, targets = torch.tensor(x, requires_grad=True), torch.tensor(classes)
    assert_allclose(theirs(given).detach(), network.forward(x), atol=1e-9)
    wanted = captum.Saliency(theirs).attribute(given, targets)
    assert_allclose(saliency(network, x, classes), wanted.detach(), rtol=0, atol=1e-5 * abs(wanted).max().item())
    last = next(number for number, layer in enumerate(model.layers) if isinstance(layer, Flatten)) - 1
    for number in (0, 2, last):
        cam = captum.LayerGradCam(theirs, theirs[number])
        wanted = cam.attribute(given, targets, relu_attributions=True)[:, 0].detach()
        found = grad_cam(network, x, str(number), classes)
        assert wanted.max() > 0
        assert_allclose(found, wanted, rtol=0, atol=1e-5 * wanted.max().item())

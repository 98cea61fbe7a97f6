"""What a fixed network sees of a picture is a loss like any other: its gradient is the slope, and PyTorch's."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import one_sentence

from mlpkit import engines
from mlpkit.nn.fold import fold
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.painting import painter, vgg
from mlpkit.nn.perceptual import Canvas, Perceptual, cut, gram, gram_backward, relative_error, total_variation
from mlpkit.nn.resize import PixelShuffle, Upsample
from mlpkit.optim import Adam
from mlpkit.training.fit import fit

SHAPE = (3, 12, 8)
ENGINES = ("numpy_baseline", "numba_conv", "numpy_k2row")


def loss_on(engine, dtype=np.float64, shape=SHAPE, **weights):
    model, paths = vgg(shape, "relu2_1", width=3)
    trunk = Network(engine, model, dtype=dtype, seed=1)
    style = np.random.default_rng(2).random((3, 9, 14)).astype(dtype)
    layers = paths["relu1_1"], paths["relu2_1"]
    return Perceptual.of_style(trunk, style, layers, paths["relu2_1"], **weights)


def pictures(n, dtype=np.float64, shape=SHAPE):
    return np.random.default_rng(3).random((n, *shape)).astype(dtype)


WEIGHTS = [
    {"content_weight": 1.0, "style_weight": 0.0},
    {"content_weight": 0.0, "style_weight": 1.0},
    {"content_weight": 0.0, "style_weight": 0.0, "smoothness": 1.0},
    {"content_weight": 0.7, "style_weight": 3.0, "smoothness": 0.2},
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", WEIGHTS, ids=repr)
def test_the_gradient_of_pixels_is_the_slope_of_each_part(weights, engine):
    canvas = Network(engine, Model(SHAPE, (Canvas(),), loss_on(engine, **weights)), dtype=np.float64)
    canvas.set_theta(pictures(1)[0].ravel())
    x = np.random.default_rng(4).random((1, *SHAPE))
    assert gradient_error(canvas, x, x, samples=60) < 1e-6
    assert abs(canvas.grad).max() > 1e-5


def test_a_network_learns_through_the_trunk():
    network = Network("numba_conv", painter(SHAPE, loss_on("numba_conv"), (4, 4), 1), dtype=np.float64)
    assert gradient_error(network, pictures(3), pictures(3), samples=80) < 1e-6


def test_gram_and_its_gradient_are_the_definitions():
    features, dG = pictures(2, shape=(5, 4, 3)), pictures(2, shape=(1, 5, 5))[:, 0]
    engine = engines.load("numpy_baseline")
    F = features.reshape(2, 5, 12)
    assert_allclose(gram(engine, features), np.einsum("ncp,ndp->ncd", F, F) / 60, rtol=1e-12)
    wanted = np.einsum("ncd,ndp->ncp", dG + dG.swapaxes(1, 2), F).reshape(features.shape) / 60
    assert_allclose(gram_backward(engine, features, dG), wanted, rtol=1e-12)


def test_a_style_does_not_see_where_pixels_are():
    rng, features = np.random.default_rng(5), pictures(1, shape=(4, 6, 6))
    shuffled = features.reshape(1, 4, 36)[..., rng.permutation(36)].reshape(features.shape)
    engine = engines.load("numpy_baseline")
    assert_allclose(gram(engine, shuffled), gram(engine, features), rtol=1e-12)


def test_a_relative_error_has_no_unit():
    found, wanted = pictures(2), pictures(2) ** 2
    error, gradient = relative_error(found, wanted)
    assert error == pytest.approx(relative_error(100 * found, 100 * wanted)[0])
    assert relative_error(0 * found, wanted)[0] == pytest.approx(1)
    assert np.isfinite(relative_error(found, 0 * wanted)[0])
    assert gradient.shape == found.shape


def test_a_flat_picture_is_smooth():
    assert total_variation(np.full((2, 3, 4, 5), 0.3))[0] == 0


@pytest.mark.peers
def test_parts_and_gradient_are_pytorchs():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    F = torch.nn.functional
    loss = loss_on("numpy_baseline", content_weight=0.7, style_weight=3.0, smoothness=0.2)
    views = loss.trunk.views(loss.trunk.theta)

    def seen(x, upto):
        found = {}
        for number, layer in enumerate(loss.trunk.model.layers[: upto + 1]):
            name = type(layer).__name__
            if name == "Conv":
                W, b = (torch.tensor(views[f"{number}.{each}"].copy()) for each in "Wb")
                x = F.conv2d(x, W, b, padding=layer.padding)
            else:
                x = F.relu(x) if name == "ReLU" else F.avg_pool2d(x, 2)
            found[str(number)] = x
        return found

    y, x = torch.tensor(pictures(2) ** 2, requires_grad=True), torch.tensor(pictures(2))
    last = int(loss.content)
    of, wanted = seen(y, last), seen(x, last)[loss.content]
    sizes = (wanted**2).sum((1, 2, 3))
    total = loss.content_weight * (((of[loss.content] - wanted) ** 2).sum((1, 2, 3)) / sizes).mean()
    for path, of_style in loss.grams.items():
        flat, A = of[path].flatten(2), torch.tensor(of_style)
        G = flat @ flat.mT / flat[0].numel()
        total = total + loss.style_weight / 2 * (((G - A) ** 2).sum((1, 2)) / (A**2).sum()).mean()
    rough = ((y[:, :, 1:] - y[:, :, :-1]) ** 2).sum() + ((y[..., 1:] - y[..., :-1]) ** 2).sum()
    total = total + loss.smoothness * rough / y.numel()
    total.backward()
    network = Network("numpy_baseline", Model(SHAPE, (Canvas(),), loss), dtype=np.float64)
    found, gradient = loss(network.at_loss, y.detach().numpy(), pictures(2))
    assert found == pytest.approx(total.item(), rel=1e-9)
    assert_allclose(gradient, y.grad.numpy(), rtol=1e-6, atol=1e-9 * abs(gradient).max())


def test_painting_lowers_the_loss_with_fit_and_pixels_as_targets():
    loss = loss_on("numba_conv", np.float32)
    canvas = Network("numba_conv", Model(SHAPE, (Canvas(),), loss))
    x = (255 * pictures(1)).astype(np.uint8)
    canvas.set_theta((x / 255).ravel().astype(np.float32))
    history = fit(canvas, Adam(canvas, 0.02), (x, x), epochs=30, batch_size=1)
    assert history.loss[-1] < 0.7 * history.loss[0]
    measured = canvas.evaluate(x, x)
    assert measured["loss"] == pytest.approx(
        sum(measured[name] for name in ("content", "style", "smoothness")), rel=1e-5
    )


def test_a_frozen_pass_leaves_gradients_of_weights_out_and_that_of_the_input_as_it_is():
    network = loss_on("numba_conv").trunk
    runs = [network.run(pictures(2), frozen=frozen) for frozen in (False, True)]
    whole, frozen = (run.backward(run.outputs) for run in runs)
    assert_allclose(frozen["input"], whole["input"], rtol=1e-12)
    assert abs(runs[0].grad).max() > 0 == abs(runs[1].grad).max()


def test_a_cut_network_has_the_first_layers_of_another_for_any_size_and_engine():
    whole = loss_on("numpy_baseline").trunk
    part = cut(whole, (3, 20, 16), layers=4, engine="numba_conv")
    x = pictures(1, shape=(3, 20, 16))
    assert part.engine is engines.load("numba_conv")
    wanted = cut(whole, (3, 20, 16)).forward(x, keep=("3",))[1]["3"]
    assert_allclose(part.forward(x), wanted, rtol=1e-9)
    part.theta[:] = 0
    assert abs(whole.theta).max() > 0
    with pytest.raises(ValueError, match=r"array 0\.W has shape") as refused:
        cut(Network("numpy_baseline"), (20,))
    one_sentence(refused.value, "(784, 128)", "(20, 128)")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda loss: replace(loss, trunk=cut(loss.trunk, (3, 8, 8))), "the trunk sees pictures"),
        (lambda loss: replace(loss, trunk=cut(loss.trunk, SHAPE, engine="numpy_k2row")), "on another engine"),
    ],
)
def test_a_trunk_that_does_not_fit_is_refused(change, sentence):
    loss = change(loss_on("numpy_baseline"))
    canvas = Network("numpy_baseline", Model(SHAPE, (Canvas(),), loss), dtype=np.float64)
    with pytest.raises(ValueError, match=sentence):
        canvas.loss_and_grad(pictures(1), pictures(1))


def test_a_model_with_a_trunk_is_not_written_and_the_same_layers_with_another_loss_are(tmp_path):
    network = Network("numpy_baseline", painter(SHAPE, loss_on("numpy_baseline"), (4, 4), 1))
    with pytest.raises(ValueError, match="can't be written"):
        network.save(tmp_path / "painter.npz")
    cut(network, SHAPE, loss=MeanSquaredError()).save(tmp_path / "painter.npz")
    x = pictures(1, np.float32)
    assert_allclose(Network.load(tmp_path / "painter.npz").forward(x), network.forward(x), rtol=1e-6)


@pytest.mark.parametrize("engine", ["numpy_baseline", "numba_conv"])
def test_what_a_painter_is_compiled_to_makes_no_copies_and_the_same_picture(engine):
    network = Network(engine, painter(SHAPE, channels=(4, 4), blocks=1), dtype=np.float64)
    folded = fold(network)
    kinds = [type(layer) for layer in folded.model.layers]
    assert kinds.count(PixelShuffle) == 2
    assert Upsample not in kinds
    x = pictures(2)
    assert_allclose(folded.forward(x), network.forward(x, training=True), rtol=1e-9, atol=1e-12)
    assert_allclose(network.compiled(2)(x), network.forward(x, training=True), rtol=1e-9, atol=1e-12)


def test_a_painter_for_other_edges_is_refused():
    with pytest.raises(ValueError, match="multiples of 4"):
        painter((3, 30, 32))


def test_a_layer_of_vgg_that_is_not_there_is_refused_with_the_names_of_those_that_are():
    with pytest.raises(ValueError, match="relu9_9") as refused:
        vgg(SHAPE, "relu9_9")
    assert "relu5_3" in str(refused.value)
    model, paths = vgg((3, 64, 64), "relu5_3")
    assert len(paths) == 13
    assert model.output == (512, 4, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trunk": "a"}, "a Network as its trunk"),
        ({"grams": ["0"]}, "dict of grams"),
        ({"content": "99"}, "there is no layer of the trunk '99'"),
        ({"grams": {"99": 0}}, "there is no layer of the trunk '99'"),
        *[({name: np.nan}, f"the {name} of Perceptual must") for name in ("content_weight", "style_weight")],
        ({"smoothness": -1}, "the smoothness of Perceptual must be a finite number, 0 or above"),
    ],
)
def test_what_makes_no_loss_is_refused_as_it_is_made(changes, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        replace(loss_on("numpy_baseline"), **changes)
    one_sentence(caught.value, words)

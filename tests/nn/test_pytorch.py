"""Layers and losses are PyTorch's, forward and backward, in float64 to 1e-10, for 50 random configurations of each."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import REASONS

from mlpkit import engines
from mlpkit.engines import numpy_baseline
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Tanh
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Padding, PixelShuffle, Upsample
from mlpkit.nn.squash import Clip, Softmax

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
pytestmark = pytest.mark.peers


def capable():
    """Return the names of the engines of this machine that can convolve."""
    here = [name for name, why_not in REASONS.items() if not why_not]
    return [name for name in here if all(hasattr(engines.load(name), each) for each in Conv.operations)]


def close(found, wanted, case):
    assert np.shape(found) == wanted.shape, case
    assert_allclose(found, wanted.detach().numpy(), rtol=0, atol=1e-10 * max(1, abs(wanted).max().item()), err_msg=case)


def configurations(n=50):
    """Yield generators, each for one configuration: the same at every run."""
    yield from map(np.random.default_rng, range(n))


def tensors(*arrays):
    return [torch.tensor(array, requires_grad=True) for array in arrays]


@pytest.mark.parametrize("name", capable())
def test_convolutions_are_pytorchs(name):
    engine = engines.load(name)
    for rng in configurations():
        n, c, c_out = rng.integers(1, 6, size=3)
        k, stride, padding = rng.integers(1, 6), rng.integers(1, 4), rng.integers(0, 4)
        k = 3 if rng.random() < 0.3 else k  # Winograd's
        shape = np.maximum(rng.integers(1, 20, size=2), k - 2 * padding)
        x, W, b = rng.normal(size=(n, c, *shape)), rng.normal(size=(c_out, c, k, k)), rng.normal(size=c_out)
        case = f"{x.shape} {W.shape} stride {stride} padding {padding}"
        theirs = tensors(x, W, b)
        wanted = F.conv2d(*theirs, stride=int(stride), padding=int(padding))
        close(engine.conv(x, W, b, stride, padding), wanted, case)
        dz = rng.normal(size=wanted.shape)
        wanted.backward(torch.tensor(dz))
        dW, db = np.empty_like(W), np.empty_like(b)
        engine.conv_backward_weights(x, dz, dW, db, stride, padding)
        dx = engine.conv_backward_input(dz, W, x.shape, stride, padding)
        for found, tensor in zip((dx, dW, db), theirs, strict=True):
            close(found, tensor.grad, case)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_is_pytorchs(kind):
    forward, backward = (getattr(numpy_baseline, f"{kind}_pool{end}") for end in ("", "_backward"))
    for rng in configurations():
        size, stride = map(int, rng.integers(1, 5, size=2))
        x = rng.normal(size=(*rng.integers(1, 4, size=2), *rng.integers(size, 12, size=2)))
        case = f"{x.shape} size {size} stride {stride}"
        (theirs,) = tensors(x)
        wanted = getattr(F, f"{kind}_pool2d")(theirs, size, stride)
        y, *index = forward(x, size, stride) if kind == "max" else (forward(x, size, stride),)
        close(y, wanted, case)
        dy = rng.normal(size=wanted.shape)
        wanted.backward(torch.tensor(dy))
        close(backward(dy, *index, x.shape, size, stride), theirs.grad, case)


def test_batch_normalization_is_pytorchs():
    for rng in configurations():
        n, c = rng.integers(2, 6, size=2)
        x = rng.normal(1, 3, size=(n, c, *rng.integers(1, 6, size=2 * rng.integers(2))))
        gamma, beta, mean = rng.normal(size=(3, c))
        variance, momentum, eps = rng.uniform(0.5, 2, size=c), rng.random(), 10 ** rng.uniform(-6, -2)
        theirs, moved = tensors(x, gamma, beta), [torch.tensor(each) for each in (mean, variance)]
        close(numpy_baseline.batch_norm_evaluate(x, gamma, beta, mean, variance, eps),
              F.batch_norm(theirs[0], *moved, *theirs[1:], False, momentum, eps), f"{x.shape}")  # fmt: skip
        wanted = F.batch_norm(theirs[0], *moved, *theirs[1:], True, momentum, eps)
        y, normalized, inverse_deviation = numpy_baseline.batch_norm(x, gamma, beta, mean, variance, momentum, eps)
        dy = rng.normal(size=x.shape)
        wanted.backward(torch.tensor(dy))
        dgamma, dbeta = np.empty((2, c))
        dx = numpy_baseline.batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta)
        for found, tensor in zip((y, mean, variance), (wanted, *moved), strict=True):
            close(found, tensor, f"{x.shape}")
        for found, tensor in zip((dx, dgamma, dbeta), theirs, strict=True):
            close(found, tensor.grad, f"{x.shape}")


def passes(layer, x, dy):
    """Return what a layer makes of x, and the gradients of x and of its parameters, given that of its output."""
    model = Model(x.shape[1:], (Conv(x.shape[1], 1), layer), MeanSquaredError())  # the first has use for dx
    network = Network(model=model, dtype=np.float64)
    network.theta[:] = np.random.default_rng(0).normal(size=len(network.theta))
    at, network.mode.training = network.layers[1], True
    y = layer.forward(at, x)
    dx = layer.backward(at, dy(y.shape))
    arrays = network.views(network.theta), network.views(network.grad)
    return y, dx, *([array for name, array in each.items() if name.startswith("1.")] for each in arrays)


def check_layer(layer, theirs, x, case):
    """Hold a layer to a function of PyTorch's of x and the layer's parameters."""
    dy = []
    y, dx, parameters, gradients = passes(
        layer, x, lambda shape: dy.append(np.random.default_rng(1).normal(size=shape)) or dy[0]
    )
    given = tensors(x, *parameters)
    wanted = theirs(*given)
    wanted.backward(torch.tensor(dy[0]))
    close(y, wanted, case)
    for found, tensor in zip((dx, *gradients), given, strict=True):
        close(found, tensor.grad, case)


def test_transposed_convolutions_are_pytorchs():
    for rng in configurations():
        n, c, c_out, k, stride = map(int, rng.integers(1, 5, size=5))
        padding, output_padding, bias = int(rng.integers(0, k)), int(rng.integers(0, stride)), bool(rng.integers(2))
        x = rng.normal(size=(n, c, *rng.integers(4, 7, size=2)))
        layer = ConvTranspose(c_out, k, stride, padding, output_padding, bias)
        check_layer(
            layer,
            lambda x, W, b=None, layer=layer: F.conv_transpose2d(
                x, W, b, layer.stride, layer.padding, layer.output_padding
            ),
            x,
            f"{layer} {x.shape}",
        )


MODES = {"reflect": "reflect", "replicate": "replicate", "zero": "constant"}


def test_layers_that_change_sizes_are_pytorchs():
    for rng in configurations():
        scale, size = map(int, rng.integers(1, 5, size=2))
        x = rng.normal(size=(2, 2 * scale**2, *rng.integers(size + 1, 8, size=2)))
        one, affine = x[:, :2], bool(rng.integers(2))
        check_layer(Upsample(scale), lambda x, s=scale: F.interpolate(x, scale_factor=s), one, "nearest")
        check_layer(
            Upsample(scale, "bilinear"),
            lambda x, s=scale: F.interpolate(x, scale_factor=s, mode="bilinear"),
            one,
            "bilinear",
        )
        check_layer(PixelShuffle(scale), lambda x, s=scale: F.pixel_shuffle(x, s), x, "shuffle")
        for mode, theirs in MODES.items():
            check_layer(Padding(size, mode), lambda x, s=size, m=theirs: F.pad(x, (s, s, s, s), m), one, mode)
        norm = InstanceNorm(10 ** rng.uniform(-6, -2), affine)
        check_layer(norm, lambda x, *affine, e=norm.eps: F.instance_norm(x, None, None, *affine, eps=e), one, "norm")
        check_layer(GlobalAvgPool(), lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), x, "mean")


def test_layers_of_branches_are_pytorchs():
    for rng in configurations(10):
        x = rng.normal(size=(3, 4, *rng.integers(3, 8, size=2)))
        layers, shortcut = (Conv(5, 3, 2, 1), Tanh(), Conv(6, 1)), (Conv(6, 1, 2, bias=False),)

        def both(x, W, b, V, c, S):
            return F.conv2d(torch.tanh(F.conv2d(x, W, b, 2, 1)), V, c), F.conv2d(x, S, None, 2)

        check_layer(Residual(layers, shortcut), lambda *a, both=both: sum(both(*a)), x, "sum")
        check_layer(Concat(layers, shortcut), lambda *a, both=both: torch.cat(both(*a), 1), x, "side by side")


ACTIVATIONS = {"relu": F.relu, "leaky_relu": F.leaky_relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_pytorchs(name):
    slope = (0.01,) if name == "leaky_relu" else ()
    for rng in configurations():
        z, da = rng.normal(size=(2, *rng.integers(1, 8, size=2)))
        (theirs,) = tensors(z)
        wanted = ACTIVATIONS[name](theirs, *slope)
        wanted.backward(torch.tensor(da))
        a = getattr(numpy_baseline, name)(z, *slope)
        close(a, wanted, name)
        close(getattr(numpy_baseline, f"{name}_backward")(a, da, *slope), theirs.grad, name)


def test_what_bounds_values_is_pytorchs():
    for rng in configurations(10):
        x = rng.normal(size=(3, 4, *rng.integers(1, 8, size=2)))
        check_layer(Clip(-0.4, 1.1), lambda x: torch.clip(x, -0.4, 1.1), x, "clip")
        check_layer(Softmax(), lambda x: torch.softmax(x, 1), x, "softmax")


LOSSES = {
    "softmax_cross_entropy": F.cross_entropy,
    "mean_squared_error": F.mse_loss,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    # PyTorch's mean is over the classes, too
    "hinge": lambda z, labels: F.multi_margin_loss(z, labels) * z.shape[1],
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_pytorchs(name):
    for rng in configurations():
        z = 5 * rng.normal(size=rng.integers(1, 9, size=2))
        targets = {
            "mean_squared_error": rng.normal(size=z.shape),
            "binary_cross_entropy": rng.integers(2, size=z.shape).astype(float),
        }.get(name, rng.integers(z.shape[1], size=len(z)))
        (theirs,) = tensors(z)
        wanted = LOSSES[name](theirs, torch.tensor(targets))
        wanted.backward()
        loss, dz = getattr(numpy_baseline, name)(z, targets)
        close(loss, wanted, name)
        close(dz, theirs.grad, name)

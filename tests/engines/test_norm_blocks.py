"""Blocks of convolutions with batch normalization: found in models, and right, there and back."""

from functools import partial

import numpy as np
import pytest
from conv_cases import error
from test_cnn_norm import as_planes, from_operand, from_planes

from mlpkit.engines import numpy_baseline
from mlpkit.engines.cuda import norm_blocks
from mlpkit.engines.cuda.blocks import Value
from mlpkit.kernels.cnn import between, norm
from mlpkit.kernels.conv import planes
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.models import RESIDUAL, Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.place import backward, forward
from mlpkit.nn.residual import Residual


def normed(channels, size=3, padding=1, bias=False):
    return Conv(channels, size, padding=padding, bias=bias), BatchNorm()


def residual(channels):
    return Residual((*normed(channels), ReLU(), *normed(channels, bias=True)))


END = Flatten(), Linear(3)
MODELS = {
    "stem, residual, pool": Model((1, 9, 9), (*normed(9), ReLU(), residual(9), ReLU(), MaxPool(2), *END)),
    "two residuals": Model((3, 5, 5), (*normed(4), ReLU(), residual(4), ReLU(), residual(4), ReLU(), *END)),
    "past a pool": Model(
        (1, 8, 9), (*normed(5, 2, 0), MaxPool(2), ReLU(), residual(5), MaxPool(3), *normed(20, 1, 0, True), *END)
    ),
    "a residual first": Model((2, 4, 5), (Conv(3, 3, padding=1), residual(3), ReLU(), residual(3), *END)),
}


# How far off may be a result, and a gradient, that went through several layers: with fewer digits other numbers are
# below 0, and others are the largest of a window.
CLASSES = {"fp16x3": (1e-4, 1e-2), "fp16": (3e-2, 0.3), "bf16": (2e-1, 0.6)}


def right_and_found(model, n, mode, engine):
    """Return a network in float64, one of an engine, and the first block that `match` finds in it: see `Found`."""
    networks = [
        Network(each, model, dtype=dtype) for each, dtype in ((numpy_baseline, np.float64), (engine, np.float32))
    ]
    rng = np.random.default_rng(1)
    theta = networks[0].theta + rng.normal(0, 0.1, networks[0].theta.size) * (networks[0].theta.size > 0)
    for network in networks:
        network.set_theta(theta.astype(np.float32))
    shape = model.input
    for i, at in enumerate(networks[1].places):
        if found := norm_blocks.match(networks[1].places, i, shape, n, planes.MODES[mode]):
            return networks, i, *found, shape
        shape = at.layer.output(shape)
    return networks, None, 0, None, None


def check(model, n, mode, engine, cp, layouts=("nchw", "planes", "planes"), plain=False):
    """Hold the first block of a model to its layers, one by one, in float64; twice, as in a training.

    layouts: of the block's input, of its result, and of the gradient that it gets. plain: all are images in float64.
    """
    one, (comes, goes, back) = planes.MODES[mode], layouts
    (right, found), i, count, block, shape = right_and_found(model, n, mode, engine)
    put = (lambda x, layout: Value(x.astype(float), layout, x.shape[1])) if plain else partial(laid, cp, one)
    see = (lambda value: value.array) if plain else partial(images_of, getattr(cp, "asnumpy", np.asarray), one)
    worst, worst_gradient = (1e-9, 1e-5) if plain else CLASSES[mode]
    block.gives, places, right.mode.training = goes, right.places[i : i + count], True
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((n, *shape)).astype(np.float32)
        wanted = forward(places, x.astype(float))
        dy = rng.standard_normal(wanted.shape).astype(np.float32)
        dx_wanted = backward(places, dy.astype(float))
        assert error(see(block.forward(put(x, comes))), wanted) < worst
        dx = block.backward(put(dy, back))
        far = distances(right, found, range(i, i + count), getattr(cp, "asnumpy", np.asarray))
        assert max(far.values()) < worst_gradient, far
        assert (dx is None) == (dx_wanted is None)
        assert dx is None or error(see(dx), dx_wanted) < worst_gradient


def distances(right, found, layers, numpy):
    """Return how far off the gradients and running averages of some layers are, as parts of their norms, by name."""
    far = {}
    for name, layout in (("grad", right.model.layout), ("statistics", right.model.statistics)):
        views, exact = layout.views(numpy(getattr(found, name))), layout.views(getattr(right, name))
        for key in views:
            if int(key.split(".")[0]) in layers:
                distance = np.linalg.norm(views[key] - exact[key]) / max(np.linalg.norm(exact[key]), 1)
                far[f"{name} {key}"] = distance
    return far


def laid(cp, mode, x, layout):
    """Return images as a `Value`."""
    array = cp.ascontiguousarray(cp.asarray(x if layout == "nchw" else as_planes(x, mode)))
    return Value(array, layout, x.shape[1])


def images_of(numpy, mode, value):
    """Return a `Value` as images in float64."""
    if value.layout == "nchw":
        return numpy(value.array).astype(float)
    if value.layout == "planes":
        return from_planes(numpy(value.array), value.channels)
    scale = value.array.scale
    return from_operand(numpy(value.array.array), None if scale is None else numpy(scale), mode, value.channels)


# The kernels by NumPy, in float64, on images as they are: what a block asks of whom, and in which order


def fake_convolve(mode, shape, which, images, filters, to):
    x, w = images.array, np.asarray(filters).astype(float)
    if which == "forward":
        to[...] = numpy_baseline.conv(x, w, None, shape.stride, shape.padding)
    else:
        to[...] = numpy_baseline.conv_backward_input(x, w, shape.x, shape.stride, shape.padding)


def fake_weight_gradient(mode, shape, images, dy, dw):
    found = np.empty(dw.shape)
    numpy_baseline.conv_backward_weights(images.array, dy.array, found, None, shape.stride, shape.padding)
    dw[...] = found


def fake_forward(one, channels, y, scale, meeting, added=None, out="operand", filters=None):
    x, y = y, y if filters is None else numpy_baseline.conv(y, np.asarray(filters).astype(float), None, 1, one.padding)
    averages = channels.mean.astype(float), channels.variance.astype(float)
    vectors = channels.gamma.astype(float), channels.beta.astype(float), *averages
    z, normalized, inverse = numpy_baseline.batch_norm(y, *vectors, one.momentum, one.eps)
    channels.mean[:], channels.variance[:] = averages
    if channels.bias is not None:
        channels.mean[:] += one.momentum * channels.bias
    assert (added is not None) == one.add
    z = z + added.array if one.add else z
    a, index = numpy_baseline.max_pool(np.maximum(z, 0) if one.relu else z, one.pool, one.pool)
    kept = norm.Kept(x, filters, (normalized, inverse), (z.shape, index, z > 0))
    return (planes.Stored(a) if out == "operand" else a), kept


def came_through(dy, marks, relu, pool):
    shape, index, on = marks
    dz = numpy_baseline.max_pool_backward(dy, index, shape, pool, pool)
    return np.where(on, dz, 0) if relu else dz


def fake_backward(one, channels, kept, dy, scale, meeting, past=None, layout="planes", keep=False, dw=None):
    if past:
        dy = dy + (came_through(past.gradient, past.marks, past.relu, past.pool) if past.marks else past.gradient)
    dense, dgamma, dbeta = came_through(dy, kept.marks, one.relu, one.pool), *np.empty((2, one.channels))
    dz = numpy_baseline.batch_norm_backward(dense, *kept.statistics, channels.gamma.astype(float), dgamma, dbeta)
    channels.dgamma[:], channels.dbeta[:] = dgamma, dbeta
    if channels.dbias is not None:
        channels.dbias[:] = 0
    if one.kernel:
        found = np.empty(dw.shape)
        numpy_baseline.conv_backward_weights(kept.y, dz, found, None, 1, one.padding)
        dw[...] = found
    return (planes.Stored(dz), dense) if keep else planes.Stored(dz)


@pytest.fixture
def plain(monkeypatch):
    """Put NumPy in the place of all kernels."""
    monkeypatch.setattr(planes, "Filters", lambda mode, wanted: lambda: [dict.fromkeys(p, w) for _, w, p in wanted])
    monkeypatch.setattr(planes, "convolve", fake_convolve)
    monkeypatch.setattr(planes, "weight_gradient", fake_weight_gradient)
    monkeypatch.setattr(planes, "empty_planes", lambda mode, *shape: np.empty(shape))
    monkeypatch.setattr(planes, "new_scale", lambda: None)
    monkeypatch.setattr(
        between, "convert", lambda mode, size, x, layout, to, *_: planes.Stored(x) if to == "stored" else x
    )
    monkeypatch.setattr(norm, "new_meeting", lambda one: None)
    monkeypatch.setattr(norm, "forward", fake_forward)
    monkeypatch.setattr(norm, "backward", fake_backward)
    monkeypatch.setattr(norm, "add", lambda mode, to, other: to + other)


FOUND = (
    ((*normed(4), ReLU(), Flatten()), 3, 1),
    ((*normed(4), ReLU(), residual(4), ReLU(), MaxPool(2), *normed(3), *END), 8, 4),
    ((*normed(4), MaxPool(2), MaxPool(2), *END), 3, 1),
    ((*normed(4), MaxPool(3, 2), *END), 2, 1),
    ((*normed(4), Residual((*normed(4), ReLU())), *END), 2, 1),
    ((*normed(4), Residual((*normed(4), Residual(normed(4)))), *END), 2, 1),
    ((Conv(4, 3), ReLU(), *END), 0, 0),
)


@pytest.mark.parametrize(("layers", "count", "stages"), FOUND, ids=str)
def test_what_a_block_takes_over(layers, count, stages, plain):
    _, _, found, block, _ = right_and_found(Model((2, 9, 9), layers), 4, "fp16x3", numpy_baseline)
    assert found == count
    assert block is None or len(block.stages) == stages


def test_the_residual_network_is_one_block(plain):
    _, i, count, block, _ = right_and_found(RESIDUAL, 128, "fp16x3", numpy_baseline)
    assert (i, count, block.wants) == (0, 12, "nchw")
    assert [stage.adds for stage in block.stages] == [None, None, 0, None, None, 3]
    assert [stage.about.pool for stage in block.stages] == [1, 1, 2, 1, 1, 2]


@pytest.mark.parametrize("name", MODELS)
def test_a_block_does_what_its_layers_do(name, plain):
    stem = name == "stem, residual, pool"
    for layouts in (("nchw",) * 3, ("nchw" if stem else "planes", "planes", "planes")):
        check(MODELS[name], 3, "fp16x3", numpy_baseline, np, layouts, plain=True)


GPU_MODELS = MODELS | {
    "residual": RESIDUAL,
    "wide": Model((1, 19, 17), (*normed(40, 2, 0), ReLU(), MaxPool(3), *normed(72), ReLU(), *END)),
    "stride": Model((3, 15, 14), (Conv(20, 3, stride=2, padding=1), BatchNorm(), ReLU(), residual(20), ReLU(), *END)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("mode", CLASSES)
@pytest.mark.parametrize("name", GPU_MODELS)
def test_a_block_is_right_on_a_gpu(name, mode):
    import cupy

    from mlpkit.engines import cupy_conv

    for n, layouts in (
        (2, ("nchw", "planes", "planes")),
        (5, ("nchw", "nchw", "nchw")),
        (16, ("nchw", "stored", "planes")),
    ):
        check(GPU_MODELS[name], n, mode, cupy_conv, cupy, layouts)

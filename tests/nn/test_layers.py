"""Every layer's backward pass is the derivative of its forward pass; training and evaluation are two modes."""

from itertools import count
from math import prod

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import engine_like, sweep
from test_model import Gain

from mlpkit import engines
from mlpkit.engines import numpy_baseline
from mlpkit.nn.bound import backward
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.gradcheck import gradient_error
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.losses import BinaryCrossEntropy, Hinge, MeanSquaredError, OfClasses, SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Padding, PixelShuffle, Upsample
from mlpkit.nn.squash import Clip, Softmax

# Gradient checks, on odd sizes

END = (Flatten(), Linear(3))
NETWORKS = {
    "each activation": Model(
        (7,), (Linear(6), LeakyReLU(0.1), Linear(5), Sigmoid(), Linear(5), Tanh(), Linear(4), ReLU(), Linear(3))
    ),
    "bounded": Model((7,), (Linear(6), Clip(-0.3, 0.7), Linear(5), Softmax(), Linear(3))),
    "softmax of channels": Model((2, 4, 3), (Conv(3, 2), Softmax(), Conv(2, 2), Clip(-0.5, 1), *END)),
    "conv": Model((2, 7, 5), (Conv(3, 3), ReLU(), Conv(2, 3), Tanh(), *END)),
    "padding": Model((2, 5, 3), (Conv(3, 3, padding=1), LeakyReLU(), Conv(2, 5, padding=3), Sigmoid(), *END)),
    "stride": Model((1, 8, 9), (Conv(3, 3, stride=2), Tanh(), Conv(2, 2, stride=3), *END)),
    "stride and padding": Model((2, 6, 7), (Conv(3, 3, stride=2, padding=2), Tanh(), Conv(2, 2, 2, 1), *END)),
    "no bias": Model((2, 5, 4), (Conv(3, 2, bias=False), ReLU(), Conv(2, 1, bias=False), *END)),
    "one pixel": Model((3, 1, 1), (Conv(4, 1), Tanh(), Conv(2, 3, padding=1), *END)),
    "max pool": Model((1, 11, 10), (Conv(2, 3), MaxPool(2), ReLU(), Conv(3, 2), MaxPool(2), *END)),
    "overlapping max pool": Model((1, 7, 6), (Conv(2, 3, padding=1), MaxPool(3, stride=2), Conv(2, 2), *END)),
    "max pool that leaves some out": Model((1, 8, 8), (Conv(2, 2), ReLU(), MaxPool(2, stride=3), *END)),
    "average pool": Model((1, 9, 8), (Conv(2, 3), AvgPool(2), Tanh(), Conv(2, 2), AvgPool(2, stride=1), *END)),
    "pools first": Model((2, 7, 6), (MaxPool(2), AvgPool(2, stride=1), *END)),
    "norm of rows": Model((5,), (Linear(4), BatchNorm(), ReLU(), Linear(4), BatchNorm(eps=0.1), Linear(3))),
    "norm of images": Model((2, 5, 4), (Conv(3, 3, bias=False), BatchNorm(), ReLU(), Conv(2, 2), BatchNorm(), *END)),
    "norm first": Model((2, 3, 3), (BatchNorm(), Conv(2, 2), *END)),
    "dropout": Model((5,), (Dropout(0.2), Linear(9), Tanh(), Dropout(0.5), Linear(3))),
    "dropout of images": Model((2, 4, 4), (Conv(3, 2), Dropout(0.4), ReLU(), Conv(2, 2), *END)),
    "residual": Model((4,), (Linear(5), Residual((Linear(6), Tanh(), Linear(5))), Linear(3))),
    "residual first": Model((5,), (Residual((Linear(5), Tanh())), ReLU(), Linear(3))),
    "residual of nothing": Model((5,), (Linear(4), Residual(()), Linear(3))),
    "residual without parameters": Model((5,), (Residual((Tanh(),)), Linear(4), Residual((Tanh(),)), Linear(3))),
    "residual twice nested": Model(
        (2, 5, 4),
        (
            *(Conv(3, 2), BatchNorm(), ReLU()),
            Residual((Conv(3, 3, padding=1), BatchNorm(), Residual((Residual((Conv(3, 1),)), Dropout(0.3), Tanh())))),
            *(AvgPool(2), *END),
        ),
    ),
    "a shortcut": Model(
        (2, 6, 5), (Conv(3, 2), Residual((Conv(2, 3, 2, 1), ReLU()), (Conv(2, 1, 2), BatchNorm())), Tanh(), *END)
    ),
    "a shortcut first": Model(
        (4,), (Residual((Tanh(),), (Linear(4), Sigmoid())), Residual((), (Linear(4),)), Linear(3))
    ),
    "side by side": Model((2, 5, 4), (Conv(2, 2), Concat((Conv(3, 3, padding=1), Tanh()), (), (MaxPool(1),)), *END)),
    "side by side first": Model((4,), (Concat((Linear(3), Tanh()), ()), Concat((Linear(2),), (Sigmoid(),)), Linear(3))),
    "side by side in a sum": Model(
        (3, 4, 3), (Residual((Concat((Conv(1, 3, padding=1),), (Concat((Conv(1, 1),), (Conv(1, 1),)),)), Tanh())), *END)
    ),
    "upsample": Model(
        (2, 3, 2), (Conv(2, 2), Upsample(2), Tanh(), Conv(2, 1), Upsample(3, "bilinear"), Conv(1, 3, 2), *END)
    ),
    "upsample first": Model(
        (1, 3, 2), (Upsample(2, "bilinear"), Upsample(1, "bilinear"), Upsample(2), Conv(2, 3), *END)
    ),
    "pixel shuffle": Model((1, 3, 3), (Conv(8, 2), PixelShuffle(2), Tanh(), Conv(9, 3), PixelShuffle(3), *END)),
    "transposed": Model((2, 3, 2), (ConvTranspose(3, 3), ReLU(), ConvTranspose(2, 3, 2, 1, 1, bias=False), *END)),
    "transposed with gaps": Model(
        (2, 3, 4), (Conv(3, 2), ConvTranspose(2, 2, stride=3), Tanh(), ConvTranspose(1, 1), *END)
    ),
    "one pixel transposed": Model(
        (3, 1, 1), (Conv(4, 1), ConvTranspose(2, 4, stride=9), Tanh(), ConvTranspose(2, 4, 2, 3), *END)
    ),
    "borders": Model(
        (2, 4, 5),
        (Conv(2, 2), Padding(2), Conv(2, 3), Padding(3, "replicate"), Tanh(), Padding(1, "zero"), Conv(1, 4, 2), *END),
    ),
    "instance norm": Model(
        (2, 4, 4), (Conv(3, 2), InstanceNorm(), Tanh(), Conv(2, 2), InstanceNorm(0.1, affine=True), *END)
    ),
    "instance norm first": Model((2, 3, 4), (InstanceNorm(affine=True), Tanh(), *END)),
    "mean of all": Model((2, 4, 3), (Conv(3, 2), Tanh(), GlobalAvgPool(), Linear(3))),
    "a reader's own": Model((5,), (Gain(), Linear(4), Gain(0.5), Tanh(), Linear(3))),
}


LOSSES = SoftmaxCrossEntropy(), Hinge(), BinaryCrossEntropy(), MeanSquaredError()
OPERATIONS_OF_LOSSES = [name for loss in LOSSES for name in loss.operations]


def capable():
    """Return the names of the engines of this machine that have every operation."""
    wanted = {name for model in NETWORKS.values() for name in (*model.operations, *OPERATIONS_OF_LOSSES)}
    here = [name for name, why_not in engines.available().items() if not why_not]
    return [name for name in here if all(hasattr(engines.load(name), operation) for operation in wanted)]


def noisy(engine, model, seed=0):
    """Return a network in float64 whose biases are not zero, and scales not one."""
    network = Network(engine, model, seed=seed, dtype=np.float64)
    noise = 0.1 * np.random.default_rng(seed).normal(size=len(network.theta))
    network.theta[:] += network.engine.asarray(noise)
    return network


def targets_of(model, n, rng):
    if isinstance(model.loss, OfClasses):
        return rng.integers(model.output[0], size=(n, *model.output[1:]))
    targets = rng.normal(size=(n, *model.output))
    return (targets > 0).astype(np.float64) if isinstance(model.loss, BinaryCrossEntropy) else targets


def batch_of(network, n, seed=0):
    rng = np.random.default_rng(seed)
    x, targets = rng.normal(size=(n, *network.model.input)), targets_of(network.model, n, rng)
    return map(network.engine.asarray, (x, targets))


def error_of(network, n):
    return gradient_error(network, *batch_of(network, n))


def assert_same_derivatives(engine, model, n):
    """Assert that an engine's loss and gradient are the baseline's: that these are right is checked once, for all."""
    networks = [noisy(name, model) for name in (engine, "numpy_baseline")]
    losses = [float(network.loss_and_grad(*batch_of(network, n))) for network in networks]
    found, wanted = (network.engine.to_numpy(network.grad) for network in networks)
    assert_allclose(losses[0], losses[1], rtol=1e-10)
    assert_allclose(found, wanted, rtol=1e-8, atol=1e-9 * np.abs(wanted).max())


CASES = [(name, n) for name in NETWORKS for n in ((2, 5) if name == "norm of rows" else (1, 2, 5))]  # one has no spread
CAPABLE = {*capable()}
OTHERS = CAPABLE - {"numpy_baseline"}
WITH = {name: sorted(OTHERS & {*engines.names(network.operations)}) for name, network in NETWORKS.items()}
OF_OTHERS = [(name, n, engine) for name, n in CASES for engine in WITH[name]]


@pytest.mark.parametrize(("name", "n"), sweep(CASES, *[case for case in CASES if case[1] != 2]))
def test_every_derivative_is_right(name, n):
    assert error_of(noisy("numpy_baseline", NETWORKS[name]), n) < 1e-6


@pytest.mark.parametrize(("name", "n", "engine"), sweep(OF_OTHERS, *[case for case in OF_OTHERS if case[1] != 2]))
def test_every_derivative_is_the_same_with_each_engine(name, n, engine):
    assert_same_derivatives(engine, NETWORKS[name], n)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_every_derivative_of_every_loss_is_right_and_the_same_with_each_engine(loss, n):
    for layers in ((Linear(3),), (Linear(4), Tanh(), Linear(1)), (Residual((Linear(5), Sigmoid())), Linear(3))):
        assert error_of(noisy("numpy_baseline", Model((5,), layers, loss)), n) < 1e-6
        for engine in OTHERS & {*engines.names(OPERATIONS_OF_LOSSES)}:
            assert_same_derivatives(engine, Model((5,), layers, loss), n)


@pytest.mark.parametrize("loss", [*LOSSES[2:], SoftmaxCrossEntropy(), Hinge()], ids=repr)
def test_a_loss_may_compare_images(loss):
    model = Model((1, 4, 3), (Conv(2, 3, padding=1), Tanh(), Conv(1, 2)), loss)
    assert error_of(noisy("numpy_baseline", model), 3) < 1e-6


def test_lenet5_is_right_in_a_sample_of_its_derivatives():
    network, rng = noisy("numpy_baseline", LENET5), np.random.default_rng(1)
    x = rng.integers(256, size=(2, 1, 28, 28), dtype=np.uint8)
    assert gradient_error(network, x, np.array([3, 8]), samples=30) < 1e-6


def forgets_padding(x, dz, dW, db, stride, padding):
    numpy_baseline.conv_backward_weights(np.roll(x, 1, axis=-1), dz, dW, db, stride, padding)


def no_means(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    numpy_baseline.batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta)
    return dy * (gamma * inverse_deviation).reshape(-1, *(1,) * (dy.ndim - 2))


def to_all_equal(dy, index, shape, size, stride):
    return numpy_baseline.avg_pool_backward(dy, shape, size, stride)


def drops_others():
    """Return a dropout that forgets in the backward pass what it dropped in the forward pass: each call is a step."""
    calls = count()
    return lambda x, rate, key, step: numpy_baseline.dropout(x, rate, key, next(calls))


def of_nearest(dy, scale):
    return numpy_baseline.upsample_nearest_backward(dy, scale)


def forgets_borders(dy, size, mode):
    return numpy_baseline.pad_backward(dy, size, "zero")


def in_another_order(y, scale):
    return numpy_baseline.pixel_unshuffle(y.swapaxes(2, 3), scale).swapaxes(2, 3)


def no_mean_of_pixels(dy, normalized, inverse_deviation):
    return dy * inverse_deviation


# What trains nearly as well
WRONG = {
    "a border's gradient lost": (dict(pad_backward=forgets_borders), "borders"),
    "the gradient of nearest pixels": (dict(upsample_bilinear_backward=of_nearest), "upsample"),
    "channels of a pixel in another order": (dict(pixel_unshuffle=in_another_order), "pixel shuffle"),
    "an image's statistics taken as given": (dict(instance_norm_backward=no_mean_of_pixels), "instance norm"),
    "images moved by a pixel": (dict(conv_backward_weights=forgets_padding), "padding"),
    "a norm that takes the statistics as given": (dict(batch_norm_backward=no_means), "norm of images"),
    "a maximum's gradient shared": (dict(max_pool_backward=to_all_equal), "max pool"),
    "a gradient that drops others": (dict(dropout=drops_others()), "dropout"),
}


@pytest.mark.parametrize(("functions", "name"), WRONG.values(), ids=WRONG)
def test_a_wrong_formula_is_caught(functions, name):
    assert error_of(noisy(engine_like(**functions), NETWORKS[name]), 3) > 1e-4


class Forgetful(Residual):
    """Its gradient goes through the layers only, and not past them."""

    def backward(self, at, dy):
        return backward(at.branches[0], dy)


def test_a_residual_that_forgets_the_way_past_is_caught():
    inner = (Linear(5), Tanh())
    for kind, is_right in ((Residual, True), (Forgetful, False)):
        network = noisy("numpy_baseline", Model((4,), (Linear(5), kind(inner), Linear(3))))
        assert (error_of(network, 3) < 1e-6) == is_right


def test_a_check_leaves_running_statistics_as_they_were():
    network = noisy("numpy_baseline", NETWORKS["norm of images"])
    before = network.statistics.copy()
    error_of(network, 3)
    assert_array_equal(network.statistics, before)


# What is not asked for is not computed


@pytest.mark.parametrize(
    ("model", "linear", "conv"),
    [
        (mlp(6, 3), 0, 0),
        (mlp(6, 5, 4, 3), 2, 0),
        (Model((1, 6, 6), (Flatten(), Linear(4), Linear(3))), 1, 0),
        (Model((1, 6, 6), (Conv(2, 3), Conv(2, 2), Flatten(), Linear(3))), 1, 1),
        (Model((1, 6, 6), (MaxPool(2), Conv(2, 2), Flatten(), Linear(3))), 1, 0),
        (Model((6,), (Residual((Linear(6), Linear(6))), Linear(3))), 2, 0),
        (Model((6,), (Residual((ReLU(), Residual((Linear(6),)))), Linear(3))), 1, 0),
        (Model((6,), (BatchNorm(), Linear(3))), 1, 0),
    ],
    ids=str,
)
def test_the_first_layers_input_gradient_is_not_computed(model, linear, conv):
    calls = {"linear_backward_input": 0, "conv_backward_input": 0}

    def counted(name):
        def function(*arguments):
            calls[name] += 1
            return getattr(numpy_baseline, name)(*arguments)

        return function

    network = Network(engine_like(**{name: counted(name) for name in calls}), model)
    network.forward_backward(np.ones((4, *model.input), np.float32), np.zeros(4, int))
    assert calls == {"linear_backward_input": linear, "conv_backward_input": conv}


def test_a_bound_layer_knows_whether_something_before_it_learns():
    model = Model((6,), (Tanh(), Residual((ReLU(), Linear(6), Tanh())), Dropout(), Linear(3)))
    wants = {path: wants_dx for path, _, _, wants_dx in model.walk}
    assert wants == {(0,): False, (1,): False, (1, 0): False, (1, 1): False, (1, 2): True, (2,): True, (3,): True}
    network = Network(model=model)
    bound = [*network.layers, *network.layers[1].branches[0]]
    assert {at.path: at.wants_dx for at in bound} == wants
    assert [at.layer for at in bound] == [*model.layers, *model.layers[1].layers]


def test_a_bound_layer_has_its_arrays_and_no_others():
    network = Network(model=NETWORKS["norm of images"])
    conv, norm = network.layers[:2]
    usual = {"layer", "path", "engine", "mode", "branches", "learns_before", "lasting"}
    assert vars(conv).keys() - usual == {"W", "dW"}
    assert vars(norm).keys() - usual == {"gamma", "dgamma", "beta", "dbeta", "mean", "variance"}
    assert [at.lasting for at in (conv, norm)] == [vars(at).keys() - usual for at in (conv, norm)]
    for name in ("gamma", "beta"):
        assert np.shares_memory(getattr(norm, name), network.theta)
        assert np.shares_memory(getattr(norm, f"d{name}"), network.grad)
    for name, wanted in (("mean", 0), ("variance", 1)):
        assert np.shares_memory(getattr(norm, name), network.statistics)
        assert_array_equal(getattr(norm, name), wanted)
    assert_array_equal(norm.gamma, 1)
    assert_array_equal(norm.beta, 0)


def test_gradients_are_written_anew_at_each_pass():
    network, rng = noisy("numpy_baseline", NETWORKS["residual twice nested"]), np.random.default_rng(0)
    x, y = rng.normal(size=(3, 2, 5, 4)), rng.integers(3, size=3)
    grads = []
    for value in (np.nan, 7):
        network.grad[:] = value
        network.loss_and_grad(x, y)
        grads.append(network.grad.copy())
    assert_array_equal(*grads)
    assert np.isfinite(grads[0]).all()


# Batch normalization: two modes


def normalized(x, mean, variance, eps=1e-5):
    return (x - mean) / np.sqrt(variance + eps)


def test_training_uses_the_batchs_statistics_and_evaluation_the_running_ones():
    network = Network(model=Model((4,), (BatchNorm(momentum=0.2), Linear(3))), dtype=np.float64)
    W = network.layers[1].W
    rng = np.random.default_rng(0)
    mean, variance = np.zeros(4), np.ones(4)
    for step in range(3):
        x = rng.normal(3, 2, (6, 4))
        assert_allclose(network.forward(x), normalized(x, mean, variance) @ W, rtol=1e-10, atol=1e-10)
        found = network.forward(x, training=True, step=step)
        assert_allclose(found, normalized(x, x.mean(axis=0), x.var(axis=0)) @ W, rtol=1e-10, atol=1e-10)
        mean += 0.2 * (x.mean(axis=0) - mean)
        variance += 0.2 * (x.var(axis=0, ddof=1) - variance)
        assert_allclose(network.statistics, [*mean, *variance], rtol=1e-12)


@pytest.mark.parametrize("name", ["norm of images", "residual twice nested"])
def test_what_only_looks_keeps_no_statistics_and_no_neighbours(name):
    network, rng = noisy("numpy_baseline", NETWORKS[name]), np.random.default_rng(0)
    X, y = rng.normal(size=(9, *network.model.input)), rng.integers(3, size=9)
    network.loss_and_grad(X, y)
    before = network.statistics.copy()
    whole = network.forward(X)
    assert_allclose(np.concatenate([network.forward(X[i : i + 1]) for i in range(9)]), whole, rtol=1e-10, atol=1e-12)
    assert_array_equal(network.predict(X, 2), whole.argmax(axis=1))
    one, other = (network.evaluate(X, y, batch_size) for batch_size in (2, 9))
    assert one == pytest.approx(other, rel=1e-10)
    assert network.loss(X, y) == pytest.approx(other["loss"], rel=1e-10)
    assert_array_equal(network.statistics, before)
    network.loss(X, y, training=True)
    assert not np.array_equal(network.statistics, before)


# Dropout


def masks(seed=0, step=0, model=None, n=50):
    """Return the factors of each Dropout of a network, in a step."""
    model = model or Model((40,), (Dropout(0.3), ReLU(), Dropout(0.3), Residual((Dropout(0.3),)), Linear(3)))
    network = Network(model=model, seed=seed)
    ones = np.ones((n, 40), np.float32)
    network.forward(ones, training=True, step=step)
    bound = network.layers[0], network.layers[2], network.layers[3].branches[0][0]
    return [at.layer.backward(at, ones) for at in bound]


def test_masks_depend_on_seed_step_and_place_and_on_nothing_else():
    np.random.default_rng(0).random(3)  # whatever else is drawn
    for one, other in zip(masks(1, 2), masks(1, 2), strict=True):
        assert_array_equal(one, other)
    found = {mask.tobytes() for seed in range(3) for step in range(3) for mask in masks(seed, step)}
    assert len(found) == 27


def test_the_masks_are_the_same_next_year():
    """Every engine, machine and version must drop alike, or recorded runs mean nothing."""
    philox = np.random.Philox((5, 0, 2), counter=7 << 64)  # the seed of (seed, *path, 2) gives the key
    wanted = np.random.Generator(philox).random((50, 40), np.float32) >= np.float32(0.3)
    assert_array_equal(masks(5, 7)[0] > 0, wanted)
    assert (masks()[0][0, :20] > 0).astype(int).tolist() == FIRST


FIRST = [1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("engine", sorted(CAPABLE))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_engine_drops_the_same_on_the_way_there_and_back(engine, dtype):
    engine, rng = engines.load(engine), np.random.default_rng(0)
    for shape in ((5, 7), (3, 2, 4, 5)):
        x = rng.normal(size=shape).astype(dtype)
        for step in (0, 41, np.int64(3)):
            wanted = numpy_baseline.dropout(x, 0.3, (5, 2**64 - 1), step)
            assert wanted.dtype == dtype
            assert 0 < np.mean(wanted == 0) < 1
            found = engine.to_numpy(engine.dropout(engine.asarray(x), 0.3, (5, 2**64 - 1), step))
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_preserves_the_mean(rate):
    x = np.random.default_rng(0).normal(5, 1, (400, 300)).astype(np.float32)
    mask = numpy_baseline.dropout(np.ones_like(x), rate, (1, 2), 7)
    assert mask.dtype == np.float32
    assert_allclose(np.unique(mask), [0, 1 / (1 - rate)], rtol=1e-6)
    assert np.mean(mask == 0) == pytest.approx(rate, abs=0.01)
    y = numpy_baseline.dropout(x, rate, (1, 2), 7)
    assert_array_equal(y, x * mask)
    assert y.mean() == pytest.approx(x.mean(), rel=0.03)


def test_a_number_that_is_none_is_not_hidden_where_it_is_dropped():
    """Else a training that has diverged would look fine in some steps."""
    assert np.isnan(numpy_baseline.dropout(np.full(99, np.nan), 0.5, (1, 2), 3)).all()


def test_evaluation_drops_nothing_and_a_rate_of_zero_neither():
    network = Network(model=Model((40,), (Dropout(0.5), Linear(3))))
    x = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
    assert_array_equal(network.forward(x), x @ network.layers[1].W)
    assert not np.array_equal(network.forward(x, training=True), network.forward(x))
    assert_array_equal(network.forward(x), x @ network.layers[1].W)  # nothing is left behind
    kept = Network(model=Model((40,), (Dropout(0.0), Linear(3))))
    assert_array_equal(kept.forward(x, training=True), kept.forward(x))


def test_each_step_of_a_training_drops_others():
    network = Network(model=Model((40,), (Dropout(0.5), Linear(3))))
    x, y = np.ones((8, 40), np.float32), np.zeros(8, int)
    grads = []
    for step in (0, 1, 0):
        network.loss_and_grad(x, y, step)
        grads.append(network.grad.copy())
    assert_array_equal(grads[0], grads[2])
    assert not np.array_equal(grads[0], grads[1])


# Images in a network


IMAGES = np.random.default_rng(0).integers(256, size=(6, 1, 28, 28), dtype=np.uint8)
LABELS = np.arange(6) % 10
FORMS = {
    "images of bytes": IMAGES,
    "rows of bytes": IMAGES.reshape(6, 784),
    "images of numbers": IMAGES / np.float32(255),
    "rows of numbers": IMAGES.reshape(6, 784) / np.float32(255),
}


@pytest.mark.parametrize("X", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("model", [LENET5, mlp(784, 20, 10)], ids=["LeNet-5", "MLP"])
def test_images_may_come_in_four_forms(model, X):
    networks = [Network(model=model) for _ in range(2)]
    wanted = FORMS["images of numbers"]
    for call, *arguments in [("forward",), ("predict", 4), ("evaluate", LABELS, 4), ("loss_and_grad", LABELS)]:
        one, other = (getattr(n, call)(x, *arguments) for n, x in zip(networks, (X, wanted), strict=True))
        assert_array_equal(one, other)
    assert_array_equal(networks[0].grad, networks[1].grad)


WRONG_FORMS = {
    "channels last": (6, 28, 28, 1),
    "no channel": (6, 28, 28),
    "channels in the middle": (6, 28, 1, 28),
    "a pixel too few": (6, 783),
    "a row too few": (6, 1, 27, 28),
    "three channels": (6, 3, 28, 28),
    "one image": (1, 28, 28),
    "one row": (784,),
    "no images": (0, 1, 28, 28),
}


@pytest.mark.parametrize("shape", WRONG_FORMS.values(), ids=WRONG_FORMS)
@pytest.mark.parametrize("call", ["forward", "predict", "evaluate", "loss_and_grad"])
def test_images_of_another_form_are_refused(call, shape):
    x = np.ones(shape, np.float32)
    labels = [np.zeros(len(x), int)] if call in ("evaluate", "loss_and_grad") else []
    with pytest.raises(ValueError, match=r"\(n, 1, 28, 28\) or \(n, 784\) with n at least 1") as caught:
        getattr(Network(model=LENET5), call)(x, *labels)
    assert f"not {shape}" in str(caught.value)


# What else a loss says


def test_the_accuracy_of_yes_or_no_is_that_of_each_answer():
    network = Network(model=Model((5,), (Linear(3),), BinaryCrossEntropy()), seed=1)
    rng = np.random.default_rng(0)
    X, targets = rng.normal(size=(9, 5)).astype(np.float32), rng.integers(2, size=(9, 3)).astype(np.float32)
    z = X @ network.layers[0].W
    found = network.evaluate(X, targets, batch_size=4)
    assert found["accuracy"] == pytest.approx(np.mean((z > 0) == targets))
    assert found["loss"] == pytest.approx(np.mean(np.log1p(np.exp(z)) - z * targets), rel=1e-5)
    assert_array_equal(network.predict(X, 4), z > 0)


def test_a_measured_error_has_no_accuracy():
    network = Network(model=Model((5,), (Linear(3),), MeanSquaredError()), seed=1)
    rng = np.random.default_rng(0)
    X, targets = (rng.normal(size=(9, m)).astype(np.float32) for m in (5, 3))
    z = X @ network.layers[0].W
    found = network.evaluate(X, targets, batch_size=4)
    assert found == {"loss": pytest.approx(np.mean((z - targets) ** 2), rel=1e-5)}
    assert_allclose(network.predict(X, 4), z, rtol=1e-5, atol=1e-6)


NUMBERS = np.zeros((4, 3), np.float32)
BAD_TARGETS = {
    "labels": (MeanSquaredError(), np.zeros(4, int), ValueError, "targets must have shape (4, 3), not (4,)"),
    "too narrow": (BinaryCrossEntropy(), NUMBERS[:, :1], ValueError, "not (4, 1)"),
    "float64": (MeanSquaredError(), NUMBERS.astype(float), TypeError, "float64 but the network computes in float32"),
    "NaN": (MeanSquaredError(), NUMBERS * np.nan, ValueError, "targets must be finite"),
    "halves": (BinaryCrossEntropy(), NUMBERS + 0.5, ValueError, "must be 0 or 1"),
    "numbers": (Hinge(), NUMBERS, ValueError, "argmax"),
}


@pytest.mark.parametrize(("loss", "targets", "error", "words"), BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_targets_of_another_form_are_refused(loss, targets, error, words):
    network = Network(model=Model((5,), (Linear(3),), loss))
    for call in (network.loss_and_grad, network.loss, network.evaluate):
        with pytest.raises(error) as caught:
            call(np.zeros((4, 5), np.float32), targets)
        assert words in str(caught.value)


def test_images_are_no_classes():
    network = Network(model=Model((1, 5, 5), (Conv(2, 3),)))
    with pytest.raises(ValueError, match=r"put Flatten\(\) or Linear"):
        network.loss_and_grad(np.zeros((4, 1, 5, 5), np.float32), np.zeros(4, int))


@pytest.mark.parametrize("most", [1, 5000, 2**26])
def test_as_many_rows_at_once_as_there_is_room_for(most, monkeypatch):
    """How many does not show in what comes out."""
    network = Network(model=NETWORKS["max pool"])
    rng, widest = np.random.default_rng(0), max(prod(shape) for *_, shape, _ in network.model.walk)
    X, y = rng.normal(size=(20, 1, 11, 10)).astype(np.float32), rng.integers(3, size=20)
    wanted = network.evaluate(X, y, 20), network.predict(X, 20)
    seen, forward = [], network.forward
    monkeypatch.setattr("mlpkit.nn.network.MOST_BYTES", most)
    network.forward = lambda x: seen.append(len(x)) or forward(x)
    assert network.evaluate(X, y) == pytest.approx(wanted[0], rel=1e-6)
    assert_array_equal(network.predict(X), wanted[1])
    assert max(seen) == min(20, max(1, most // (4 * widest)))


# Files


def test_a_network_with_statistics_comes_back_from_a_file(tmp_path):
    model = NETWORKS["residual twice nested"]
    network, rng = Network(model=model, seed=3), np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2, 5, 4)).astype(np.float32), rng.integers(3, size=6)
    network.loss_and_grad(x, y)
    network.save(tmp_path / "n.npz")
    found = Network.load(tmp_path / "n.npz")
    assert found.model == model
    assert_array_equal(found.theta, network.theta)
    assert_array_equal(found.statistics, network.statistics)
    assert_array_equal(found.forward(x), network.forward(x))
    with pytest.raises(ValueError, match="these statistics have shape"):
        found.set_statistics(np.zeros(3))
    with pytest.raises(AttributeError, match=r"network\.statistics\[:\]"):
        found.statistics = np.zeros(3)

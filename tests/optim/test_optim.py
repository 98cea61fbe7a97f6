"""Every optimizer takes the steps that its formula says, and lands where the mathematics says it must."""

import copy
import pickle
import types

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import SMALL, blobs, one_sentence

from mlpkit.engines import numpy_baseline
from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME, SGD, Adam, AdamW, Momentum, Nesterov, RMSprop
from mlpkit.optim.schedules import Constant, Cosine, Exponential, StepDecay, WarmUp
from mlpkit.training.fit import fit


def vector(theta, n_weights=None):
    """Return what an optimizer needs of a network: parameters and their gradient, float64."""
    theta = np.array(theta, np.float64)
    return types.SimpleNamespace(
        engine=numpy_baseline,
        dtype=theta.dtype,
        theta=theta,
        grad=np.zeros_like(theta),
        n_weights=len(theta) if n_weights is None else n_weights,
    )


def descend(network, optimizer, gradient, steps):
    """Return theta before, and after each of the steps down a function with the given gradient."""
    path = [network.theta.copy()]
    for _ in range(steps):
        network.grad[:] = gradient(network.theta)
        optimizer.step()
        path.append(network.theta.copy())
    return np.array(path)


# The papers' formulas: each yields theta after one step after another, given the gradients.


def sgd(theta, gradients, lr):
    for g in gradients:
        theta = theta - lr * g
        yield theta


def momentum(theta, gradients, lr, momentum):
    velocity = 0
    for g in gradients:
        velocity = momentum * velocity + g
        theta = theta - lr * velocity
        yield theta


def nesterov(theta, gradients, lr, momentum):
    velocity = 0
    for g in gradients:
        velocity = momentum * velocity + g
        theta = theta - lr * (g + momentum * velocity)
        yield theta


def rmsprop(theta, gradients, lr, rho, eps):
    s = 0
    for g in gradients:
        s = rho * s + (1 - rho) * g**2
        theta = theta - lr * g / (np.sqrt(s) + eps)
        yield theta


def adam(theta, gradients, lr, beta1, beta2, eps):
    """The running means unrolled into sums over all gradients so far."""
    for t in range(1, len(gradients) + 1):
        past = gradients[:t]
        m = sum((1 - beta1) * beta1 ** (t - 1 - i) * g for i, g in enumerate(past)) / (1 - beta1**t)
        v = sum((1 - beta2) * beta2 ** (t - 1 - i) * g**2 for i, g in enumerate(past)) / (1 - beta2**t)
        theta = theta - lr * m / (np.sqrt(v) + eps)
        yield theta


FORMULAS = [
    (SGD, sgd, dict(lr=0.1)),
    (Momentum, momentum, dict(lr=0.1, momentum=0.7)),
    (Nesterov, nesterov, dict(lr=0.1, momentum=0.7)),
    (RMSprop, rmsprop, dict(lr=0.1, rho=0.8, eps=1e-3)),
    (Adam, adam, dict(lr=0.1, beta1=0.7, beta2=0.8, eps=1e-3)),
    (AdamW, adam, dict(lr=0.1, beta1=0.7, beta2=0.8, eps=1e-3)),
]
IDS = [kind.__name__ for kind, *_ in FORMULAS]


@pytest.mark.parametrize(("kind", "formula", "settings"), FORMULAS, ids=IDS)
def test_steps_are_the_formula(kind, formula, settings):
    rng = np.random.default_rng(0)
    theta, gradients = rng.normal(size=7), rng.normal(size=(12, 7))
    network = vector(theta)
    stream = iter(gradients)
    path = descend(network, kind(network, **settings), lambda theta: next(stream), len(gradients))
    assert_allclose(path[1:], list(formula(theta, gradients, **settings)), rtol=1e-12)


@pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)
def test_a_step_uses_the_rate_of_its_schedule(kind):
    """Doubling the rate of one step doubles that step and no other, since the gradients are given."""
    paths = []
    for factor in (1, 2):
        network = vector([1.0, -2.0])
        optimizer = kind(network, lambda step, factor=factor: 0.1 * (factor if step == 3 else 1))
        assert optimizer.lr == 0.1
        paths.append(np.diff(descend(network, optimizer, lambda theta: np.array([0.3, 0.4]), 6), axis=0))
        assert optimizer.steps == 6
    one, other = paths
    assert_allclose(other / one, np.repeat([[1], [1], [1], [2], [1], [1]], 2, axis=1), rtol=1e-9)


# On f(theta) = theta^T A theta / 2 with A diagonal, the gradient is A theta and every coordinate goes its own way.
CURVATURE = np.array([0.1, 1.0, 3.0])
START = np.array([1.0, -2.0, 0.5])


def down_the_bowl(kind, steps=30, **settings):
    network = vector(START)
    return descend(network, kind(network, **settings), lambda theta: CURVATURE * theta, steps)


def test_sgd_shrinks_each_coordinate_by_its_own_factor():
    path = down_the_bowl(SGD, lr=0.4)
    wanted = START * (1 - 0.4 * CURVATURE) ** np.arange(31)[:, None]
    assert_allclose(path, wanted, rtol=1e-10)


def test_sgd_diverges_above_two_over_the_curvature():
    path = abs(down_the_bowl(SGD, lr=0.7))
    assert (np.diff(path[:, 2]) > 0).all()  # 0.7 * 3 > 2
    assert (np.diff(path[:, :2], axis=0) < 0).all()


@pytest.mark.parametrize(("kind", "looks_ahead"), [(Momentum, False), (Nesterov, True)])
def test_momentum_is_a_matrix_power(kind, looks_ahead):
    """(velocity, theta) goes to a matrix times (velocity, theta), so t steps are the matrix to the power t."""
    lr, mu, steps = 0.2, 0.9, 30
    path = down_the_bowl(kind, steps, lr=lr, momentum=mu)
    for start, a, end in zip(START, CURVATURE, path[-1], strict=True):
        to_velocity = np.array([mu, a])
        pull = mu * to_velocity + [0, a] if looks_ahead else to_velocity
        step = np.array([to_velocity, [0, 1] - lr * pull])
        assert_allclose(end, (np.linalg.matrix_power(step, steps) @ [0, start])[1], rtol=1e-9)


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adams_first_step_is_the_rate_whatever_the_gradient(kind):
    first = np.diff(down_the_bowl(kind, 1, lr=0.01), axis=0)[0]
    assert_allclose(first, -0.01 * np.sign(START), rtol=1e-6)


def test_rmsprops_first_step_is_the_rate_over_the_root_of_what_is_new():
    first = np.diff(down_the_bowl(RMSprop, 1, lr=0.01, rho=0.75), axis=0)[0]
    assert_allclose(first, -0.02 * np.sign(START), rtol=1e-6)


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adam_walks_at_its_rate_while_the_gradient_stays(kind):
    network = vector([0.0])
    path = descend(network, kind(network, lr=0.01), lambda theta: np.array([123.0]), 20)
    assert_allclose(path[:, 0], -0.01 * np.arange(21), atol=1e-10)


@pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)
def test_all_get_to_the_bottom_of_the_bowl(kind):
    path = down_the_bowl(kind, 3000, lr=Cosine(0.05, 3000))
    assert_allclose(path[-1], 0, atol=1e-3)


# Weight decay


@pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)
def test_decay_shrinks_weights_and_leaves_biases(kind):
    start = np.array([1.0, -2.0, 3.0, -4.0])
    network = vector(start, n_weights=2)
    descend(network, kind(network, lr=0.01, weight_decay=0.1), np.zeros_like, 5)
    assert (abs(network.theta[:2]) < abs(start[:2])).all()
    assert_array_equal(network.theta[2:], start[2:])


@pytest.mark.parametrize(("kind", "formula", "settings"), FORMULAS[:-1], ids=IDS[:-1])
def test_l2_decay_is_a_part_of_the_gradient(kind, formula, settings):
    """So it equals a step down the loss plus half of weight_decay * |w|^2."""
    paths = []
    for decay in (0.3, 0):
        network = vector(START, n_weights=2)
        penalty = 0 if decay else np.array([0.3, 0.3, 0])
        optimizer = kind(network, weight_decay=decay, **settings)
        paths.append(descend(network, optimizer, lambda theta, p=penalty: np.cos(theta) + p * theta, 10))
    assert_allclose(*paths, rtol=1e-12)


def test_adamw_decays_beside_the_gradient_and_at_the_rate_of_the_step():
    network = vector([1.0, 1.0], n_weights=1)
    rates = [0.1, 0.2, 0.05]
    optimizer = AdamW(network, lambda step: rates[step], weight_decay=0.5)
    path = descend(network, optimizer, np.zeros_like, 3)
    assert_allclose(path[:, 0], np.cumprod([1, 0.95, 0.9, 0.975]), rtol=1e-12)
    assert_array_equal(path[:, 1], 1)


def test_adams_l2_hardly_sees_the_size_of_a_weight_and_adamw_does():
    """With no other gradient, Adam moves weights of any size at the same rate; AdamW in proportion to their size."""
    moved = {}
    for kind in (Adam, AdamW):
        network = vector([1.0, 100.0])
        path = descend(network, kind(network, lr=0.01, weight_decay=0.1), np.zeros_like, 1)
        moved[kind] = path[0] - path[1]
    assert_allclose(moved[Adam], [0.01, 0.01], rtol=1e-5)
    assert_allclose(moved[AdamW], [0.001, 0.1], rtol=1e-9)


# Hyperparameters that are none

BAD = [
    (SGD, "lr", dict(lr=0)),
    (SGD, "lr", dict(lr=-0.1)),
    (SGD, "lr", dict(lr=float("nan"))),
    (SGD, "lr", dict(lr=float("inf"))),
    (SGD, "lr", dict(lr="0.1")),
    (SGD, "lr", dict(lr=None)),
    (SGD, "weight_decay", dict(lr=0.1, weight_decay=-1e-4)),
    (SGD, "weight_decay", dict(lr=0.1, weight_decay=float("nan"))),
    (SGD, "weight_decay", dict(lr=0.1, weight_decay="")),
    (SGD, "weight_decay", dict(lr=0.1, weight_decay=None)),
    (SGD, "lr", dict(lr=10**400)),
    (Momentum, "momentum", dict(lr=0.1, momentum=10**400)),
    (Momentum, "momentum", dict(lr=0.1, momentum=1.0)),
    (Momentum, "momentum", dict(lr=0.1, momentum=-0.1)),
    (Nesterov, "momentum", dict(lr=0.1, momentum=float("nan"))),
    (RMSprop, "rho", dict(rho=1)),
    (RMSprop, "eps", dict(eps=0)),
    (Adam, "beta1", dict(beta1=1.0)),
    (Adam, "beta2", dict(beta2=-0.5)),
    (Adam, "eps", dict(eps=-1e-8)),
    (AdamW, "weight_decay", dict(weight_decay=float("inf"))),
]


@pytest.mark.parametrize(("kind", "name", "settings"), BAD, ids=[f"{k.__name__}-{s}"[:50] for k, _, s in BAD])
def test_a_bad_hyperparameter_is_refused_by_name(kind, name, settings):
    with pytest.raises(ValueError, match=f"^{name} must be") as caught:
        kind(vector([1.0]), **settings)
    one_sentence(caught.value, settings[name])


def test_an_optimizer_describes_all_that_its_path_depends_on():
    network = vector([1.0])
    assert Momentum(network, 0.1).describe() == Momentum(network, 0.1, momentum=0.9).describe()
    texts = {
        Momentum(network, 0.1).describe(),
        Nesterov(network, 0.1).describe(),
        Momentum(network, 0.2).describe(),
        Momentum(network, 0.1, momentum=0.8).describe(),
        Momentum(network, 0.1, weight_decay=1e-4).describe(),
        Momentum(network, Cosine(0.1, 10)).describe(),
        Momentum(network, Cosine(0.1, 20)).describe(),
        Adam(network, 0.1).describe(),
        AdamW(network, 0.1).describe(),
        Adam(network, 0.1, beta1=0.8).describe(),
        Adam(network, 0.1, beta2=0.8).describe(),
        Adam(network, 0.1, eps=1e-7).describe(),
        RMSprop(network, 0.1).describe(),
        RMSprop(network, 0.1, rho=0.8).describe(),
    }
    assert len(texts) == 14


@pytest.mark.peers
@pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)
def test_pytorch_takes_the_same_steps(kind):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    settings = {
        SGD: (torch.optim.SGD, dict(lr=0.1), dict()),
        Momentum: (torch.optim.SGD, dict(lr=0.1, momentum=0.9), dict(momentum=0.9)),
        Nesterov: (torch.optim.SGD, dict(lr=0.1, momentum=0.9), dict(momentum=0.9, nesterov=True)),
        RMSprop: (torch.optim.RMSprop, dict(lr=0.01, rho=0.9), dict(alpha=0.9)),
        Adam: (torch.optim.Adam, dict(lr=0.01), dict()),
        AdamW: (torch.optim.AdamW, dict(lr=0.01), dict()),
    }
    theirs, ours, changed = settings[kind]
    network = Network(model=SMALL, dtype=np.float64)
    layers = [torch.tensor(v.copy(), requires_grad=True) for v in network.views(network.theta).values()]
    groups = [dict(params=layers[0::2], weight_decay=0.05), dict(params=layers[1::2], weight_decay=0)]
    their_optimizer = theirs(groups, lr=ours["lr"], **changed)
    optimizer = kind(network, **ours, weight_decay=0.05)
    for step in range(20):
        X, y = blobs(8, seed=step, dtype=np.float64)
        network.loss_and_grad(X, y)
        optimizer.step()
        their_optimizer.zero_grad()
        hidden = torch.relu(torch.tensor(X) @ layers[0] + layers[1])
        torch.nn.functional.cross_entropy(hidden @ layers[2] + layers[3], torch.tensor(y)).backward()
        their_optimizer.step()
    for one, other in zip(network.views(network.theta).values(), layers, strict=True):
        assert_allclose(one, other.detach().numpy(), rtol=1e-9, atol=1e-12)


# Schedules


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(0.5), {0: 0.5, 1: 0.5, 10**6: 0.5}),
        (StepDecay(0.8, every=10), {0: 0.8, 9: 0.8, 10: 0.08, 19: 0.08, 20: 0.008}),
        (StepDecay(0.8, every=1, factor=0.5), {0: 0.8, 1: 0.4, 2: 0.2}),
        (Exponential(0.6, 100), {0: 0.6, 50: 0.06, 100: 0.006}),
        (Exponential(0.6, 100, final_fraction=0.25), {0: 0.6, 50: 0.3, 100: 0.15}),
        (Cosine(0.4, 100), {0: 0.4, 25: 0.2 + 0.2 * 0.5**0.5, 50: 0.2, 100: 0.0, 200: 0.0}),
        (Cosine(0.4, 100, final_lr=0.1), {0: 0.4, 50: 0.25, 100: 0.1, 1000: 0.1}),
        (WarmUp(Constant(0.4), 4), {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.4, 99: 0.4}),
        (WarmUp(Cosine(0.4, 100), 4), {0: 0.1, 3: 0.4, 4: 0.4, 54: 0.2, 104: 0.0}),
    ],
    ids=str,
)
def test_a_schedule_has_its_values(schedule, values):
    assert_allclose([schedule(step) for step in values], list(values.values()), atol=1e-15)


@pytest.mark.parametrize(
    "schedule",
    [Constant(0.5), StepDecay(0.5, 7), Exponential(0.5, 50), Cosine(0.5, 50), Cosine(0.5, 50, final_lr=0.01)],
    ids=str,
)
def test_a_schedule_never_rises(schedule):
    rates = np.array([schedule(step) for step in range(80)])
    assert (np.diff(rates) <= 0).all()
    assert (rates >= 0).all()


@pytest.mark.parametrize("then", [Constant(0.5), Cosine(0.5, 50), StepDecay(0.5, 20)], ids=str)
def test_warm_up_rises_in_a_straight_line_and_meets_what_follows(then):
    schedule = WarmUp(then, 10)
    rates = np.array([schedule(step) for step in range(40)])
    assert rates[0] > 0
    assert_allclose(np.diff(rates[:10]), 0.05, rtol=1e-12)
    assert rates[9] == rates[10] == then(0)
    assert_array_equal(rates[10:], [then(step) for step in range(30)])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Constant(-1), "lr"),
        (lambda: StepDecay(0.1, 0), "every"),
        (lambda: StepDecay(0.1, 5, factor=0), "factor"),
        (lambda: StepDecay(float("nan"), 5), "lr"),
        (lambda: Exponential(0, 5), "lr"),
        (lambda: Exponential(0.1, 0), "steps"),
        (lambda: Exponential(0.1, 5, final_fraction=0), "final_fraction"),
        (lambda: Cosine(0.1, -1), "steps"),
        (lambda: Cosine(-0.1, 10), "lr"),
        (lambda: Cosine(0.1, 10, final_lr=-0.1), "final_lr"),
        (lambda: Cosine(0.1, 10, final_lr=None), "final_lr"),
        (lambda: WarmUp(Constant(0.1), 0), "steps"),
    ],
)
def test_a_bad_schedule_is_refused_by_name(make, name):
    with pytest.raises(ValueError, match=f"^{name} must be") as caught:
        make()
    one_sentence(caught.value)


def test_a_rate_is_no_schedule_to_warm_up_to():
    with pytest.raises(TypeError, match=r"then must be a schedule, such as Constant\(0\.1\), not 0\.1") as caught:
        WarmUp(0.1, 5)
    one_sentence(caught.value)


@pytest.mark.parametrize("rate", [-0.1, np.nan, np.inf, "fast", None, np.array([0.1, 0.2])], ids=str)
@pytest.mark.parametrize("take", [lambda optimizer: optimizer.step(), lambda optimizer: optimizer.advance(2)])
def test_what_a_schedule_gives_must_be_a_rate(take, rate):
    """A negative rate would climb, and a NaN is no rate to be made smaller."""
    network = Network(model=SMALL)
    optimizer, before = SGD(network, lambda step: rate if step == 1 else 0.1), network.theta.copy()
    network.grad[:] = 1
    with pytest.raises(ValueError, match="as at step 1") as caught:
        [take(optimizer) for _ in range(2)]
    one_sentence(caught.value, "the schedule's rate")
    assert np.isfinite(network.theta).all()
    assert (network.theta <= before).all()


def test_powers_of_a_whole_factor_do_not_wrap_around():
    assert StepDecay(1, 1, factor=10)(100) == pytest.approx(1e100)
    assert_allclose(StepDecay(1, 1, factor=2)(np.array([0, 3, 70])), [1, 8, 2.0**70])


def test_an_optimizer_trains_a_network():
    with pytest.raises(TypeError) as caught:
        SGD(SMALL, 0.1)
    one_sentence(caught.value, "an optimizer trains a Network")


def test_the_rate_is_the_schedules():
    optimizer = SGD(Network(model=SMALL), 0.1)
    with pytest.raises(AttributeError, match="the rate is the schedule's") as caught:
        optimizer.lr = 0.2
    one_sentence(caught.value)
    assert optimizer.lr == 0.1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_copy_goes_on_as_the_first_would_have_and_disturbs_nobody(name, copied):
    """With its network, which is given along: else the two would be copied apart."""
    network = Network(model=SMALL)
    optimizer = BY_NAME[name](network, Exponential(0.1, 5), weight_decay=0.01)
    descend(network, optimizer, np.cos, 3)
    other, other_optimizer = copied((network, optimizer))
    assert other_optimizer.network is other
    wanted = descend(network, optimizer, np.cos, 4)
    assert_array_equal(descend(other, other_optimizer, np.cos, 4), wanted)
    assert other_optimizer.describe() == optimizer.describe()


# Between the gradient and the update


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("weight_decay", [0, 0.01])
def test_two_halves_that_are_averaged_are_one_whole_batch(name, weight_decay):
    """As on two GPUs: each has half of the batch, and all add up the gradients before the update."""
    network, alone = Network(model=SMALL), Network(model=SMALL)
    halves = blobs(32, 0), blobs(32, 1)

    def average(grad):
        of_this = grad.copy()
        network.forward_backward(*halves[1])
        grad[:] = (of_this + network.grad) / 2

    one = BY_NAME[name](network, 0.01, weight_decay=weight_decay, reduce=average)
    other = BY_NAME[name](alone, 0.01, weight_decay=weight_decay)
    whole = [np.concatenate(parts) for parts in zip(*halves, strict=True)]
    for _ in range(5):
        network.forward_backward(*halves[0])
        one.step()
        alone.forward_backward(*whole)
        other.step()
    assert_allclose(network.theta, alone.theta, rtol=1e-4, atol=2e-6)
    assert not np.array_equal(alone.theta, Network(model=SMALL).theta)


@pytest.mark.parametrize("engine", ["numpy_baseline", "numba_step", "numba_hybrid", "numba_conv"])
def test_it_is_called_once_a_step_with_the_whole_gradient_before_the_update(engine):
    network, seen = Network(engine, SMALL), []

    def look(grad):
        seen.append((grad is network.grad, grad.copy(), network.theta.copy()))

    optimizer, plain = SGD(network, 0.1, reduce=look), Network(engine, SMALL)
    fit(network, optimizer, blobs(20), epochs=2, batch_size=8)
    assert len(seen) == optimizer.steps == 6
    assert all(same for same, _, _ in seen)
    for (_, grad, before), after in zip(seen, [*(theta for *_, theta in seen[1:]), network.theta], strict=True):
        assert grad.all() or np.count_nonzero(grad) > 30
        assert_allclose(after, before - np.float32(0.1) * grad, rtol=1e-6, atol=1e-7)
    fit(plain, SGD(plain, 0.1), blobs(20), epochs=2, batch_size=8)
    assert_array_equal(network.theta, plain.theta)


def halve(grad):
    grad *= 0.5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_has_it_too(copied):
    network = Network(model=SMALL)
    optimizer = Momentum(network, 0.1, reduce=halve)
    other, other_optimizer = copied((network, optimizer))
    assert other_optimizer.reduce is halve
    assert_array_equal(descend(other, other_optimizer, np.cos, 3), descend(network, optimizer, np.cos, 3))
    assert not np.array_equal(network.theta, descend(Network(model=SMALL), Momentum(other, 0.1), np.cos, 3)[-1])


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("reduce", ["sum", 3, [halve]])
def test_what_is_no_function_of_the_gradient_is_refused(reduce, name):
    with pytest.raises(TypeError) as caught:
        BY_NAME[name](Network(model=SMALL), 0.1, reduce=reduce)
    one_sentence(caught.value, f"reduce must be a function of the gradient, not {reduce!r}")

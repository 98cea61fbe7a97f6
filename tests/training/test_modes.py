"""Layers that keep statistics or draw by chance train on the same path, however a run is stopped and resumed."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import SMALL, dataset, one_sentence

from mlpkit import data
from mlpkit.executors.plain import StepByStep
from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Dropout, Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual
from mlpkit.npz import load_npz, save_npz
from mlpkit.optim import BY_NAME
from mlpkit.optim.schedules import Cosine
from mlpkit.training.checkpoint import NAMES
from mlpkit.training.fit import Diverged, fit
from mlpkit.training.recipe import Recipe

MODEL = Model(
    (1, 5, 4),
    (
        *(Conv(3, 2, bias=False), BatchNorm(), ReLU()),
        *(Residual((Conv(3, 1), BatchNorm(momentum=0.3), Dropout(0.2))), Flatten()),
        *(Linear(6), ReLU(), Dropout(0.3), Linear(3)),
    ),
)
RNG = np.random.default_rng(0)
TRAIN, VALIDATION = ((RNG.normal(size=(n, 1, 5, 4)).astype(np.float32), RNG.integers(3, size=n)) for n in (30, 11))
STEPS = 4  # an epoch of 30 examples, 8 a batch


def new(optimizer="adam", lr=None, **settings):
    network = Network(model=MODEL, seed=2)
    return network, BY_NAME[optimizer](network, lr or Cosine(0.02, 40), **settings)


def run(network, optimizer, **options):
    return fit(network, optimizer, TRAIN, VALIDATION, **dict(batch_size=8, epochs=4, seed=2) | options)


def vectors(network, optimizer):
    return [network.theta.copy(), network.statistics.copy(), *(v.copy() for v in optimizer.state.values())]


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(optimizer, tmp_path):
    whole = new(optimizer)
    history = run(*whole)
    run(*new(optimizer), epochs=2, checkpoints=tmp_path)
    network, takes = new(optimizer)
    network.theta[:], network.statistics[:] = 0, 7  # whatever it starts from
    resumed = run(network, takes, checkpoints=tmp_path, resume=True)
    for one, other in zip(vectors(network, takes), vectors(*whole), strict=True):
        assert_array_equal(one, other)
    assert resumed.loss == history.loss
    assert [vars(e) | {"seconds": 0} for e in resumed.epochs] == [vars(e) | {"seconds": 0} for e in history.epochs]


def test_another_seed_of_the_network_is_another_path():
    """The masks go by the network's seed and the step, so a run on another seed drops others."""
    losses = []
    for seed in (2, 2, 3):
        network = Network(model=MODEL, seed=2)
        network.mode.seed = seed
        losses.append(run(network, BY_NAME["sgd"](network, 0.01)).loss)
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[2][0]


def test_the_best_epochs_statistics_are_kept_with_its_parameters(tmp_path):
    """After early stopping, in best.npz, and where the stopped run is resumed."""
    network, optimizer = new()
    script, kept = iter([3, 1, 2, 2]), []
    network.ask_evaluation = lambda *arguments: lambda: {"loss": next(script), "accuracy": 0.5}

    def on_epoch(history):
        kept.append((network.theta.copy(), network.statistics.copy()))

    history = run(network, optimizer, epochs=9, patience=2, checkpoints=tmp_path, on_epoch=on_epoch)
    assert (history.stopped, history.best_epoch) == ("early", 1)
    assert not np.array_equal(kept[1][1], kept[3][1])
    resumed = new()
    run(*resumed, epochs=9, patience=2, checkpoints=tmp_path, resume=True)
    for found in (network, Network.load(tmp_path / "best.npz"), resumed[0]):
        assert_array_equal(found.theta, kept[1][0])
        assert_array_equal(found.statistics, kept[1][1])


@dataclass(frozen=True)
class Explosive:
    """One rate of which is far too high."""

    at: int | None

    def __call__(self, step):
        return 1e30 if step == self.at else 0.01


@pytest.mark.parametrize("explosion", [STEPS + 1, 2 * STEPS - 1])
def test_divergence_is_undone_in_the_statistics_too(explosion, tmp_path):
    wanted = new("sgd", Explosive(None))
    run(*wanted, epochs=1)
    network, optimizer = new("sgd", Explosive(explosion))
    with pytest.raises(Diverged):
        run(network, optimizer, checkpoints=tmp_path)
    for one, other in zip(vectors(network, optimizer), vectors(*wanted), strict=True):
        assert_array_equal(one, other)
    assert_array_equal(Network.load(tmp_path / "best.npz").statistics, wanted[0].statistics)


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_statistics_are_neither_optimized_nor_decayed(optimizer):
    """After a step they are what the batch says, whatever the optimizer, its rate and its decay; norms do not decay."""
    found = []
    for settings in (dict(lr=0.01), dict(lr=0.5, weight_decay=0.4)):
        network, takes = new(optimizer, **settings)
        assert {len(vector) for vector in takes.state.values()} <= {network.layout.size}
        x, y = TRAIN[0][:8], TRAIN[1][:8]
        StepByStep(network, takes, x, y, 8).step(x, y)
        found.append(network.statistics.copy())
    assert_array_equal(*found)
    network, takes = new(optimizer, lr=0.01, weight_decay=0.4)
    network.grad[:] = 0
    n, before = network.n_weights, network.theta.copy()
    takes.step()
    assert_array_equal(network.theta[n:], before[n:])
    assert (network.theta[:n] != before[:n]).all()
    assert {name for name, shape in MODEL.layout.shapes.items() if len(shape) == 1} > {"1.gamma", "1.beta"}


def test_validation_between_the_epochs_changes_nothing():
    one, other = new(), new()
    assert run(*one).loss == fit(*other, TRAIN, batch_size=8, epochs=4, seed=2).loss
    assert_array_equal(one[0].statistics, other[0].statistics)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(statistics=np.zeros(3)), "these statistics have shape (3,)"),
        (dict(statistics=np.full(12, np.nan, np.float32)), "statistics must be finite"),
        (dict(best_statistics=np.zeros(12)), "its best_statistics is float64"),
    ],
    ids=["another size", "NaN", "another type"],
)
def test_statistics_that_are_none_are_not_resumed(change, words, tmp_path):
    run(*new("sgd"), epochs=1, checkpoints=tmp_path)
    found = load_npz(tmp_path / "last.npz", NAMES)
    save_npz(tmp_path / "last.npz", **found | change)
    network, optimizer = new("sgd")
    before = vectors(network, optimizer)
    with pytest.raises(ValueError, match="can't be resumed") as caught:
        run(network, optimizer, checkpoints=tmp_path, resume=True)
    one_sentence(caught.value, words)
    for one, other in zip(vectors(network, optimizer), before, strict=True):
        assert_array_equal(one, other)


def test_a_checkpoint_of_another_precision_is_refused(tmp_path):
    pixels, labels = np.zeros((9, 6), np.uint8), np.zeros(9, int)
    for dtype, resume in ((np.float32, False), (np.float64, True)):
        network = Network(model=SMALL, dtype=dtype)
        options = dict(epochs=1 + resume, checkpoints=tmp_path, resume=resume)
        if not resume:
            fit(network, BY_NAME["sgd"](network, 0.1), (pixels, labels), **options)
            continue
        with pytest.raises(ValueError, match="dtype float32, this run has float64") as caught:
            fit(network, BY_NAME["sgd"](network, 0.1), (pixels, labels), **options)
        one_sentence(caught.value, tmp_path / "last.npz")


# LeNet-5 on MNIST


@pytest.fixture(scope="module")
def digits():
    found = data.load()
    train, validation = (data.Split(X[:n], y[:n]) for (X, y), n in ((found.train, 320), (found.validation, 200)))
    return found._replace(train=train, validation=validation)


def test_lenet5_learns_its_first_digits(digits):
    recipe = Recipe(model=LENET5, optimizer="adamw", lr=2e-3, batch_size=32, epochs=3)
    network, history = recipe.train(digits)
    assert len(history.loss) == 30
    assert history.loss[0] == pytest.approx(np.log(10), abs=0.7)
    first, *_, last = (epoch.validation["loss"] for epoch in history.epochs)
    assert np.mean(history.loss[-5:]) < 0.6 * np.mean(history.loss[:5])
    assert last < first
    assert history.validation["accuracy"][-1] > 0.6
    found = network.evaluate(*digits.validation)
    assert found == pytest.approx({"loss": last, "accuracy": history.validation["accuracy"][-1]}, rel=1e-5)


@pytest.mark.parametrize("engine", ["numba_step", "python_lists"])
def test_an_engine_that_can_not_train_it_refuses_in_a_sentence(engine, digits):
    with pytest.raises(ValueError, match=engine) as caught:
        Recipe(model=LENET5).train(digits, engine=engine)
    one_sentence(caught.value, "take another engine")


def test_an_engine_refuses_before_its_first_step_what_it_has_the_operations_for(digits):
    """`numba_hybrid` has all of NumPy's operations, and a trainer for multilayer perceptrons."""
    with pytest.raises(ValueError, match="numba_hybrid trains multilayer perceptrons only") as caught:
        Recipe(model=LENET5).train(digits, engine="numba_hybrid")
    one_sentence(caught.value, "take another engine")


def test_a_recipe_of_another_model_comes_back_from_json():
    recipe = Recipe(model=MODEL, optimizer="adamw")
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert not np.isnan(recipe.but(model=SMALL, batch_size=8, epochs=1).train(dataset())[1].loss).any()

"""Training learns, records itself, and loses nothing: not to Ctrl-C, not to a kill, not to a rate that is too high."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import time
import types
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import ENGINES, SMALL, blobs, dataset, engine_like, one_sentence

from mlpkit import engines, executors
from mlpkit.data import epoch_order
from mlpkit.engines import numpy_baseline
from mlpkit.executors.plain import StepByStep
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.models import Model, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.npz import load_npz, save_npz
from mlpkit.optim import BY_NAME
from mlpkit.optim.schedules import Cosine, WarmUp
from mlpkit.training import run as running
from mlpkit.training.checkpoint import NAMES, load_checkpoint
from mlpkit.training.fit import Diverged, fit
from mlpkit.training.history import History
from mlpkit.training.recipe import Recipe

TRAIN, VALIDATION = blobs(50), blobs(20, seed=1)
STEPS = 7  # an epoch of 50 examples, 8 a batch


def new(optimizer="momentum", lr=0.05, engine="numpy_baseline", **settings):
    """Return a network at its start, and an optimizer for it."""
    network = Network(engine, SMALL)
    return network, BY_NAME[optimizer](network, lr, **settings)


def run(network, optimizer, validation=VALIDATION, **options):
    return fit(network, optimizer, TRAIN, validation, **dict(batch_size=8, epochs=3) | options)


def state(network, optimizer):
    to_numpy = network.engine.to_numpy
    return [to_numpy(network.theta).copy(), *(to_numpy(v).copy() for v in optimizer.state.values()), optimizer.steps]


def assert_same_run(one, other):
    """Assert that two (network, optimizer, history) are equal bit for bit, but for the times."""
    for a, b in zip(state(*one[:2]), state(*other[:2]), strict=True):
        assert_array_equal(a, b)
    a, b = one[2], other[2]
    assert (a.loss, a.samples, a.stopped) == (b.loss, b.samples, b.stopped)
    assert [vars(e) | {"seconds": 0} for e in a.epochs] == [vars(e) | {"seconds": 0} for e in b.epochs]
    assert len(a.seconds) == len(b.seconds)


def interrupted(function, when):
    """Return the function, except that its call number `when` is Ctrl-C."""
    calls = itertools.count(1)

    def wrapper(*arguments):
        if next(calls) == when:
            raise KeyboardInterrupt
        return function(*arguments)

    return wrapper


# Learning, and the record of it


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_fifty_examples_are_learned_by_heart(optimizer):
    network = Network(model=mlp(6, 128, 3))
    labels = np.random.default_rng(0).permutation(TRAIN.y)  # there is nothing in them but to learn them by heart
    rate = {"sgd": 0.3, "momentum": 0.05, "nesterov": 0.05}.get(optimizer, 0.01)
    fit(network, BY_NAME[optimizer](network, Cosine(rate, 2000)), (TRAIN.X, labels), epochs=200, batch_size=5)
    found = network.evaluate(TRAIN.X, labels)
    assert found["accuracy"] == 1
    assert found["loss"] < 0.05


@pytest.mark.parametrize("look_every", [0, 1000], ids=["each step looked at", "each epoch looked at"])
def test_the_history_has_every_step_and_every_epoch(look_every, monkeypatch):
    monkeypatch.setattr(running, "LOOK_EVERY", look_every)
    network, optimizer = new(lr=WarmUp(Cosine(0.05, 30), 3))
    seen = []
    history = run(network, optimizer, on_epoch=lambda h: seen.append((h, len(h.epochs), network.evaluate(*VALIDATION))))
    assert len(history.loss) == len(history.seconds) == len(history.samples) == 3 * STEPS
    assert history.samples == ([8] * 6 + [2]) * 3
    assert all(seconds > 0 for seconds in history.seconds)
    assert history.stopped == "finished"
    assert [h is history for h, *_ in seen] == [True] * 3
    assert [n for _, n, _ in seen] == [1, 2, 3]
    for i, epoch in enumerate(history.epochs):
        steps = slice(i * STEPS, (i + 1) * STEPS)
        assert epoch.train_loss == pytest.approx(np.dot(history.loss[steps], history.samples[steps]) / 50)
        assert epoch.seconds == pytest.approx(sum(history.seconds[steps]))
        assert epoch.lr == WarmUp(Cosine(0.05, 30), 3)((i + 1) * STEPS - 1)
        assert epoch.validation == seen[i][2]
    for name in ("loss", "accuracy"):
        assert history.validation[name] == [found[name] for *_, found in seen]


def test_the_recorded_loss_is_that_of_the_batch_before_its_step():
    network, optimizer = new()
    first = epoch_order(50, 0, 0)[:8]
    wanted = network.evaluate(TRAIN.X[first], TRAIN.y[first])["loss"]
    assert run(network, optimizer, epochs=1).loss[0] == pytest.approx(wanted, rel=1e-6)


def test_every_epoch_visits_all_examples_in_its_own_order():
    visited = []
    engine = engine_like(gather=lambda X, index: visited.extend(index) or X[index])
    run(*new(engine=engine), epochs=2, seed=5)
    batches = np.split(visited, np.cumsum([8, 8] * 6 + [2, 2] + [8, 8] * 6 + [2]))
    assert_array_equal(np.concatenate(batches[0::2]), [*epoch_order(50, 5, 0), *epoch_order(50, 5, 1)])
    assert_array_equal(np.concatenate(batches[0::2]), np.concatenate(batches[1::2]))  # pixels and labels alike


def test_without_a_validation_set_there_are_no_validation_numbers():
    history = run(*new(), validation=None)
    assert history.validation == {}
    assert [epoch.validation for epoch in history.epochs] == [{}] * 3
    assert history.best_epoch == 2


def test_no_epochs_is_no_training():
    network, optimizer = new()
    history = run(network, optimizer, epochs=0)
    assert history == History()
    assert_array_equal(network.theta, Network(model=SMALL).theta)


def test_fit_prints_nothing_and_leaves_the_data_alone(capsys):
    X, y = TRAIN.X.copy(), TRAIN.y.copy()
    run(*new())
    assert_array_equal(TRAIN.X, X)
    assert_array_equal(TRAIN.y, y)
    assert capsys.readouterr() == ("", "")


def test_a_history_comes_back_from_json():
    history = run(*new())
    assert History.from_json(history.to_json()) == history


# The same again


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_the_same_seed_is_the_same_run(optimizer):
    runs = []
    for _ in range(2):
        network, optimizer_ = new(optimizer, 0.01)
        runs.append((network, optimizer_, run(network, optimizer_, seed=3)))
    assert_same_run(*runs)


def test_another_seed_is_another_order():
    assert run(*new(), seed=0).loss != run(*new(), seed=1).loss


def uninterrupted(optimizer):
    network, optimizer = new(optimizer, **CHOICES)
    return network, optimizer, run(network, optimizer, epochs=4)


CHOICES = dict(lr=WarmUp(Cosine(0.01, 40), 5), weight_decay=0.01)


def resumed(optimizer, folder):
    network, optimizer = new(optimizer, **CHOICES)
    network.theta[:] = 0  # whatever it starts from
    return network, optimizer, run(network, optimizer, epochs=4, checkpoints=folder, resume=True)


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_a_resumed_run_is_the_uninterrupted_one(optimizer, tmp_path):
    run(*new(optimizer, **CHOICES), epochs=2, checkpoints=tmp_path)
    assert_same_run(resumed(optimizer, tmp_path), uninterrupted(optimizer))


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_so_it_is_after_ctrl_c_amid_an_epoch(optimizer, tmp_path):
    engine = engine_like(relu_backward=interrupted(numpy_baseline.relu_backward, 2 * STEPS + 3))
    history = run(*new(optimizer, engine=engine, **CHOICES), epochs=4, checkpoints=tmp_path)
    assert (history.stopped, len(history.epochs)) == ("interrupted", 2)
    assert_same_run(resumed(optimizer, tmp_path), uninterrupted(optimizer))


@pytest.mark.parametrize("when", [3, 4, 5, 6])
def test_so_it_is_after_ctrl_c_amid_a_checkpoint(when, tmp_path, monkeypatch):
    """Each epoch writes last.npz, and then best.npz, as it is the best so far."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted(os.fsync, when))
        run(*new(**CHOICES), epochs=4, checkpoints=tmp_path)
    assert_same_run(resumed("momentum", tmp_path), uninterrupted("momentum"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "best.npz", "last.npz"]


KILLED = """
import os, signal, sys
from mlpkit.executors.plain import StepByStep
from shared import engine_like
from test_train import CHOICES, new, run
class Trainer(StepByStep):
    def step(self, x, labels):
        if self.optimizer.steps == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(x, labels)
run(*new(sys.argv[1], engine=engine_like(Trainer=Trainer), **CHOICES), epochs=4, checkpoints=sys.argv[2])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_so_it_is_after_a_kill(optimizer, tmp_path):
    path = os.pathsep.join(map(str, [Path(__file__).parent, *Path(__file__).parents[1:3]]))
    command = [sys.executable, "-c", KILLED, optimizer, tmp_path]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert_same_run(resumed(optimizer, tmp_path), uninterrupted(optimizer))


def test_a_run_can_go_on_on_another_engine(tmp_path):
    run(*new("adam", **CHOICES), epochs=2, checkpoints=tmp_path)
    network, optimizer = new("adam", engine="python_loops", **CHOICES)
    history = run(network, optimizer, epochs=4, checkpoints=tmp_path, resume=True)
    assert_allclose(history.loss, uninterrupted("adam")[2].loss, rtol=1e-4)


def test_a_finished_run_can_be_resumed_to_more_epochs_or_none(tmp_path):
    history = run(*new(), epochs=3, checkpoints=tmp_path)
    network, optimizer = new()
    again = run(network, optimizer, epochs=3, checkpoints=tmp_path, resume=True)
    assert again == history
    assert len(run(network, optimizer, epochs=5, checkpoints=tmp_path, resume=True).epochs) == 5


def test_numbers_may_be_numpys_own(tmp_path):
    """As those are that a loop over np.array([8, 16]) gives."""
    run(*new(), epochs=np.int64(1), batch_size=np.int64(8), seed=np.int64(0), checkpoints=tmp_path)
    assert len(run(*new(), epochs=2, checkpoints=tmp_path, resume=True).epochs) == 2


# Ctrl-C


@pytest.mark.parametrize("step", [1, 2, 10])
def test_ctrl_c_returns_the_history_so_far(step, monkeypatch):
    monkeypatch.setattr(running, "LOOK_EVERY", 0)
    engine = engine_like(sgd_update=interrupted(numpy_baseline.sgd_update, step))
    history = run(*new("sgd", engine=engine))
    assert history.stopped == "interrupted"
    assert history.loss == run(*new("sgd")).loss[: step - 1]
    assert len(history.seconds) == len(history.samples) == step - 1
    assert len(history.epochs) == (step - 1) // STEPS


def test_ctrl_c_in_a_plot_after_an_epoch_keeps_the_epoch(tmp_path):
    def draws(history):
        raise KeyboardInterrupt

    history = run(*new(), on_epoch=draws, checkpoints=tmp_path)
    assert (history.stopped, len(history.epochs)) == ("interrupted", 1)
    assert (tmp_path / "last.npz").exists()


# Divergence


@dataclass(frozen=True)
class Explosive:
    """Rates that tell their step apart, one of which is far too high."""

    at: int | None
    rate: float = 1e30

    def __call__(self, step):
        return self.rate if step == self.at else 0.01 + step / 1000


def diverge(explosion, validation=VALIDATION, rate=1e30, **options):
    """Return network, optimizer and the error of a run whose step number `explosion` ruins the parameters."""
    network, optimizer = new("sgd", Explosive(explosion, rate))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an overflow is reported once, by the error
        with pytest.raises(Diverged) as caught:
            run(network, optimizer, validation, **options)
    return network, optimizer, caught.value


def theta_after(epochs):
    network, optimizer = new("sgd", Explosive(None))
    run(network, optimizer, epochs=epochs)
    return network.theta


@pytest.mark.parametrize("look_every", [0, 1000], ids=["each step looked at", "each epoch looked at"])
@pytest.mark.parametrize(
    ("explosion", "epoch", "step", "rate"), [(0, 1, 2, "0.011"), (3, 1, 5, "0.014"), (9, 2, 4, "0.02")]
)
def test_divergence_is_named_and_undone(explosion, epoch, step, rate, look_every, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "LOOK_EVERY", look_every)
    network, _, error = diverge(explosion, checkpoints=tmp_path)
    one_sentence(error, "the loss became", f"epoch {epoch}, step {step},", f"rate of {rate}:")
    assert_array_equal(network.theta, theta_after(epoch - 1))
    history = error.history
    assert (len(history.epochs), history.stopped) == (epoch - 1, "diverged")
    assert np.isfinite(history.loss[: explosion + 1]).all()
    assert not np.isfinite(history.loss[explosion + 1])
    assert len(history.loss) == len(history.seconds) == len(history.samples)
    assert (tmp_path / "last.npz").exists() == (epoch > 1)


@pytest.mark.parametrize("validation", [None, VALIDATION], ids=["not validated", "validated"])
def test_parameters_ruined_by_an_epochs_last_step_are_not_kept(validation, tmp_path):
    """Every recorded loss is finite then, for each is from before its step; the next epoch would begin in ruins."""
    network, optimizer, error = diverge(2 * STEPS - 1, validation, rate=1e39, checkpoints=tmp_path)
    one_sentence(error, "epoch 2, step 7,", "rate of 1e+39:")
    assert np.isfinite(error.history.loss).all()
    assert len(error.history.epochs) == 1
    assert_array_equal(network.theta, theta_after(1))
    assert_array_equal(Network.load(tmp_path / "best.npz").theta, theta_after(1))
    load_checkpoint(tmp_path / "last.npz", network, optimizer, {})
    assert_array_equal(network.theta, theta_after(1))


def test_a_validation_that_overflows_is_divergence_too():
    """With so few examples that the epoch is over before a loss is not finite."""
    network, optimizer = new("sgd", 1e30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Diverged, match="validation loss became"):
            run(network, optimizer, batch_size=50)


def test_a_validation_loss_that_is_not_finite_is_divergence():
    network, optimizer = new("sgd", 0.05)
    network.ask_evaluation = lambda *arguments: lambda: {"loss": float("nan"), "accuracy": 0.1}
    with pytest.raises(Diverged, match="validation loss became nan in epoch 1") as caught:
        run(network, optimizer)
    assert caught.value.history.epochs == []


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw"])
@pytest.mark.parametrize("begins", [0, 1])
def test_a_state_that_overflows_is_divergence_and_is_not_written(begins, optimizer, tmp_path):
    """The square of a large gradient: no step moves the parameters any more, and they and the losses stay finite."""
    for options, epoch in (({}, 3), ({"checkpoints": tmp_path}, begins + 1)):  # without them it is told at the end
        network, taken = new(optimizer, 1e-3)
        large = lambda X, y, seed, epoch: (X * np.float32(1e20 if epoch >= begins else 1), y)  # noqa: E731
        with pytest.raises(Diverged) as caught:
            run(network, taken, augment=large, **options)
        one_sentence(caught.value, "the optimizer's state is no longer finite", f"epoch {epoch}, step 7,", "inputs")
        assert len(caught.value.history.epochs) == epoch - 1
        assert np.isfinite(caught.value.history.loss).all()
    assert (tmp_path / "last.npz").exists() == bool(begins)
    if begins:
        assert len(load_checkpoint(tmp_path / "last.npz", *new(optimizer, 1e-3), {})[0].epochs) == 1


@pytest.mark.parametrize("rate", [lambda step: 0.0, lambda step: 0 * step, lambda step: float(step >= 3 * STEPS)])
def test_a_rate_of_zero_for_the_whole_training_is_refused(rate, tmp_path):
    network, optimizer = new("adam", rate)
    with pytest.raises(ValueError, match="from step 0 on") as caught:
        run(network, optimizer, checkpoints=tmp_path)
    one_sentence(caught.value, "rate stays 0")
    assert caught.value.history.loss == []
    assert not (tmp_path / "last.npz").exists()


def test_a_rate_that_the_networks_type_has_as_zero_is_refused():
    network, optimizer = new("sgd", 1e-46)
    with pytest.raises(ValueError, match="on in float32: raise it"):
        run(network, optimizer)


@pytest.mark.parametrize("rate", [lambda step: 0.01 * step, lambda step: 0.01 * (step >= 2 * STEPS)])
def test_a_warm_up_may_begin_at_zero(rate):
    network, optimizer = new("sgd", rate)
    before = network.theta.copy()
    assert run(network, optimizer).stopped == "finished"
    assert not np.array_equal(network.theta, before)


def test_a_rate_that_has_fallen_to_zero_trains_no_second_time():
    network, optimizer = new("sgd", Cosine(0.05, 3 * STEPS))
    run(network, optimizer)
    with pytest.raises(ValueError, match="rate stays 0 from step 21 on"):
        run(network, optimizer)
    assert run(network, optimizer, epochs=0).loss == []


def test_the_rate_is_that_of_the_optimizers_step_and_not_of_the_runs():
    """The optimizer took steps before."""
    network, optimizer = new("sgd", Explosive(STEPS + 2))
    run(network, optimizer, epochs=1)
    with pytest.raises(Diverged) as caught:
        run(network, optimizer, epochs=1)
    one_sentence(caught.value, "epoch 1, step 4,", "rate of 0.02:")


def test_checkpoints_outlive_divergence(tmp_path):
    diverge(9, checkpoints=tmp_path)
    network, optimizer = new("sgd", Explosive(9))
    settings = {"batch_size": 8, "seed": 0}
    history, best = load_checkpoint(tmp_path / "last.npz", network, optimizer, settings)
    assert len(history.epochs) == 1
    assert_array_equal(network.theta, theta_after(1))
    assert_array_equal(best[0], theta_after(1))


# Early stopping


def scripted(losses, **options):
    """Run with the given validation losses, whatever the network learns; return network, history, thetas."""
    network, optimizer = new()
    script, thetas = iter(losses), []
    network.ask_evaluation = lambda *arguments: lambda: {"loss": next(script), "accuracy": 0.5}
    on_epoch = lambda history: thetas.append(network.theta.copy())  # noqa: E731
    return network, run(network, optimizer, epochs=len(losses), on_epoch=on_epoch, **options), thetas


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([3, 1, 2, 2, 0], 2, 4, 1),  # stops before it would have seen the 0
        ([3, 1, 2, 0.5, 2, 2], 2, 6, 3),
        ([1, 2, 3], 1, 2, 0),
        ([1, 1, 1, 1], 2, 3, 0),  # no better is not better
    ],
)
def test_early_stopping_returns_to_the_best_epoch(losses, patience, epochs, best, tmp_path):
    network, history, thetas = scripted(losses, patience=patience, checkpoints=tmp_path)
    assert (history.stopped, len(history.epochs), history.best_epoch) == ("early", epochs, best)
    assert_array_equal(network.theta, thetas[best])
    assert_array_equal(Network.load(tmp_path / "best.npz").theta, thetas[best])


@pytest.mark.parametrize(("losses", "patience"), [([4, 3, 2, 1], 1), ([2, 3, 1, 2], 2), ([1, 2, 3], None)])
def test_a_run_with_patience_left_goes_to_its_end(losses, patience):
    network, history, thetas = scripted(losses, patience=patience)
    assert (history.stopped, len(history.epochs)) == ("finished", len(losses))
    assert_array_equal(network.theta, thetas[-1])


def test_a_run_that_stopped_early_stays_stopped_when_it_is_resumed(tmp_path):
    _, _, thetas = scripted([3, 1, 2, 2], patience=2, checkpoints=tmp_path)
    network, optimizer = new()
    history = run(network, optimizer, epochs=9, patience=2, checkpoints=tmp_path, resume=True)
    assert (history.stopped, len(history.epochs)) == ("early", 4)
    assert_array_equal(network.theta, thetas[1])


# The seams


class Steps(StepByStep):
    """An engine's own step, which notes what it was given."""

    batches: ClassVar[list] = []

    def step(self, x, labels):
        self.batches.append((x.shape, labels.shape))
        return super().step(x, labels)


def test_an_engines_own_step_is_taken(monkeypatch):
    monkeypatch.setattr(Steps, "batches", [])
    network, optimizer = new(engine=engine_like(Trainer=Steps))
    history = run(network, optimizer)
    plain = new()
    assert_same_run((network, optimizer, history), (*plain, run(*plain)))
    assert Steps.batches == ([((8, 6), (8,))] * 6 + [((2, 6), (2,))]) * 3


class Epochs:
    """An engine's own epoch: one trainer a run, which notes what is asked of it."""

    asked: ClassVar[list] = []

    def __init__(self, network, optimizer, X, y, batch_size):
        self.network, self.optimizer, self.X, self.y, self.batch_size = network, optimizer, X, y, batch_size
        self.asked.append("made")

    def epoch(self, order):
        self.asked.append(order.tolist())
        rates = self.optimizer.advance(-(-len(order) // self.batch_size))
        losses = []
        for step, rate in enumerate(rates.tolist(), start=self.optimizer.steps - len(rates)):
            index = order[self.batch_size * len(losses) :][: self.batch_size]
            losses.append(self.network.forward_backward(self.X[index], self.y[index], step))
            self.optimizer.apply(rate, step + 1)
        return losses

    def close(self):
        self.asked.append("closed")


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(Epochs, "asked", [])
    return Epochs.asked


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_an_engines_own_epoch_is_taken(optimizer, asked):
    network, takes = new(optimizer, **CHOICES, engine=engine_like(Trainer=Epochs))
    history = run(network, takes)
    plain = new(optimizer, **CHOICES)
    assert_same_run((network, takes, history), (*plain, run(*plain)))
    assert (asked[0], asked[-1], len(asked)) == ("made", "closed", 5)
    assert_array_equal(asked[1:-1], [epoch_order(50, 0, epoch) for epoch in range(3)])


def test_a_trainer_is_closed_whatever_happens(asked):
    def raises(error):
        def on_epoch(history):
            raise error

        return on_epoch

    engine = engine_like(Trainer=Epochs)
    assert run(*new(engine=engine), on_epoch=raises(KeyboardInterrupt())).stopped == "interrupted"
    assert asked[-1] == "closed"
    asked.clear()
    with pytest.raises(ZeroDivisionError):
        run(*new(engine=engine), on_epoch=raises(ZeroDivisionError()))
    assert asked[-1] == "closed"
    asked.clear()
    with pytest.raises(Diverged):
        run(*new("sgd", Explosive(3), engine=engine))
    assert asked[-1] == "closed"
    assert asked.count("made") == asked.count("closed") == 1


def test_where_there_is_nothing_to_do_no_trainer_is_made(asked):
    run(*new(engine=engine_like(Trainer=Epochs)), epochs=0)
    assert asked == []


def test_a_divergence_within_an_engines_epoch_is_named_and_undone(asked):
    network, optimizer = new("sgd", Explosive(9), engine=engine_like(Trainer=Epochs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Diverged) as caught:
            run(network, optimizer)
    one_sentence(caught.value, "the loss became", "epoch 2, step 4,", "rate of 0.02:")
    assert_array_equal(network.theta, theta_after(1))


ONE = ["epoch", "validation asked for", "order", "fetched", "validation"]
LAST = [event for event in ONE if event != "order"]
AHEAD = ["epoch", "validation asked for", "order", *ONE, *LAST, "fetched", "validation"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [(dict(on_epoch=lambda history: None), [*ONE, *ONE, *LAST]), (dict(patience=9), [*ONE, *ONE, *LAST]), ({}, AHEAD)],
    ids=["somebody looks", "somebody may stop it", "nobody looks"],
)
def test_a_trainer_is_at_work_while_the_host_is(options, wanted, asked, monkeypatch):
    """The validation is asked for and the next order drawn, at best the next epoch asked for, before losses count."""

    def fetch(*arrays):
        wait = numpy_baseline.fetch(*arrays)
        return lambda: asked.append("fetched") or wait()

    def ask_evaluation(*data):
        asked.append("validation asked for")
        return lambda: asked.append("validation") or {"loss": 0.5, "accuracy": 0.5}

    def order(*arguments):
        asked.append("order")
        return epoch_order(*arguments)

    network, optimizer = new(engine=engine_like(Trainer=Epochs, fetch=fetch))
    network.ask_evaluation = ask_evaluation
    monkeypatch.setattr(running, "epoch_order", order)
    history = run(network, optimizer, **options)
    events = [event if isinstance(event, str) else "epoch" for event in asked]
    assert events == ["fetched", "made", "order", *wanted, "closed"]  # first, whether all numbers can be trained on
    assert history.loss == run(*new()).loss


def test_an_engines_own_evaluation_is_made_once_and_asked_after_every_epoch():
    asked = []

    class Evaluation:
        def __init__(self, network, X, y):
            asked.append((network, X.dtype, X.shape, y.shape))
            self.ask = partial(network.ask_evaluation, X, y)

        def __call__(self):
            asked.append("asked")
            return self.ask()

    network, optimizer = new(engine=engine_like(Evaluation=Evaluation))
    pixels = (10 * VALIDATION.X).clip(0, 255).astype(np.uint8), VALIDATION.y
    history = run(network, optimizer, pixels)
    assert asked == [(network, np.uint8, (20, 6), (20,)), "asked", "asked", "asked"]
    assert [vars(e) | {"seconds": 0} for e in history.epochs] == [
        vars(e) | {"seconds": 0} for e in run(*new(), pixels).epochs
    ]
    asked.clear()
    run(*new(engine=engine_like(Evaluation=Evaluation)), validation=None)
    assert asked == []


def test_pixels_to_validate_on_become_numbers_once():
    scaled = []
    engine = engine_like(scale=lambda x, dtype: scaled.append(len(x)) or numpy_baseline.scale(x, dtype))
    run(*new(engine=engine), (VALIDATION.X.clip(0, 255).astype(np.uint8), VALIDATION.y))
    assert scaled == [20]


@pytest.mark.parametrize(("options", "epochs"), [(dict(on_epoch=lambda history: None), 3), ({}, 2)])
def test_ctrl_c_amid_an_engines_epoch_leaves_the_last_one_in_the_history(options, epochs, asked):
    class Interrupted(Epochs):
        def epoch(self, order):
            if len(asked) == 4:
                super().epoch(order[:16])
                raise KeyboardInterrupt
            return super().epoch(order)

    network, optimizer = new("sgd", Explosive(None), engine=engine_like(Trainer=Interrupted))
    history = run(network, optimizer, epochs=9, **options)
    assert (history.stopped, len(history.epochs)) == ("interrupted", epochs)
    assert len(history.loss) == len(history.seconds) == len(history.samples) == epochs * STEPS
    assert_array_equal(network.theta, theta_after(epochs))
    assert asked[-1] == "closed"


def test_ctrl_c_while_a_trainer_is_made_leaves_a_history_without_epochs():
    class Interrupted:
        def __init__(self, network, *_):
            network.statistics[:] = network.theta[:] = np.nan  # as when a step is tried
            raise KeyboardInterrupt

    network, optimizer = new(engine=engine_like(Trainer=Interrupted))
    before = network.theta.copy()
    history = run(network, optimizer)
    assert (history.stopped, history.epochs, history.loss) == ("interrupted", [], [])
    assert_array_equal(network.theta, before)


def run_of(order, batch_size):
    """Return a run whose epoch has this order."""
    one = running.Run(*new(), None, dict(batch_size=batch_size))
    one.order = order
    return one


@given(n=st.integers(1, 200), batch_size=st.integers(1, 60), paces=st.lists(st.floats(1e-5, 0.1), min_size=1))
def test_steps_are_taken_in_parts_that_last_as_long_as_a_look_may_wait(n, batch_size, paces):
    """Whole batches, in order; one step first, then at most twice as many as before, and no longer than LOOK_EVERY."""
    clock, paces = [0.0], itertools.cycle(paces)
    trainer = StepByStep.__new__(StepByStep)
    order, found, before = np.arange(n), [], (1, 0)
    one = run_of(order, batch_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
        for part in one.parts_of(0, trainer):
            steps, pace = -(-len(part) // batch_size), next(paces)
            allowed, longest = before
            assert steps <= allowed
            assert steps == 1 or steps * longest <= 0.02 * (1 + 1e-9)  # at the pace of the part before
            clock[0] += steps * pace
            before = 2 * steps, pace
            found.append(part)
            assert one.is_last == (sum(map(len, found)) == n)
            assert one.is_last or len(part) % batch_size == 0
    assert_array_equal(np.concatenate(found), order)


def test_a_trainer_of_whole_epochs_gets_all_at_once():
    order = np.arange(50)
    one = run_of(order, 8)
    (part,) = one.parts_of(0, object())
    assert_array_equal(part, order)
    assert one.is_last


def test_why_not_is_asked_before_anything_is_uploaded_or_compiled():
    seen = []

    def why_not(model, optimizer, batch_size):
        seen.append((model, optimizer.kind, batch_size))
        return "the abacus takes batches of 7 only: choose batch_size=7."

    def uploads(*arguments):
        raise AssertionError("data were uploaded")

    class Trainer:
        def __init__(self, *arguments):
            raise AssertionError("a trainer was made")

    engine = engine_like(why_not=why_not, Trainer=Trainer)
    network, optimizer = new(engine=engine)
    engine.asarray = uploads
    for train in (TRAIN, "no data at all"):
        with pytest.raises(ValueError, match="abacus") as caught:
            fit(network, optimizer, train, batch_size=8)
        one_sentence(caught.value, "batches of 7 only")
    assert seen == [(SMALL, "momentum", 8)] * 2
    with pytest.raises(ValueError, match="abacus"):
        executors.trainer_of(network, optimizer, *TRAIN, 8)
    assert optimizer.steps == 0


def test_an_engine_that_can_is_not_refused():
    assert run(*new(engine=engine_like(why_not=lambda *arguments: None))).stopped == "finished"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_trains(engine):
    history = run(*new("adam", 0.01, engine=engine))
    assert_allclose(history.loss, run(*new("adam", 0.01)).loss, rtol=1e-3)


# Bad input

X, Y = TRAIN
BAD = {
    "batch size 0": (dict(batch_size=0), ValueError, "batch_size must be at least 1, not 0"),
    "negative batch size": (dict(batch_size=-8), ValueError, "batch_size"),
    "half a batch": (dict(batch_size=0.5), TypeError, "batch_size must be a whole number, not 0.5"),
    "negative epochs": (dict(epochs=-1), ValueError, "epochs must be at least 0"),
    "half an epoch": (dict(epochs=1.5), TypeError, "epochs"),
    "negative seed": (dict(seed=-1), ValueError, "seed must be at least 0"),
    "no seed": (dict(seed=None), TypeError, "seed must be a whole number"),
    "patience 0": (dict(patience=0), ValueError, "patience must be at least 1"),
    "patience for nothing": (dict(patience=2, validation=None), ValueError, "patience waits for the validation loss"),
    "a folder without a name": (dict(checkpoints=""), ValueError, "checkpoints names no folder"),
    "no folder's name": (dict(checkpoints=3), ValueError, "checkpoints names no folder, but is 3"),
    "resume from nowhere": (dict(resume=True), ValueError, "folder of the checkpoints"),
    "a text for a flag": (dict(resume="no"), TypeError, "resume must be True or False, not 'no'"),
    "no function": (dict(on_epoch=3), TypeError, "on_epoch must be a function of the history, not 3"),
    "no examples": (dict(train=(X[:0], Y[:0])), ValueError, "n at least 1"),
    "no validation examples": (dict(validation=(X[:0], Y[:0])), ValueError, "n at least 1"),
    "no rows of six": (dict(train=(X.reshape(25, 3, 4), Y)), ValueError, "must have shape (n, 6)"),
    "too wide": (dict(train=(np.c_[X, X], Y)), ValueError, "not (50, 12)"),
    "transposed": (dict(train=(X.T, Y)), ValueError, "not (6, 50)"),
    "float64": (dict(train=(X.astype(float), Y)), TypeError, "float64 but the network computes in float32"),
    "lists": (dict(train=(X.tolist(), Y.tolist())), TypeError, "float64 but the network computes in float32"),
    "masked inputs": (dict(train=(np.ma.array(X, mask=X > 1), Y)), TypeError, "train must have no mask"),
    "masked labels": (dict(train=(X, np.ma.array(Y))), TypeError, "train must have no mask"),
    "a list of masked rows": (dict(train=([*np.ma.array(X)], Y)), TypeError, "train must have no mask"),
    "masked numbers in lists": (
        dict(validation=(X, [[np.ma.array(y)] for y in Y])),
        TypeError,
        "validation must have",
    ),
    "one label masked": (dict(train=(X, (*Y[:-1], np.ma.masked))), TypeError, "leave out what is masked"),
    "signed pixels": (dict(train=(np.zeros((50, 6), np.int8), Y)), TypeError, "int8"),
    "a label too few": (dict(train=(X, Y[:-1])), ValueError, "(50,), not (49,)"),
    "one-hot labels": (dict(train=(X, np.eye(3)[Y])), ValueError, "argmax"),
    "float labels": (dict(train=(X, Y.astype(np.float32))), TypeError, "float32"),
    "a class too many": (dict(train=(X, Y + 1)), ValueError, "from 0 to 2, but these go from 1 to 3"),
    "a negative label": (dict(train=(X, Y - 1)), ValueError, "from 0 to 2, but these go from -1 to 1"),
    "validation labels": (dict(validation=(X, Y + 1)), ValueError, "from 0 to 2"),
    "validation float64": (dict(validation=(X.astype(float), Y)), TypeError, "float64"),
    "labels as IDX files have them": (dict(train=(X, Y.astype(">i4"))), TypeError, "byte order, not >i4"),
    "NaN in an image": (dict(train=(np.where(X[30, 2] == X, np.nan, X), Y)), ValueError, "inputs must be finite"),
    "infinity in an image": (dict(validation=(np.where(X[30, 2] == X, np.inf, X), Y)), ValueError, "to inf"),
    "images without labels": (dict(train=X), ValueError, "train must be a pair (X, y)"),
    "a whole data set": (dict(train=dataset()), ValueError, "data.load().train"),
    "validation without labels": (dict(validation=X), ValueError, "validation must be a pair (X, y)"),
    "patience for an array": (dict(patience=2, validation=X), ValueError, "validation must be a pair (X, y)"),
}


@pytest.mark.parametrize(("options", "error", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_the_first_step(options, error, words, tmp_path):
    network, optimizer = new()
    before = network.theta.copy()
    given = dict(train=TRAIN, validation=VALIDATION) | options
    if "resume" not in options:
        given.setdefault("checkpoints", tmp_path)
    with pytest.raises(error) as caught:
        fit(network, optimizer, **given)
    one_sentence(caught.value, words)
    assert_array_equal(network.theta, before)
    assert list(tmp_path.iterdir()) == []


def test_an_optimizer_of_another_network_is_refused():
    """It would train the other one, without a word."""
    with pytest.raises(ValueError, match="made for another network") as caught:
        run(new()[0], new()[1])
    one_sentence(caught.value)


@pytest.mark.parametrize("optimizer", [None, 0.1, BY_NAME["sgd"].__init__], ids=["none", "a rate", "a function"])
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(TypeError) as caught:
        run(new()[0], optimizer)
    one_sentence(caught.value, "optimizer must be an optimizer, such as SGD(network, 0.1)")


@pytest.mark.parametrize(
    ("layers", "batch_size", "words"),
    [((ReLU(),), 8, "nothing to train"), ((Linear(3), BatchNorm()), 1, "batches of at least 2")],
    ids=["no parameters", "a norm of single rows"],
)
def test_a_model_that_can_not_learn_is_refused(layers, batch_size, words, tmp_path):
    network = Network(model=Model((6,), layers))
    with pytest.raises(ValueError, match=words) as caught:
        run(network, BY_NAME["sgd"](network, 0.1), batch_size=batch_size, checkpoints=tmp_path)
    one_sentence(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_one_image_has_enough_numbers_for_a_norm():
    network = Network(model=Model((1, 2, 3), (BatchNorm(), Flatten(), Linear(3))))
    run(network, BY_NAME["sgd"](network, 0.1), batch_size=1, epochs=1)


def test_the_best_epoch_is_found_where_only_the_later_ones_were_validated(tmp_path):
    """A run that is resumed with a validation set: its patience and `best.npz` count from there."""
    network, optimizer = new()
    run(network, optimizer, None, checkpoints=tmp_path)
    network, optimizer = new()
    history = run(network, optimizer, epochs=6, patience=3, checkpoints=tmp_path, resume=True)
    losses = history.validation["loss"]
    assert losses[:3] == history.validation["accuracy"][:3] == [None] * 3
    assert [epoch.validation for epoch in history.epochs[:3]] == [{}] * 3
    assert history.best_epoch == 3 + int(np.argmin(losses[3:]))
    assert Network.load(tmp_path / "best.npz").evaluate(*VALIDATION)["loss"] == losses[history.best_epoch]


def test_a_run_is_not_resumed_on_fewer_examples(tmp_path):
    network, optimizer = new()
    run(network, optimizer, checkpoints=tmp_path)
    with pytest.raises(ValueError, match="examples 50, this run has 40") as caught:
        fit(network, optimizer, (TRAIN.X[:40], TRAIN.y[:40]), batch_size=8, checkpoints=tmp_path, resume=True)
    one_sentence(caught.value)


def test_a_network_that_is_no_longer_finite_is_not_told_to_try_a_smaller_rate():
    network, optimizer = new()
    network.theta[7] = np.nan
    with pytest.raises(ValueError, match="make a new network") as caught:
        run(network, optimizer)
    one_sentence(caught.value)


def test_checkpoints_that_can_not_be_written_are_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        network, optimizer = new()
        with pytest.raises(OSError, match="can't be written") as caught:
            run(network, optimizer, checkpoints=folder)
        one_sentence(caught.value, folder / "last.npz")
        assert optimizer.steps == 0
    (tmp_path / "last.npz").mkdir()
    with pytest.raises(OSError, match="it is a folder"):
        run(*new(), checkpoints=tmp_path)


def other_network(*sizes):
    network = Network(model=mlp(*sizes))
    return network, BY_NAME["momentum"](network, 0.05)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (new, dict(batch_size=16), "batch_size 8, this run has 16"),
        (new, dict(seed=1), "seed 0, this run has 1"),
        (lambda: new(lr=0.06), {}, "0.05"),
        (lambda: new(momentum=0.8), {}, "momentum=0.9"),
        (lambda: new(weight_decay=0.1), {}, "weight_decay"),
        (lambda: new("nesterov"), {}, "Momentum"),
        (lambda: other_network(6, 7, 3), {}, "Linear(7)"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(make, options, words, tmp_path):
    run(*new(), epochs=1, checkpoints=tmp_path)
    with pytest.raises(ValueError, match="can't be resumed") as caught:
        run(*make(), checkpoints=tmp_path, resume=True, **options)
    one_sentence(caught.value, tmp_path / "last.npz", words)


def test_a_checkpoint_that_is_missing_or_damaged_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"last\.npz"):
        run(*new(), checkpoints=tmp_path, resume=True)
    run(*new(), epochs=2, checkpoints=tmp_path)
    with np.load(tmp_path / "last.npz") as kept:
        arrays = dict(kept)
    arrays["history"] = str(arrays["history"]).replace('"validation": {"loss"', '"validation": {"less"', 1)
    save_npz(tmp_path / "last.npz", **arrays)
    with pytest.raises(ValueError, match="without a loss"):
        run(*new(), checkpoints=tmp_path, resume=True)
    Network(model=SMALL).save(tmp_path / "last.npz")
    with pytest.raises(ValueError, match=r"last\.npz"):
        run(*new(), checkpoints=tmp_path, resume=True)
    (tmp_path / "last.npz").unlink()
    run(*new(), epochs=1, checkpoints=tmp_path)
    (tmp_path / "last.npz").write_bytes((tmp_path / "last.npz").read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"last\.npz"):
        run(*new(), checkpoints=tmp_path, resume=True)


VECTOR = Network(model=SMALL).theta
FOREIGN = {
    "a short velocity": (dict(velocity=VECTOR[:1]), "shape (1,)"),
    "parameters of another size": (dict(theta=VECTOR[:-1]), f"shape ({len(VECTOR) - 1},)"),
    "parameters of another type": (dict(theta=VECTOR.astype(float)), "its theta is float64"),
    "NaN": (dict(theta=VECTOR * np.nan), "theta must be finite"),
    "NaN in the best": (dict(best_theta=VECTOR * np.nan), "best_theta must be finite"),
    "the best of another size": (dict(best_theta=VECTOR[:3]), "shape (3,)"),
    "no count": (dict(steps=np.nan), "steps must be a whole number"),
    "several counts": (dict(steps=np.arange(3)), "ValueError"),
    "settings that are none": (dict(settings="hello"), "JSONDecodeError"),
    "settings of another kind": (dict(settings="3"), "TypeError"),
    "no history": (dict(history="{}"), "epochs"),
    "a history of another version": (dict(history='{"epochs": [], "weather": 1}'), "weather"),
}


@pytest.mark.parametrize(("changes", "words"), FOREIGN.values(), ids=FOREIGN)
def test_a_whole_file_that_is_no_checkpoint_is_refused_and_changes_nothing(changes, words, tmp_path):
    names = (*NAMES, "velocity")
    run(*new(), epochs=1, checkpoints=tmp_path)
    save_npz(tmp_path / "last.npz", **load_npz(tmp_path / "last.npz", names) | changes)
    network, optimizer = new()
    before = state(network, optimizer)
    with pytest.raises(ValueError, match=r"last\.npz") as caught:
        run(network, optimizer, checkpoints=tmp_path, resume=True)
    one_sentence(caught.value, words)
    for now, then in zip(state(network, optimizer), before, strict=True):
        assert_array_equal(now, then)


def test_unknown_and_unavailable_engines_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="numpy_baseline"):
        new(engine="numpi")

    def fails(name):
        raise ImportError("no such machine")

    monkeypatch.setattr(engines, "import_module", fails)
    with pytest.raises(engines.EngineUnavailable, match="no such machine"):
        new()


def test_divergence_reaches_another_process_with_its_history():
    with pytest.raises(Diverged) as caught:
        run(*new("sgd", 1e30))
    came = pickle.loads(pickle.dumps(caught.value))
    assert str(came) == str(caught.value)
    assert_array_equal(came.history.loss, caught.value.history.loss)


def test_of_a_loss_that_overflows_before_the_first_update_the_rate_is_not_to_blame():
    network, optimizer = new("sgd", 1e-30)
    with pytest.raises(Diverged, match="epoch 1, step 1,") as caught:
        fit(network, optimizer, (np.full_like(X, 3e38), Y))
    one_sentence(caught.value, "scale the inputs")
    with pytest.raises(Diverged, match="try a smaller one"):
        run(*new("sgd", 1e30))


def test_images_that_augment_would_change_in_place_stay_as_they_are():
    def in_place(images, targets, seed, epoch):
        images += 1
        return images, targets

    (network, optimizer), before = new(), X.copy()
    with pytest.raises(ValueError, match="read-only"):
        run(network, optimizer, augment=in_place)
    assert_array_equal(X, before)
    assert optimizer.steps == 0


def test_images_of_augment_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="augment's images must be finite"):
        run(*new(), augment=lambda images, targets, *_: (images * np.float32(np.nan), targets))


@pytest.mark.parametrize("name", ["epochs", "batch_size", "seed", "augment"])
def test_a_choice_of_the_recipe_is_no_option_of_its_training(name):
    with pytest.raises(TypeError) as caught:
        Recipe(model=SMALL).train(dataset(), **{name: 3})
    one_sentence(caught.value, f"train with recipe.but({name}=...)")


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw"])
def test_an_eps_that_is_0_in_the_networks_numbers_is_refused(optimizer):
    for dtype, eps in ((np.float32, 1e-50), (np.float64, 1e-330)):
        with pytest.raises(ValueError, match="eps must be a finite number above 0"):
            BY_NAME[optimizer](Network(model=SMALL, dtype=dtype), 1e-3, eps=eps)
    BY_NAME[optimizer](Network(model=SMALL, dtype=np.float64), 1e-3, eps=1e-50)


def test_a_rate_that_stays_0_is_seen_soon_however_long_the_training():
    begin = time.monotonic()
    with pytest.raises(ValueError, match="the rate stays 0"):
        run(*new("sgd", 1e-46), epochs=10**12)
    assert time.monotonic() - begin < 60

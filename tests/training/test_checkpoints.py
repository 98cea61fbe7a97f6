"""A checkpoint leads back to the same path, or is refused in a sentence: of another run, of other data, damaged."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from shared import SMALL, blobs, engine_like, one_sentence

from mlpkit.engines import numpy_baseline
from mlpkit.executors.plain import StepByStep
from mlpkit.nn.layers import Dropout, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.npz import load_npz, save_npz
from mlpkit.optim import BY_NAME, SGD
from mlpkit.optim.schedules import Constant, Cosine, Exponential, StepDecay, WarmUp
from mlpkit.training import folder as folders
from mlpkit.training.checkpoint import NAMES, load_checkpoint
from mlpkit.training.fit import Diverged, fit

TRAIN, VALIDATION = blobs(50), blobs(20, seed=1)
STEPS = 7  # an epoch of 50 examples, 8 a batch


def new(lr=0.01, optimizer="adam"):
    network = Network(model=SMALL)
    return network, BY_NAME[optimizer](network, lr)


def run(network, optimizer, train=TRAIN, validation=VALIDATION, **options):
    return fit(network, optimizer, train, validation, **dict(batch_size=8, epochs=2) | options)


def state(network, optimizer):
    return [network.theta.copy(), *(vector.copy() for vector in optimizer.state.values()), np.array(optimizer.steps)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with the checkpoints of two epochs."""
    folder = tmp_path_factory.mktemp("written")
    run(*new(), checkpoints=folder)
    return folder


# Every byte of it


@pytest.mark.parametrize("name", ["last.npz", "best.npz"])
def test_a_changed_byte_is_refused_in_a_sentence_or_changes_nothing(name, written, tmp_path):
    """Here one other value at each third place; `test_files` tries all of them on a smaller file."""
    path, (network, optimizer), refused = tmp_path / name, new(), 0
    whole, rng = (written / name).read_bytes(), np.random.default_rng(0)

    def load():
        if name == "best.npz":
            found = Network.load(path)
            return [repr(found.model), found.theta, found.statistics]
        network.theta[:], optimizer.steps = 0, 0
        history, best = load_checkpoint(path, network, optimizer, {"batch_size": 8})
        return [history.to_json(), *best, *state(network, optimizer)]

    path.write_bytes(whole)
    wanted = load()
    with open(path, "r+b", buffering=0) as file:
        for position in range(0, len(whole), 3):
            file.seek(position)
            file.write(bytes([whole[position] ^ int(rng.integers(1, 256))]))
            try:
                for one, other in zip(load(), wanted, strict=True):
                    assert_array_equal(one, other)
            except ValueError as error:
                one_sentence(error, path)
                refused += 1
            file.seek(position)
            file.write(whole[position : position + 1])
    assert refused > 0.7 * len(whole) / 3


# Whole files that are no checkpoint of this run


def changed(what, *keys):
    """Return a change of the history: what is to be found where the keys lead."""

    def change(history):
        inside = history
        for key in keys[:-1]:
            inside = inside[key]
        inside[keys[-1]] = what
        return history

    return change


HISTORIES = {
    "no epochs": changed([], "epochs"),
    "an epoch too few": lambda history: history | dict(epochs=history["epochs"][:1]),
    "an epoch too many": lambda history: history | dict(epochs=history["epochs"] * 2),
    "another epoch's samples": changed(7, "samples", 0),
    "null for losses": changed(None, "loss"),
    "null for a loss": changed(None, "loss", 3),
    "NaN for a loss": changed(float("nan"), "loss", 3),
    "text for a loss": changed("0.1", "loss", 3),
    "a loss beyond all floats": changed(10**400, "loss", 3),
    "a list for a loss": changed([0.1], "loss", 3),
    "true for a time": changed(True, "seconds", 0),
    "a time too few": changed([0.1], "seconds"),
    "half a sample": changed(0.5, "samples", 0),
    "no samples": changed(0, "samples", 0),
    "a number for samples": changed(8, "samples"),
    "null for a rate": changed(None, "epochs", 0, "lr"),
    "another rate": changed(0.02, "epochs", 0, "lr"),
    "null for an epoch": changed(None, "epochs", 0),
    "infinity for a validation": changed(float("inf"), "epochs", 1, "validation", "loss"),
    "text for a validation": changed("high", "epochs", 1, "validation", "accuracy"),
    "no dict": lambda history: [history],
    "a deep list": lambda history: json.loads("[" * 400 + "]" * 400),
}


@pytest.mark.parametrize("change", HISTORIES.values(), ids=HISTORIES)
def test_a_history_that_is_none_is_refused_and_changes_nothing(change, written, tmp_path):
    found = load_npz(written / "last.npz", (*NAMES, "m", "v"))
    history = json.dumps(change(json.loads(str(found["history"]))))
    check_refused(tmp_path, found | dict(history=history))


@pytest.mark.parametrize("steps", [-1, 0, 2 * STEPS - 1, 10.5, "14", [14, 15]])
def test_a_count_of_steps_that_is_none_is_refused(steps, written, tmp_path):
    check_refused(tmp_path, load_npz(written / "last.npz", (*NAMES, "m", "v")) | dict(steps=steps))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "[]", '{"model": 3}', "NaN"])
@pytest.mark.parametrize("name", ["settings", "history"])
def test_text_that_is_none_is_refused(name, text, written, tmp_path):
    check_refused(tmp_path, load_npz(written / "last.npz", (*NAMES, "m", "v")) | {name: np.array(text, "<U100000")})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["theta", "best_theta", "m", "v"])
def test_a_number_that_is_none_is_refused_in_any_vector(name, bad, written, tmp_path):
    found = load_npz(written / "last.npz", (*NAMES, "m", "v"))
    found[name][-1] = bad
    check_refused(tmp_path, found)


def check_refused(folder, arrays):
    save_npz(folder / "last.npz", **arrays)
    network, optimizer = new()
    before = state(network, optimizer)
    with pytest.raises(ValueError, match=r"last\.npz") as caught:
        run(network, optimizer, checkpoints=folder, resume=True, epochs=4)
    one_sentence(caught.value)
    for now, then in zip(state(network, optimizer), before, strict=True):
        assert_array_equal(now, then)


# Other runs


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_another_optimizer_is_named(optimizer, written):
    with pytest.raises(ValueError, match="written with optimizer Adam") as caught:
        run(*new(optimizer=optimizer), checkpoints=written, resume=True)
    one_sentence(caught.value, f"this run has {BY_NAME[optimizer].__name__}(lr=Constant(0.01)")


@pytest.mark.parametrize("drops", [True, False])
def test_another_seed_is_another_run_only_where_something_is_dropped(drops, tmp_path):
    model = Model((6,), (Linear(5), Dropout(0.5) if drops else ReLU(), Linear(3)))
    first, second = (Network(model=model, seed=seed) for seed in (1, 2))
    run(first, BY_NAME["sgd"](first, 0.1), checkpoints=tmp_path)
    resumed = partial(run, second, BY_NAME["sgd"](second, 0.1), epochs=3, checkpoints=tmp_path, resume=True)
    if not drops:
        assert len(resumed().epochs) == 3
        return
    with pytest.raises(ValueError, match="seed of dropout 1, this run has 2") as caught:
        resumed()
    one_sentence(caught.value)


# Rates


@dataclass(frozen=True)
class Deceiver:
    """Two of these look alike."""

    def __init__(self, rate):
        object.__setattr__(self, "rate", rate)

    def __call__(self, step):
        return self.rate


def falling(rate):
    return lambda step: rate / (1 + step)


def test_a_schedule_that_looks_alike_and_is_another_is_refused(tmp_path):
    """A function tells its name, and not its numbers."""
    for make in (Deceiver, falling):
        folder = tmp_path / make.__name__
        run(*new(make(0.01)), checkpoints=folder)
        with pytest.raises(ValueError, match="can't be resumed") as caught:
            run(*new(make(0.02)), epochs=3, checkpoints=folder, resume=True)
        one_sentence(caught.value, "epoch 1 ended at a learning rate of 0.0")
        assert len(run(*new(make(0.01)), epochs=3, checkpoints=folder, resume=True).epochs) == 3


NUMBERS = st.sampled_from([float, np.float64, lambda x: int(x) if x == int(x) else x, np.float32])


@given(rate=st.sampled_from([0.5, 1.0, 0.25]), kind=NUMBERS, count=st.sampled_from([int, np.int64, np.uint8]))
def test_the_same_number_is_the_same_rate_whatever_its_type(rate, kind, count):
    schedules = [
        lambda number, steps: Constant(number(rate)),
        lambda number, steps: StepDecay(number(rate), steps(7), number(0.5)),
        lambda number, steps: Exponential(number(rate), steps(7), number(0.5)),
        lambda number, steps: WarmUp(Cosine(number(rate), steps(7), number(0.0)), steps(3)),
    ]
    for make in schedules:
        one, other = make(float, int), make(kind, count)
        assert one == other
        assert repr(one) == repr(other)
        assert_array_equal(one(np.arange(20)), other(np.arange(20)))


# Other data


def swapped(labels):
    """Return the labels, of which two that differ changed places: no sum over them is another."""
    other = labels.copy()
    first, second = 0, int(np.argmax(labels != labels[0]))
    other[[first, second]] = other[[second, first]]
    return other


OTHER_DATA = {
    "labels": (dict(train=(TRAIN.X, swapped(TRAIN.y))), "training data"),
    "one pixel": (dict(train=(TRAIN.X + np.eye(50, 6, dtype=np.float32) * 1e-3, TRAIN.y)), "training data"),
    "order": (dict(train=(TRAIN.X[::-1], TRAIN.y[::-1])), "training data"),
    "validation": (dict(validation=(VALIDATION.X, swapped(VALIDATION.y))), "validation data"),
    "fewer": (dict(train=(TRAIN.X[:40], TRAIN.y[:40])), "examples 50, this run has 40"),
}


@pytest.mark.parametrize(("data", "words"), OTHER_DATA.values(), ids=OTHER_DATA)
def test_a_run_is_not_resumed_on_other_data(data, words, written):
    with pytest.raises(ValueError, match="can't be resumed: it was written with") as caught:
        run(*new(), **data, epochs=4, checkpoints=written, resume=True)
    one_sentence(caught.value, words)


def test_another_order_of_the_examples_is_another_run(written, monkeypatch):
    """As a later NumPy may draw it from the same seed."""
    monkeypatch.setattr(folders, "epoch_order", lambda n, seed, epoch: np.arange(n))
    with pytest.raises(ValueError, match="order of the examples") as caught:
        run(*new(), epochs=4, checkpoints=written, resume=True)
    one_sentence(caught.value)


def test_the_same_data_are_the_same_however_they_lie_in_memory(tmp_path):
    run(*new(), checkpoints=tmp_path)
    X, y = np.asfortranarray(TRAIN.X), np.repeat(TRAIN.y, 2)[::2]
    assert len(run(*new(), train=(X, y), epochs=3, checkpoints=tmp_path, resume=True).epochs) == 3


def test_data_are_looked_at_once_more_only_for_checkpoints(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(folders, "fingerprint", lambda *arrays: asked.append(len(arrays)) or "a fingerprint")
    run(*new())
    assert asked == []
    run(*new(), checkpoints=tmp_path)
    assert sorted(asked) == [1, 2, 2]


# One folder, one run


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".npz"}


@pytest.mark.parametrize("names", [("last.npz",), ("best.npz",), ("last.npz", "best.npz")], ids=" and ".join)
def test_an_earlier_runs_checkpoints_are_set_aside(names, written, tmp_path):
    """Run after run, and not before there is a new one to write."""
    kept = {}
    for _ in range(3):
        for name in names:
            (tmp_path / name).write_bytes((written / name).read_bytes())
        with pytest.raises(Diverged):
            run(*new(1e30), checkpoints=tmp_path)
        kept = kept | {name: (written / name).read_bytes() for name in names}
        assert content(tmp_path) == kept
        with pytest.warns(RuntimeWarning, match="an earlier run's checkpoint is now") as caught:
            run(*new(), checkpoints=tmp_path)
        assert [one.filename for one in caught] == [__file__] * len(caught)
        for one in caught:
            path = Path(str(one.message).partition(" is now ")[2].rstrip("."))
            assert path.suffixes[-2:] == [".npz", ".previous"]
            assert path.exists()
        kept = content(tmp_path)
    aside = [path.read_bytes() for path in tmp_path.glob("*.previous")]
    for name in names:
        assert aside.count((written / name).read_bytes()) == 3


def test_two_runs_do_not_share_a_folder(tmp_path):
    refused = []

    def another_run(history):
        for resume in (False, True):
            network, optimizer = new(0.02)
            with pytest.raises(OSError, match="another run is at work") as caught:
                run(network, optimizer, checkpoints=tmp_path, resume=resume)
            one_sentence(caught.value, tmp_path)
            refused.append(optimizer.steps)

    history = run(*new(), checkpoints=tmp_path, on_epoch=another_run)
    assert (history.stopped, refused) == ("finished", [0, 0] * 2)
    assert len(run(*new(), epochs=3, checkpoints=tmp_path, resume=True).epochs) == 3


class Noise:
    """An augmentation whose text says nothing of how strong it is."""

    def __init__(self, size):
        self.size = size

    def __call__(self, images, targets, seed, epoch):
        noise = np.random.default_rng((seed, epoch)).normal(size=images.shape).astype(np.float32)
        return images + self.size * noise, targets


def test_a_run_is_not_resumed_with_other_changes_of_its_images(tmp_path):
    whole = run(*new(), augment=Noise(0.1), epochs=3)
    run(*new(), augment=Noise(0.1), checkpoints=tmp_path)
    with pytest.raises(ValueError, match="can't be resumed") as caught:
        run(*new(), augment=Noise(0.2), epochs=3, checkpoints=tmp_path, resume=True)
    one_sentence(caught.value, "first epoch's images")
    assert run(*new(), augment=Noise(0.1), epochs=3, checkpoints=tmp_path, resume=True).loss == whole.loss


@pytest.mark.parametrize("name", [*NAMES, "path", "file"])
def test_a_state_whose_name_a_checkpoint_needs_is_refused_before_the_first_step(name, tmp_path):
    network, _ = new()
    optimizer = type("Mine", (SGD,), {"state_names": (name,)})(network, 0.1)
    with pytest.raises(ValueError, match="a name that is taken") as caught:
        run(network, optimizer, checkpoints=tmp_path)
    one_sentence(caught.value, f"Mine's state has a vector called {name!r}")
    assert (optimizer.steps, list(tmp_path.iterdir())) == (0, [])
    assert run(network, optimizer).stopped == "finished"  # without a checkpoint nobody minds


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["last.npz", "best.npz", ".lock"])
def test_a_pipe_in_the_folder_is_refused_and_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    for resume in (False, True) if name == "last.npz" else (False,):
        network, optimizer = new()
        with pytest.raises(OSError, match="no regular file") as caught:
            run(network, optimizer, checkpoints=tmp_path, resume=resume)
        one_sentence(caught.value, tmp_path / name)
        assert optimizer.steps == 0


def test_what_a_killed_run_was_writing_is_gone_when_the_next_one_starts(written, tmp_path):
    for name in ("last.npz", "best.npz"):
        (tmp_path / name).write_bytes((written / name).read_bytes())
        (tmp_path / f".{name}.abcdefgh.mlpkit").write_bytes(b"half")
    run(*new(), checkpoints=tmp_path, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "best.npz", "last.npz"]


# What goes wrong amid a run


def test_a_full_disk_costs_the_checkpoints_and_not_the_training(tmp_path, monkeypatch):
    whole, (network, optimizer), fsync = new(), new(), os.fsync
    wanted = run(*whole, epochs=4)

    def full(handle):
        if 1 <= len(history) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    history = []
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match=r"can't be written \(No space left on device\)") as caught:
        found = run(network, optimizer, epochs=4, checkpoints=tmp_path, on_epoch=history.append)
    for each in caught:
        one_sentence(each.message, tmp_path, "the training goes on.")
    assert len(caught) == 2
    assert (found.loss, found.stopped) == (wanted.loss, "finished")
    for one, other in zip(state(network, optimizer), state(*whole), strict=True):
        assert_array_equal(one, other)
    again = run(*new(), epochs=4, checkpoints=tmp_path, resume=True)  # the last epoch found room again
    assert again.loss == wanted.loss
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "best.npz", "last.npz"]


FULL = """
import resource, sys, warnings
from test_checkpoints import new, run
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
network, optimizer = new()
print(run(network, optimizer, checkpoints=sys.argv[1]).stopped, optimizer.steps)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
def test_so_it_is_where_the_system_says_so(tmp_path):
    path = os.pathsep.join(map(str, [Path(__file__).parent, *Path(__file__).parents[1:3]]))
    command = [sys.executable, "-c", FULL, tmp_path]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"finished {2 * STEPS}\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@dataclass(frozen=True)
class Fails:
    """A schedule that is one until some step."""

    at: int
    then: object

    def __call__(self, step):
        if np.max(step) < self.at:
            return 0.01 + 0 * step
        if isinstance(self.then, Exception):
            raise self.then
        return self.then


class WholeEpochs:
    """A trainer of whole epochs, of which `fit` asks for the next one before it knows this one."""

    def __init__(self, *arguments):
        self.steps = StepByStep(*arguments)

    def epoch(self, order):
        return np.asarray(self.steps.epoch(order))

    def close(self):
        self.steps.close()


ENGINES = {"a step at a time": numpy_baseline, "whole epochs": engine_like(Trainer=WholeEpochs)}


@pytest.mark.parametrize("then", [-0.1, float("nan"), float("inf"), None, "low", ZeroDivisionError("no rate")], ids=str)
@pytest.mark.parametrize("at", [2 * STEPS, 2 * STEPS + 3])
@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_schedule_that_fails_loses_nothing(then, at, looks, engine, tmp_path):
    network = Network(engine, SMALL)
    options = dict(checkpoints=tmp_path) if looks else {}
    with pytest.raises((ValueError, ZeroDivisionError)) as caught:
        run(network, BY_NAME["sgd"](network, Fails(at, then)), epochs=4, **options)
    one_sentence(caught.value)
    history, whole = caught.value.history, new(optimizer="sgd")
    wanted = run(*whole)
    assert (history.stopped, len(history.epochs)) == ("failed", 2)
    assert history.loss[: 2 * STEPS] == wanted.loss
    assert_array_equal(network.theta, whole[0].theta)
    if looks:
        assert_array_equal(Network.load(tmp_path / "best.npz").theta, network.theta)


def test_a_best_network_that_a_kill_prevented_is_written_by_the_resumed_run(written, tmp_path):
    (tmp_path / "last.npz").write_bytes((written / "last.npz").read_bytes())
    network, optimizer = new()
    run(network, optimizer, checkpoints=tmp_path, resume=True)
    assert content(tmp_path) == content(written)
    assert_array_equal(network.theta, load_npz(written / "last.npz", ["theta"])["theta"])

"""A checkpoint leads back to the same path, or is refused in a sentence: of another run, of other data, damaged."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from shared import SMALL, blobs, one_sentence

from mlpkit.files import load_npz, save_npz
from mlpkit.nn.network import Network
from mlpkit.training.checkpoint import NAMES, load_checkpoint
from mlpkit.training.fit import fit
from mlpkit.training.optim import BY_NAME
from mlpkit.training.schedules import Constant, Cosine, Exponential, StepDecay, WarmUp

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
    """Here one other value at each place; `test_files` tries all of them on a smaller file."""
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
        for position, new_value in enumerate(rng.integers(1, 256, len(whole))):
            file.seek(position)
            file.write(bytes([whole[position] ^ int(new_value)]))
            try:
                for one, other in zip(load(), wanted, strict=True):
                    assert_array_equal(one, other)
            except ValueError as error:
                one_sentence(error, path)
                refused += 1
            file.seek(position)
            file.write(whole[position : position + 1])
    assert refused > 0.7 * len(whole)


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
    "infinity for a validation": changed(float("inf"), "epochs", 1, "validation_loss"),
    "text for a validation": changed("high", "epochs", 1, "validation_accuracy"),
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
    one_sentence(caught.value, f"this run has {BY_NAME[optimizer].__name__}(lr=Constant(lr=0.01)")


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

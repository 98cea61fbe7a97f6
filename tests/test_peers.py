"""Other people's loops are compared only where they train the same network on the same batches."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit import bench, peers
from mlpkit.bench import GATE_STEPS, Timing
from mlpkit.recipe import Recipe

QUICK = Timing(warmup=1, steps_a_sample=2, rounds=2)
TWO = (Recipe(), peers.ADAM)


@pytest.fixture(scope="module")
def wanted():
    """The baseline's first losses, on MNIST, with each of the two recipes."""
    train = peers.load("mnist").train
    return [bench.Stepper("numpy_baseline", recipe, train).take(GATE_STEPS)[1] for recipe in TWO]


@pytest.mark.parametrize("name", peers.NAMES)
@pytest.mark.parametrize("which", [0, 1], ids=["sgd", "adam"])
def test_a_peer_trains_the_same_network_on_the_same_batches(name, which, wanted):
    try:
        measured = peers.measure(name, TWO[which], QUICK)
    except ImportError as error:
        pytest.skip(str(error))
    losses, wanted = measured["first_losses"], wanted[which]
    assert_allclose(losses, wanted if len(losses) > 1 else wanted.mean(keepdims=True), rtol=bench.RTOL)
    assert all(sample > 0 for sample in measured["samples_us"])


def measured(losses):
    return {"first_losses": list(losses), "samples_us": [1.0, 2.0]}


def compare(monkeypatch, answers):
    """Return the runs of a comparison whose processes give these answers, and the order in which they were asked."""
    asked, saved = [], []

    def measure_in_process(name, recipes, timing):
        asked.append(name)
        return [dict(answer) for answer in answers[name]]

    monkeypatch.setattr(peers, "measure_in_process", measure_in_process)
    record = peers.compare(TWO, QUICK, list(answers), lambda record: saved.append(1), lambda text: None)
    assert len(saved) == len(asked)  # nothing measured is lost
    assert [run["recipe"] for run in record["runs"]] == [r.to_dict() for r in TWO for _ in answers]
    return record, asked


def test_peers_take_turns_and_one_that_differs_gets_no_time(wanted, monkeypatch):
    nan = wanted[1].copy()
    nan[-1] = np.nan
    absent = {"why_not": "ModuleNotFoundError: No module named 'torch'"}
    answers = {
        "same": [measured(losses) for losses in wanted],
        "its_mean": [measured([losses.mean()]) for losses in wanted],
        "other": [measured(wanted[0]), measured(wanted[1] * 1.01)],
        "nan": [measured(wanted[0]), measured(nan)],
        "swapped": [measured(losses) for losses in reversed(wanted)],
        "absent": [absent, absent],
    }
    record, asked = compare(monkeypatch, answers)
    assert asked == [*answers, "same", "its_mean", "other", "nan"]
    runs = {(run["engine"], run["recipe"]["optimizer"]): run for run in record["runs"]}
    for name in (("same", "sgd"), ("same", "adam"), ("its_mean", "adam"), ("other", "sgd"), ("nan", "sgd")):
        assert (runs[name]["why_not"], runs[name]["samples_us"]) == (None, [1.0, 2.0, 1.0, 2.0])
    reasons = {
        ("other", "adam"): "differ",
        ("nan", "adam"): "nan",
        ("swapped", "sgd"): "differ",
        ("absent", "sgd"): "torch",
    }
    for name, reason in reasons.items():
        assert reason in runs[name]["why_not"]
        assert runs[name]["samples_us"] == []


def test_the_table_has_a_row_a_peer_and_a_column_a_recipe(wanted, monkeypatch):
    answers = {"same": [measured(losses) for losses in wanted], "half": [measured(wanted[0]), {"why_not": "no Adam"}]}
    record, _ = compare(monkeypatch, answers)
    title, same, half, reason = peers.table(record).splitlines()
    assert title.split()[-4:] == ["sgd", "128", "adam", "128"]
    assert (same.split(), half.split()) == (["same", "2", "2"], ["half", "2", "-"])
    assert reason == "half: no Adam"


def test_a_peer_runs_in_a_process_of_its_own():
    (answer,) = peers.measure_in_process("no_such_peer", TWO[:1], QUICK)
    assert answer == {"why_not": "ModuleNotFoundError: No module named 'mlpkit.peers.no_such_peer'"}
    answers = peers.measure_in_process("plain_numpy", TWO, QUICK)
    assert [len(answer["samples_us"]) > 1 for answer in answers] == [True, True]

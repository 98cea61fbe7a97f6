"""Other people's loops are compared only where they train the same network on the same batches."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlpkit import bench, peers
from mlpkit.bench import GATE_STEPS, Timing
from mlpkit.recipe import Recipe

QUICK = Timing(warmup=1, steps_a_sample=2, rounds=2)
RECIPE = Recipe()


@pytest.fixture(scope="module")
def wanted():
    """The baseline's first losses, on MNIST."""
    return bench.Stepper("numpy_baseline", RECIPE, peers.load("mnist").train).take(GATE_STEPS)[1]


@pytest.mark.parametrize("name", peers.NAMES)
def test_a_peer_trains_the_same_network_on_the_same_batches(name, wanted):
    try:
        measured = peers.measure(name, RECIPE, QUICK)
    except ImportError as error:
        pytest.skip(str(error))
    losses = measured["first_losses"]
    assert_allclose(losses, wanted if len(losses) > 1 else wanted.mean(keepdims=True), rtol=bench.RTOL)
    assert all(sample > 0 for sample in measured["samples_us"])


def measured(losses):
    return {"first_losses": list(losses), "samples_us": [1.0, 2.0]}


def compare(monkeypatch, answers):
    """Return the runs of a comparison whose processes give these answers, and the order in which they were asked."""
    asked, saved = [], []

    def measure_in_process(name, recipe, timing):
        asked.append(name)
        return dict(answers[name])

    monkeypatch.setattr(peers, "measure_in_process", measure_in_process)
    record = peers.compare(RECIPE, QUICK, list(answers), lambda record: saved.append(1), lambda text: None)
    assert len(saved) == len(asked)  # nothing measured is lost
    return {run["engine"]: run for run in record["runs"]}, asked


def test_peers_take_turns_and_one_that_differs_gets_no_time(wanted, monkeypatch):
    nan = wanted.copy()
    nan[-1] = np.nan
    answers = {
        "same": measured(wanted),
        "its_mean": measured([wanted.mean()]),
        "other": measured(wanted * 1.01),
        "nan": measured(nan),
        "absent": {"why_not": "ModuleNotFoundError: No module named 'torch'"},
    }
    runs, asked = compare(monkeypatch, answers)
    assert asked == [*answers, "same", "its_mean"]
    for name in ("same", "its_mean"):
        assert (runs[name]["why_not"], runs[name]["samples_us"]) == (None, [1.0, 2.0, 1.0, 2.0])
    for name, reason in {"other": "differ", "nan": "nan", "absent": "torch"}.items():
        assert reason in runs[name]["why_not"]
        assert runs[name]["samples_us"] == []


def test_the_table_shows_peers_too(wanted, monkeypatch):
    runs, _ = compare(monkeypatch, {"same": measured(wanted)})
    (line,) = bench.table({"runs": list(runs.values())}).splitlines()[1:]
    assert line.split()[:2] == ["same", "2"]


def test_a_peer_runs_in_a_process_of_its_own():
    answer = peers.measure_in_process("no_such_peer", RECIPE, QUICK)
    assert answer == {"why_not": "ModuleNotFoundError: No module named 'mlpkit.peers.no_such_peer'"}
    assert len(peers.measure_in_process("plain_numpy", RECIPE, QUICK)["samples_us"]) > 1

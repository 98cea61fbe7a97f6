"""What a search's processes may suffer: kill -9 of any, at random; what is left is whole, and nothing is done twice."""

import os
import signal
import sys

import pytest

pytest.importorskip("optuna", reason="the extra `search` adds what these tests need")
pytest.importorskip("distributed", reason="the extra `search` adds what these tests need")
if sys.platform != "linux":
    pytest.skip("the processes to kill are found in Linux's /proc", allow_module_level=True)

from experiments.search import kills
from mlpkit.search import run
from mlpkit.search.task import train_to


def assert_nothing_lost(found, trials):
    """Each trial has one result; each kill has cost at most the trials that were under way, one a worker."""
    done, failed = found["states"].get("COMPLETE"), found["states"].get("FAIL", 0)
    clients = sum(not who.startswith("worker") for who in found["killed"])
    assert found["whole"] == "ok"
    assert set(found["states"]) <= {"COMPLETE", "FAIL"}
    assert done == found["results"] == trials
    assert found["twice"] == 0
    assert failed <= 2 * clients
    assert found["begun"] - done <= 2 * clients + len(found["killed"]) - clients


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 20])
def test_whoever_is_killed_no_result_is_lost_or_doubled(tmp_path, count):
    path = tmp_path / "killed.toml"
    trials = 3 * count
    kills.write(path, "numpy_baseline", 1000, trials, epochs=4, heartbeat=1)
    found = kills.killed(path, count, seed=count, port=18790 + count, least=0.2, most=1.0)
    assert_nothing_lost(found, trials)


def deadly(study, choices, epochs, before=None):
    """Train, but for large rates end the process, as a fault in a library would."""
    if choices["lr"] > 0.05:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_to(study, choices, epochs, before)


@pytest.mark.slow
def test_a_trial_that_three_workers_died_of_is_given_up_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "train_to", deadly)
    path = tmp_path / "deadly.toml"
    kills.write(path, "numpy_baseline", 500, 5, epochs=1, heartbeat=1)
    said = []
    found = run.search(path, lambda trial, finished, study: said.append(trial.user_attrs.get("why")))
    large = [trial.params["lr"] > 0.05 for trial in found.trials]
    assert [trial.state.name == "FAIL" for trial in found.trials] == large
    assert said.count("3 workers died of it") == sum(large) > 0
    assert said.count(None) == 5 - sum(large) > 0

"""The experiment on searches: what is read from a record that is made up, and from the published one."""

import numpy as np
import pytest

from experiments import search
from experiments.lab import results
from experiments.search import Plan, kills


def made_up():
    """Return a record of two studies by each of two samplers, three trials each."""
    record = results.new("search", plan={"epochs": 2})
    for sampler, best in (("tpe", 0.97), ("random", 0.96)):
        for number in (1, 0):
            trials = [[0.1, "sgd", 32, "cosine", value, 2, 0.5] for value in (0.9, best + number / 100, 0.8)]
            run = {"kind": "study", "sampler": sampler, "pruner": "none", "number": number, "epochs": 2}
            record["runs"].append(
                run | {"trials": trials, "best": best + number / 100, "fresh": [[0.9, 0.8], [0.92, 0.8]]}
            )
    record["runs"] += [
        {"kind": "workers", "workers": n, "seconds": 8.0 / n, "each": [4.0 / n] * n + [1.0] * 4} for n in (1, 2, 1, 2)
    ]
    return record


def test_studies_are_read_in_the_order_of_their_numbers():
    record = made_up()
    assert search.picked(record, "tpe").tolist() == [0.97, 0.98]
    assert search.best_so_far(record, "random").tolist() == [[0.9, 0.96, 0.96], [0.9, 0.97, 0.97]]
    assert search.fresh(record, "tpe").shape == (2, 2)
    np.testing.assert_allclose(search.fresh(record, "tpe", 1), 0.8)
    assert search.speedup(record).tolist() == [2.0, 2.0]
    assert search.speedup(record, warm=True).tolist() == [2.0, 2.0]


def test_the_table_shows_whatever_there_is():
    record = made_up()
    assert "two workers: 2.00 times as fast as one, 2.00 once" in search.table(record)
    assert "TPE less random, from fresh seeds: 0.00%" in search.table(record)
    del record["runs"][3:]
    assert "tpe" in search.table(record)


def test_a_file_of_a_study_tells_what_is_left(tmp_path):
    optuna = pytest.importorskip("optuna", reason="the extra `search` adds what this test needs")
    path = tmp_path / "any.toml"
    kills.write(path, "numpy_baseline", 10, 3)
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/studies.db", study_name="any")
    for value in (0.1, 0.1):
        study.add_trial(optuna.create_trial(
            params={"lr": value}, distributions={"lr": optuna.distributions.FloatDistribution(0, 1)}, value=value
        ))  # fmt: skip
    study.ask()
    path.with_suffix(".log").write_text("0.1\n0.1\n0.2\n")
    found = kills.left(path)
    assert found == {
        "whole": "ok", "states": {"COMPLETE": 2, "RUNNING": 1}, "results": 2, "twice": 1, "begun": 3, "tried": 2
    }  # fmt: skip


def test_the_published_record_can_be_read():
    record = results.published("search")
    assert search.best_so_far(record, "tpe").shape == (15, 60)
    assert "two workers:" in search.table(record)


@pytest.mark.slow
def test_a_small_record_is_whole_and_can_be_read_back(tmp_path):
    for package in ("optuna", "distributed"):
        pytest.importorskip(package, reason="the extra `search` adds what these tests need")
    plan = Plan("numpy_baseline", 500, ("random",), 2, 3, 1, 1, 1, 3, 3, 1, (10,), 0, 0, 0)
    record = search.measure(lambda record: None, lambda text: None, plan)
    assert len(search.studies(record, "random")) == 2
    assert search.table(results.load(results.save(record, folder=tmp_path))) == search.table(record)

"""The record "busy": steps beside a busy program, in windows in which nobody else computed."""

import json
from importlib import import_module

import pytest

from experiments import busy
from experiments.lab import processes
from mlpkit import engines
from mlpkit.nn.models import LENET5

measuring = import_module(f"{busy.__name__}.measure")  # its name is that of its function
QUICK = busy.Plan(engines=("numpy_baseline",), others=(), rounds=1, seconds=0.02, disturbed=99.0, patience=0.0)


def record_of(plan):
    saved = []
    record = busy.measure(lambda record: saved.append(json.dumps(record)), lambda text: None, plan)
    assert json.loads(saved[-1]) == json.loads(json.dumps(record))
    return record


@pytest.mark.slow
def test_each_variant_is_measured_alone_and_beside_a_busy_program():
    record = record_of(QUICK)
    runs = {(run["way"], run["others"]): run for run in record["runs"]}
    assert set(runs) in ({("all", 0), ("all", 1), ("crew", 0), ("crew", 1)}, {("own", 0), ("own", 1)})
    for (way, others), run in runs.items():
        assert run["samples_us"] == run["window_us"][0]
        assert busy.mean_us(record, "numpy_baseline", way, others) > 0
        assert busy.slower(record, "numpy_baseline", way) > 0
    assert "numpy_baseline" in busy.table(record)


def test_every_engine_of_numbas_whose_threads_can_be_chosen_is_measured():
    """But for plain loops, of which a thread team can save nothing (see `Plan`), and what trains as `numba_conv`."""
    found = [name for name in engines.names() if engines.library(name) == "numba"]
    chosen = {name for name in found if hasattr(engines.load(name), "threads")}
    assert chosen - set(busy.USUAL.engines) == {"numba_parallel", "numba_fastmath", "numba_int8"}


def test_an_engine_for_networks_that_see_trains_one():
    assert {name for name in busy.USUAL.engines if measuring.recipe_of(name).model is LENET5} == {"numba_conv"}
    assert all(measuring.recipe_of(name) == measuring.RECIPE for name in busy.USUAL.others)


def test_a_window_in_which_others_computed_is_kept_and_does_not_count(monkeypatch):
    used = iter([{"window_us": [9.0], "cpu_us": 9.0, "others_cores": cores} for cores in (0.5, 0.0, None)])
    plan = busy.Plan(engines=(), rounds=2, tries=9)
    monkeypatch.setattr(measuring, "_prepared", lambda name: (None, lambda n: [0.0]))
    monkeypatch.setattr(measuring, "SIDES", (0,))
    monkeypatch.setattr(measuring, "_window", lambda *arguments: next(used))
    (run,) = measuring.windows("somebody", plan)["runs"]
    assert run["others_cores"] == [0.5, 0.0, None]
    assert run["window_us"] == [[9.0]] * 3
    assert run["samples_us"] == [9.0] * 2


def test_who_cannot_run_or_computes_something_else_has_a_reason(monkeypatch):
    run = {"way": "own", "others": 0, "samples_us": [1.0]}
    answers = iter([processes.Failed("there is no torch"), {"first_losses": [7.0] * 20, "runs": [run]}])

    def ask(*arguments):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(processes, "ask", ask)
    record = record_of(busy.Plan(engines=(), others=("pytorch", "liar")))
    assert [run["why_not"].split(":")[0] for run in record["runs"]] == [
        "there is no torch",
        "its first losses differ from the baseline's",
    ]
    assert busy.mean_us(record, "liar", "own", 0) is None
    assert busy.table(record).count("not run") == 2


def test_seconds_computed_are_counted_where_the_system_tells():
    before = measuring._used()
    if before is None:
        pytest.skip("this system does not tell")
    mine = measuring._mine()
    while measuring._mine() < mine + 0.1:
        pass
    assert measuring._used() - before > 0.05

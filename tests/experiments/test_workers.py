"""Searches of longer trials, by one worker and by two."""

import pytest

from experiments import search, workers
from experiments.lab import results


def test_the_record_is_read_pair_by_pair():
    record = results.new("workers")
    record["runs"] = [{"kind": "workers", "workers": n, "seconds": 100.0 / n + n, "each": [1.0]} for n in (1, 2, 1, 2)]
    assert search.speedup(record) == pytest.approx([101 / 52, 101 / 52])
    assert "1.94, 1.94 times as fast" in workers.table(record)


def test_each_count_of_workers_is_measured_in_turns(monkeypatch):
    asked = []
    monkeypatch.setattr(workers, "timed", lambda plan, count, epochs: asked.append((count, epochs)) or {"seconds": 1.0})
    plan = workers.Plan(pairs=2)
    assert [run["workers"] for run in workers._runs(plan, 3, lambda said: None)] == [1, 2, 1, 2]
    assert asked == [(1, 3), (2, 3), (1, 3), (2, 3)]

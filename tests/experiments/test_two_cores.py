"""The experiment "ranks", of two processes on two cores: what is read from a record, and that a small one is whole."""

import os

import numpy as np
import pytest

from experiments import ranks
from experiments.lab import results
from mlpkit import machine


def made_up():
    """Return a record of a ring by two sizes, the larger first, and of one engine's steps in two rounds."""
    record = results.new("ranks", plan={})
    record["runs"] = [{"kind": "ring", "ranks": 2, "floats": n, "us": [n / 4, n / 2, n]} for n in (400, 100)]
    for us in ([9.0, 10.0], [11.0]):
        run = {"kind": "step", "engine": "any", "model": "mlp", "batch_size": 128, "way": "two ranks", "us": us}
        record["runs"].append(run)
    return record


def test_a_ring_is_read_by_rising_size_and_a_step_over_all_rounds():
    floats, us = ranks.ring(made_up())
    assert (floats.tolist(), us.tolist()) == ([100, 400], [50, 200])
    assert ranks.step_us(made_up(), "any", 128, "two ranks") == 10
    assert "128 images  two ranks        10.0 us" in ranks.table(made_up())


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or machine.cores() < 2, reason="it takes Linux and two cores to give"
)
def test_a_small_record_is_whole_and_leaves_this_process_its_cores():
    before = os.sched_getaffinity(0)
    plan = ranks.Plan((64, 1000), (("numpy_baseline", "mlp"),), (32,), 3, 2, 1)
    record = ranks.measure(lambda record: None, lambda text: None, plan)
    assert os.sched_getaffinity(0) == before
    assert {run["way"] for run in results.runs(record, kind="step")} == {"one core", "two cores", "two ranks"}
    assert all(np.array(run["us"]).min() > 0 for run in record["runs"])
    assert ranks.table(record).count("\n") == 4

"""The record of several GPUs: all ranks have the same bits, all ways the same losses; and how it is read."""

import numpy as np
import pytest

from experiments import scaling
from experiments.lab import results
from mlpkit import engines


@pytest.fixture(scope="module")
def record():
    return results.published("scaling")


def shared(record):
    return [run for run in record["runs"] if run["part"] == "ours" and run["how"] in ("nccl", "nvlink") and "us" in run]


def test_all_ranks_end_with_the_same_bits(record):
    assert len(shared(record)) > 40
    assert all(run["same_bits"] for run in shared(record))
    assert all(run["right"] for run in record["runs"] if run["part"] == "all_reduce")


def test_each_way_of_adding_up_has_the_losses_of_another(record):
    """Where ranks have batch statistics of their own, another way to share is the judge; else one GPU is."""
    for run in shared(record):
        which = {name: run[name] for name in ("part", "network", "engine", "batch", "ranks")}
        other = "nccl" if run["network"] == "residual" else "whole"
        (judge,) = results.runs(record, how=other, **which)
        rtol = 2e-4 if run["engine"] in ("cuda_conv_graph", "cuda_conv_fused", "cuda_graph_epoch") else 2e-3
        np.testing.assert_allclose(run["losses"][:5], judge["losses"][:5], rtol=rtol)


def test_a_gain_is_images_a_second_against_one_gpu(record):
    few = results.new("scaling", ranks=4)
    which = {"part": "ours", "network": "residual", "engine": "any", "batch": 128, "ranks": 4}
    times = {"alone": [100.0, 90.0, 99.0], "whole": [300.0], "nvlink": [110.0]}
    few["runs"] = [which | {"how": how, "us": us} for how, us in times.items()]
    assert scaling.gain(few, 4, "residual", "any", "nvlink") == pytest.approx(3.6)
    assert scaling.gain(few, 4, "residual", "any", "nvlink", alone="whole") == pytest.approx(300 / 110)
    assert scaling.gain(few, 4, "residual", "any", "nccl") is None
    assert "3.60" in scaling.table(few)
    assert "1.96" in scaling.table(record)


def test_every_part_is_measured_with_as_many_images_together():
    for count in scaling.COUNTS:
        strong = [part for part in scaling.plan(count) if part[0] == "ours"][-len(scaling.STRONG) :]
        assert {part[3] * count for part in strong} == {scaling.TOGETHER}


def test_where_there_are_fewer_gpus_a_sentence_says_so():
    with pytest.raises(engines.EngineUnavailable, match="needs two GPUs or more, and this machine has"):
        scaling.measure(counts=[99])

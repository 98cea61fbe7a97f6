"""The experiment on several GPUs: the price of a message is found again, and the record is read."""

import numpy as np
import pytest

from experiments import two_gpus
from experiments.lab import results
from mlpkit import engines


def test_the_price_of_a_message_is_found_again_though_sizes_differ_a_millionfold():
    floats = 2 ** np.arange(4, 27)
    wanted = two_gpus.Price(9.0, 200.0)
    found = two_gpus.price(floats, wanted.us(floats))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    odd = wanted.us(floats) * np.where(floats % 3 == 1, 1.02, 0.98)
    np.testing.assert_allclose(two_gpus.price(floats, odd), wanted, rtol=0.04)  # errors are relative ones


def test_the_published_record_has_nccl_right_at_every_size_and_each_larger_one_takes_longer():
    record = results.published("two_gpus")
    assert all(run["right"] for run in two_gpus.runs_of(record, "all_reduce"))
    floats, us = two_gpus.all_reduce(record)
    assert (np.diff(floats) > 0).all()
    assert (np.diff(us[floats >= 1024]) > 0).all()  # shorter ones take one time, and its noise
    assert (two_gpus.all_reduce(record, "calls")[1] > us).all()


def test_a_gain_is_told_where_the_record_has_steps_and_else_none():
    record = results.new("two_gpus", ranks=2)
    steps = {"part": "ours", "network": "residual", "engine": "any"}
    assert two_gpus.gain(record, "nccl", **steps) is None
    record["runs"] = [steps | {"how": how, "us": us} for how, us in (("alone", [100.0, 90.0, 99.0]), ("nccl", [110.0]))]
    assert two_gpus.gain(record, "nccl", **steps) == pytest.approx(1.8)
    assert "residual" in two_gpus.table(record)


def test_the_published_record_has_two_gpus_with_the_same_bits_and_its_table_says_who_refused():
    record = results.published("two_gpus")
    refused = [run for run in two_gpus.runs_of(record, "ours") if "us" not in run]
    shared = [run for run in two_gpus.runs_of(record, "ours") if run["how"] in ("nccl", "nvlink") and "us" in run]
    assert refused
    assert len(shared) > 15
    assert all(run["same_bits"] for run in shared)
    assert two_gpus.table(record).count("refused: ValueError: cuda_") == len(refused)


def test_where_there_are_fewer_gpus_a_sentence_says_so():
    with pytest.raises(engines.EngineUnavailable, match="needs 99 GPUs, and this machine has"):
        two_gpus.measure(ranks=99)

"""The experiment on seeds: its record's names are the kernel's stamps, and its table shows whatever there is."""

import re

import pytest

from experiments import seeds
from experiments.lab import results
from experiments.seeds import ALONE, STAGES, TOGETHER, Plan, table
from mlpkit import kernels

SMALL = Plan(samples=2, networks=(1, 3), cases=(("sgd", 64),), seeds=2, epochs=1, marked=4, marked_networks=(2,))


def test_every_stamp_of_the_kernel_has_its_name():
    found = sorted(int(number) for number in re.findall(r"stamp\(step, (\d+)\)", kernels.source("cluster")))
    assert found == list(range(len(STAGES)))


def test_the_table_shows_a_record_that_has_only_begun():
    record = results.new("seeds", plan={})
    case = {"kind": "epoch", "optimizer": "sgd", "batch_size": 128, "steps": 430}
    record["runs"].append(case | {"engine": TOGETHER, "networks": 15, "samples_us": [8600.0, 9000.0, 8000.0]})
    record["runs"].append(case | {"engine": ALONE, "networks": 15, "samples_us": [86000.0]})
    lines = table(record).splitlines()
    assert lines[1].split() == ["15", "at", "once", "sgd", "128", "8.60", "20.00"]
    assert lines[2].split() == ["15", "one", "by", "one", "sgd", "128", "86.00", "200.00"]


def test_the_table_shows_accuracies_with_their_spread():
    record = results.new("seeds", plan={})
    record["runs"].append({"kind": "accuracy", "epochs": 5, "test_accuracy": [0.97, 0.98], "train_loss": [0.1, 0.1]})
    assert table(record).endswith("2 seeds: 97.50% +- 0.71%, from 97.00% to 98.00%")


def test_the_published_record_can_be_read():
    record = results.published("seeds")
    assert "accuracy after 5 epochs, 15 seeds: 97." in table(record)
    timed = [run for run in results.runs(record, kind="epoch") if not run.get("why_not")]
    assert all(seeds.median_ms(run) > 0 for run in timed)


@pytest.mark.gpu
def test_a_small_record_is_whole_and_can_be_read_back(tmp_path):
    saved = []
    record = seeds.measure(lambda found: saved.append(len(found["runs"])), lambda text: None, SMALL)
    assert saved == list(range(1, len(record["runs"]) + 1))
    for run in results.runs(record, kind="epoch"):
        assert len(run["samples_us"]) == SMALL.samples
        assert min(run["samples_us"]) > 100
    (stages,) = results.runs(record, kind="stages")
    assert 1000 < sum(stages["ns"]) < 1e6
    (accuracy,) = results.runs(record, kind="accuracy")
    assert min(accuracy["test_accuracy"]) > 0.9
    assert table(results.load(results.save(record, folder=tmp_path))) == table(record)

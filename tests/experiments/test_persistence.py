"""The experiment on waiting: its record's names are the kernel's stamps, and its table shows whatever there is."""

import re

import numpy as np
import pytest

from experiments import persistence
from experiments.lab import results
from experiments.persistence import STAGES, Plan, table
from experiments.persistence.waits import _largest_cluster
from mlpkit import kernels

SMALL = Plan(
    samples=2, rounds=20, blocks=(2, 16), clusters=(2,), nodes=20, pairs=2, places=3, batch_sizes=(64,), marked=4
)


@pytest.mark.parametrize("kind", STAGES)
def test_every_stamp_of_the_kernel_has_its_name(kind):
    function = {"column": "first_warps", "row": "row_block"}[kind]
    body = kernels.source("persistent").partition(f"void {function}(")[2].partition("\n}\n")[0]
    found = re.findall(r"stamp\(step(?: - 1)?, (\d+)\)", body)  # a step's last ones may stand where the next begins
    assert sorted(map(int, found)) == [*range(len(STAGES[kind]))]


def test_stages_are_means_of_differences_and_the_last_one_ends_with_the_step():
    stamps = np.array([[[0, 10, 30], [100, 110, 130], [200, 250, 270], [300, 310, 330]]] * 2)
    assert persistence.stage_ns(stamps) == [23.3, 20, 56.7]  # they add up to a step


@pytest.mark.parametrize(("capability", "blocks"), [(80, 0), (90, 16), (100, 16), (120, 8)])
def test_larger_clusters_are_left_out_where_there_are_none(capability, blocks):
    assert _largest_cluster(capability) == blocks


def test_the_table_shows_a_record_that_has_only_begun():
    record = results.new("persistence", plan={"batch_sizes": [64, 128], "optimizers": ["sgd"]})
    record["runs"].append({"kind": "wait", "name": "packet", "blocks": 2, "samples_us": [0.5, 0.25, 0.75]})
    record["runs"].append(
        {"kind": "step", "engine": "cuda_graph", "optimizer": "sgd", "batch_size": 64, "samples_us": [9.0]}
    )
    lines = table(record).splitlines()
    assert lines[1].split() == ["packet", "2", "0.500"]
    assert "cuda_graph                sgd           9.00" in lines


def test_the_published_record_can_be_read():
    lines = table(results.published("persistence")).splitlines()
    assert sum(line.startswith("cuda_persistent") for line in lines) == 2
    assert sum(line.endswith(" ns") for line in lines) == 4 * sum(map(len, STAGES.values()))


@pytest.mark.gpu
def test_a_small_record_is_whole_and_can_be_read_back(tmp_path):
    saved = []
    record = persistence.measure(lambda found: saved.append(len(found["runs"])), lambda text: None, SMALL)
    assert saved == list(range(1, len(record["runs"]) + 1))
    for run in results.runs(record, kind="wait") + results.runs(record, kind="step"):
        assert len(run["samples_us"]) == SMALL.samples
    for run in results.runs(record, kind="step"):
        assert min(run["samples_us"]) > 1
    for run in results.runs(record, kind="stages"):
        assert 1000 < sum(run["ns"]) < 1e6
    assert table(results.load(results.save(record, folder=tmp_path))) == table(record)

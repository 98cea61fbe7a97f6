"""The record of pictures' trainings: all peers begin with the same losses, and the table says what the record has."""

import pytest

from experiments import picture_training


def test_a_gain_is_to_the_better_layout_and_a_refusal_is_told():
    about = {"network": "painter", "cores": 2, "why_not": None}
    runs = [{**about, "engine": "numba_conv", "samples_us": [2000.0]}]
    runs += [{**about, "engine": "pytorch", "samples_us": [9000.0]}]
    runs += [{**about, "engine": "pytorch_last", "samples_us": [], "why_not": "it is not here"}]
    record = {"experiment": "picture_training", "runs": runs}
    assert picture_training.gain(record, "painter", 2) == 4.5
    assert picture_training.gain(record, "painter", 1) is None
    found = picture_training.table(record)
    assert "painter, 2 cores" in found
    assert "it is not here" in found


@pytest.mark.slow
@pytest.mark.parametrize("network", picture_training.NETWORKS)
def test_every_peer_begins_with_the_same_losses(network):
    plan = picture_training.Plan((network,), cores=(1,), rounds=1, samples=1)
    record = picture_training.measure(save=lambda record: None, progress=lambda text: None, plan=plan)
    ours, *others = record["runs"]
    assert ours["why_not"] is None
    assert len(ours["samples_us"]) == 1
    assert all(run["why_not"] or len(run["losses"]) == picture_training.STEPS for run in others)

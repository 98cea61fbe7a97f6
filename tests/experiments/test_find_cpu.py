"""The record of scenes a second: every peer sees what the baseline sees, and the table says what the record has."""

import pytest
from shared import peer_alone, peers_of

from experiments import find_cpu


def test_the_median_of_all_rounds_is_a_peers_speed_and_a_refusal_is_told():
    about = {"cores": 1, "why_not": None}
    runs = [{**about, "engine": "one", "samples_us": [1000.0, 3000.0]}, {**about, "engine": "one", "samples_us": [5e3]}]
    runs += [{**about, "engine": "one", "cores": 2, "samples_us": [1500.0]}]
    runs += [{**about, "engine": "other", "samples_us": [], "why_not": "it is not here"}]
    record = {"experiment": "find_cpu", "runs": runs, "settings": {"batch": 6}}
    assert find_cpu.a_second(record, "one", 1) == 2000
    assert find_cpu.a_second(record, "one", 2) == 4000
    assert find_cpu.a_second(record, "other", 1) is None
    assert "it is not here" in find_cpu.table(record)


@pytest.mark.slow
@pytest.mark.parametrize("who", peers_of(find_cpu))
def test_scenes_are_seen_as_the_baseline_sees_them_and_timed(who):
    peer_alone(find_cpu, who, cores=(1,), batches=2, batch=6)

"""The experiment on the limit: its stages are the kernel's stamps, its table shows what there is, and a small run."""

import re

import numpy as np
import pytest
from shared import one_sentence

from experiments import gpu_image_limit as limit
from experiments.gpu_image_limit.stages import of_blocks
from experiments.lab import results
from mlpkit import kernels
from mlpkit.engines import names


@pytest.fixture
def record():
    plan = {"batch_sizes": [64, 128]}
    found = results.new("gpu_image_limit", plan=plan)
    found["runs"] = [
        {"kind": "step", "way": "graph", "batch_size": 128, "samples_us": [3.0, 1.0, 2.0], "host_us": [4.0]},
        {"kind": "changed", "macro": "PAIRS", "value": 0, "batch_size": 128, "samples_us": [5.0]},
        {"kind": "apart", "kernel": "images", "batch_size": 64, "samples_us": [6.0]},
        {"kind": "stages", "block": "with an image", "batch_size": 64, "names": ["a"], "ns": [9.0], "when": [0.0]}
        | {"last": [2.0]},
    ]
    return found


def test_every_stamp_of_the_kernel_has_its_name():
    source = kernels.source("limit")
    found = {int(number) for number in re.findall(r"\bstamp\((\d+)(?:, tag)?\);", source)}
    assert found == {*limit.STAGES} > {*limit.IDLE}
    assert len({*limit.STAGES.values()}) == len(limit.STAGES)


def test_stages_are_in_the_order_in_which_a_block_comes_to_them():
    """All that `train` calls in turn, taken as it stands: the order is that of the calls."""
    source = kernels.source("limit")
    bodies = {name: _body(source, name) for name in ("train", "through_network", "convs_forward", "convs_back")}
    bodies |= {"update": source[source.index("void update(Given") :].partition("\n    }\n")[0]}
    order = [int(n) for n in re.findall(r"\bstamp\((\d+)", _inlined(bodies["train"], bodies))]
    assert order == [*limit.STAGES]


def _body(source, name):
    return re.search(rf"\b{name}\([^;{{]*\{{.*?\n\}}", source, re.DOTALL)[0].partition("{")[2]


def _inlined(text, bodies):
    calls = r"\b(through_network|convs_forward|convs_back|(?<=owned\.)update)(?:<[^>]*>)?\((?!Partial)"

    def body(match):
        return _inlined(re.sub(rf"\b{match[1]}(?:<[^>]*>)?\(", "again(", bodies[match[1]]), bodies)

    return re.sub(calls, body, text)


def test_stages_add_up_to_a_step_and_moments_count_from_the_block_in_the_middle():
    early, late = np.array([[[0, 5, 9]], [[2, 7, 15]], [[2, 8, 16]]]), 20
    stamps = np.concatenate([early, early + late], axis=1)
    found = of_blocks(np.pad(stamps, [(0, 0), (0, 0), (0, 13)]), {0: "first", 2: "second"})
    assert found["names"] == ["first", "second"]
    assert sum(found["ns"]) == pytest.approx(late, abs=0.1)
    assert found["by_block"] == [[9, 11], [13, 7], [14, 6]]
    assert (found["first"], found["when"], found["last"]) == ([-2, 7], [0, 13], [0, 14])


def test_variants_are_engines():
    assert {engine for engine, _ in limit.VARIANTS.values()} <= {*names()}


def test_a_record_is_read_by_variant_and_batch(record):
    assert limit.step_us(record, "graph") == 2
    assert limit.step_us(record, "graph", clock="host_us") == 4


def test_what_a_record_lacks_is_said(record):
    for batch_size in (64, 512):
        with pytest.raises(LookupError) as caught:
            limit.step_us(record, "graph", batch_size)
        one_sentence(caught.value.args[0], "no run of the kind", "way")


def test_the_table_shows_a_record_that_has_only_begun(record):
    lines = limit.table(record).splitlines()
    assert lines[1].split() == ["graph", "-", "2.00"]
    assert lines[2].split()[-3:] == ["PAIRS=0", "-", "5.00"]
    assert lines[3].split()[-2:] == ["6.00", "-"]
    assert lines[6].split() == ["a", "9", "ns,", "at", "0,", "last", "2"]
    record["runs"] = []
    assert len(limit.table(record).splitlines()) == 1


@pytest.mark.parametrize("odd", [None, "x", [], {"batch_size": None}])
def test_an_odd_record_is_refused_in_a_sentence(odd, record):
    record["runs"] = [{"kind": "stages", "block": odd, "names": odd}]
    with pytest.raises(results.RecordError, match="can't be read"):
        limit.table(record)


@pytest.mark.gpu
def test_a_small_record_is_whole_and_can_be_read_back(tmp_path):
    plan = limit.Plan(
        samples=1, batch_sizes=(64,), stamped=(64,), steps=4, repeats=2, changes=(("PAIRS", 0),), traced=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    train = rng.integers(256, size=(8000, 1, 28, 28)).astype(np.uint8), rng.integers(10, size=8000)
    record = limit.measure(lambda found: None, lambda text: None, plan, train)
    kinds = [run["kind"] for run in record["runs"]]
    assert kinds == ["step"] * 3 + ["stages"] * 2 + ["changed"] + ["apart"] * 2
    assert 5 < limit.step_us(record, "one kernel", 64) < limit.step_us(record, "graph", 64)
    for run in results.runs(record, kind="stages"):
        assert 5e3 < sum(run["ns"]) < 1e6
        assert min(run["ns"]) > -1
    assert limit.table(results.load(results.save(record, folder=tmp_path))) == limit.table(record)

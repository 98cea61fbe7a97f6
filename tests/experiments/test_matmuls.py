"""Every stage multiplies, on shapes that fill no block; the record has what its chapter reads; threads cost time."""

import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import sweep

from experiments import matmul as matmuls
from experiments.lab import results
from experiments.lab.products import Product
from experiments.matmul import Plan
from experiments.matmul.read import LABELS, _turns_line
from experiments.matmul.stages import STAGES, Stage
from experiments.matmul.threads import in_process
from experiments.matmul.timing import rates, tile_ns

SHAPES = [(1, 1, 1), (3, 2, 5), (4, 8, 16), (5, 9, 17), (13, 25, 10), (130, 33, 40)]
QUICK = Plan(samples=2, sample_seconds=1e-4, slow=1e6, region_seconds=0.01, tile_depths=(8, 16), groups=("depth",))


# Numba compiles a stage anew for each way to lie in memory. Two stand for the others: one of those that index arrays,
# and the one that copies pieces of them. So does one for all that are shared out among cores, which takes longer still.
CASES = [(name, cores, turned) for name in STAGES for cores in ("one", "all") for turned in ("", "a", "b")]
STAY = [
    (name, "all" if name == "ikj" else "one", turned)
    for name, _, turned in CASES
    if not turned or name in ("ikj", "tiles")
]


@pytest.mark.parametrize(("name", "cores", "turned"), sweep(CASES, *STAY))
def test_every_stage_multiplies(name, cores, turned):
    for n, k, m in SHAPES:
        a, b, out = Product("test", "", n, k, m, turned).arrays()
        out[:] = np.nan
        getattr(STAGES[name], cores)(a, b, out)
        assert_allclose(out, a @ b, rtol=1e-4, err_msg=f"{n} x {k} x {m}")


@pytest.mark.parametrize("name", sweep(STAGES, "ikj"))
def test_every_stage_multiplies_in_float64(name):
    a, b, out = Product("test", "", 13, 25, 18).arrays(np.float64)
    STAGES[name].one(a, b, out)
    assert_allclose(out, a @ b, rtol=1e-13)


def test_the_order_of_the_loops_changes_no_bit():
    a, b, out = Product("test", "", 16, 100, 32).arrays()
    other = out.copy()
    STAGES["ijk"].one(a, b, out)
    STAGES["ikj"].one(a, b, other)
    assert_array_equal(out, other)


def test_the_step_has_the_products_of_a_training_step():
    shapes = [(p.n, p.k, p.m, p.turned) for p in matmuls.STEP]
    assert {(128, 784, 128, ""), (784, 128, 128, "a"), (128, 10, 128, "b")} < set(shapes)
    assert len(shapes) == len(set(shapes)) == 8
    assert matmuls.FIRST.flops == 2 * 128 * 784 * 128


def test_a_wrong_stage_gets_no_time(monkeypatch):
    broken = Stage("broken", lambda a, b, out: out.fill(0), None)
    monkeypatch.setitem(STAGES, "broken", broken)
    with pytest.raises(AssertionError):
        rates(Product("test", "", 4, 4, 4), 1, QUICK, ["broken"])


def test_a_slow_stage_is_spared_a_large_product():
    found = rates(Product("test", "", 80, 80, 80), 1, QUICK, ["ijk", "ikj"])
    assert found["ijk"] == []
    assert len(found["ikj"]) == QUICK.samples


def test_a_deeper_tile_takes_longer():
    assert min(tile_ns(1024, 5)) > 2 * min(tile_ns(64, 5))


def test_the_record_has_what_the_chapter_reads(tmp_path):
    saved = []
    record = matmuls.measure(saved.append, lambda what: None, replace(QUICK, threads=False))
    assert len(saved) == len(record["runs"])
    assert {run["kind"] for run in record["runs"]} == {"peak", "stage", "interpreted", "sum", "tile"}
    path = results.save(record, folder=tmp_path)
    again = results.load(path)
    assert 0 < matmuls.gflops(again, "tiles", matmuls.DEPTHS[0]) < 10 * matmuls.peak(again)
    assert matmuls.gflops(again, "tiles", matmuls.CUBES[0]) is None
    assert matmuls.threads_of(again)[0] == 1
    assert "peak of 1 core:" in matmuls.table(again)


def test_the_best_sample_counts():
    run = {"kind": "stage", "stage": "ikj", "threads": 1, "samples_gflops": [1.0, 3.0, 2.0]}
    record = {"runs": [run | asdict(matmuls.FIRST)]}
    assert matmuls.gflops(record, "ikj") == 3
    assert matmuls.gflops(record, "ijk") is None


def test_a_region_is_measured_in_a_process_with_its_layer():
    found = in_process("region", 0.01, "workqueue", 2)
    assert found["why_not"] is None
    assert min(found["samples_us"]) > 0
    assert min(found["call_us"]) > 0


def test_a_layer_that_is_not_there_has_a_reason():
    found = in_process("region", 0.01, "no such layer", 1)
    assert "no such layer" in found["why_not"]
    assert "Error" in found["why_not"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs the omp layer")
def test_turns_times_both_libraries_alone_and_in_turns():
    found = in_process("turns", 0.01, "omp", 1)
    assert {"numba_us", "blas_us", "numba_in_turns_us", "blas_in_turns_us"} < set(found)
    assert _turns_line({"wait_policy": None, "others": 0} | found).count("in_turns") == 2


def test_every_stage_has_a_label():
    assert [stage.label for stage in STAGES.values()] == list(LABELS.values())
    assert list(STAGES) == list(LABELS)

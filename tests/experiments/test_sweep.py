"""A sweep gives every case its turn, its threads and its reason; a record of it says which engine wins where."""

import json
import sys
from contextlib import suppress
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose
from threadpoolctl import threadpool_info

from experiments import sweep
from experiments.lab import bench, results
from experiments.lab.bench import GateError, Stepper
from experiments.lab.operations import watched
from experiments.lab.quiet import with_threads
from experiments.sweep import Plan, curve, flops, table, value
from experiments.sweep.measure import _too_long
from mlpkit import engines, machine
from mlpkit.nn.models import mlp
from mlpkit.training.recipe import Recipe

MEASURE = sys.modules[Plan.__module__]
RNG = np.random.default_rng(0)
TRAIN = RNG.random((300, 784), dtype=np.float32), RNG.integers(10, size=300)
QUICK = Plan(
    engines=("numpy_baseline", "numba_serial"),
    batch_sizes=(16, 4),
    widths=(8,),
    threads=(1,),
    rounds=2,
    sample_seconds=0.001,
)


def run(plan=QUICK, saved=None):
    saved = [] if saved is None else saved
    return sweep.measure(lambda record: saved.append(json.dumps(record)), lambda text: None, plan, TRAIN)


def made_up(**times):
    """Return a record whose engines take these microseconds, by batch size, at width 8 on one thread."""
    runs = [
        {"engine": engine, "threads": 1, "width": 8, "batch_size": n, "samples_us": samples, "why_not": None}
        for engine, cases in times.items()
        for n, samples in cases.items()
    ]
    return {"runs": runs}


# The record


def test_every_case_has_its_samples_and_the_record_is_saved_case_by_case():
    saved = []
    record = run(saved=saved)
    cases = [(c["engine"], c["threads"], c["width"], c["batch_size"]) for c in record["runs"]]
    names = ("numba_serial", "numpy_baseline")
    assert cases == [(name, 1, 8, n) for n in (4, 16) for name in names]
    assert all(len(c["samples_us"]) == 2 and c["why_not"] is None for c in record["runs"])
    assert [len(json.loads(text)["runs"]) for text in saved] == [2, 4]
    assert json.loads(saved[-1]) == json.loads(json.dumps(record))


def test_a_record_can_be_read_back(tmp_path):
    record = run()
    assert results.load(results.save(record, folder=tmp_path)) == json.loads(json.dumps(record))


def test_an_engine_that_differs_gets_the_reason_and_no_time(monkeypatch):
    def wrong(name, recipe, train):
        if name == "numba_serial":
            raise GateError("numba_serial differs")

    monkeypatch.setattr(bench, "gate", wrong)
    record = run()
    assert [c["why_not"] for c in results.runs(record, engine="numba_serial")] == ["numba_serial differs"] * 2
    assert not any(c["samples_us"] for c in results.runs(record, engine="numba_serial"))
    assert all(c["samples_us"] for c in results.runs(record, engine="numpy_baseline"))


def test_an_engine_that_cannot_run_here_gets_the_reason(monkeypatch):
    def load(name):
        raise engines.EngineUnavailable("no such machine")

    monkeypatch.setattr(engines, "load", load)
    assert {c["why_not"] for c in run()["runs"]} == {"no such machine"}


def test_a_step_that_would_take_too_long_is_foretold_from_a_smaller_batch():
    record = made_up(numpy_baseline={4: [1e6, 3e6, 2e6]})
    case = {"engine": "numpy_baseline", "threads": 1, "width": 8, "batch_size": 16}
    assert _too_long(case, record, Plan(longest=9)) is None
    assert "8.0 s" in _too_long(case, record, Plan(longest=7))
    assert _too_long(case | {"width": 16}, record, Plan(longest=7)) is None


def test_a_slow_step_is_foretold_from_the_largest_batch_and_the_fastest_threads():
    record = made_up(numpy_baseline={1: [5e6], 4: [2e6]})
    record["runs"].append(record["runs"][-1] | {"threads": 2, "samples_us": [1e6]})
    case = {"engine": "numpy_baseline", "threads": 1, "width": 8, "batch_size": 16}
    assert "4.0 s" in _too_long(case, record, Plan(longest=1))


def test_what_takes_too_long_is_not_run():
    record = run(Plan(**vars(QUICK) | {"longest": 0.0}))
    small, large = ([c for c in record["runs"] if c["batch_size"] == n] for n in (4, 16))
    assert all(c["samples_us"] for c in small)
    assert all(not c["samples_us"] and "would take" in c["why_not"] for c in large)


def test_a_slow_case_takes_one_sample_and_no_more(monkeypatch):
    taken = []
    monkeypatch.setattr(MEASURE, "Stepper", lambda *arguments: SimpleNamespace(take=take))
    monkeypatch.setattr(bench, "gate", lambda *arguments: None)

    def take(steps):
        taken.append(steps)
        return 1.0, np.zeros(steps)

    record = run(Plan(**vars(QUICK) | {"patience": 0.5}))
    assert [c["samples_us"] for c in record["runs"]] == [[1e6]] * 4
    assert taken == [1] * 4


def test_a_loss_that_is_not_finite_gives_no_time(monkeypatch):
    stepper = SimpleNamespace(take=lambda steps: (1e-4, np.full(steps, np.nan)), take_one=lambda: None)
    monkeypatch.setattr(MEASURE, "Stepper", lambda *arguments: stepper)
    monkeypatch.setattr(bench, "gate", lambda *arguments: None)
    record = run()
    assert not any(c["samples_us"] for c in record["runs"])
    assert {c["why_not"] for c in record["runs"]} == {"the loss is not finite"}
    assert curve(record, "us a step", "numba_serial", 8) == ([], [])


def test_each_turn_has_its_threads(monkeypatch):
    seen = []

    class Watched:
        def __init__(self, engine, recipe, train):
            self.engine = engine

        def take(self, steps):
            blas = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
            seen.append((self.engine, numba.get_num_threads(), *set(blas)))
            return 0.1, np.zeros(steps)

    monkeypatch.setattr(MEASURE, "Stepper", Watched)
    monkeypatch.setattr(bench, "gate", lambda *arguments: None)
    many = min(2, machine.cores(), numba.config.NUMBA_NUM_THREADS)
    names = ("numpy_baseline", "numba_serial", "numba_parallel")
    run(Plan(engines=names, batch_sizes=(4,), widths=(8,), threads=(1, many), rounds=1))
    wanted = {(name, threads, threads) for name in names for threads in {1, many}}
    assert set(seen) == wanted - {("numba_serial", 2, 2)}


def test_threads_are_as_before_afterwards():
    before = numba.get_num_threads()
    with suppress(KeyError), with_threads(1):
        assert numba.get_num_threads() == 1
        raise KeyError
    assert numba.get_num_threads() == before
    with with_threads(10_000):  # more than there are is no error
        pass


# What the record says


@pytest.mark.parametrize("batch_size", [1, 6])
def test_flops_are_those_of_the_products_that_a_step_makes(batch_size):
    recipe = Recipe(model=mlp(*sweep.sizes(12)), batch_size=batch_size)
    counted = 0

    def watch(name, function, *arguments, **settings):
        nonlocal counted
        if name.startswith("linear"):
            x, W, *_ = arguments
            counted += 2 * len(x) * W.shape[0 if "input" in name else 1] * (x.shape[1])
        return function(*arguments, **settings)

    Stepper(watched(watch), recipe, TRAIN).take(1)
    assert flops(12, batch_size) == counted


def test_the_metrics_are_what_they_are_called():
    record = made_up(numpy_baseline={16: [100.0, 300.0, 200.0]}, numba_serial={16: [400.0]})
    wanted = {
        "us a step": 400,
        "us an example": 25,
        "speed against NumPy": 0.5,
        "GFLOP/s": flops(8, 16) / 400 / 1e3,
    }
    assert set(wanted) == set(sweep.METRICS)
    for metric, number in wanted.items():
        assert_allclose(value(record, metric, "numba_serial", 8, 16), number)


def test_a_serial_engine_is_compared_with_all_threads_of_the_baseline():
    record = made_up(numpy_baseline={4: [100.0]}, numba_serial={4: [400.0]}, numba_parallel={4: [300.0]})
    record["runs"].append(record["runs"][0] | {"threads": 2, "samples_us": [50.0]})
    assert_allclose(value(record, "speed against NumPy", "numba_serial", 8, 4, threads=2), 50 / 400)
    assert value(record, "us a step", "numba_parallel", 8, 4, threads=2) is None


def test_a_curve_leaves_out_what_has_no_time():
    record = made_up(numpy_baseline={4: [1.0], 16: [2.0]}, numba_serial={16: [], 4: [8.0]})
    assert curve(record, "us a step", "numba_serial", 8) == ([4], [8.0])
    assert curve(record, "us a step", "numpy_baseline", 8) == ([4, 16], [1.0, 2.0])


def test_the_table_has_a_row_an_engine_and_a_dash_for_what_is_missing():
    lines = table(made_up(numpy_baseline={4: [1.0], 16: [2.0]}, numba_serial={16: [], 4: [8.0]})).splitlines()
    assert lines[0].startswith("speed against NumPy, width 8, 1 thread;")
    assert lines[1].split() == ["4", "16"]
    assert lines[2].split() == ["numpy_baseline", "1", "1"]
    assert lines[3].split() == ["numba_serial", "0.125", "-"]


def test_the_engines_of_the_sweep_exist():
    assert set(sweep.NAMES) <= set(engines.names())
    assert set(sweep.SERIAL) <= set(sweep.NAMES)

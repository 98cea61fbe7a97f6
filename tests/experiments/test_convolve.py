"""The record "convolve": who takes part, what is counted, who gets no time, and what it says."""

from dataclasses import replace

import numpy as np
import pytest

from experiments import convolve
from experiments.convolve import OPERATIONS, Case, Plan, measure
from experiments.convolve.measure import convolving
from experiments.floor import Roofs
from mlpkit import engines
from mlpkit.engines import numpy_baseline

SMALL = Case(2, 3, 4, 6, 3, 1), Case(1, 2, 2, 5, 5, 2, 2)
QUICK = Plan(grid=SMALL[:1], layers=(), rounds=1, flops=10**8, sizes=())
PLAN = replace(
    QUICK, engines=("numpy_baseline", "numpy_im2col"), grid=SMALL, layers=(("a layer", SMALL[0]),), rounds=2,
    sizes=(2**16,),
)  # fmt: skip


@pytest.fixture(scope="module")
def record():
    return measure(save=lambda record: None, progress=lambda text: None, plan=PLAN)


def test_every_engine_with_a_convolution_of_its_own_takes_part_once():
    names = convolving()
    assert names[0] == "numpy_baseline"
    assert {"numpy_im2col", "numpy_windows", "numpy_fft"} <= set(names)
    functions = [engines.load(name).conv for name in names]
    assert len(set(functions)) == len(functions)
    assert not any(engines.on_gpu(name) for name in names)


@pytest.mark.parametrize("case", [*SMALL, *convolve.LAYERS.values()])
def test_a_case_counts_what_the_loops_would_do(case):
    x = np.zeros((1, case.channels, case.size, case.size), np.float32)
    W = np.zeros((case.channels_out, case.channels, case.kernel, case.kernel), np.float32)
    z = numpy_baseline.conv(x, W, None, case.stride, case.padding)
    assert z.shape[2:] == (case.places, case.places)
    assert case.flops == 2 * case.batch * z.size * case.channels * case.kernel**2
    assert case.nbytes == 4 * (case.batch * (x.size + z.size) + W.size)


def test_every_operation_of_every_engine_has_times_and_an_error(record):
    runs = [run for run in record["runs"] if run["kind"] in ("grid", "layer")]
    threads = {run["threads"] for run in record["runs"] if run["kind"] == "layer"}
    assert len(runs) == (len(threads) + len(SMALL)) * 2 * len(OPERATIONS)
    for run in runs:
        assert run["why_not"] is None
        assert len(run["samples_us"]) == (PLAN.layer_rounds if run["kind"] == "layer" else PLAN.rounds)
        assert min(run["samples_us"]) > 0
        assert 0 < run["error"] < 1e-5


@pytest.mark.parametrize("wrong", [np.nan, 1.001])
def test_who_computes_something_else_gets_no_time(wrong, monkeypatch):
    engine = engines.load("numpy_im2col")
    conv = engine.conv
    monkeypatch.setattr(engine, "conv", lambda *given: conv(*given) * np.float32(wrong))
    plan = replace(QUICK, engines=("numpy_im2col",))
    forward, *others = [r for r in measure(lambda r: None, lambda t: None, plan)["runs"] if r["kind"] == "grid"]
    assert "off by" in forward["why_not"]
    assert not forward["samples_us"]
    assert all(run["samples_us"] for run in others)


def test_what_takes_too_long_is_not_timed():
    plan = replace(QUICK, engines=("numpy_im2col",), longest=1e-9)
    runs = [run for run in measure(lambda r: None, lambda t: None, plan)["runs"] if run["kind"] == "grid"]
    assert all("lasts" in run["why_not"] and not run["samples_us"] for run in runs)


def test_the_winner_is_the_one_with_the_shortest_time(record):
    threads = next(run["threads"] for run in record["runs"] if run["kind"] == "grid")
    name, us = convolve.winner(record, "conv", SMALL[0], threads)
    times = {who: convolve.us(record, who, "conv", SMALL[0], threads) for who in PLAN.engines}
    assert us == times[name] == min(times.values())
    assert convolve.winner(record, "conv", Case(9, 9, 9, 9, 9), threads) is None
    assert convolve.us(record, "numpy_fft", "conv", SMALL[0], threads) is None


def test_a_rate_is_direct_arithmetic_over_time(record):
    run = next(run for run in record["runs"] if run["kind"] == "layer")
    assert convolve.gflops(run | {"samples_us": [2.0, 2.0, 9.0]}) == pytest.approx(SMALL[0].flops / 2e3)
    assert convolve.peak(record, 1) > 1
    assert Roofs(record, 1).bandwidth(2**16) > 1


def test_the_table_has_a_row_for_each_engine(record):
    table = convolve.table(record)
    assert "a layer, 1 thread," in table
    assert "numpy_im2col" in table
    assert "fastest forward in" in table

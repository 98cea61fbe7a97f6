"""The record of what convolutions take with cold arrays, and cuDNN with fp16: how it is made, with no GPU, and read."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import experiments
from experiments.conv_ladder import LAYERS, ladder
from experiments.conv_ladder.rungs import Prepared, cudnn
from experiments.lab import clock
from mlpkit.kernels.conv import Shape, blocked

offered = experiments.load("conv_offered")
SMALL = Shape(2, 16, 24, 9, 9, 3)


class Graph:
    """What `recorded` returns: it runs its calls when it is launched, and counts them."""

    def __init__(self, call, times):
        self.call, self.times = call, times

    def launch(self):
        for _ in range(self.times):
            self.call()


@pytest.fixture
def timed(monkeypatch):
    """Return `_timed` on a machine with a second cache of 1,000 bytes, whose clock says how many calls there were."""
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(get_default_memory_pool=lambda: pool))
    monkeypatch.setattr(offered.gpu, "describe", lambda: {"l2_bytes": 1000})
    monkeypatch.setattr(offered, "recorded", Graph)

    def events_us(launch):
        launch()
        return 6.0 * launch.__self__.times

    monkeypatch.setattr(offered, "events_us", events_us)
    return offered._timed


def a_way(calls, wrong=0.0):
    """Return the `prepare` of a way that says in `calls` which of its sets of arrays it was called with."""

    def prepare(a, b):
        number = len({each for each, _ in calls})
        calls.append((number, "prepared"))
        return Prepared(lambda: calls.append((number, "called")), lambda: a + b + wrong)

    return prepare


def test_cold_arrays_are_taken_in_turn_and_warm_ones_again_and_again(timed):
    a, b, calls = np.ones((4, 25)), np.ones((4, 25)), []
    makes = {"right": (a_way(calls), "float32"), "wrong": (a_way([], wrong=0.1), "float32"), "broken": (None, "tf32")}
    found = timed(makes, (a, b), a + b, samples=2)
    assert found["right"]["sets"] == 5  # of 600 bytes in 16 bits, for three times 1,000
    assert found["right"]["samples_us"] == found["right"]["cold_us"] == [6.0, 6.0]
    called = [number for number, what in calls if what == "called"]
    warm, cold = [0] * 5, list(range(5))
    assert called == cold + 3 * (warm + cold)
    assert "off by" in found["wrong"]["why_not"]
    assert "TypeError" in found["broken"]["why_not"]
    assert not {"graphs", "keeps"} & set(found["right"])


def test_the_table_has_both_times_and_the_reasons():
    run = {
        "kind": "pass",
        "layer": "64 to 128",
        "pass": "forward",
        "way": "planes_bf16",
        "error": 3e-3,
        "why_not": None,
    }
    runs = [run | {"samples_us": [7.0, 8.0, 9.0], "cold_us": [10.0]}, run | {"kind": "followed", "why_not": "no plan"}]
    first, second = offered.table({"runs": runs}).splitlines()
    assert "8.0 us,     10.0 with cold arrays, error 3e-03" in first
    assert second.endswith("with bias and ReLU no plan")


def test_ways_and_layers_are_the_ladders():
    plan = offered.USUAL
    assert {*plan.ways} <= {*ladder.OURS}
    assert {*plan.layers, plan.followed[0]} <= {*LAYERS}


def test_fp16_may_leave_as_float32_or_be_made_it():
    assert {result for _, result in cudnn._variants("forward", "fp16")} == {"float32", "fp16"}
    assert cudnn.rung_fp16().precision == "tf32"


# On a GPU


@pytest.mark.gpu
def test_a_small_record(monkeypatch):
    layers = {"small": Shape(4, 16, 32, 12, 12, 3, padding=1)}
    monkeypatch.setattr(offered, "LAYERS", layers)
    ways = offered.USUAL.ways[:2]
    plan = offered.Plan(("small",), ways, ("small", ("tf32", "bf16")), tuning_seconds=0.02, samples=2)
    record = offered.measure(lambda record: None, lambda text: None, plan)
    timed = {(run["kind"], run["way"]) for run in record["runs"] if not run["why_not"]}
    assert {("pass", name) for name in ways} | {("followed", "planes_tf32"), ("followed", "planes_bf16")} <= timed
    assert all(us > 0 for run in record["runs"] if not run["why_not"] for us in run["samples_us"] + run["cold_us"])
    assert "with cold arrays" in offered.table(record)
    if not cudnn.why_not():
        assert {("pass", "cudnn_fp16"), ("followed", "cudnn_bf16")} <= timed


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bf16", "tf32"])
def test_what_follows_is_part_of_the_pass(name):
    import cupy

    rng = cupy.random.default_rng(0)
    a, b, bias = (rng.standard_normal(size, np.float32) for size in (SMALL.x, SMALL.w, (1, 24, 1, 1)))
    prepared = offered.followed(blocked.MODES[name], SMALL, a, b, bias)
    prepared.call()
    right = cupy.maximum(cudnn.exact(SMALL, "forward", a, b) + bias, 0)
    assert offered.why_too_far(offered.errors_of(prepared.result(), right), name) is None
    assert clock.recorded(prepared.call, 2)

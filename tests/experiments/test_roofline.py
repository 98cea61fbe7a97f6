"""The two rates are what they say, every operation of a step is counted, and a floor is a floor."""

import os
import re
import subprocess
import sys
import time
from functools import partial
from threading import Lock

import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from experiments import floor
from experiments.floor import KIB, Plan, Roofs, table
from experiments.floor.measure import RECIPES, _step, with_kernels
from experiments.lab import clock, operations, quiet, results, roof
from experiments.lab.bench import Stepper
from experiments.lab.fma import DEPENDENCY_CHAINS, fma
from experiments.lab.operations import COSTS, profile, watched
from experiments.lab.results import median_us
from experiments.lab.roof import bandwidth, peak
from mlpkit import machine
from mlpkit.engines import numpy_baseline
from mlpkit.engines.loops.simd import BYTES
from mlpkit.optim import BY_NAME
from mlpkit.training.recipe import Recipe

RNG = np.random.default_rng(0)
TRAIN = RNG.random((300, 784), dtype=np.float32), RNG.integers(10, size=300)
QUICK = Plan(
    samples=2,
    sample_seconds=0.001,
    sizes=(16 * KIB, 64 * KIB),
    traffic=10**6,
    flops=10**6,
    batch_sizes=(4, 128),
    coretypes=(),
    processes=1,
    busy_steps=2,
)


# The rates


def test_a_core_does_more_than_a_cycle_of_plain_python():
    peak(flops=1)
    assert 0.5 < max(peak(flops=10**8) for _ in range(3)) < 1000


def test_peak_counts_the_operations_of_all_threads(monkeypatch):
    monkeypatch.setattr(roof, "_together", lambda threads, prepare: 2.0)
    assert_allclose(peak(3, flops=10**9), 3 * 10**9 / 2 / 1e9, rtol=1e-5)


def test_the_peak_is_measured_with_all_of_its_operations():
    """Each of the chains goes half of the way to 1 a step: no step is left out, none comes twice."""
    starts = 2 + np.arange(DEPENDENCY_CHAINS)
    for steps in (0, 1, 5):
        assert fma(steps) == np.sum(1 + (starts - 1) * 0.5**steps)
    fresh = numba.jit(fma.py_func, **fma.targetoptions)  # code from the disk can't be looked into
    fresh(1)
    (code,) = fresh.inspect_asm().values()
    found = len(re.findall(r"\n\s*vfmadd\d+ps\s", code))
    assert found % DEPENDENCY_CHAINS == 0  # a chain that the compiler can foresee would be left out of the loop
    assert found > 0 or BYTES == 16  # not x86 with FMA


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("kernel", "streams"), [("copy", 2), ("triad", 3)])
def test_bandwidth_counts_what_is_read_and_written_once(kernel, streams, threads, monkeypatch):
    calls = []

    def together(threads, prepare):
        calls.extend(prepare() for _ in range(threads))
        return 0.5

    monkeypatch.setattr(roof, "_together", together)
    rate = bandwidth(48_000, kernel, threads, traffic=480_000)
    assert_allclose(rate, 480_000 / 0.5 / 1e9)
    a, b, c, times = calls[0].args
    assert times == 10
    assert {array.nbytes for array in (a, b, c)} == {48_000 // streams // threads}
    assert len({array.ctypes.data for array in (a, b, c)}) == streams
    assert all(array.ctypes.data % 64 == 0 for array in (a, b, c))


@pytest.mark.parametrize(("kernel", "wanted"), [(roof.copy, [2, 3]), (roof.triad, [17, 21])])
def test_the_kernels_do_what_they_are_named_after(kernel, wanted):
    a, b, c = (np.array(values, np.float32) for values in ([0, 0], [2, 3], [5, 6]))
    kernel(a, b, c, 2)
    assert_array_equal(a, wanted)


class Clock:
    """Time passes only where a test says so, on any machine, however busy."""

    def __init__(self):
        self.now, self.lock = 0.0, Lock()

    def perf_counter(self):
        return self.now

    def passes(self, seconds):
        with self.lock:
            self.now += seconds


@pytest.fixture
def time_passes(monkeypatch):
    made = Clock()
    for module in (roof, operations, clock):
        monkeypatch.setattr(module, "time", made)
    return made.passes


def test_threads_start_together_and_only_their_call_is_timed(time_passes):
    log = []

    def prepare():
        time_passes(100)
        log.append("prepared")
        return call

    def call():
        time_passes(0.25)
        log.append("called")

    assert roof._together(3, prepare) == 0.75
    assert log == 3 * ["prepared"] + 3 * ["called"]


def test_what_a_thread_raises_is_raised():
    def fail():
        raise MemoryError("too large")

    with pytest.raises(MemoryError, match="too large"):
        roof._together(2, lambda: fail)


# The operations


def test_the_operations_of_a_step_are_in_its_order():
    names = [operation.name for operation in operations.operations(Recipe(), TRAIN)]
    forward = ["linear 1", "relu 1", "linear 2", "relu 2", "linear 3", "relu 3", "linear 4"]
    backward = ["linear_backward_weights 4", "linear_backward_input 4", "relu_backward 3"]
    assert names[:9] == ["gather X", "gather y", *forward]
    assert names[9:13] == ["softmax_cross_entropy", *backward]
    assert names[-2:] == ["linear_backward_weights 1", "sgd_update"]
    assert len(names) == len(set(names)) == 21


def test_the_products_of_a_step_are_77_million_operations():
    found = {operation.name: operation for operation in operations.operations(Recipe(batch_size=128), TRAIN)}
    work = sum(operation.flops for name, operation in found.items() if name.startswith("linear"))
    products = 2 * 128 * (2 * 784 * 128 + 3 * (2 * 128 * 128 + 128 * 10))
    assert 77.4e6 < products < 77.6e6
    assert work == products + 2 * 128 * (3 * 128 + 10)  # the biases, and the sums that are their gradients


def test_bytes_are_of_the_arrays_that_go_in_and_come_out():
    found = {operation.name: operation for operation in operations.operations(Recipe(batch_size=8), TRAIN)}
    x, W, b, z = 8 * 784, 784 * 128, 128, 8 * 128
    assert found["linear 1"].bytes == 4 * (x + W + b + z)
    assert found["linear_backward_weights 1"].bytes == 4 * (x + z + W + b)
    assert found["linear_backward_input 2"].bytes == 4 * (z + 128 * 128 + z)
    assert found["relu 1"].bytes == 4 * 2 * z
    assert found["relu_backward 1"].bytes == 4 * 3 * z
    assert found["softmax_cross_entropy"].bytes == 4 * 2 * 80 + 8 * 8
    assert found["gather X"].bytes == 4 * 2 * x + 8 * 8
    assert found["gather X"].flops == 0
    assert found["sgd_update"].bytes == 4 * 3 * (W + 2 * 128 * 128 + 1280 + 3 * 128 + 10)


def test_only_a_gather_picks_from_more_than_it_reads():
    for operation in operations.operations(Recipe(batch_size=8), TRAIN):
        assert operation.source == (TRAIN[0].nbytes if operation.name == "gather X" else operation.source)
        assert (operation.source > operation.bytes) == operation.name.startswith("gather")


@pytest.mark.parametrize("name", BY_NAME)
def test_every_optimizer_is_counted(name):
    recipe = Recipe(optimizer=name, lr=1e-3, weight_decay=0.1)
    last = operations.operations(recipe, TRAIN)[-1]
    assert last.name.endswith("_update")
    assert last.flops >= 2 * 134_794
    assert last.bytes >= 3 * 4 * 134_794


def test_an_operation_can_be_done_again():
    found = {operation.name: operation for operation in operations.operations(Recipe(), TRAIN)}
    x, W, b = found["linear 1"].arguments
    assert_array_equal(found["linear 1"].make()(), numpy_baseline.linear(x, W, b))
    theta = found["sgd_update"].arguments[0]
    before = theta.copy()
    found["sgd_update"].make()()
    assert (theta != before).any()


def test_a_watched_engine_computes_the_same():
    seen = watched(lambda name, function, *arguments, **settings: function(*arguments, **settings))
    for recipe in RECIPES:
        losses = [Stepper(engine, recipe, TRAIN).take(10)[1] for engine in (seen, "numpy_baseline")]
        assert_array_equal(*losses)


def test_a_profile_has_a_time_for_each_operation_of_each_step():
    start = time.perf_counter()
    times = profile(Recipe(), TRAIN, 5)
    assert times.shape == (5, 21)
    assert (times > 0).all()
    assert times.sum() < time.perf_counter() - start


# The record


@pytest.fixture(scope="module")
def record():
    saved = []
    record = floor.measure(lambda record: saved.append(len(record["runs"])), lambda text: None, QUICK, TRAIN)
    assert saved == list(range(1, len(record["runs"]) + 1))
    return record


def test_the_record_has_everything(record):
    threads, counts = quiet.thread_counts(), {}
    for run in record["runs"]:
        counts[run["kind"]] = counts.get(run["kind"], 0) + 1
        assert all(np.isfinite(run[key]).all() and len(run[key]) for key in run if key.startswith("samples"))
    counts.pop("kernels", None)  # not every BLAS has them
    steps = 2 * 2 * len(threads)
    assert counts == {
        "peak": len(threads),
        "bandwidth": 2 * 2 * len(threads),
        "step": steps,
        "operation": 21 * steps,
        "busy": len({0, 1, machine.cores()}) * len(threads),
    }
    assert record["settings"]["plan"]["batch_sizes"] == (4, 128)
    assert [recipe["optimizer"] for recipe in record["settings"]["recipes"]] == ["sgd", "adam"]


def test_the_operations_add_up_to_their_step(time_passes, monkeypatch):
    """Every operation takes as many microseconds as its name has letters."""

    def takes(seconds, function, *arguments, **settings):
        time_passes(seconds)
        return function(*arguments, **settings)

    for name in COSTS:
        monkeypatch.setattr(numpy_baseline, name, partial(takes, len(name) * 1e-6, getattr(numpy_baseline, name)))
    for recipe in RECIPES:
        step, *parts = _step(recipe, TRAIN, QUICK, threads=1)
        for part in parts:
            assert_allclose(part["samples_us"], [len(part["function"])] * QUICK.samples, err_msg=part["name"])
        assert_allclose(step["samples_us"], [sum(len(part["function"]) for part in parts)] * QUICK.samples)


def test_the_table_shows_rates_steps_and_a_profile(record):
    text = table(record)
    for word in ("GFLOP/s", "16 KiB", "sgd, batch  128", "adam, batch    4", "linear 1", "busy programs"):
        assert word in text
    assert table(results.new("floor")) == ""


def test_any_part_of_the_record_can_be_shown(record):
    for end in range(0, len(record["runs"]), 7):
        table(record | {"runs": record["runs"][:end]})


# The kernels of the BLAS

openblas = pytest.mark.skipif(machine.blas()["name"] != "openblas", reason="the BLAS is not OpenBLAS")


@openblas
def test_kernels_are_measured_in_a_process_of_their_own():
    runs = with_kernels()
    assert [run["threads"] for run in runs] == quiet.thread_counts()
    for run in runs:
        assert (run["asked"], run["why_not"]) == (None, None)
        # Where somebody has chosen kernels for this process, the new one, which detects its own, may have others.
        assert run["found"] == machine.blas()["kernels"] or "OPENBLAS_CORETYPE" in os.environ
        assert min(run["samples_gflops"]) > 0


@pytest.mark.parametrize(
    ("code", "words"),
    [("print('half'); raise SystemExit('no such kernels')", "no such kernels"), ("import os; os._exit(9)", "code 9")],
)
def test_a_process_that_fails_says_why(code, words, monkeypatch):
    start, command = subprocess.Popen, [sys.executable, "-c", code]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: start(command, **options))
    (run,) = with_kernels("Haswell")
    assert run["asked"] == "Haswell"
    one_sentence(run["why_not"], words)


def test_the_samples_of_several_processes_are_joined():
    def run(asked, rate, **more):
        return {
            "kind": "kernels",
            "asked": asked,
            "threads": 1,
            "samples_gflops": [rate],
            "samples_us": [1 / rate],
        } | more

    killed = {"kind": "kernels", "asked": "SkylakeX", "why_not": "the process ended with code -4"}
    rows = floor.kernel_rows({"runs": [run("Zen", 1.0), run(None, 2.0), killed, run("Zen", 4.0)]})
    assert [(row["asked"], row["samples_gflops"]) for row in rows] == [("Zen", [1, 4]), (None, [2]), ("SkylakeX", [])]
    assert "code -4" in table({"runs": [killed]})


# Floors


def made_up_record():
    rates = [("copy", 1000, [5.0, 10.0]), ("triad", 1000, [20.0]), ("copy", 100_000, [2.0]), ("triad", 100_000, [1.0])]
    peaks = [{"kind": "peak", "threads": t, "samples_gflops": [40.0 * t, 50.0 * t]} for t in (1, 2)]
    return {
        "runs": peaks
        + [
            {"kind": "bandwidth", "kernel": kernel, "threads": 1, "bytes": size, "samples_gbps": samples}
            for kernel, size, samples in rates
        ]
    }


def test_a_roof_is_the_best_that_was_seen():
    roofs = Roofs(made_up_record(), 1)
    assert roofs.peak == 50
    assert [roofs.bandwidth(size) for size in (10, 1000, 10_000, 100_000, 10**9)] == [20, 20, pytest.approx(11), 2, 2]


def test_a_floor_is_the_higher_of_two_limits():
    roofs = Roofs(made_up_record(), 1)
    much_work, much_data = dict(flops=10**6, bytes=1000, source=1000), dict(flops=10, bytes=10**5, source=10**5)
    assert_allclose(roofs.floor_us(much_work), 20)  # a million at 50 a nanosecond
    assert_allclose(roofs.floor_us(much_data), 50)  # 100 kB at 2 bytes a nanosecond
    assert_allclose(roofs.floor_us(much_data | dict(bytes=1000)), 0.5)  # few bytes, but from a large store


def test_no_operation_is_recorded_below_its_floor(record):
    """A time below its floor would mean that a roof is too low, or a count too high. Short samples have some noise."""
    published = results.published("floor")
    for threads in (1, published["machine"]["cores"]):
        roofs = Roofs(published, threads)
        for run in results.runs(published, kind="operation", threads=threads):
            if run["bytes"] > 64 * KIB:
                assert roofs.floor_us(run) < 1.05 * np.median(run["samples_us"]), run["name"]


def test_the_published_profile_adds_up_to_the_step():
    published = results.published("floor")
    for step in results.runs(published, kind="step", batch_size=128):
        assert_allclose(sum(map(median_us, floor.parts(published, step))), median_us(step), rtol=0.15)
    assert re.fullmatch(r"[0-9a-f]{40}", published["commit"])

"""What is derived from the records of launches and of timelines, on small ones that are made up; and a small run."""

import numpy as np
import pytest

from experiments import launches, timeline
from experiments.lab import results
from experiments.launches.measure import _batches
from experiments.timeline.measure import _one_more
from experiments.timeline.trace import from_trace, one_step
from mlpkit import engines

RNG = np.random.default_rng(0)
TRAIN = RNG.random((1200, 784), dtype=np.float32), RNG.integers(10, size=1200)
SMALL = launches.Plan(
    samples=3,
    calls=5,
    rows=(16,),
    split=(16,),
    nodes=(2,),
    steps=(1, 2),
    graphs=("cuda_graph",),
    engines=("cupy_naive", "cuda_graph", "numpy_baseline"),
    batch_sizes=(16, 32),
    sample_seconds=1e-4,
    rounds=2,
    settle=0.0,
)
NO_CALLS = dict(save=lambda record: None, progress=lambda text: None)


def batch_runs(engine, times):
    return [{"kind": "batch", "engine": engine, "batch_size": n, "samples_us": [us]} for n, us in times.items()]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ({1: 9, 2: 1, 4: 1}, 2),
        ({1: 1, 2: 9, 4: 1}, 4),  # a win that does not last does not count
        ({1: 1, 2: 1, 4: 1}, 1),
        ({1: 1, 2: 1, 4: 9}, None),
    ],
)
def test_the_first_win_lasts(times, wanted):
    baseline = batch_runs("numpy_baseline", {1: 5, 2: 5, 4: 5})
    record = {"runs": baseline + batch_runs("other", times)}
    assert launches.curve(record, "other") == ([1, 2, 4], list(times.values()))
    assert launches.first_win(record, "other") == wanted


def test_every_kind_of_run_has_a_line_in_the_table():
    graph = {"record_us": [1], "instantiate_us": [2], "launch_us": [3], "device_us": [4]}
    clocks = {"asked_us": [1, 2, 9], "waited_us": [2], "events_us": [3], "device_us": [4]}
    runs = [
        {"kind": "clocks", "rows": 128} | clocks,
        {"kind": "call", "name": "z + b"} | clocks,
        {"kind": "split", "name": "x W1", "n": 16, "workspace": 0, "kernels": 1, "device_us": [4.0]},
        {"kind": "nodes", "nodes": 10, "one_by_one_us": [40]} | graph,
        {"kind": "graph", "engine": "cuda_graph", "steps": 1} | graph,
        *batch_runs("cupy_naive", {128: 900}),
    ]
    lines = launches.table({"runs": runs}).splitlines()
    assert len(lines) == len(runs)
    assert "asked 2.0, waited 2.0, events 3.0, device 4.0 us" in lines[0]
    assert "x W1, batch 16, without a workspace" in lines[2]
    assert "1 kernel, 4.0 us" in lines[2]
    assert "one_by_one 40.0" in lines[3]


@pytest.mark.parametrize("experiment", [launches, timeline])
def test_without_a_gpu_there_is_a_reason(experiment, monkeypatch):
    def refuse(name):
        raise engines.EngineUnavailable("no NVIDIA GPU was found.")

    monkeypatch.setattr(engines, "load", refuse)
    with pytest.raises(engines.EngineUnavailable, match="no NVIDIA GPU"):
        experiment.measure(train=TRAIN)


def test_the_published_records_can_be_read():
    record = results.published("launches")
    assert len(launches.table(record).splitlines()) == len(record["runs"])
    assert launches.first_win(record, "cuda_graph") == 16
    (graph,) = results.runs(results.published("timeline"), engine="cuda_graph")
    assert len(graph["kernels"]) == sum(timeline.counts(graph).values())
    longest = max(us for _, _, us, *_ in graph["kernels"])
    assert 0 < longest < timeline.span_us(graph) < timeline.busy_us(graph)  # for its kernels overlap


def event(category, name, begin, duration, correlation, **more):
    arguments = {"correlation": correlation} | more
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": duration, "args": arguments}


def trace_of(steps, names=("gather", "gemm", "sgd")):
    """Return the events of a trace: something that is done once, then the steps, each kernel asked for 5 us before."""
    names = ["once", *list(names) * steps]
    kernels = [event("kernel", name, 10 * i, 4, i, grid=[2, 3, 1]) for i, name in enumerate(names)]
    calls = [event("cuda_driver", "cuLaunchKernel", 10 * i - 5, 3, i) for i in range(len(names))]
    return [*reversed(kernels), *calls, {"ph": "M", "name": "process_name"}]


def test_one_step_is_found_in_a_trace():
    trace = from_trace(trace_of(steps=4))
    assert len(trace["kernels"]) == len(trace["calls"]) == 13
    kernels, calls = one_step(trace, a_step=3, steps=4)
    assert [name for name, *_ in kernels] == ["gather", "gemm", "sgd"]
    assert kernels[0] == ["gather", 0, 4, 6, -5]
    assert [begin for _, begin, _ in calls] == [-5, 5, 15]
    run = {"kernels": kernels}
    assert (timeline.busy_us(run), timeline.span_us(run)) == (12, 24)


def test_steps_in_a_single_kernel_are_shown_whole():
    trace = from_trace(trace_of(steps=1, names=["epoch"]))
    kernels, _ = one_step(trace, a_step=0, steps=8)
    assert [name for name, *_ in kernels] == ["once", "epoch"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cupy_take", "cupy_take"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(x)",
            "cutlass_80_simt_sgemm_128x32_8x5_nn_align1",
        ),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(x)", "splitKreduce_kernel"),
        ("void cublasLt::epilogue::impl::globalKernel<8, 32>(int, int)", "globalKernel"),
        ("void cub::CUB_300::detail::reduce::DeviceReduceKernel<cub::x>(y)", "DeviceReduceKernel"),
        ("Memset (Device)", "Memset"),
    ],
)
def test_short_names(name, wanted):
    assert timeline.short(name) == wanted


def test_an_engine_without_kernels_has_its_times_in_the_table():
    times = {"host_us": [-0.04], "device_us": [2.0], "step_us": [3.0]}
    kernels = [["a", 0.0, 1.5, 1, -2.0], ["a", 3.0, 1.0, 1, 1.0]]
    known = {"engine": "known", "kernels_a_step": 2.0, "kernels": kernels} | times
    unknown = {"engine": "unknown", "why_not": "no torch", "kernels": []} | times
    _, *rows = timeline.table({"runs": [known, unknown]}).splitlines()
    assert rows[0].split() == ["known", "0.0", "2.0", "3.0", "2", "2.5"]
    assert rows[1].split() == ["unknown", "0.0", "2.0", "3.0", "-", "-"]
    assert timeline.counts(known) == {"a": 2}


def test_batch_sizes_take_turns():
    plan = launches.Plan(engines=("numpy_baseline",), batch_sizes=(8, 16), sample_seconds=1e-4, rounds=2, settle=0.0)
    runs = list(_batches(TRAIN, plan, progress=lambda text: None))
    assert [(run["engine"], run["batch_size"]) for run in runs] == [("numpy_baseline", 8), ("numpy_baseline", 16)]
    assert all(len(run["samples_us"]) == 2 and min(run["samples_us"]) > 0 for run in runs)


def test_one_more_step_leaves_out_what_is_done_once():
    asked = []

    class Stepper:
        def ask(self, steps):
            asked.append(steps)

    def clock(call):
        call()
        return 100 + 7 * asked[-1]

    assert _one_more(clock, Stepper(), (10, 110)) == 7
    assert asked == [10, 110]


@pytest.mark.gpu
def test_a_small_record_of_launches():
    record = launches.measure(train=TRAIN, plan=SMALL, **NO_CALLS)
    assert {run["kind"] for run in record["runs"]} == {"clocks", "call", "split", "nodes", "graph", "batch"}
    for run in record["runs"]:
        for name, samples in run.items():
            assert not name.endswith("_us") or (len(samples) >= 2 and np.isfinite(samples).all())
    (clocks,) = [run for run in record["runs"] if run["kind"] == "clocks"]
    assert results.median(clocks, "asked_us") < results.median(clocks, "waited_us")


@pytest.mark.gpu
def test_a_small_record_of_timelines():
    names = ("cupy_naive", "cuda_graph")
    plan = timeline.Plan(samples=2, asked=(1, 3), ahead=(1, 2), whole=4, traced=4, names=names)
    record = timeline.measure(train=TRAIN, plan=plan, **NO_CALLS)
    naive, graph = record["runs"]
    assert results.median(naive, "step_us") > results.median(graph, "step_us")
    if not graph["why_not"]:
        assert graph["kernels_a_step"] == len(graph["kernels"]) == 9
        assert naive["kernels_a_step"] == len(naive["kernels"]) > 30


def test_what_kernels_add_that_begin_before_others_have_ended_is_the_whole_step():
    kernels = [
        ["first", 0.0, 4.0, 1, 0.0],
        ["next_batch", 1.0, 9.5, 1, 0.0],
        ["void a::waits<3>(int)", 2.0, 5.0, 1, 0.0],
    ]
    kernels += [["short", 3.0, 2.0, 1, 0.0], ["late", 8.0, 2.0, 1, 0.0]]
    found = timeline.added(kernels, 10.5, beside=["next_batch"])
    assert found == [("first", 4.5, 0.5), ("short", 1.0, 0.0), ("waits", 2.0, 0.0), ("late", 3.0, 1.0)]
    assert sum(us for _, us, _ in found) == pytest.approx(10.5)


def test_a_kernel_that_overlaps_with_the_last_one_of_the_step_before_adds_what_is_left_of_it():
    assert timeline.added([["a", 0.0, 3.0], ["b", 2.0, 4.0]], 5.0) == [("a", 2.0, 0.0), ("b", 3.0, 0.0)]

"""The record "profile": whose call is timed, what it costs, and what the record says of a step."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import engine_like

from experiments import profile
from experiments.convolve import Case
from experiments.lab import clock, results
from experiments.lab.bench import Stepper
from experiments.profile import Plan, cases, measure, rows, step_us, table, total
from experiments.profile.costs import COSTS, parts
from experiments.profile.measure import RECIPES, Watched
from mlpkit import engines
from mlpkit.engines import numpy_baseline
from mlpkit.executors.plain import StepByStep
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU, Sigmoid
from mlpkit.nn.model import Model
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual
from mlpkit.training.recipe import Recipe

RNG = np.random.default_rng(0)
TRAIN = RNG.random((60, 1, 6, 6), dtype=np.float32), RNG.integers(3, size=60)
BLOCKS = Model((1, 6, 6), (
    Conv(4, 3, padding=1, bias=False), BatchNorm(), Residual((Conv(4, 3, padding=1), ReLU())), MaxPool(2), Flatten(),
    Linear(3),
))  # fmt: skip
CHAIN = Model((1, 6, 6), (Conv(4, 3), ReLU(), MaxPool(2), Flatten(), Linear(3)))
NETWORKS = {
    "blocks": Recipe(model=BLOCKS, optimizer="adamw", lr=1e-3, batch_size=16),
    "chain": Recipe(model=CHAIN, lr=0.01, batch_size=16),
}
NAMES = "numpy_baseline", "numba_conv"
QUICK = Plan(NAMES, tuple(NETWORKS.items()), rounds=2, steps=2, settle=0.0, rates=1, sizes=(2**14, 2**16))


def quietly(plan):
    return measure(lambda record: None, lambda text: None, plan, TRAIN)


@pytest.fixture(scope="module")
def record():
    return json.loads(json.dumps(quietly(QUICK)))


# What a step consists of


def test_each_call_is_known_by_its_layer_and_by_its_phase():
    found = [(part.path, part.operation) for part in parts(NETWORKS["blocks"], TRAIN)]
    forward = ["0 conv", "1 batch_norm", "2.0 conv", "2.1 relu", "2 add", "3 max_pool", "5 linear"]
    backward = [
        "5 linear_backward_weights", "5 linear_backward_input", "3 max_pool_backward", "2.1 relu_backward",
        "2.0 conv_backward_weights", "2.0 conv_backward_input", "2 add", "1 batch_norm_backward",
        "0 conv_backward_weights",
    ]  # fmt: skip
    middle = [*forward, " softmax_cross_entropy", *backward]
    assert [" ".join(one) for one in found] == [" gather", " gather", *middle, " adam_update"]
    phases = [part.phase for part in parts(NETWORKS["blocks"], TRAIN)]
    assert phases == ["batch"] * 2 + ["forward"] * 7 + ["loss"] + ["backward"] * 9 + ["update"]


def test_a_layer_is_named_as_it_is_written_and_a_residual_without_what_is_in_it():
    layers = {part.path: part.layer for part in parts(NETWORKS["blocks"], TRAIN)}
    assert layers["0"] == "Conv(4, 3, padding=1, bias=False)"
    assert layers["2.1"] == "ReLU()"
    assert layers["2"] == "Residual"
    assert layers[""] == ""


@pytest.mark.parametrize("model", [BLOCKS, CHAIN])
@pytest.mark.parametrize("engine", NAMES)
def test_a_watched_step_computes_what_an_unwatched_one_does(engine, model):
    recipe, module = Recipe(model=model, lr=0.01, batch_size=16), engines.load(engine)
    watched = Watched(module, recipe, TRAIN)
    plain = Stepper(engine_like(module, Trainer=StepByStep), recipe, TRAIN)
    for _ in range(3):
        taken = watched.take()
        plain.take_one()
    assert_allclose(watched.stepper.network.theta, plain.network.theta, rtol=1e-5, atol=1e-6)
    assert len(taken) == 1 + len(parts(recipe, TRAIN))
    assert sum(taken[1:]) <= taken[0] + 0.01 * len(taken)  # they are rounded


@pytest.fixture
def time_passes(monkeypatch):
    """Time passes only where a test says so, however busy the machine."""
    now = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def passes(seconds):
        now[0] += seconds

    return passes


def test_the_time_is_that_of_the_layer_that_calls(time_passes):
    def relu(z):
        time_passes(z.shape[1])
        return np.maximum(z, 0)

    model = Model((1, 6, 6), (Conv(4, 3), ReLU(), Flatten(), Linear(7), ReLU(), Linear(3)))
    recipe = Recipe(model=model, batch_size=16)
    whole, *each = Watched(engine_like(relu=relu), recipe, TRAIN).take()
    found = [(part.path, us) for part, us in zip(parts(recipe, TRAIN), each, strict=True) if us]
    assert found == [("1", 4e6), ("4", 7e6)]
    assert whole == 11e6


def test_a_time_ends_when_the_engine_is_done(time_passes):
    asked = []

    def synchronize():
        time_passes(len(asked))
        asked.clear()

    def relu(z):
        asked.append("work that goes on")
        return np.maximum(z, 0)

    recipe = NETWORKS["chain"]
    _, *each = Watched(engine_like(relu=relu, synchronize=synchronize), recipe, TRAIN).take()
    found = [(part.operation, us) for part, us in zip(parts(recipe, TRAIN), each, strict=True) if us]
    assert found == [("relu", 1e6)]


# What it costs


def arrays(*shapes):
    return [RNG.random(shape, dtype=np.float32) for shape in shapes]


@pytest.mark.parametrize(
    "case", [Case(2, 3, 4, 6, 3, 1), Case(1, 2, 2, 7, 5, 2, 2), Case(128, 32, 32, 28, 3, 1)], ids=repr
)
def test_a_convolution_costs_what_the_record_convolve_counts_and_the_bias(case):
    images = (case.batch, case.channels, case.size, case.size)
    x, W, b = arrays(images, (case.channels_out, case.channels, case.kernel, case.kernel), case.channels_out)
    dz = np.zeros((case.batch, case.channels_out, case.places, case.places), np.float32)
    where = case.stride, case.padding
    assert COSTS["conv"](x, W, None, *where) == (case.flops, case.nbytes)
    assert COSTS["conv"](x, W, b, *where) == (case.flops + dz.size, case.nbytes + b.nbytes)
    assert COSTS["conv_backward_weights"](x, dz, W, None, *where) == (case.flops, case.nbytes)
    assert COSTS["conv_backward_weights"](x, dz, W, b, *where) == (case.flops + dz.size, case.nbytes + b.nbytes)
    assert COSTS["conv_backward_input"](dz, W, x.shape, *where) == (case.flops, case.nbytes)


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (2, 3), (3, 1)])
def test_a_pooling_reads_what_its_windows_reach(size, stride):
    (x,) = arrays((2, 3, 8, 7))
    reached, windows = np.zeros(x.shape, bool), 0
    for i in range(0, 8 - size + 1, stride):
        for j in range(0, 7 - size + 1, stride):
            reached[:, :, i : i + size, j : j + size] = True
            windows += 6
    y, index = numpy_baseline.max_pool(x, size, stride)
    assert y.size == windows
    flops, moved = COSTS["max_pool"](x, size, stride)
    assert (flops, moved) == (windows * size**2, 4 * reached.sum() + y.nbytes + windows)
    assert COSTS["avg_pool"](x, size, stride) == (flops, moved - windows)
    more = x.shape, size, stride
    assert COSTS["max_pool_backward"](y, index, *more) == (windows, y.nbytes + windows + x.nbytes)
    assert COSTS["avg_pool_backward"](y, *more) == (windows * size**2, y.nbytes + x.nbytes)


@pytest.mark.parametrize("shape", [(8, 4, 5, 5), (9, 4)])
def test_the_bytes_of_a_norm_are_those_of_its_arrays(shape):
    x, *vectors = arrays(shape, 4, 4, 4, 4)
    out = numpy_baseline.batch_norm(x, *vectors, 0.1, 1e-5)
    written = [*vectors[2:], *out]  # the running averages are read, and written
    assert COSTS["batch_norm"](x, *vectors, 0.1, 1e-5)[1] == sum(a.nbytes for a in (x, *vectors, *written))
    given = [x, *out[1:], *vectors[:3]]  # dgamma and dbeta are only written
    dx = numpy_baseline.batch_norm_backward(*given)
    assert COSTS["batch_norm_backward"](*given)[1] == sum(a.nbytes for a in (*given, dx))


def test_every_operation_of_the_networks_that_see_is_counted():
    for recipe in RECIPES.values():
        model = recipe.model
        assert set(model.operations) - {"batch_norm_evaluate", "argmax"} <= set(COSTS)  # which no training step calls


def test_what_nobody_counted_has_a_time_all_the_same():
    model = Model((1, 6, 6), (AvgPool(2), Flatten(), Linear(3), Sigmoid(), Linear(3)))
    plan = Plan(NAMES[:1], (("odd", Recipe(model=model, batch_size=16)),), rounds=1, steps=1, rates=1, sizes=(2**14,))
    record = quietly(plan)
    found = {row.operation: row for row in rows(record, "odd", NAMES[0])}
    assert found["sigmoid"].us > 0
    assert found["sigmoid"].gflops is None
    assert found["sigmoid"].gbps is None
    assert "3 Sigmoid, sigmoid_backward" in table(record)


# The record


def test_each_engine_has_its_step_and_all_of_its_operations_in_each_network(record):
    assert cases(record) == [(network, engine) for network in NETWORKS for engine in NAMES]
    for network, recipe in NETWORKS.items():
        told = parts(recipe, TRAIN)
        for engine in NAMES:
            found = rows(record, network, engine)
            names = ("path", "layer", "operation", "phase", "flops", "bytes")
            assert [[getattr(row, name) for name in names] for row in found] == [
                [getattr(part, name) for name in names] for part in told
            ]
            assert all(row.us > 0 for row in found)
            assert step_us(record, network, engine) > 0
    for run in results.runs(record, kind="operation"):
        watched = results.runs(record, kind="watched", network=run["network"], engine=run["engine"])
        assert 2 <= len(run["samples_us"]) == len(watched[0]["samples_us"]) <= 4


def test_the_operations_of_a_step_are_in_the_step(record):
    sums = {}
    for run in results.runs(record, kind="operation"):
        key = run["network"], run["engine"]
        sums[key] = sums.get(key, 0) + np.array(run["samples_us"])
    for (network, engine), us in sums.items():
        (watched,) = results.runs(record, kind="watched", network=network, engine=engine)
        assert (us <= np.array(watched["samples_us"]) + 1).all()


def test_an_engine_that_computes_something_else_gets_no_time(monkeypatch):
    engine = engines.load("numpy_im2col")
    conv = engine.conv
    monkeypatch.setattr(engine, "conv", lambda *given: conv(*given) * np.float32(1.1))
    plan = Plan(("numpy_baseline", "numpy_im2col"), tuple(NETWORKS.items())[1:], 1, 1, settle=0.0, rates=1, sizes=())
    record = quietly(plan)
    (run,) = results.runs(record, engine="numpy_im2col")
    assert "differs from numpy_baseline" in run["why_not"]
    assert cases(record) == [("chain", "numpy_baseline")]


def test_a_row_has_rates_and_a_floor():
    row = profile.Row("3.0", "Conv(4, 3, padding=1)", "conv", "forward", 50.0, 10**6, 10**5)
    assert (row.label, row.gflops, row.gbps) == ("3.0 Conv", 20.0, 2.0)
    peak = {"kind": "peak", "threads": 1, "samples_gflops": [100.0]}
    stream = {"kind": "bandwidth", "threads": 1, "bytes": 2**14, "samples_gbps": [5.0]}
    assert row.floor_us(profile.Roofs({"runs": [peak, stream]})) == pytest.approx(20.0)  # 10 of arithmetic


def test_sums_go_by_what_is_asked_for():
    found = [
        profile.Row(path, "", operation, phase, us, 0, 0)
        for path, operation, phase, us in (("0", "conv", "forward", 2.0), ("1", "add", "forward", 1.0),
                                           ("0", "add", "backward", 4.0))
    ]  # fmt: skip
    assert list(total(found, lambda row: row.operation).items()) == [("add", 5.0), ("conv", 2.0)]
    assert total(found, lambda row: row.phase) == {"backward": 4.0, "forward": 3.0}


def test_the_table_compares_the_step_with_its_operations(record):
    text = table(record)
    for network, engine in cases(record):
        assert f"{network}, {engine}: " in text
    assert text.count("in all: ") == 4
    assert "more operations" in text


def test_a_record_that_was_interrupted_shows_what_it_has(record):
    for count in range(len(record["runs"]) + 1):
        assert isinstance(table(record | {"runs": record["runs"][:count]}), str)


def test_a_network_that_is_not_there_has_no_rows(record):
    assert rows(record, "no such network", "numba_conv") == []
    assert step_us(record, "no such network", "numba_conv") is None

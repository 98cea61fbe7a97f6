"""Other people's loops are compared only where they train the same network on the same batches."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from numpy.testing import assert_allclose

from experiments import gpu_image_peers, gpu_peers, image_peers
from experiments import peers as experiment
from experiments.lab import bench, peers, processes
from experiments.lab.bench import GATE_STEPS, Timing
from experiments.lab.overview import LESS_PRECISE
from experiments.lab.peers import whole
from experiments.peers import ADAM, Plan
from mlpkit import engines
from mlpkit.training.fit import fit
from mlpkit.training.recipe import Recipe

QUICK = Timing(warmup=1, steps_a_sample=2, rounds=2)
TWO = (Recipe(), ADAM)


@pytest.fixture(scope="module")
def wanted():
    """The baseline's first losses, on MNIST, with each of the two recipes."""
    train = peers.load("mnist", scaled=True).train
    return [bench.Stepper("numpy_baseline", recipe, train).take(GATE_STEPS)[1] for recipe in TWO]


def on_gpu(*names):
    return [pytest.param(name, marks=pytest.mark.gpu) for name in names]


ON_CPU = (
    "jax_step",
    "jax_epoch",
    "jax_epoch_default",
    "jax_epoch_bf16",
    "jax_epoch_tf32x3",
)  # on a GPU where there is one
MORE = "pytorch_cuda_graph_bf16", "pytorch_cuda_graph_last_tf32", "pytorch_cuda_graph_tuned_tf32", "jax_epoch_tf32x3"
ON_GPU = tuple(name for name in (*gpu_peers.PLAN.others, *MORE) if name not in ON_CPU)


@pytest.mark.parametrize("name", [*experiment.USUAL.names, *ON_CPU, *on_gpu(*ON_GPU)])
@pytest.mark.parametrize("which", [0, 1], ids=["sgd", "adam"])
def test_a_peer_trains_the_same_network_on_the_same_batches(name, which, wanted):
    if name not in engines.names():
        importable(name)
    measured = peers.prepared(name, TWO[which], QUICK)()
    assert peers.are_wanted(measured["first_losses"], wanted[which], *measured["gate"])
    assert all(time > 0 for name in ("samples_us", "start_seconds") for time in measured[name])


def on_torch_cpu(name):
    """Return a peer's `prepare`, where it has one for PyTorch's CPU device: what the GPU runs, but slower."""
    module = pytest.importorskip(f"experiments.lab.peers.{name}")
    return lambda problem: module.on("cpu", problem)


def importable(name):
    return pytest.importorskip(f"experiments.lab.peers.{name}").prepare


@pytest.mark.parametrize("name", ["pytorch_cuda_compiled", "pytorch_cuda_streams"])
@pytest.mark.parametrize("which", [0, 1], ids=["sgd", "adam"])
def test_the_compiled_step_of_the_gpu_is_right_on_a_cpu(which, name, wanted):
    steps = on_torch_cpu(name)(peers.problem(TWO[which]))
    assert_allclose(steps(GATE_STEPS), wanted[which], rtol=bench.RTOL)


PREPARE = {
    **dict.fromkeys(("pytorch_cuda_compiled", "pytorch_cuda_streams"), on_torch_cpu),
    **dict.fromkeys(("pytorch", "jax_step", "jax_epoch"), importable),
}


@pytest.mark.parametrize("name", [*PREPARE, *on_gpu("pytorch_cuda_graph")])
def test_after_an_epoch_the_batches_come_again(name):
    """The epoch has two full batches and a rest, and is asked for in parts."""
    prepare = PREPARE.get(name, importable)(name)
    small = Recipe(batch_size=32, lr=0.05)
    problem = replace(peers.problem(small), order=np.arange(70))
    whole = import_module("experiments.lab.peers.plain_numpy").prepare(problem)(8)
    steps = prepare(problem)
    assert_allclose(np.concatenate([steps(5), steps(1), steps(2)]), whole, rtol=bench.RTOL)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(set(LESS_PRECISE) - set(engines.names())))
def test_less_precise_products_are_what_they_say(name, wanted):
    """They differ from float32 by more than rounding in float32 explains, and no more than their gate lets through."""
    prepare = importable(name)
    losses = prepare(peers.problem(TWO[0]))(GATE_STEPS)
    assert np.abs(losses / wanted[0] - 1).max() > bench.RTOL


@pytest.mark.parametrize("name", image_peers.PLAN.others)
@pytest.mark.parametrize("which", [0, 1], ids=["sgd", "adam"])
def test_a_peer_trains_the_same_network_that_sees(which, name):
    recipe = image_peers.PLAN.recipes[which].but(batch_size=8)
    prepare, problem = importable(name), peers.problem(recipe)
    assert_allclose(
        prepare(problem)(GATE_STEPS),
        bench.Stepper("numpy_baseline", recipe, (problem.X, problem.y)).take(GATE_STEPS)[1],
        rtol=bench.RTOL,
    )


@pytest.mark.parametrize("name", ["pytorch", "pytorch_cuda_compiled", "jax_epoch"])
@pytest.mark.parametrize("which", [3, 0, 2], ids=["lenet", "garments", "residual"])
def test_what_a_gpu_runs_for_a_network_that_sees_is_right_on_a_cpu(which, name):
    recipe = gpu_image_peers.PLAN.recipes[which].but(batch_size=4)
    prepare, problem = PREPARE[name](name), peers.problem(recipe)
    wanted = bench.Stepper("numpy_baseline", recipe, (problem.X, problem.y)).take(5)[1]
    assert_allclose(prepare(problem)(5), wanted, rtol=bench.RTOL)


@pytest.mark.parametrize("how", [{"last": True}, {"last": True, "options": {"max_autotune_gemm_backends": "ATEN"}}])
def test_a_compiled_step_is_right_in_another_layout_and_with_options(how):
    module = pytest.importorskip("experiments.lab.peers.pytorch_cuda_compiled")
    recipe = gpu_image_peers.DEEP.but(batch_size=4)
    problem = peers.problem(recipe)
    wanted = bench.Stepper("numpy_baseline", recipe, (problem.X, problem.y)).take(5)[1]
    assert_allclose(module.on("cpu", problem, **how)(5), wanted, rtol=bench.RTOL)


def test_the_first_losses_are_held_as_closely_as_the_peer_allows():
    wanted = np.linspace(2, 1, 10)
    later = wanted * np.where(np.arange(10) < 5, 1.001, 1.5)
    assert peers.are_wanted(later, wanted, 5, 2e-3)
    assert not peers.are_wanted(later, wanted, 5, 2e-4)
    assert not peers.are_wanted(later, wanted, 6, 2e-3)
    later[-1] = np.nan
    assert not peers.are_wanted(later, wanted, 5, 2e-3)
    assert peers.are_wanted(wanted.mean(keepdims=True), wanted, *peers.GATE)


@pytest.mark.parametrize("name", [name for name in gpu_peers.PLAN.engines if name not in engines.names()] or ["none"])
def test_an_engine_that_is_not_there_has_a_reason(name):
    if name == "none":
        pytest.skip("they are all there")
    with pytest.raises(ValueError, match=f"no engine '{name}'"):
        peers.prepared(name, TWO[0], QUICK)


def measured(losses, **more):
    return {"first_losses": list(losses), "samples_us": [1.0, 2.0], "start_seconds": [3.0], **more}


def compare(monkeypatch, answers, **settings):
    """Return the runs of a comparison whose processes give these answers, and the order in which they were asked."""
    asked, saved = [], []

    def in_turns(start, names):
        recipe = start.keywords["recipe"]
        for name in names:
            asked.append((name, recipe.optimizer))
            yield name, dict(answers[name][TWO.index(recipe)])

    monkeypatch.setattr(peers, "in_turns", in_turns)
    plan = Plan((), tuple(answers), ("numpy",), QUICK, TWO, **settings)
    record = experiment.measure(lambda record: saved.append(1), lambda text: None, plan, "some_peers")
    assert record["experiment"] == "some_peers"
    assert list(record["settings"]["libraries"]) == ["numpy"]
    assert len(saved) == len(asked)  # nothing measured is lost
    assert [run["recipe"] for run in record["runs"]] == [r.to_dict() for r in TWO for _ in answers]
    return record, asked


def test_peers_take_turns_and_one_that_differs_gets_no_time(wanted, monkeypatch):
    nan = wanted[1].copy()
    nan[-1] = np.nan
    absent = {"why_not": "ModuleNotFoundError: No module named 'torch'"}
    answers = {
        "same": [measured(losses) for losses in wanted],
        "its_mean": [measured([losses.mean()]) for losses in wanted],
        "rough": [measured(losses * 1.001, gate=[5, 2e-3]) for losses in wanted],
        "other": [measured(wanted[0]), measured(wanted[1] * 1.01)],
        "nan": [measured(wanted[0]), measured(nan)],
        "swapped": [measured(losses) for losses in reversed(wanted)],
        "absent": [absent, absent],
    }
    record, asked = compare(monkeypatch, answers)
    again = {"sgd": ("same", "its_mean", "rough", "other", "nan"), "adam": ("same", "its_mean", "rough")}
    assert asked[: 2 * len(answers)] == [(name, optimizer) for optimizer in again for name in answers]
    assert asked[2 * len(answers) :] == [(name, optimizer) for optimizer in again for name in again[optimizer]]
    runs = {(run["engine"], run["recipe"]["optimizer"]): run for run in record["runs"]}
    timed = ("same", "sgd"), ("same", "adam"), ("its_mean", "adam"), ("rough", "sgd"), ("other", "sgd"), ("nan", "sgd")
    for name in timed:
        assert (runs[name]["why_not"], runs[name]["samples_us"]) == (None, [1.0, 2.0, 1.0, 2.0])
        assert runs[name]["start_seconds"] == [3.0, 3.0]
    reasons = {
        ("other", "adam"): "differ",
        ("nan", "adam"): "nan",
        ("swapped", "sgd"): "differ",
        ("absent", "sgd"): "torch",
    }
    for name, reason in reasons.items():
        assert reason in runs[name]["why_not"]
        assert runs[name]["samples_us"] == []


def test_float32_is_told_from_fewer_digits(wanted, monkeypatch):
    """TF32's first losses are further off than rounding can be, and what rounding has grown to by step 20 is not."""
    grown = np.where(np.arange(GATE_STEPS) < 10, 2e-5, 8e-3)
    answers = {
        "exact": [measured(losses * (1 + grown)) for losses in wanted],
        "tf32": [measured(losses * (1 + np.maximum(grown, 1.2e-4))) for losses in wanted],
        "late": [measured(losses * (1 + 4 * grown * (grown > 1e-3))) for losses in wanted],
        "rough": [measured(losses * (1 + 9e-3), gate=[5, 2e-3]) for losses in wanted],
        "rougher": [measured(losses * (1 + 2e-2), gate=[5, 3e-2]) for losses in wanted],
    }
    record, _ = compare(monkeypatch, answers, gates=gpu_image_peers.PLAN.gates)
    refused = {run["engine"] for run in record["runs"] if run["why_not"]}
    assert refused == {"tf32", "late"}
    assert all("differ" in run["why_not"] for run in record["runs"] if run["engine"] in refused)


def test_the_baseline_of_the_gate_is_exact():
    train = peers.load("mnist").train
    for recipe in TWO:
        exact = peers.first_losses(recipe, train)
        assert exact.dtype == np.float64
        losses = bench.Stepper("numpy_baseline", recipe, train).take(GATE_STEPS)[1]
        assert_allclose(losses, exact, rtol=2e-5)


def test_a_sample_is_warmed_up_for_by_as_many_steps_as_it_has(monkeypatch):
    asked = []

    def steps(n):
        asked.append(n)
        return [0.0] * n

    monkeypatch.setattr(peers, "_prepare", lambda name, problem: (steps, peers.GATE))
    for warmup, calls in ((0, 0), (5, 1), (20, 1), (30, 2)):
        asked.clear()
        measure = peers.prepared("peer", TWO[0], Timing(warmup=warmup, steps_a_sample=20))
        assert asked == [GATE_STEPS, 20]
        measure()
        assert asked == [GATE_STEPS] + [20] * (1 + calls + peers.SAMPLES)


def test_in_float32_pytorchs_convolutions_are_too():
    torch = pytest.importorskip("torch")
    before = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = True  # as PyTorch has it
        importable("pytorch")(peers.problem(gpu_image_peers.LENET))
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before


def test_the_table_has_a_row_a_peer_and_a_column_a_recipe(wanted, monkeypatch):
    answers = {"same": [measured(losses) for losses in wanted], "half": [measured(wanted[0]), {"why_not": "no Adam"}]}
    record, _ = compare(monkeypatch, answers)
    title, same, half, reason = experiment.table(record).splitlines()
    assert title.split()[-4:] == ["sgd", "128", "adam", "128"]
    assert (same.split(), half.split()) == (["same", "1.5", "1.5"], ["half", "1.5", "-"])
    assert reason == "not run: half: no Adam"


def test_peers_prepare_side_by_side_and_answer_in_turns():
    names = ("plain_numpy", "no_such_peer", "numpy_baseline")
    found = dict(peers.in_turns(partial(peers.waiting, recipe=TWO[0], timing=QUICK), names))
    assert set(found) == set(names)
    assert found["no_such_peer"] == {
        "why_not": "ModuleNotFoundError: No module named 'experiments.lab.peers.no_such_peer'"
    }
    assert [len(found[name]["samples_us"]) for name in names[::2]] == [peers.SAMPLES] * 2


def test_who_fails_beside_others_is_asked_once_more_alone(monkeypatch):
    """A GPU may have no room for all of them."""
    running = []

    class Process(ExitStack):
        def __init__(self, name):
            super().__init__()
            self.name = name
            running.append(name)
            self.callback(lambda: name in running and running.remove(name))

        def ready(self):
            if self.name == "broken" or (self.name == "large" and len(running) > 1):
                raise processes.Failed("no memory")

        def answer(self):
            return {"of": self.name}

    monkeypatch.setattr(peers.os, "cpu_count", lambda: 9)
    found = list(peers.in_turns(Process, ["large", "broken", "small"]))
    assert found == [("small", {"of": "small"}), ("large", {"of": "large"}), ("broken", {"why_not": "no memory"})]
    assert not running
    assert list(peers.in_turns(Process, ["broken"])) == [("broken", {"why_not": "no memory"})]


TRAINS = ("jax_epoch", "jax_epoch_cpu", "jax_epoch_default", "pytorch", "pytorch_cuda_streams")


@pytest.mark.parametrize("name", TRAINS)
def test_a_peer_trains_whole_as_the_workbook_does(name):
    """Rates that change, a decay of the weights alone, a short batch at each epoch's end, a start anew."""
    module = pytest.importorskip(f"experiments.lab.peers.whole.{name}")
    recipe = Recipe(optimizer="adamw", lr=4e-3, schedule="cosine", warmup_epochs=1, weight_decay=0.2, epochs=2)
    problem = peers.problem(recipe)
    problem = replace(problem, X=problem.X[:300], y=problem.y[:300])
    network = recipe.make_network()
    optimizer = recipe.make_optimizer(network, 300)
    wanted = fit(network, optimizer, (problem.X, problem.y), epochs=2, batch_size=128, seed=0).loss
    options = {"device": "cpu"} if name == "pytorch_cuda_streams" else {}
    trainer = module.Trainer(problem, whole.rates_of(recipe, 300), **options)
    gate = getattr(module, "GATE", peers.GATE)
    for _ in range(2):
        _, losses = whole._train(trainer, problem)
        assert len(losses) == len(wanted)
        assert peers.are_wanted(losses, np.array(wanted), *gate)
        views = network.views(network.theta).values()
        for array, view in zip(trainer.parameters(), views, strict=True):
            assert_allclose(array, view, atol=5e-4 if gate == peers.GATE else 5e-2)


def test_many_networks_at_once_are_each_itself():
    networks = pytest.importorskip("experiments.lab.peers.jax_networks")
    problems = [peers.problem(Recipe(seed=seed)) for seed in range(2)]
    losses = networks.prepare(problems)(5)
    for seed, found in enumerate(losses):
        wanted = bench.Stepper("numpy_baseline", Recipe(seed=seed), (problems[0].X, problems[0].y)).take(5)[1]
        assert peers.are_wanted(found, wanted, 5, bench.RTOL)

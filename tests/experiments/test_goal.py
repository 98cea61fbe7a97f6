"""Seconds to a goal are those of whole trainings, or say that they are an estimate."""

import json
import math

import numpy as np
import pytest
from shared import SMALL as MODEL
from shared import dataset, engine_like

from experiments import goal, goal_recipes
from experiments.lab import lines, peers, results, trainings
from mlpkit import engines, kernels
from mlpkit.engines import numpy_baseline
from mlpkit.training.recipe import Recipe

DATA = dataset()
SMALL = Recipe(model=MODEL, batch_size=8, epochs=3, lr=0.3)
RUN = {
    "engine": "a",
    "goal": 97,
    "steps": 2000,
    "why_not": None,
    "samples_us": [90.0, 100.0, 400.0],
    "seconds": [0.3, 0.5, 0.4],
    "validation_accuracy": [0.98, 0.99, 0.98],
    "test_accuracy": [0.972, 0.971, 0.974],
}
ESTIMATE = RUN | {"engine": "b", "seconds": [], "validation_accuracy": [], "test_accuracy": []}
MISSING = ESTIMATE | {"engine": "c", "why_not": "no NVIDIA GPU was found.", "samples_us": []}


def run(saved, **options):
    options = {"engines": ("numpy_baseline", "python_lists"), "others": (), "goals": {97: SMALL}, "seeds": 2} | options
    return goal.measure(
        lambda record: saved.append(json.dumps(record)), lambda text: None, goal.Plan(**options), dataset=DATA
    )


def test_each_engine_is_trained_whole_from_each_seed():
    saved = []
    record = run(saved, goals={97: SMALL, 98: SMALL.but(epochs=4)})
    assert [(case["goal"], case["steps"]) for case in record["runs"]] == [(97, 21)] * 2 + [(98, 28)] * 2
    for case in record["runs"]:
        network, history = SMALL.but(seed=1, epochs=case["steps"] // 7).train(DATA, case["engine"])
        assert case["test_accuracy"][1] == network.evaluate(*DATA.test)["accuracy"]
        assert case["validation_accuracy"][1] == history.validation["accuracy"][-1]
        assert len(case["seconds"]) == 2
        assert not goal.is_estimate(case)
    assert len(saved) == 4 + 8
    assert json.loads(saved[-1]) == json.loads(json.dumps(record))


def test_an_engine_without_the_time_is_estimated():
    (case,) = run([], engines=("numpy_baseline",), patience=0.0)["runs"]
    assert case["seconds"] == case["test_accuracy"] == []
    assert goal.is_estimate(case)
    assert goal.seconds(case) == goal.estimate_s(case) > 0


def test_peers_are_held_to_exact_losses_the_first_ones_closely(monkeypatch):
    exact, late = peers.first_losses(SMALL, DATA.train), np.arange(peers.GATE_STEPS) > 4
    losses = {"exact": exact, "flipped": exact * (1 + 2e-3 * late), "tf32": exact * (1 + 1e-4), "says": exact * 1.001}
    gates = dict.fromkeys(losses, peers.GATE) | {"says": (5, 2e-3)}
    answers = {name: {"first_losses": [*found], "gate": gates[name]} for name, found in losses.items()}
    monkeypatch.setattr(peers, "in_turns", lambda start, cases: [(case, answers[case[0]]) for case in cases])
    record = run([], engines=("numpy_baseline",), others=tuple(losses))
    reasons = {case["engine"]: case["why_not"] for case in record["runs"]}
    assert reasons.pop("tf32").startswith("its first losses differ")
    assert set(reasons) == {"numpy_baseline", "exact", "flipped", "says"}
    assert not any(reasons.values())


def test_an_engine_that_can_t_run_or_computes_something_else_gets_no_seconds(monkeypatch):
    fake = engine_like(relu_backward=lambda a, da: da, softmax_cross_entropy=twice_the_loss)
    loaded = {"fake": fake, "numpy_baseline": numpy_baseline}
    monkeypatch.setattr(engines, "load", lambda name: loaded[name] if name in loaded else unavailable())
    different, missing = run([], engines=("fake", "absent"))["runs"]
    assert "Mismatched" in different["why_not"] or "Not equal" in different["why_not"]
    assert missing["why_not"] == "no GPU"
    assert different["seconds"] == missing["seconds"] == []
    assert math.isnan(goal.seconds(missing))


def twice_the_loss(z, labels):
    loss, dz = numpy_baseline.softmax_cross_entropy(z, labels)
    return 2 * loss, dz


def unavailable():
    raise engines.EngineUnavailable("no GPU")


def test_seconds_are_medians_or_steps_times_the_time_of_one():
    assert goal.seconds(RUN) == 0.4
    assert goal.seconds(ESTIMATE) == pytest.approx(0.2)
    assert (goal.is_estimate(RUN), goal.is_estimate(ESTIMATE)) == (False, True)


def test_the_table_marks_an_estimate():
    trained, estimated, missing = goal.table({"runs": [RUN, ESTIMATE, MISSING]}).splitlines()[1:]
    assert trained.split() == ["a", "97", "%", "0.4", "97.10%", "3"]
    assert estimated.split() == ["b", "97", "%", "~0.2", "-", "0"]
    assert missing.endswith("not run: no NVIDIA GPU was found.")


def choice(*candidates):
    """Return a record of candidates, (epochs, rate, accuracies of the seeds)."""
    runs = [
        {
            "recipe": Recipe(epochs=epochs, lr=lr, seed=seed).to_dict(),
            "diverged": None,
            "validation_accuracy": [accuracy],
        }
        for epochs, lr, found in candidates
        for seed, accuracy in enumerate(found)
    ]
    return {"settings": {"share": 0.8}, "runs": runs}


def test_the_cheapest_recipe_is_good_from_its_worst_seed():
    record = choice((1, 0.1, [0.99, 0.975]), (2, 0.1, [0.977, 0.978]), (2, 0.2, [0.98, 0.978]), (3, 0.1, [0.99, 0.99]))
    assert (goal_recipes.cheapest(record, 97)["epochs"], goal_recipes.cheapest(record, 97)["lr"]) == (2, 0.2)
    assert goal_recipes.cheapest(record, 98)["epochs"] == 3
    with pytest.raises(ValueError, match=r"99\.20%"):
        goal_recipes.cheapest(record, 99)


def test_candidates_are_trained_and_never_see_the_test_set():
    saved = []
    plan = goal_recipes.Plan((SMALL, SMALL.but(epochs=1)), seeds=2)
    record = goal_recipes.measure(lambda record: saved.append(1), lambda text: None, plan, DATA)
    assert record["settings"] == {"seeds": 2, "share": 0.8}
    assert len(saved) == len(record["runs"]) == 4
    assert all(case["test_accuracy"] is None for case in record["runs"])
    assert {len(case["loss"]) for case in record["runs"]} == {0}
    assert [len(found) for _, found in trainings.summary(record)] == [2, 2]


def test_the_goals_recipes_are_those_that_the_record_chooses():
    record = results.published("goal_recipes")
    for percent, recipe in goal.GOALS.items():
        assert goal_recipes.cheapest(record, percent) | {"seed": recipe.seed} == recipe.to_dict()


@pytest.mark.gpu
def test_a_gpu_engine_reaches_what_the_baseline_reaches():
    names = ("numpy_baseline", "cuda_graph")
    baseline, graph = run([], engines=names)["runs"]
    assert graph["why_not"] is None
    assert graph["test_accuracy"] == pytest.approx(baseline["test_accuracy"], abs=0.06)  # one image of 20


def test_lines_are_counted_without_comments_docstrings_and_blanks(tmp_path):
    python, cuda = tmp_path / "a.py", tmp_path / "a.cu"
    python.write_text(
        '"""Text,\n\nmore."""\n\nx = 1  # one\n# none\n\n\n'
        'def f():\n    """Two\n    lines."""\n    return (\n        x\n    )\n'
    )
    cuda.write_text("// none\n#define N 1\n\n/* two\n   lines */\nint f() { // one\n    return N; /* here */\n}\n")
    assert lines.count(python) == 5  # x, def, and three of the return
    assert lines.count(cuda) == 4


def test_an_engine_s_lines_are_those_of_all_its_files():
    def names(engine):
        return [path.name for path in lines.files(engine)]

    assert lines.of("numpy_baseline") == 0
    assert names("numba_hybrid").count("numba_hybrid.py") == 2  # its arithmetic, and what runs a model on it
    assert names("numba_serial") == ["cache.py", "compiler.py", "numba_serial.py", "python_loops.py", "sharing.py"]
    assert names("pytorch_compiled") == ["pytorch.py", "pytorch_compiled.py"]
    assert {"layers.cu", "products.cu", "cupy_fused.py", "graph.py"} < set(names("cuda_graph"))
    assert 0 < lines.of("cupy_naive") < lines.of("cupy_fused") < lines.of("cuda_graph")
    assert lines.of("numba_serial") == sum(map(lines.count, lines.files("numba_serial")))


def test_kernels_count_for_the_engine_that_launches_them():
    def paths(engine):
        return {path.relative_to(kernels.FOLDER.parent).as_posix() for path in lines.files(engine)}

    graph = paths("cuda_conv_graph")
    assert {"kernels/conv/blocked.py", "kernels/cnn/dense.py", "kernels/cnn/pair.py"} <= graph  # imported
    assert {"kernels/cnn/dense.cu", "kernels/conv/conv_pair.cu", "kernels/cnn/first_forward.cu"} <= graph  # a call says
    assert {"kernels/cnn/norm_backward.cu", "kernels/conv/conv_12_blocked_weights.cu"} <= graph  # a constant's name
    assert {"kernels/cnn/norm.cuh", "kernels/conv/__init__.py"} <= graph  # a header, and what a folder's modules share
    assert {"executors/cuda_conv_graph.py", "executors/cuda/plan.py"} <= graph
    assert "kernels/mlp/sgd.cu" in paths("cuda_graph") - graph  # theirs is in updates.cu
    assert lines.of("cuda_conv_graph") > 2 * lines.of("cuda_conv_fused")


def test_what_all_share_and_what_finds_a_gpu_counts_for_nobody():
    assert "mlpkit.kernels import gpu" in lines.place("cuda_conv_fused").read_text(encoding="utf-8")
    free = {kernels.FOLDER / f"{each}.py" for each in ("__init__", "gpu", "driver")}
    free |= {lines.PACKAGE / "executors" / f"{each}.py" for each in ("__init__", "plain", "protocol", "team")}
    assert all(path.is_file() for path in free)
    for name in engines.names():
        assert not free & set(lines.files(name))


def test_every_engine_has_lines_to_count():
    assert all(lines.of(name) > 0 for name in engines.names() if name != "numpy_baseline")
    with pytest.raises(ValueError, match="absent"):
        lines.of("absent")

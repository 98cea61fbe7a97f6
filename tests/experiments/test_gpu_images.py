"""Records of networks that see on a GPU: what they say is derived from small ones that are made up; and a small run."""

import sys

import numpy as np
import pytest

from experiments import (
    gpu_agreement,
    gpu_compile,
    gpu_image_accuracy,
    gpu_image_goal,
    gpu_image_memory,
    gpu_image_peers,
    gpu_image_timeline,
    gpu_peers,
)
from experiments.gpu_image_memory.read import run_of
from experiments.lab.bench import Timing
from mlpkit import engines
from mlpkit.data import Dataset, Split
from mlpkit.nn.models import FASHION_CNN, LENET5
from mlpkit.training.recipe import Recipe

RECIPE = Recipe(model=FASHION_CNN, batch_size=32)


def run(engine, **more):
    return {"engine": engine, "recipe": RECIPE.to_dict(), "why_not": None, **more}


RECORD = {
    "experiment": "gpu_image_memory",
    "runs": [
        run("ours", bytes=3 << 20, intervals=[[256, 0, 2, 0], [512, 1, 3, 256]]),
        run("theirs", bytes=12 << 20),
        run("absent", why_not="there is no such library"),
    ],
}


def test_memory_is_read_by_model_and_batch():
    assert gpu_image_memory.mib(RECORD, "ours", "fashion_cnn", 32) == 3
    assert gpu_image_memory.mib(RECORD, "theirs", "fashion_cnn", 32) == 12
    assert gpu_image_memory.mib(RECORD, "absent", "fashion_cnn", 32) is None
    assert run_of(RECORD, "ours", "fashion_cnn", 64) is None
    assert gpu_image_memory.intervals(RECORD, "ours", "fashion_cnn", 32) == [(256, 0, 2, 0), (512, 1, 3, 256)]
    assert gpu_image_memory.intervals(RECORD, "absent", "fashion_cnn", 32) == []


def test_the_table_has_a_line_each_and_the_reason():
    title, ours, theirs, absent, reason = gpu_image_memory.table(RECORD).splitlines()
    assert title.split() == ["MiB", "fashion_cnn", "32"]
    assert [ours.split(), theirs.split(), absent.split()] == [["ours", "3.0"], ["theirs", "12.0"], ["absent", "-"]]
    assert reason == "not run: absent: there is no such library"


def test_the_goals_recipe_is_one_of_lenet_in_five_epochs():
    (recipe,) = gpu_image_goal.PLAN.goals.values()
    assert (recipe.model, recipe.epochs) == (LENET5, 5)


@pytest.fixture
def garments():
    """A few images of a data set; nobody learns anything from them."""
    X, y = np.zeros((40, 1, 28, 28), np.uint8), np.arange(40) % 10
    parts = Split(X[:20], y[:20]), Split(X[:10], y[:10]), Split(X, y)
    return Dataset("fashion-mnist", *parts, tuple("abcdefghij"))


def test_accuracies_of_each_engine_and_seed(monkeypatch, garments):
    monkeypatch.setattr(gpu_image_accuracy, "load", lambda name: garments)
    recipe = Recipe(model=LENET5, epochs=1, batch_size=10)
    case = recipe, "fashion-mnist", ("numpy_baseline", "numpy_im2col")
    plan = gpu_image_accuracy.Plan((case,), seeds=2)
    record = gpu_image_accuracy.measure(lambda record: None, lambda text: None, plan)
    assert [(run["engine"], run["recipe"]["seed"]) for run in record["runs"]] == [
        ("numpy_baseline", 0), ("numpy_baseline", 1), ("numpy_im2col", 0), ("numpy_im2col", 1)
    ]  # fmt: skip
    found = [
        gpu_image_accuracy.accuracies(record, "numpy_im2col", "fashion-mnist", 1, of) for of in ("validation", "test")
    ]
    assert np.shape(found) == (2, 2)
    assert set(np.ravel(found)) == {0.1}  # all images are the same, so all answers are
    assert gpu_image_accuracy.accuracies(record, "numpy_im2col", "mnist", 1) == []
    _, first, second = gpu_image_accuracy.table(record).splitlines()
    assert first.split()[:4] == ["fashion-mnist", "1", "numpy_baseline", "10.00%"]
    assert second.split()[2] == "numpy_im2col"


@pytest.mark.parametrize(
    "experiment", [gpu_agreement, gpu_compile, gpu_image_goal, gpu_image_memory, gpu_image_peers, gpu_peers]
)
def test_without_a_gpu_nothing_is_measured_and_nothing_kept(experiment, monkeypatch):
    def load(name):
        assert engines.on_gpu(name)  # nothing else was measured before
        raise engines.EngineUnavailable(f"engine {name} can't run on this machine: no GPU")

    monkeypatch.setattr(engines, "load", load)
    with pytest.raises(engines.EngineUnavailable, match="no GPU"):
        experiment.measure(lambda record: pytest.fail("kept"), lambda text: None)


@pytest.mark.parametrize("error", [RuntimeError("CUDA error:\nout"), ValueError(), MemoryError("of the GPU")])
def test_who_fails_has_no_memory_and_the_others_have_theirs(error, monkeypatch):
    def look(name, task):
        if name == "broken":
            raise error
        return {"bytes": 1}

    module = sys.modules[gpu_image_memory.measure.__module__]
    monkeypatch.setattr(module, "_engine", look)
    monkeypatch.setattr(module.peers, "problem", lambda recipe: None)
    monkeypatch.setattr(engines, "load", lambda name: None)
    plan = gpu_image_memory.Plan(("broken", "whole"), ("no_such_peer",), (RECIPE,))
    broken, whole, peer = gpu_image_memory.measure(lambda record: None, lambda text: None, plan)["runs"]
    assert broken["why_not"] == (" ".join(str(error).split()) or "ValueError")
    assert (whole["bytes"], whole["why_not"]) == (1, None)
    assert "no_such_peer" in peer["why_not"]


@pytest.mark.gpu
def test_a_small_run_of_each(monkeypatch):
    from dataclasses import replace

    quick = Timing(warmup=2, steps_a_sample=2, rounds=1)
    name = "cuda_conv_graph"
    plan = replace(gpu_image_peers.PLAN, engines=(name,), others=(), recipes=(RECIPE,), timing=quick)
    (found,) = gpu_image_peers.measure(lambda record: None, lambda text: None, plan=plan)["runs"]
    assert found["samples_us"]
    assert not found["why_not"]
    plan = gpu_image_memory.Plan(engines=(name,), others=(), recipes=(RECIPE,))
    (found,) = gpu_image_memory.measure(lambda record: None, lambda text: None, plan=plan)["runs"]
    assert found["bytes"] >= found["arena"] >= found["at_once"] > 0
    plan = replace(gpu_image_timeline.PLAN, names=(name,), samples=1, whole=4)
    (found,) = gpu_image_timeline.measure(lambda record: None, lambda text: None, plan=plan)["runs"]
    assert found["step_us"][0] > 0

"""The record of a first training: each has a process without compiled code, and one that finds it."""

import json

import pytest

import experiments
from experiments.compile.measure import CACHE_VARIABLES
from experiments.lab import processes
from mlpkit.training.history import History
from mlpkit.training.recipe import Recipe

first = experiments.load("gpu_first")
ANSWER = {"import": 0.5, "first": 4.0, "later": 0.03}


def test_the_second_process_finds_what_the_first_has_compiled(monkeypatch):
    asked = []

    def ask(module, engine, recipe, env):
        asked.append((engine, Recipe.from_dict(json.loads(recipe)), {env[name] for name in CACHE_VARIABLES}))
        if engine == "cuda_conv_fused":
            raise processes.Failed("it needs a GPU")
        return dict(ANSWER)

    monkeypatch.setattr(first.processes, "ask", ask)
    runs = list(first._runs(first.USUAL, lambda text: None))
    assert [(run["title"], run["cache"]) for run in runs[:3]] == [
        ("perceptron", "empty"), ("perceptron", "filled"), ("garments", "empty")
    ]  # fmt: skip
    assert {recipe.epochs for _, recipe, _ in asked} == {1}
    caches = [folder for _, _, (folder,) in asked]
    assert caches[::2] == caches[1::2]
    assert len(set(caches)) == len(first.USUAL.trainings)
    assert runs[-1]["why_not"] == "it needs a GPU"
    lines = first.table({"runs": runs}).splitlines()
    assert lines[1].split() == ["perceptron", "empty", "4.50", "0.030"]
    assert lines[-1].endswith("it needs a GPU")


def test_a_training_is_timed_twice(monkeypatch):
    trained = []
    monkeypatch.setattr(Recipe, "train", lambda recipe, dataset, engine: (trained.append(engine), History()))
    found = first.trained("numpy_baseline", Recipe())
    assert trained == 2 * ["numpy_baseline"]
    assert found.keys() == ANSWER.keys()
    assert min(found.values()) >= 0


@pytest.mark.gpu
def test_a_first_training_of_this_gpu():
    found = first.trained("cupy_conv", first.FASHION.but(epochs=1, batch_size=1024))
    assert min(found.values()) > 0  # other tests may have compiled all that the first one needs

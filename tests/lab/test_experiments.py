"""An experiment keeps every training, and only the recipe that was chosen sees the test set."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import SIZES, dataset

from mlpkit.lab import results
from mlpkit.lab.experiments import trainings as experiments
from mlpkit.training.recipe import Recipe

DATA = dataset()
SMALL = Recipe(sizes=SIZES, batch_size=8, epochs=3, lr=0.3)


@pytest.fixture
def saved(monkeypatch):
    """Make "best" an experiment of two recipes, one of which diverges, from two seeds; return the records saved."""
    monkeypatch.setattr(experiments, "BEST", SMALL)
    monkeypatch.setattr(experiments, "ALL", {"best": [SMALL, SMALL.but(lr=1e30)], "other": [SMALL]})
    monkeypatch.setattr(experiments, "SEEDS", {"best": 2, "other": 1})
    return []


def run(name, saved):
    return experiments.run(name, DATA, lambda record: saved.append(json.dumps(record)), lambda text: None)


def test_an_experiment_is_saved_after_each_training(saved):
    record = run("best", saved)
    assert [len(json.loads(text)["runs"]) for text in saved] == [1, 2, 3, 4]
    assert json.loads(saved[-1]) == json.loads(json.dumps(record))
    assert [r["recipe"]["seed"] for r in record["runs"]] == [0, 0, 1, 1]


def test_only_the_chosen_recipe_sees_the_test_set(saved):
    runs = run("best", saved)["runs"]
    assert [r["test_accuracy"] is not None for r in runs] == [True, False, True, False]
    assert run("other", saved)["runs"][0]["test_accuracy"] is None


def test_a_training_that_diverged_is_recorded_with_the_reason(saved):
    good, bad = run("best", saved)["runs"][:2]
    assert good["diverged"] is None
    assert "learning rate of 1e+30" in bad["diverged"]
    assert len(good["validation_accuracy"]) == 3
    assert bad["validation_accuracy"] == []


def test_the_table_shows_each_recipe_once_with_its_mean_and_spread(saved):
    record = run("best", saved)
    (good, accuracies), (bad, guesses) = experiments.summary(record)
    assert (good["lr"], bad["lr"], guesses) == (0.3, 1e30, [0.1, 0.1])
    assert accuracies == [r["validation_accuracy"][-1] for r in record["runs"][::2]]
    lines = experiments.table(record).splitlines()
    assert len(lines) == 4
    assert f"{np.mean(accuracies):.2%} +- {np.std(accuracies, ddof=1):.2%}" in lines[1]
    assert "on the test set" in lines[-1]


def test_a_recorded_loss_is_the_mean_of_some_steps(saved):
    recorded = run("other", saved)["runs"][0]["loss"]
    loss = SMALL.train(DATA)[1].loss
    means = [np.mean(loss[i : i + experiments.LOSS_EVERY]) for i in range(0, len(loss), experiments.LOSS_EVERY)]
    assert_allclose(recorded, means, atol=1e-5)


def test_every_experiment_can_be_described():
    for recipes in experiments.ALL.values():
        texts = [experiments.describe(recipe.to_dict()) for recipe in recipes]
        assert len(set(texts)) == len(texts)


def test_a_record_of_an_experiment_can_be_read_back(saved, tmp_path):
    record = run("best", saved)
    assert results.load(results.save(record, folder=tmp_path)) == json.loads(json.dumps(record))

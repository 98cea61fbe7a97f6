"""An experiment keeps every training, and only the recipe that was chosen sees the test set."""

import json
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import SMALL as MODEL
from shared import dataset, one_sentence

import experiments
from experiments.lab import results, trainings
from mlpkit.data import Dataset, Split, one_hot
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.training.recipe import Recipe

DATA = dataset()
SMALL = Recipe(model=MODEL, batch_size=8, epochs=3, lr=0.3)


PLANS = {  # of which the first has a recipe that diverges
    "best": trainings.Plan((SMALL, SMALL.but(lr=1e30)), seeds=2, tested=(SMALL,)),
    "other": trainings.Plan((SMALL,), seeds=1),
}
CHAPTER_2 = ("optimizers", "learning_rates", "batch_sizes", "schedules", "weight_decay", "best")
CHAPTER_15 = ("lenet", "lenet_best", "residual", "residual_parts", "fashion", "activations", "losses")


@pytest.fixture
def saved():
    """The records that were saved, as JSON."""
    return []


def run(name, saved):
    return trainings.measure(
        name, lambda record: saved.append(json.dumps(record)), lambda text: None, PLANS[name], DATA
    )


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


def test_a_loss_of_numbers_is_judged_by_how_many_images_are_right():
    recipe = SMALL.but(model=Model(MODEL.input, MODEL.layers, MeanSquaredError()))
    run = trainings.train(recipe, DATA, test=True)
    numbers = Dataset(DATA.name, *(Split(s.X, one_hot(s.y, len(DATA.classes))) for s in DATA[1:4]), DATA.classes)
    network, _ = recipe.train(numbers)
    for accuracy, (X, y) in ((run["validation_accuracy"], DATA.validation), (run["test_accuracy"], DATA.test)):
        assert_allclose(accuracy, np.mean(network.predict(X).argmax(axis=1) == y), atol=1e-6)


def test_the_table_shows_each_recipe_once_with_its_mean_and_spread(saved):
    record = run("best", saved)
    (good, accuracies), (bad, guesses) = trainings.summary(record)
    assert (good["lr"], bad["lr"], guesses) == (0.3, 1e30, [0.1, 0.1])
    assert accuracies == [r["validation_accuracy"][-1] for r in record["runs"][::2]]
    lines = trainings.table(record).splitlines()
    assert len(lines) == 4
    assert f"{np.mean(accuracies):.2%} +- {np.std(accuracies, ddof=1):.2%}" in lines[1]
    assert "on the test set" in lines[-1]


def test_a_recorded_loss_is_the_mean_of_some_steps(saved):
    recorded = run("other", saved)["runs"][0]["loss"]
    loss = SMALL.train(DATA)[1].loss
    means = [np.mean(loss[i : i + trainings.LOSS_EVERY]) for i in range(0, len(loss), trainings.LOSS_EVERY)]
    assert_allclose(recorded, means, atol=1e-5)


@pytest.mark.parametrize("name", CHAPTER_2 + CHAPTER_15)
def test_every_recipe_of_an_experiment_can_be_told_from_the_others(name):
    plan = experiments.load(name).PLAN
    texts = [trainings.describe(recipe.to_dict()) for recipe in plan.recipes]
    assert len(set(texts)) == len(texts)
    assert set(plan.tested) == (set(plan.recipes) if name in ("best", "lenet_best", "residual") else set())


def test_a_difference_over_seeds_is_resolved_where_chance_alone_seldom_goes():
    mean, error, limit = trainings.difference([3.0, 5.0, 4.0], [2.0, 2.0, 2.0])
    assert (mean, error) == (2.0, pytest.approx(1 / np.sqrt(3)))
    assert limit == pytest.approx(4.30 / np.sqrt(3))  # above 2: not resolved
    assert not trainings.difference([3.0, 5.0, 4.0], [2.0, 2.0, 2.0]).resolved
    assert trainings.difference([2.0, 2.0, 2.0], [4.5, 5.5, 5.0]).resolved  # in either direction
    equals = np.random.default_rng(0).normal(size=(2, 20_000, 5))
    by_chance = np.mean([trainings.difference(*pair).resolved for pair in equals.swapaxes(0, 1)])
    assert by_chance == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("seeds", trainings.STUDENT)
def test_students_limits_are_those_of_the_distribution(seeds):
    """Integrated: x = sqrt(v) tan(angle) makes of Student's density a power of the cosine."""
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (seeds - 2)
    within = np.where(np.sqrt(seeds - 1) * np.tan(angles) < trainings.STUDENT[seeds], density, 0)
    assert within.sum() / density.sum() == pytest.approx(0.95, abs=0.002)


@pytest.mark.parametrize("name", CHAPTER_2 + CHAPTER_15)
def test_what_is_published_are_the_trainings_of_the_plan(name):
    plan = experiments.load(name).PLAN
    found = trainings.summary(results.published(name))
    assert [trainings.describe(recipe) for recipe, _ in found] == [
        trainings.describe(r.to_dict()) for r in plan.recipes
    ]
    assert {len(accuracies) for _, accuracies in found} == {plan.seeds}


def test_a_record_of_an_experiment_can_be_read_back(saved, tmp_path):
    record = run("best", saved)
    assert results.load(results.save(record, folder=tmp_path)) == json.loads(json.dumps(record))


# The list of all experiments


ALONE = """
import sys
sys.modules["numba"] = sys.modules["cupy"] = None
import experiments
from experiments.lab import results
before = set(sys.modules)
names = experiments.names()
assert set(sys.modules) == before, "a list of names imports nothing"
for name in sys.argv[1:] or names:
    experiment = experiments.load(name)
    assert experiment.__doc__, name
    assert callable(experiment.measure), name
    for path in results.FOLDER.glob(f"*/{name}.json"):
        assert experiment.table(results.load(path)).strip(), path
"""


def test_where_nothing_can_be_measured_every_record_can_be_read():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_published_record_has_its_experiment():
    published = {path.stem for path in results.FOLDER.glob("*/*.json") if path.parent.name != results.MINE}
    assert published <= set(experiments.names())


def test_an_experiment_that_is_not_there_is_answered_with_the_names_of_all():
    with pytest.raises(ValueError, match="engines") as caught:
        experiments.load("everything")
    one_sentence(caught.value, "everything")

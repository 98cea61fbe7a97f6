"""The experiment on what `fit` adds measures five ways to the same network, and its table tells the difference."""

import pytest
from shared import SMALL, dataset

from experiments import fit
from experiments.lab import results
from mlpkit.training.recipe import Recipe

RECIPE = Recipe(model=SMALL, lr=0.1, batch_size=8, epochs=2)


@pytest.mark.parametrize("engine", ["numpy_baseline", "numba_step"])
def test_a_small_record_is_whole(engine):
    saved = []
    plan = fit.Plan(engines=(engine,), recipes=(RECIPE,), samples=3)
    record = fit.measure(lambda found: saved.append(len(found["runs"])), lambda text: None, plan, dataset())
    assert saved == [1]
    (run,) = record["runs"]
    assert run["steps"] == 2 * 7
    for way in ("trainer", "fit", "validated", "train", "new_seed"):
        assert len(run[f"{way}_us"]) == 3
        assert min(run[f"{way}_us"]) > 0
    assert engine in fit.table(record)


def test_what_is_added_is_a_part_of_the_trainers_time():
    run = {"trainer_us": [4.0, 5.0, 6.0], "fit_us": [5.5, 9.0, 1.0]}
    assert fit.added(run, "fit") == pytest.approx(0.1)


def test_the_table_of_an_empty_record_is_its_head():
    assert fit.table(results.new("fit")).split() == [
        "us",
        "a",
        "step",
        "recipe",
        "trainer",
        "fit",
        "validated",
        "train",
        "new_seed",
    ]

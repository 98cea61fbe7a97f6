"""Engines are compared by what they learn, too."""

import sys

from shared import SMALL as MODEL
from shared import dataset, engine_like

from experiments import agreement
from experiments.agreement import Answer
from mlpkit import engines
from mlpkit.nn.models import MLP
from mlpkit.training.recipe import Recipe

RECIPE = Recipe(model=MODEL, batch_size=8, epochs=3, lr=0.1)
DATA = dataset()


def compare(*names):
    saved = []
    plan = agreement.Plan(names, RECIPE, seeds=2)
    record = agreement.measure(lambda record: saved.append(len(record["runs"])), lambda text: None, plan, DATA)
    assert saved == list(range(1, 2 * len(names) + 1))
    return record


def test_engines_that_agree_learn_the_same():
    record = compare("numpy_baseline", "python_lists")
    found = agreement.accuracies(record)
    assert found["numpy_baseline"] == found["python_lists"]
    assert [run["seed"] for run in record["runs"]] == [0, 1, 0, 1]
    assert all(run["max_loss_error"] < 1e-5 for run in record["runs"])
    network, history = RECIPE.but(seed=1).train(DATA)
    assert record["runs"][1]["validation_accuracy"] == history.validation["accuracy"][-1]
    assert found["numpy_baseline"][1] == network.evaluate(*DATA.test)["accuracy"]


def test_an_engine_that_differs_shows_it(monkeypatch):
    from mlpkit.engines import python_lists

    monkeypatch.setattr(python_lists, "relu_backward", lambda a, da: da)
    errors = [run["max_loss_error"] for run in compare("numpy_baseline", "python_lists")["runs"]]
    assert errors[:2] == [0, 0]
    assert min(errors[2:]) > 1e-3


def test_an_engine_that_can_t_train_so_is_left_out(monkeypatch):
    """It may run here, and be made for another kind of network."""
    load, refusing = engines.load, engine_like(why_not=lambda model, optimizer, batch_size: "it trains what sees.")
    monkeypatch.setattr(engines, "load", lambda name: refusing if name == "python_lists" else load(name))
    plan = agreement.Plan(("numpy_baseline", "python_lists"), RECIPE, seeds=1)
    record = agreement.measure(lambda record: None, lambda text: None, plan, DATA)
    assert [run["engine"] for run in record["runs"]] == ["numpy_baseline"]


def test_the_table_has_mean_and_spread():
    record = {"runs": [run("a", 0.5, 1e-6), run("a", 0.7, 2e-6), run("b", 0.9, 0.0)]}
    _, a, b = agreement.table(record).splitlines()
    assert a.split() == ["a", "60.00%", "+-", "14.14%", "2", "2.0e-06"]
    assert b.split() == ["b", "90.00%", "1", "0.0e+00"]


def test_without_a_plan_all_engines_answer_but_those_that_take_hours(monkeypatch):
    asked = []

    def answer(name, recipe, dataset):
        asked.append(name)
        return Answer(name, recipe.seed, [], 0.0, 0.0, 0.0)

    monkeypatch.setattr(sys.modules[Answer.__module__], "answer", answer)
    agreement.measure(lambda record: None, lambda text: None, dataset=DATA)
    ready = [name for name in engines.names(MLP.operations) if not engines.available()[name]]
    assert list(dict.fromkeys(asked)) == [name for name in ready if not name.startswith("python")]


def run(engine, accuracy, error):
    return {"engine": engine, "test_accuracy": accuracy, "max_loss_error": error}

"""The record of older capabilities: what it asks for, and what is read from it."""

import experiments
from mlpkit import engines
from mlpkit.kernels.gpu import FEWER, SETTING
from mlpkit.nn.models import MLP
from mlpkit.training.recipe import Recipe

OTHERS = {"cuda_cudnn", "cuda_graph_cublas", "cuda_int8"}  # NVIDIA's libraries, and predictions
capabilities = experiments.load("capabilities")


def a_record(**us):
    runs = [
        {"engine": "cuda_graph", "recipe": Recipe().to_dict(), "capability": each, "samples_us": [us, us + 1, us + 9]}
        for each, us in us.items()
    ]
    refused = {"engine": "cuda_persistent", "recipe": Recipe().to_dict(), "capability": "7.5", "samples_us": []}
    runs = [run | {"why_not": None} for run in runs] + [refused | {"why_not": "it needs 8.0"}]
    return {"experiment": "capabilities", "machine": {"gpu": {"found": True, "name": "NVIDIA H200"}}, "runs": runs}


def test_every_process_runs_what_its_capability_says(monkeypatch):
    asked = []
    monkeypatch.setattr(capabilities.peers, "waiting", lambda name, recipe, timing, env: asked.append((name, env)))
    monkeypatch.setenv(SETTING, "8.7")
    monkeypatch.setenv(FEWER, "24")
    for each in capabilities.USUAL.all:
        capabilities._waiting(capabilities.TIMING, each)
    assert len(asked) == len(capabilities.USUAL.all) == 71
    assert {env.get(SETTING) for _, env in asked} == {None, "8.9", "8.6", "8.0", "7.5"}
    assert {env.get(SETTING) for name, env in asked if "pytorch" in name} == {None}
    assert not any(FEWER in env for _, env in asked)


def test_every_engine_of_the_perceptron_has_its_rows():
    asked = {name for recipe, name, _ in capabilities.USUAL.all if recipe.model == MLP}
    known = {name for name in engines.names() if engines.library(name) == "cuda" and "conv" not in name}
    assert asked == known - OTHERS


def test_losses_that_are_others_have_no_time():
    recipe, wanted = Recipe(), [2.0, 1.0, 0.5]
    found = {"first_losses": [2.0, 1.0, 0.6], "samples_us": [7.0]}
    run = capabilities._run("cuda_graph", recipe, "8.0", found, wanted)
    assert "differ from the baseline's" in run["why_not"]
    assert "samples_us" not in run
    run = capabilities._run("cuda_graph", recipe, "8.0", found | {"first_losses": wanted}, wanted)
    assert (run["why_not"], run["samples_us"], run["capability"]) == (None, [7.0], "8.0")


def test_the_table_and_the_predictions():
    record = a_record(all=10.0, **{"8.9": 20.0, "7.5": 40.0})
    assert capabilities.microseconds(record)["mlp, batch 128"]["cuda_persistent"] == {"7.5": None}
    text = capabilities.table(record)
    assert "all     8.9     7.5" in text
    assert "11.0    21.0    41.0" in text
    assert "it needs 8.0" in text
    found = capabilities.predicted(record, "mlp, batch 128", "cuda_graph")
    least, most = found["T4"]
    assert (round(least / 41, 2), round(most / 41, 2)) == (9.13, 15.0)
    assert all(less <= more for less, more in found.values())

"""The record of what peers gain that are offered more: who is asked with which settings, and what is read from it."""

import experiments
from experiments import gpu_image_peers
from experiments.lab import lines
from mlpkit.nn.models import FASHION_CNN
from mlpkit.training.recipe import Recipe

offered = experiments.load("gpu_image_offered")
PLAN = offered.USUAL
RECIPE = Recipe().to_dict()


def test_everybody_gets_xlas_flags_and_only_who_tries_kernels_a_limit(monkeypatch):
    asked = []
    monkeypatch.setattr(offered.peers, "waiting", lambda *given: asked.append((given[1], given[0], *given[3:])))
    monkeypatch.setattr(offered.peers, "in_turns", lambda start, offers: [start(each) for each in offers] and [])
    monkeypatch.setattr(offered.peers, "first_losses", lambda recipe, train: [1.0])
    assert not list(offered._runs(PLAN, print))
    assert [(recipe, name, env["XLA_FLAGS"]) for recipe, name, env, _ in asked] == [*PLAN.offers, *PLAN.tries]
    assert [seconds for *_, seconds in asked] == [None] * len(PLAN.offers) + [PLAN.seconds] * len(PLAN.tries)
    assert all(lines.place(name) for _, name, *_ in asked)


def test_who_is_offered_more_stands_beside_who_is_used():
    used = {name for recipe, name, flags in PLAN.offers if not flags and recipe.model == FASHION_CNN}
    assert {*offered.USED} <= {*gpu_image_peers.PLAN.others} & used
    assert {recipe for recipe, *_ in PLAN.offers} <= {Recipe(), *gpu_image_peers.PLAN.recipes}


def a_run(us, flags="", why_not=None):
    samples = [] if why_not else [us, us]
    return {"engine": "jax_epoch", "flags": flags, "samples_us": samples, "why_not": why_not, "recipe": RECIPE}


def test_losses_that_are_others_have_no_time(monkeypatch):
    answers = {"first_losses": [2.0, 1.0], "samples_us": [7.0]}
    monkeypatch.setattr(offered.peers, "first_losses", lambda recipe, train: offered.peers.np.array([2.0, 1.5]))
    monkeypatch.setattr(offered.peers, "in_turns", lambda start, offers: [(each, dict(answers)) for each in offers])
    runs = list(offered._runs(PLAN, lambda text: None))
    assert all("differ from the baseline's" in run["why_not"] and not run["samples_us"] for run in runs)


def test_the_table_has_the_fastest_first_and_the_reasons():
    record = {"runs": [a_run(9.0), a_run(8.0, "--xla=1"), a_run(0, "--xla=2", "Unknown flag")]}
    title, first, second, last = offered.table(record).splitlines()
    assert title == "mlp"
    assert first.split() == ["8.0", "us", "jax_epoch", "--xla=1"]
    assert second.split() == ["9.0", "us", "jax_epoch"]
    assert last.endswith("Unknown flag")

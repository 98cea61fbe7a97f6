"""A study is a file: what is fixed, what is searched for, who proposes, who trains, and where results are kept."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import count, product, takewhile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from mlpkit import data, engines
from mlpkit.checks import check_choice, check_count
from mlpkit.nn.models import MODELS
from mlpkit.paths import check_readable, expanded
from mlpkit.training.recipe import Recipe
from mlpkit.words import short, short_sentences

GOALS = {"accuracy": "maximize", "loss": "minimize"}
CHOICES = {"sampler": ("tpe", "random", "grid"), "pruner": ("hyperband", "none"), "goal": tuple(GOALS)}
CHOICES |= {"data": data.names(), "engine": engines.names()}
COUNTS = {"trials": 1, "images": 1, "seed": 0, "seeds": 1, "heartbeat": 1, "workers": 1, "threads": 1}
FREE = "path trials storage heartbeat cluster workers threads hosts slurm"  # what may change from run to run
LARGE = 2**53  # from there on, floats are no whole numbers any more, and Optuna's draws are floats
PLAIN = (bool, int, float, str)  # what a storage keeps as it is
CLUSTERS = ("local", "ssh", "slurm")
KINDS: dict[type, str] = {str: "name storage cluster", dict: "search recipe slurm", list: "hosts"}
WORDS: dict[type, str] = {str: "a text", list: "a list", dict: "a table, such as lr = {low = 1e-3, high = 1.0}"}
EMPTY = "recipe slurm hosts"  # may be left out
KEYS = [each.name for each in fields(Recipe) if each.name not in ("augment", "dtype")]
MOST = 10**6  # points of a grid, trials, seconds: more than anybody waits for
FACTOR = 3  # of Hyperband: one trial in so many goes on to the next rung, for so many times as many epochs


@dataclass(frozen=True)
class Study:
    """What a study's file says. name: of the study in its storage. recipe: what is fixed, by `Recipe`'s names.

    search: what is tried, by name: {"choices": [...]}, or {"low": a, "high": b}, with "log", and "points" for a grid.
    trials: how many, on a grid all. seeds: trained for each trial, whose value is their mean. images: so many of the
    training set. storage: an SQLite file, from the study's own folder on, or a database's URL. heartbeat: seconds.
    workers: how many on this machine, None for one a GPU, or a core. threads: of each, on a CPU. cluster: "local";
    "ssh", on hosts, the first of which has the scheduler; "slurm", with options of dask_jobqueue's SLURMCluster; or the
    address of a scheduler that somebody has started, such as "tcp://10.0.0.1:8786".
    """

    path: Path
    name: str
    search: Mapping[str, Any]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 60
    sampler: str = "tpe"
    pruner: str = "hyperband"
    goal: str = "accuracy"
    engine: str = engines.BASELINE
    data: str = "mnist"
    images: int | None = None
    seed: int = 0
    seeds: int = 1
    storage: str = "studies.db"
    heartbeat: int = 5
    cluster: str = "local"
    workers: int | None = None
    threads: int = 1
    hosts: list[str] = field(default_factory=list)
    slurm: Mapping[str, Any] = field(default_factory=dict)

    def recipe_of(self, choices, number=0):
        """Return a trial's `Recipe`, from its seed of that number. Raises ValueError or TypeError for what is none."""
        found = {"model": "mlp", "seed": 0, **self.recipe, **choices}
        check_choice("model", found["model"], MODELS)
        return Recipe(**found | {"model": MODELS[found["model"]], "seed": found["seed"] + number})

    def rungs(self):
        """Return the epochs after which a trial is looked at: Hyperband's 1, 3, 9, ..., and the end."""
        end = self.recipe_of({}).epochs
        powers = takewhile(lambda epochs: epochs < end, (FACTOR**rung for rung in count()))
        return (*(powers if self.pruner == "hyperband" else ()), end)

    def distributions(self):
        """Return what is tried, by name, as Optuna has it. Raises ValueError for what is no range."""
        return {name: _distribution(name, span) for name, span in self.search.items()}

    def grid(self, name):
        """Return the values of a parameter on the grid, a list."""
        span, whole = self.search[name], isinstance(self.distributions()[name], IntDistribution)
        if "choices" in span:
            return span["choices"]
        spaced = np.geomspace if span.get("log") else np.linspace
        points = _count(f"{name}'s points", span.get("points"), 2)
        values = spaced(span["low"], span["high"], points)
        return sorted(
            {*values.round().astype(int).tolist()} if whole else values.clip(span["low"], span["high"]).tolist()
        )

    def points(self):
        """Return all points of the grid, a list of choices by name. Raises ValueError for more than a million."""
        _count("the product of all points", prod(len(self.grid(name)) for name in self.search))
        return [dict(zip(self.search, values, strict=True)) for values in product(*map(self.grid, self.search))]

    def settings(self):
        """Return what must stay the same as long as the study goes on, as JSON can hold it."""
        return {name: value for name, value in asdict(self).items() if name not in FREE.split()}


@short_sentences()
def read(path):
    """Return the `Study` in a TOML file. Raises FileNotFoundError, or ValueError or TypeError for what is wrong."""
    path = expanded(path)
    check_readable(path)
    try:
        found = {"name": path.stem, "search": {}, **tomllib.loads(path.read_text(encoding="utf-8-sig"))}
        names = [each.name for each in fields(Study) if each.name != "path"]
        for name in found.keys() - {*names}:
            raise ValueError(f"a study has no {short(name, 40)!r}; it may have {', '.join(names)}.")
        _check(study := Study(path, **found))
        return study
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path}: {str(error).rstrip('.')}.") from error


def _count(name, value, least=1):
    if check_count(name, value, least) > MOST:
        raise ValueError(f"{name} must be at most {MOST:,}, not {value:,}.")
    return value


def _check(study):
    for name, choices in CHOICES.items():
        check_choice(name, getattr(study, name), choices)
    for name, least in COUNTS.items():
        if getattr(study, name) is not None:
            (check_count if name == "seed" else _count)(name, getattr(study, name), least)
    for kind, names in KINDS.items():
        for name in names.split():
            if not isinstance(getattr(study, name), kind) or not (getattr(study, name) or name in EMPTY):
                raise TypeError(f"{name} must be {WORDS[kind]}, not {getattr(study, name)!r}.")
    if study.cluster not in CLUSTERS and "://" not in study.cluster:
        raise ValueError(f"cluster must be {', '.join(CLUSTERS)} or an address with ://, not {study.cluster!r}.")
    for name in (*study.recipe, *study.search):
        if name not in KEYS or (name in study.search and name in ("epochs", "seed", "settings")):
            raise ValueError(
                f"{short(name, 40)!r} can't be set there; of a recipe's choices there are {', '.join(KEYS)}."
            )
    ends = {name: getattr(d, "choices", None) or (d.low, d.high) for name, d in study.distributions().items()}
    for name, value in [(name, value) for name, values in ends.items() for value in values]:
        recipe = study.recipe_of({other: values[0] for other, values in ends.items()} | {name: value})
        check_count("epochs", recipe.epochs)
    if study.sampler == "grid":
        study.points()


def _distribution(name, span):
    match span:
        case {"choices": [_, *_] as choices, **more} if not more and all(type(one) in PLAIN for one in choices):
            return CategoricalDistribution(choices)
        case {"low": int() | float() as low, "high": int() | float() as high, **more}:
            rising = -LARGE < low < high < LARGE and (low > 0 or not more.get("log"))
            rising = rising and isinstance(more.get("log", False), bool)
            if rising and more.keys() <= {"log", "points"}:
                kind = IntDistribution if type(low) is type(high) is int else FloatDistribution
                return kind(low, high, log=bool(more.get("log")))
    raise ValueError(f"{name} needs choices = [...], or numbers low < high, with log = true (above 0) and points = 5.")

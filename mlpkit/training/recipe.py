"""Every choice that a training run depends on, in one place: run it twice, get the same network, up to rounding."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from mlpkit.checks import check_choice, check_count, check_dtype, check_not_negative, check_positive
from mlpkit.engines import BASELINE
from mlpkit.nn.initialize import RULES
from mlpkit.nn.model import MLP, Model
from mlpkit.nn.network import Network, check_model
from mlpkit.optim import BY_NAME
from mlpkit.optim.schedules import Constant, Cosine, Exponential, StepDecay, WarmUp
from mlpkit.words import short_sentences

from .fit import fit

_LEAST = {"batch_size": 1, "epochs": 0, "seed": 0}
SCHEDULES = ("constant", "step", "exponential", "cosine")


@dataclass(frozen=True)
class Recipe:
    """What to train, and how.

    optimizer: a name from `optim.BY_NAME`. settings: its own, by name, such as {"momentum": 0.95}; what is left out is
    as the optimizer has it. lr: the highest rate. schedule: "constant"; "step", to a tenth after each third of the run;
    "exponential", down to a hundredth at its end; "cosine", down to 0; or a `Schedule` of one's own, which has its own
    rates in lr's place. warmup_epochs: how long the rate rises first; 0.5 is half an epoch. init: "he" or "xavier".
    seed: of the first weights, of the order of the examples, of dropout, and of how images change. model: what is
    trained, see `nn.models`. dtype: "float32" or "float64". augment: how far images change from epoch to epoch, an
    `Augmentation`; None where they stay as they are.

    Raises ValueError or TypeError for a name that there is not, or a number out of range.
    """

    optimizer: str = "sgd"
    lr: float = 0.2
    schedule: str | Callable[[Any], Any] = "constant"
    warmup_epochs: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 128
    epochs: int = 5
    init: str = "he"
    seed: int = 0
    model: Model = MLP
    dtype: str = "float32"
    augment: Any = None
    settings: Mapping[str, float] | tuple = ()

    def __post_init__(self):
        check_choice("optimizer", self.optimizer, BY_NAME)
        if not callable(self.schedule):
            check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("initialization", self.init, RULES)
        checked = {name: check_count(name, getattr(self, name), least) for name, least in _LEAST.items()}
        checked |= {name: check_not_negative(name, getattr(self, name)) for name in ("warmup_epochs", "weight_decay")}
        checked["lr"] = check_positive("lr", self.lr)
        epochs, warmup = checked["epochs"], checked["warmup_epochs"]
        if 0 < epochs < warmup:
            raise ValueError(f"warmup_epochs must be at most epochs, {epochs}, to reach the rate lr, not {warmup:g}.")
        changed = {name: value for name, value in checked.items() if type(getattr(self, name)) not in (int, float)}
        changed |= {"model": check_model(self.model), "dtype": str(check_dtype(self.dtype))}
        if self.augment is not None:
            check_augmentation(self.augment)
        changed["settings"] = check_settings(self.optimizer, _by_name(self.settings))
        for name, value in changed.items():  # JSON knows no other numbers than Python's
            object.__setattr__(self, name, value)

    def steps_an_epoch(self, n):
        """Return the number of batches in `n` examples, the short last one counted."""
        return -(-n // self.batch_size)

    def make_schedule(self, n):
        """Return the learning rate as a function of the step, for `n` examples."""
        warmup = round(self.warmup_epochs * self.steps_an_epoch(n))
        steps = max(1, self.epochs * self.steps_an_epoch(n) - warmup)
        schedule = self._falling(steps)
        return WarmUp(schedule, warmup) if warmup else schedule

    def _falling(self, steps):
        if not isinstance(self.schedule, str):
            return self.schedule
        if self.schedule == "step":
            return StepDecay(self.lr, every=max(1, steps // 3))
        if self.schedule == "exponential":
            return Exponential(self.lr, steps)
        return Cosine(self.lr, steps) if self.schedule == "cosine" else Constant(self.lr)

    def make_network(self, engine=BASELINE):
        """Return the network with its first weights."""
        return Network(engine, self.model, seed=self.seed, init=self.init, dtype=np.dtype(self.dtype))

    def make_optimizer(self, network, n):
        """Return the optimizer for a training set of `n` examples."""
        kind = BY_NAME[self.optimizer]
        return kind(network, self.make_schedule(n), weight_decay=self.weight_decay, **dict(self.settings))

    def train(self, dataset, engine=BASELINE, **options):
        """Train on `dataset.train`, validate on `dataset.validation`; return the network and the history.

        options: further arguments of `fit.fit`. Raises what `Network` and `fit.fit` raise.
        """
        chosen = {name: getattr(self, name) for name in ("epochs", "batch_size", "seed", "augment")}
        for name in options.keys() & chosen.keys():
            raise TypeError(f"{name} is a choice of the recipe's: train with recipe.but({name}=...).")
        if not hasattr(dataset, "train"):
            raise TypeError(f"a recipe trains on what data.load() returns, not on a {type(dataset).__name__}.")
        network = self.make_network(engine)
        optimizer = self.make_optimizer(network, len(dataset.train.y))
        return network, fit(network, optimizer, dataset.train, dataset.validation, **chosen, **options)

    def but(self, **changes):
        """Return the recipe with some choices changed."""
        return replace(self, **changes)

    def to_dict(self):
        """Return the choices as JSON can hold them; `augment` and `settings` where there are any.

        Raises ValueError for a model or a schedule that can't be written.
        """
        from mlpkit.nn.reading import text_of

        choices = {field.name: getattr(self, field.name) for field in fields(self)}
        choices |= {"model": self.model.to_dict(), "augment": self.augment and asdict(self.augment)}
        choices["settings"] = dict(self.settings)
        if not isinstance(self.schedule, str):
            choices["schedule"] = text_of(self.schedule)
        return {name: value for name, value in choices.items() if value or name not in ("augment", "settings")}

    @classmethod
    @short_sentences()
    def from_dict(cls, choices):
        """Return the recipe that `to_dict` wrote. Raises ValueError for what makes no recipe."""
        from mlpkit.data.augment import Augmentation
        from mlpkit.nn.reading import read

        try:
            augment = choices.get("augment") and Augmentation(**choices["augment"])
            schedule = choices.get("schedule", "constant")
            read_from = {"schedule": read(schedule) if "(" in schedule else schedule, "augment": augment}
            return cls(**choices | read_from | {"model": Model.from_dict(choices["model"])})
        except (AttributeError, KeyError, TypeError, SyntaxError) as error:
            raise ValueError(f"this is no recipe: {type(error).__name__}: {error}".rstrip(".") + ".") from error


def check_augmentation(augment):
    """Raise TypeError unless `augment` is an `Augmentation`: a recipe is data."""
    from mlpkit.data.augment import Augmentation

    if not isinstance(augment, Augmentation):
        raise TypeError(f"augment must be an Augmentation, or None, not {augment!r}.")


def _by_name(settings):
    try:
        return dict(settings)
    except (TypeError, ValueError):
        raise TypeError(f"settings must be numbers by name, such as {{'momentum': 0.95}}, not {settings!r}.") from None


def check_settings(optimizer, settings):
    """Return an optimizer's settings as a tuple of pairs, in its own order. Raises ValueError for a name it has not."""
    known = BY_NAME[optimizer].setting_names
    for name in settings:
        if name not in known:
            has = f"has {', '.join(known)}" if known else "has none"
            raise ValueError(f"{optimizer} has no setting {name!r}; it {has}.")
    return tuple((name, settings[name]) for name in known if name in settings)

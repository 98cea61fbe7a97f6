"""Layers and losses are data, shown as they are written: `Conv(6, 5, padding=2)`. Files keep them so: see `reading`."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Written:
    """What is data, and is shown as it is written: what has its default value is left out.

    checks: pairs of a setting's name and what checks it, a function (name for a sentence, value) -> value.
    """

    checks: ClassVar[tuple[tuple[str, Callable], ...]] = ()

    def __post_init__(self):
        for name, check in self.checks:
            object.__setattr__(self, name, check(f"the {name} of {type(self).__name__}", getattr(self, name)))

    def __repr__(self):
        values = ((f, getattr(self, f.name)) for f in fields(self))
        given = [(f, v.item() if isinstance(v, np.generic) else v) for f, v in values if v != f.default]
        words = [repr(value) if f.default is MISSING else f"{f.name}={value!r}" for f, value in given]
        return f"{type(self).__name__}({', '.join(words)})"


def check_settings(one):
    """Raise TypeError where a layer or a loss has settings that are no fields: it would lose them when it is saved."""
    if lost := vars(one).keys() - {field.name for field in fields(one)}:
        raise TypeError(f"{one!r} would lose {', '.join(lost)} when it is saved: make its class a @dataclass.")

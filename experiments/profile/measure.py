"""How the record "profile" is made: network by network, each engine's own step and its operations, in turns."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

from experiments.lab import quiet, results
from experiments.lab.bench import Stepper, why_not_timed
from experiments.lab.clock import in_turns, seconds_until_done, steps_in
from mlpkit import engines, machine
from mlpkit.data import load
from mlpkit.nn.models import FASHION_CNN, LENET5, RESIDUAL
from mlpkit.training.recipe import Recipe

from .costs import parts, stepper_of

RECIPES = {  # by the network's name; no time depends on the rates, which let no rounding error grow
    "LeNet-5": Recipe(model=LENET5, lr=0.05),
    "the garments' network": Recipe(model=FASHION_CNN, lr=0.01, batch_size=64),
    "the residual network": Recipe(model=RESIDUAL, optimizer="adamw", lr=1e-5, weight_decay=0.05),
}


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long to take over it.

    recipes: by the network's name. A turn takes steps for `settle` seconds, then as many as fit into `seconds`, but at
    most `steps`, each of which is a sample. sizes: bytes of arrays, for bandwidth; rates: samples of both roofs.
    """

    engines: tuple[str, ...] = (engines.BASELINE, "numpy_im2col", "numba_conv")
    recipes: tuple[tuple[str, Recipe], ...] = tuple(RECIPES.items())
    rounds: int = 7
    steps: int = 50
    seconds: float = 1.5
    settle: float = 0.2
    rates: int = 3
    sizes: tuple[int, ...] = tuple(2**k for k in range(14, 29, 2))


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Measure everything, and return the record. train: (X, y), MNIST's where None is given."""
    from experiments.lab import roof  # takes Numba

    train = train or load(scaled=True).train
    recipes = {name: recipe.to_dict() for name, recipe in plan.recipes}
    record = results.new("profile", plan=asdict(plan) | {"recipes": recipes}, threads=machine.cores())
    made = (
        roof.peaks(plan.rates, 10**10, progress),
        roof.bandwidths(plan.rates, plan.sizes, 10**9, progress),
        *(_network(name, recipe, train, plan, progress) for name, recipe in plan.recipes),
    )
    return results.collect(record, chain.from_iterable(made), save)


def _network(network, recipe, train, plan, progress):
    """Yield for each engine a run for each operation of a watched step, one for all of it, one of its own step."""
    told = [asdict(part) for part in parts(recipe, train)]
    reasons = {engine: why_not_timed(engine, recipe, train) for engine in plan.engines}
    calls = {
        (engine, variant): partial(_turn, kind, engine, recipe, train, plan, partial(progress, f"{network}, {engine}"))
        for variant, kind in (("step", Whole), ("watched", Watched))
        for engine in plan.engines
        if not reasons[engine]
    }
    taken = {key: [step for turn in turns for step in turn] for key, turns in in_turns(calls, plan.rounds).items()}
    for engine in plan.engines:
        names = {"network": network, "engine": engine, "why_not": reasons[engine]}
        if not reasons[engine]:
            whole, *each = map(list, zip(*taken[engine, "watched"], strict=True))
            for number, (part, samples) in enumerate(zip(told, each, strict=True)):
                yield {"kind": "operation", **names, "number": number, **part, "samples_us": samples}
            yield {"kind": "watched", **names, "samples_us": whole}
        yield {"kind": "step", **names, "samples_us": [us for (us,) in taken.get((engine, "step"), ())]}


def _turn(kind, engine, recipe, train, plan, progress):
    """Return the microseconds of some steps: of each a list.

    Each turn begins with the first weights: so one network at a time is in memory, and all take the same steps.
    """
    progress()
    steps = kind(engines.load(engine), recipe, train)
    quiet.settle(steps.take, plan.settle)
    once = steps.take()[0] / 1e6
    return [steps.take() for _ in range(steps_in(plan.seconds, once, plan.steps))]


class Whole:
    """An engine's steps, taken in its own way. engine: a module."""

    def __init__(self, engine, recipe, train):
        self.stepper = Stepper(engine, recipe, train)

    def take(self):
        """Take a step, and return its microseconds, in a list."""
        return [_us(self.stepper.take_one()[0])]


class Watched:
    """An engine's steps, taken an operation at a time. engine: a module."""

    def __init__(self, engine, recipe, train):
        self.engine = engine
        self.seconds: list[float] = []
        self.stepper = stepper_of(self.watch, engine, recipe, train)

    def watch(self, path, name, function, *arguments, **settings):
        """Do what `function` does, and write down how long it took."""
        seconds, result = seconds_until_done(self.engine, partial(function, *arguments, **settings))
        self.seconds.append(seconds)
        return result

    def take(self):
        """Take a step, and return the microseconds of all of it, then of each operation."""
        self.seconds.clear()
        whole = self.stepper.take_one()[0]
        return [_us(whole), *map(_us, self.seconds)]


def _us(seconds):
    return round(seconds * 1e6, 2)

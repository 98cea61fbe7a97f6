"""How the record "goal" is made: a few steps with each engine, whole trainings in turns, and those of the peers."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from experiments.goal_recipes import ADAM, ADAMW
from experiments.lab import peers, quiet, results
from experiments.lab.bench import GATE_ROWS, RTOL, Stepper, whole
from experiments.lab.clock import in_turns, seconds_until_done
from experiments.lab.peers import whole as trained
from mlpkit import engines
from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.kernels import gpu
from mlpkit.training.fit import fit
from mlpkit.training.recipe import Recipe

SLOW = 0.5  # seconds of a step
OTHERS = {  # peers that can train whole: is there a GPU?
    True: ("jax_epoch", "pytorch_cuda_streams"),
    False: ("jax_epoch_cpu", "pytorch"),
}
GOALS = {97: ADAM.but(epochs=3), 98: ADAMW.but(weight_decay=0.1, epochs=6)}  # percent, and what `cheapest` finds


@dataclass(frozen=True)
class Plan:
    """What to train. engines: None for all. others: of `lab.peers`; None for those of a GPU, or the CPU's without one.
    goals: recipes by percent. patience: seconds that a training may take. needs: an engine without which nothing is
    worth measuring.
    """

    engines: tuple[str, ...] | None = None
    others: tuple[str, ...] | None = None
    goals: dict[int, Recipe] = field(default_factory=lambda: GOALS)
    seeds: int = 5  # some of them meet a busy moment
    patience: float = 10.0
    needs: str = BASELINE


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, dataset=None, experiment="goal"):
    """Train each goal's recipe with each engine from each seed, in turns, and return the record of that name.

    Raises `engines.EngineUnavailable` where the engine that the plan needs can't run.
    """
    engines.load(plan.needs)
    dataset = dataset or load()
    recipes = {goal: recipe.to_dict() for goal, recipe in plan.goals.items()}
    record = results.new(experiment, seeds=plan.seeds, patience=plan.patience, recipes=recipes)
    results.collect(record, _rehearsals(plan, dataset.train, progress), save)
    calls = {
        (case["goal"], case["engine"]): partial(_train, case, plan.goals[case["goal"]], dataset)
        for case in record["runs"]
        if not case["why_not"] and case["steps"] * min(case["samples_us"]) / 1e6 <= plan.patience
    }
    in_turns(
        calls,
        plan.seeds,
        settle=lambda name: progress("training to {} % with {}".format(*name)),
        keep=lambda *_: save(record),
    )
    return results.collect(record, _others(plan, dataset.train, progress), save)


def _others(plan, train, progress):
    """Yield the runs of the peers, each with each goal in a process of its own, which trains when it has compiled."""
    names = OTHERS[gpu.why_not() is None] if plan.others is None else plan.others
    cases = [(name, goal) for goal in plan.goals for name in names]
    wanted = {goal: peers.first_losses(recipe, train) for goal, recipe in plan.goals.items()}
    found = peers.in_turns(lambda case: trained.waiting(case[0], plan.goals[case[1]], plan.seeds), cases)
    for (name, goal), answer in found:
        progress(f"training to {goal} % with {name}")
        case = _case(name, goal, plan.goals[goal], train)
        losses = answer.pop("first_losses", [])
        if losses and peers.missed(losses, wanted[goal], answer.pop("gate"), peers.GATES):
            answer = {"why_not": f"its first losses differ from the baseline's: {losses}"}
        yield case | answer


def _rehearsals(plan, train, progress):
    for goal, recipe in plan.goals.items():
        wanted = Stepper(BASELINE, recipe, train).take(1)[1]
        for name in plan.engines or engines.names(recipe.model.operations):
            progress(f"{goal} %: a few steps with {name}")
            yield _rehearse(name, goal, recipe, train, wanted)


def _rehearse(name, goal, recipe, train, wanted):
    """Return a new run of a record: the engine compiles, its first loss is compared, a few of its steps are timed."""
    case = _case(name, goal, recipe, train)
    try:
        engines.load(name)
        Stepper(name, recipe.but(batch_size=GATE_ROWS), train).take(1)  # compiles
        stepper = Stepper(name, recipe, train)
        seconds, losses = stepper.take(1)
        np.testing.assert_allclose(losses, wanted, rtol=RTOL)
        if seconds < SLOW:  # what `fit` needs compiles, too
            _fit(name, recipe.but(epochs=1), [part[: 2 * recipe.batch_size] for part in train])
    except (engines.EngineUnavailable, ValueError, AssertionError) as error:
        return case | {"why_not": " ".join(str(error).split())}
    return case | {"samples_us": [1e6 * sample for sample in _samples(stepper, seconds)]}


def _case(name, goal, recipe, train):
    """Return a run of a record in which nothing has been measured yet."""
    return {
        "engine": name,
        "goal": goal,
        "steps": recipe.epochs * recipe.steps_an_epoch(len(train[1])),
        "why_not": None,
        "samples_us": [],
        "seconds": [],
        "validation_accuracy": [],
        "test_accuracy": [],
    }


def _samples(stepper, once):
    """Return some samples, in seconds a step. once: what the first step took; if that is long, it is the sample."""
    if once > SLOW:
        return [once]
    quiet.settle(stepper.take_one)
    return [stepper.take(10)[0] for _ in range(3)]


def _train(case, recipe, dataset):
    """Add one training to the run of a record, from the next seed."""
    network, seconds = _fit(case["engine"], recipe.but(seed=len(case["seconds"])), dataset.train)
    case["seconds"].append(seconds)
    for name in ("validation", "test"):
        case[f"{name}_accuracy"].append(network.evaluate(*getattr(dataset, name))["accuracy"])


def _fit(engine, recipe, train):
    """Return a trained network, and the seconds that it took from first weights and images where the engine wants them.

    All that `fit` does is in them: checking, recording graphs, drawing the order of each epoch.
    """
    network = recipe.make_network(engine)
    optimizer = recipe.make_optimizer(network, len(train[1]))
    train = tuple(map(network.engine.asarray, train))
    settings = {name: getattr(recipe, name) for name in ("epochs", "batch_size", "seed")}
    quiet.rest()
    seconds, history = seconds_until_done(network.engine, partial(fit, network, optimizer, train, **settings))
    whole(history)
    return network, seconds

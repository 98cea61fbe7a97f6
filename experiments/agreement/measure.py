"""How the records "agreement" and "gpu_agreement" are made: some steps beside the baseline, then a whole training."""

from dataclasses import asdict, dataclass, field

from experiments.lab import results
from experiments.lab.bench import GATE_STEPS, Stepper, relative_error, whole, why_not
from mlpkit import engines
from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.training.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """Which engines train which recipe, from how many seeds; None for all engines but those that would take hours.

    needs: an engine without which nothing is worth measuring.
    """

    engines: tuple[str, ...] | None = None
    recipe: Recipe = field(default_factory=Recipe)
    seeds: int = 5
    needs: str = BASELINE


USUAL = Plan()


@dataclass(frozen=True)
class Answer:
    """What an engine makes of a recipe. max_loss_error: of the first losses, relative to the baseline's."""

    engine: str
    seed: int
    first_losses: list[float]
    max_loss_error: float
    validation_accuracy: float
    test_accuracy: float


def measure(save=results.save_part, progress=print, plan=USUAL, dataset=None, experiment="agreement"):
    """Train with each engine that can train so here, and return the record. experiment: the record's name.

    Raises `engines.EngineUnavailable` where the engine that the plan needs can't run.
    """
    engines.load(plan.needs)
    dataset = dataset or load(scaled=True)
    record = results.new(experiment, recipe=plan.recipe.to_dict(), seeds=plan.seeds)
    ours = engines.names(plan.recipe.model.operations)
    names = plan.engines or [name for name in ours if not engines.interpreted(name)]
    able = [name for name in names if why_not(name, plan.recipe) is None]
    return results.collect(record, _answers(able, plan, dataset, progress), save)


def _answers(names, plan, dataset, progress):
    for name in names:
        for seed in range(plan.seeds):
            progress(f"{name}, seed {seed}")
            yield asdict(answer(name, plan.recipe.but(seed=seed), dataset))


def answer(name, recipe, dataset):
    """Return the `Answer` of the engine called `name`."""
    losses, wanted = (Stepper(engine, recipe, dataset.train).take(GATE_STEPS)[1] for engine in (name, BASELINE))
    network, history = recipe.train(dataset, name)
    error, test_accuracy = relative_error(losses, wanted), network.evaluate(*dataset.test)["accuracy"]
    return Answer(name, recipe.seed, losses.tolist(), error, whole(history).validation["accuracy"][-1], test_accuracy)

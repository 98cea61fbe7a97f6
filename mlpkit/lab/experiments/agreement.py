"""Do all engines train the same network? Their first losses, step by step, and what they have learned in the end.

In float32 the engines add in different orders, so losses drift apart by roundings, and later by more: a unit whose
input lies next to 0 is on in one engine and off in the other. What must agree is the accuracy, within the spread that
other seeds give.
"""

from dataclasses import asdict, dataclass

from mlpkit import engines
from mlpkit.engines import BASELINE
from mlpkit.lab import results
from mlpkit.lab.bench import GATE_STEPS, Stepper, relative_error
from mlpkit.training.recipe import Recipe

NAMES = tuple(name for name in engines.NAMES if name not in engines.INTERPRETED)  # those would train for hours
GPU_NAMES = (BASELINE, *engines.ON_GPU)
SEEDS = 5


@dataclass(frozen=True)
class Answer:
    """What an engine makes of a recipe. max_loss_error: of the first losses, relative to the baseline's."""

    engine: str
    seed: int
    first_losses: list[float]
    max_loss_error: float
    validation_accuracy: float
    test_accuracy: float


def run(dataset, recipe=None, names=NAMES, seeds=SEEDS, save=results.save, progress=print, experiment="agreement"):
    """Train `recipe` with each engine that can run here, from each seed, and return the record.

    It is saved after each training. experiment: the record's name.
    """
    recipe = recipe or Recipe()
    record = results.new(experiment, recipe=recipe.to_dict(), seeds=seeds)
    can_run = engines.available()
    for name in (name for name in names if can_run[name] is None):
        for seed in range(seeds):
            progress(f"agreement: {name}, seed {seed}")
            record["runs"].append(asdict(answer(name, recipe.but(seed=seed), dataset)))
            save(record)
    return record


def answer(name, recipe, dataset):
    """Return the `Answer` of the engine called `name`."""
    losses, wanted = (Stepper(engine, recipe, dataset.train).take(GATE_STEPS)[1] for engine in (name, BASELINE))
    network, history = recipe.train(dataset, name)
    error, test_accuracy = relative_error(losses, wanted), network.evaluate(*dataset.test)[1]
    return Answer(name, recipe.seed, losses.tolist(), error, history.accuracy[-1], test_accuracy)


def accuracies(record):
    """Return the test accuracies of each engine, a list with an entry a seed."""
    found: dict[str, list[float]] = {}
    for run in record["runs"]:
        found.setdefault(run["engine"], []).append(run["test_accuracy"])
    return found


def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'engine':<18}{'test accuracy':>20}{'seeds':>7}{'largest error of a loss':>25}"]
    for name, found in accuracies(record).items():
        error = max(run["max_loss_error"] for run in results.runs(record, engine=name))
        lines.append(f"{name:<18}{results.mean_and_spread(found):>20}{len(found):>7}{error:>25.1e}")
    return "\n".join(lines)

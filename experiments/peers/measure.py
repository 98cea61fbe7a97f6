"""How the records of peers are made: a process for each peer and recipe, in turns."""

from dataclasses import asdict, dataclass
from functools import partial

from experiments.lab import peers, results
from experiments.lab.bench import Timing
from mlpkit import engines, machine
from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.training.recipe import Recipe

ADAM = Recipe(optimizer="adam", lr=1e-3)
RECIPES = (Recipe(), Recipe(batch_size=64, lr=0.05), ADAM, ADAM.but(batch_size=64))


@dataclass(frozen=True)
class Plan:
    """Who is compared, engines of the workbook and others, and how.

    libraries: whose versions the record names. gates: how many of everybody's first losses are held to the baseline's,
    and how closely, one after another: see `lab.peers.missed`. needs: an engine without which nothing is worth
    measuring.
    """

    engines: tuple[str, ...]
    others: tuple[str, ...]
    libraries: tuple[str, ...]
    timing: Timing
    recipes: tuple[Recipe, ...] = RECIPES
    gates: tuple[tuple[int, float], ...] = (peers.GATE,)
    needs: str = BASELINE

    @property
    def names(self):
        """Everybody's names, the workbook's engines first."""
        return self.engines + self.others


USUAL = Plan(
    engines=(BASELINE, "numba_hybrid", "numba_step"),
    others=("plain_numpy", "pytorch", "pytorch_compiled", "scikit_learn", "jax_epoch_cpu"),
    libraries=("torch", "scikit-learn", "jax", "jaxlib"),
    timing=Timing(rounds=7),
)


def measure(save=results.save_part, progress=print, plan=USUAL, experiment="peers"):
    """Measure `plan.timing.rounds` processes of each peer with each recipe, and return the record of that name.

    Raises `engines.EngineUnavailable` where the engine that the plan needs can't run.
    """
    engines.load(plan.needs)
    versions = {library: machine.version(library) for library in plan.libraries}
    record = results.new(experiment, timing=asdict(plan.timing), libraries=versions, gates=plan.gates)
    record["runs"] = [
        {"engine": name, "recipe": recipe.to_dict(), "why_not": None, "samples_us": [], "start_seconds": []}
        for recipe in plan.recipes
        for name in plan.names
    ]
    train = load("mnist").train
    wanted = [peers.first_losses(recipe, train) for recipe in plan.recipes]
    for _ in range(plan.timing.rounds):
        for recipe, losses in zip(plan.recipes, wanted, strict=True):
            runs = {run["engine"]: run for run in record["runs"] if run["recipe"] == recipe.to_dict()}
            start = partial(peers.waiting, recipe=recipe, timing=plan.timing)
            left = [name for name, run in runs.items() if not run["why_not"]]
            for name, answer in peers.in_turns(start, left):
                progress(f"{name}, {recipe.optimizer}, batch {recipe.batch_size}")
                _add(runs[name], answer, losses, plan)
                save(record)
    return record


def _add(run, measured, wanted, plan):
    """Add a process's samples to the run, if its losses, or their mean where it has no more, are the wanted ones."""
    losses = measured.get("first_losses", [])
    if losses and peers.missed(losses, wanted, measured.get("gate", peers.GATE), plan.gates):
        measured = {"why_not": f"its first losses differ from the baseline's: {losses}"}
    if run["why_not"]:  # of an earlier round
        return
    for name in ("samples_us", "start_seconds"):
        run[name] += measured.pop(name, [])
    run.update(measured)

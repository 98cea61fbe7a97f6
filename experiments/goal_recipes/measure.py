"""How the record "goal_recipes" is made: each candidate is trained from each seed with the baseline."""

from experiments.lab import results, trainings
from experiments.lab.trainings import Plan as Plan
from mlpkit.data import load
from mlpkit.training.recipe import Recipe

from .read import SHARE

SGD, ADAM = (Recipe(optimizer=name, lr=lr, schedule="cosine") for name, lr in (("sgd", 0.3), ("adam", 2e-3)))
ADAMW = Recipe(optimizer="adamw", lr=4e-3, schedule="cosine", warmup_epochs=1, weight_decay=0.2)
CANDIDATES = (
    *(SGD.but(epochs=epochs) for epochs in (1, 2, 3, 4)),
    *(ADAM.but(epochs=epochs) for epochs in (1, 2, 3, 8, 10)),
    *(ADAMW.but(epochs=epochs) for epochs in (6, 8, 10, 12)),
    *(ADAMW.but(weight_decay=0.1, epochs=epochs) for epochs in (6, 7, 8, 10)),
)
USUAL = Plan(CANDIDATES, seeds=5)


def measure(save=results.save_part, progress=print, plan=USUAL, dataset=None):
    """Train each candidate from each seed, and return the record, which has no losses of steps."""
    record = results.new("goal_recipes", seeds=plan.seeds, share=SHARE)
    found = trainings.runs(plan, dataset or load(scaled=True), progress)
    return results.collect(record, (run | {"loss": []} for run in found), save)

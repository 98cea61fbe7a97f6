"""How long does a reader wait for a first training on a GPU? For an epoch with nothing compiled, and with everything.

A process of its own for each, which finds no compiled code, and another one, which finds what that has left. Counted is
all from the engine's import to the end of the training, with its validation; then the same training once more in the
same process, where everything is in its place. One after another: compilers want all cores.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field

from experiments.compile.measure import CACHE_VARIABLES
from experiments.compile.read import CACHES
from experiments.lab import processes, results
from experiments.lab.bench import whole
from experiments.lab.clock import seconds_of
from mlpkit import data, engines
from mlpkit.training.recipe import Recipe

from .gpu_image_peers import DEEP, FASHION, LENET


@dataclass(frozen=True)
class Plan:
    """Who trains what: {title: (engine, recipe)}, each for one epoch."""

    trainings: dict[str, tuple[str, Recipe]] = field(
        default_factory=lambda: {
            "perceptron": ("cuda_persistent", Recipe()),
            "garments": ("cuda_conv_graph", FASHION),
            "residual": ("cuda_conv_graph", DEEP),
            "lenet5": ("cuda_conv_fused", LENET),
        }
    )


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure, and return the record. Raises `engines.EngineUnavailable` where there is no GPU."""
    engines.load("cupy_naive")  # or why there is none
    return results.collect(results.new("gpu_first"), _runs(plan, progress), save)


def _runs(plan, progress):
    for title, (engine, recipe) in plan.trainings.items():
        with tempfile.TemporaryDirectory() as folder:
            env = os.environ | dict.fromkeys(CACHE_VARIABLES, folder)
            for cache in CACHES:
                progress(f"{title}, cache {cache}")
                run = {"title": title, "engine": engine, "cache": cache, "recipe": recipe.but(epochs=1).to_dict()}
                try:
                    yield run | processes.ask(__name__, engine, json.dumps(run["recipe"]), env=env) | {"why_not": None}
                except processes.Failed as error:
                    yield run | {"why_not": str(error)}


def trained(engine, recipe):
    """Return the seconds of importing the engine, of a training of one epoch, and of the same once more."""
    dataset = data.load("mnist")

    def train():
        _, history = recipe.train(dataset, engine)
        whole(history)

    found = {"import": seconds_of(engines.load, engine)}
    return found | {name: seconds_of(train) for name in ("first", "later")}


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    lines = [f"{'seconds of an epoch':<22}{'cache':<8}{'first':>8}{'again':>8}"]
    for run in record["runs"]:
        what = f"{run['title']:<22}{run['cache']:<8}"
        lines.append(what + (run["why_not"] or f"{run['import'] + run['first']:8.2f}{run['later']:8.3f}"))
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(trained(sys.argv[1], Recipe.from_dict(json.loads(sys.argv[2])))))

"""How near to float64 does a training stay over an epoch? The networks that see, by every engine that is quick enough.

Roundings grow: sooner or later a number falls on the other side of zero, and from there on it is another training. When
that happens is chance, for the baseline's own float32 as for all others, so each trains from several seeds. The record
"gpu_image_epochs" holds how far each step's loss is from that of the same training in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.lab import results
from mlpkit import data, engines
from mlpkit.nn.models import MODELS
from mlpkit.training.recipe import Recipe

from .gpu_image_limit.measure import FEWER, FLOAT32, trainer
from .gpu_image_peers import DEEP, FASHION, LENET

BASELINE, NUMPY = "GPU, the baseline's lines", "NumPy"  # the first in float64, too: NumPy would take minutes
MODEL_NAMES = {model: name for name, model in MODELS.items()}
FAR = 1e-3  # of a loss: another training


@dataclass(frozen=True)
class Plan:
    """Whose losses of an epoch, of which recipes, are held to float64's, from how many seeds.

    numpy_steps: as many of the first ones of the first recipe NumPy takes, too, from the first seed.
    """

    epochs: tuple[tuple[Recipe, tuple[str, ...]], ...] = (
        (LENET, (BASELINE, *FLOAT32, *FEWER)),
        (FASHION, (BASELINE, "graph", *FEWER)),
        (DEEP, (BASELINE, "graph", *FEWER)),
    )
    seeds: int = 5
    numpy_steps: int = 100


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Train, and return the record. train: (X, y), X uint8 pixels; MNIST's where None is given.

    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load("cupy_naive")  # or why there is none
    train = train or data.load().train
    record = results.new("gpu_image_epochs", seeds=plan.seeds, numpy_steps=plan.numpy_steps)
    return results.collect(record, _runs(train, plan, progress), save)


def _runs(train, plan, progress) -> Iterator[dict[str, Any]]:
    for recipe, variants in plan.epochs:
        for seed in range(plan.seeds):
            of_seed = recipe.but(seed=seed)
            progress(f"{MODEL_NAMES[recipe.model]}, seed {seed}: an epoch in float64, and {len(variants)} more")
            wanted = _learned(BASELINE, of_seed.but(dtype="float64"), train)
            for variant in variants:
                yield _compared(variant, of_seed, _learned(variant, of_seed, train), wanted)
            if recipe == plan.epochs[0][0] and seed == 0:
                yield from _numpy(of_seed, train, plan.numpy_steps, wanted[0], progress)


def _numpy(recipe, train, steps, wanted, progress):
    """Yield how near NumPy's first losses are: how near the float64 that others are held to is to the baseline's."""
    for dtype in ("float32", "float64"):
        progress(f"{steps} steps of NumPy in {dtype}")
        losses, _ = _learned(NUMPY, recipe.but(dtype=dtype), train, steps * recipe.batch_size)
        yield _compared(NUMPY, recipe.but(dtype=dtype), (losses,), (wanted[: len(losses)],))


def _learned(variant, recipe, train, examples=None):
    """Return the losses of an epoch, or of its first examples, and the parameters after it."""
    made, order, network = trainer(variant, recipe, train)
    losses = network.engine.to_numpy(made.epoch(order[:examples]))
    made.close()
    return losses.astype(np.float64), network.engine.to_numpy(network.theta).astype(np.float64)


def _compared(variant, recipe, found, wanted):
    """Return how far each loss is from the wanted one, as a part of that; and all parameters, as a part of theirs."""
    run = {"model": MODEL_NAMES[recipe.model], "way": variant, "dtype": recipe.dtype, "seed": recipe.seed}
    run |= {"batch_size": recipe.batch_size, "steps": len(wanted[0])}
    run["loss_errors"] = [float(f"{error:.3g}") for error in np.abs(found[0] / wanted[0] - 1)]
    for one, other in zip(found[1:], wanted[1:], strict=True):
        run["parameters_error"] = float(f"{np.linalg.norm(one - other) / np.linalg.norm(other):.3g}")
    return run


def errors(record, model, variant, dtype="float32"):
    """Return how far each loss of an epoch is from float64's, as a part of it (seeds, steps)."""
    found = [run["loss_errors"] for run in results.runs(record, model=model, way=variant, dtype=dtype)]
    if not found:
        raise LookupError(f"this record has no epoch of {model!r} by {variant!r} in {dtype!r}.")
    return np.array(found)


def beyond(far, limit=FAR):
    """Return at which step, from 1, each seed's loss is further away than limit for the first time; 0: at none."""
    return np.where((far > limit).any(axis=-1), (far > limit).argmax(axis=-1) + 1, 0)


@results.reads
def table(record):
    """Return the record as a table for the terminal: medians over the seeds."""
    lines = [f"{'how far losses are from float64':46}{'steps':>6}{'seeds':>6}{'first 20':>9}{'all':>9}{'largest':>9}"]
    for model, variant, dtype in dict.fromkeys((run["model"], run["way"], run["dtype"]) for run in record["runs"]):
        far = errors(record, model, variant, dtype)
        parts = (np.median(far[:, :20]), np.median(far), far.max())
        row = "".join(f"{part:9.1e}" for part in parts)
        lines.append(f"{f'{model}, {variant}, {dtype}':46}{far.shape[1]:>6}{len(far):>6}{row}")
    return "\n".join(lines)

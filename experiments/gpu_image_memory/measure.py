"""How the record "gpu_image_memory" is made: some steps of each training, and what is allocated then."""

import json
from dataclasses import dataclass
from functools import partial

from experiments.lab import peers, processes, results
from mlpkit import engines, machine
from mlpkit.executors import trainer_of
from mlpkit.nn.models import FASHION_CNN, LENET5, RESIDUAL
from mlpkit.training.recipe import Recipe

CASES = (FASHION_CNN, 128), (FASHION_CNN, 32), (LENET5, 32), (RESIDUAL, 32)
RECIPES = tuple(Recipe(model=model, lr=0.01, batch_size=n) for model, n in CASES)

# What runs out of memory is an error of each library's own.
REASONS = engines.EngineUnavailable, ValueError, RuntimeError, MemoryError


@dataclass(frozen=True)
class Plan:
    """Whose memory is measured, with which recipes. others: of `lab.peers`, those that are PyTorch's."""

    engines: tuple[str, ...] = ("cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16")
    others: tuple[str, ...] = ("pytorch_cuda", "pytorch_cuda_graph")
    recipes: tuple[Recipe, ...] = RECIPES


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Take some steps of each training, and return the record. Raises `engines.EngineUnavailable` without a GPU."""
    engines.load("cupy_naive")  # or why there is none
    record = results.new("gpu_image_memory", libraries={"torch": machine.version("torch")})
    return results.collect(record, _runs(plan, progress), save)


def _runs(plan, progress):
    for recipe in plan.recipes:
        task = peers.problem(recipe)
        for name in plan.engines:
            progress(f"memory of {name}, batch {recipe.batch_size}")
            try:
                yield _run(name, recipe) | _engine(name, task)
            except REASONS as error:
                yield _run(name, recipe) | {"why_not": " ".join(str(error).split()) or type(error).__name__}
        for name, answer in peers.in_turns(partial(_peer, recipe=recipe), plan.others):
            progress(f"memory of {name}, batch {recipe.batch_size}")
            yield _run(name, recipe) | answer


def _run(name, recipe):
    return {"engine": name, "recipe": recipe.to_dict(), "why_not": None}


def _engine(name, task):
    """Return the plan of a step, and the bytes of what lasts; both without the examples and their order."""
    import cupy as cp

    engine, recipe, pool = engines.load(name), task.recipe, cp.get_default_memory_pool()
    X, y = engine.asarray(task.X), engine.asarray(task.y)
    before = pool.used_bytes()
    network = recipe.make_network(name)
    optimizer = recipe.make_optimizer(network, len(y))
    trainer = trainer_of(network, optimizer, X, y, recipe.batch_size)
    try:
        engine.to_numpy(trainer.epoch(task.order[: 4 * recipe.batch_size]))
        step = trainer.arenas[recipe.batch_size].plan
        intervals = [[each.size, each.start, each.end, each.offset] for each in step.intervals]
        lasting = pool.used_bytes() - before - trainer.feed["order"].nbytes
    finally:
        trainer.close()
    at_once, in_all = most_at_once(step), sum_of_sizes(step)
    return {
        "bytes": step.bytes + lasting, "lasting": lasting, "arena": step.bytes, "at_once": at_once, "in_all": in_all,
        "intervals": intervals,
    }  # fmt: skip


def sum_of_sizes(plan):
    """Return the bytes of memory without a piece that lies where another one was. plan: a `lifetimes.Plan`."""
    return sum(each.aligned_size for each in plan.intervals)


def most_at_once(plan):
    """Return the bytes that are needed at one moment, at least: no plan takes fewer."""
    every = plan.intervals
    return max((sum(i.aligned_size for i in every if i.start <= now.start < i.end) for now in every), default=0)


def _peer(name, recipe):
    """Return a process that prepares a peer, and says what it takes when asked: see `peer`."""
    return processes.Waiting(f"{__package__}.peer", name, json.dumps(recipe.to_dict()))

"""How the record "gpu_image_inference" is made: each network is trained a little, and answers, peer by peer."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.lab import peers, processes, results
from mlpkit import engines, machine
from mlpkit.data import epoch_order, load
from mlpkit.executors import trainer_of
from mlpkit.nn.models import MODELS
from mlpkit.nn.network import Network
from mlpkit.training.recipe import Recipe

from .read import too_far

TRAINER = "cuda_conv_graph"
RATES = {"lenet5": 0.05, "fashion_cnn": 0.01, "residual": 0.005}
FEW = 64  # images whose outputs are held to float64's


@dataclass(frozen=True)
class Plan:
    """Whose answers are measured: models by name, sizes of batches, and peers of `lab.peers.answering` by precision.

    PyTorch compiles for each size, too, which takes it seconds. steps: of training, before. A peer "engine:NAME" is the
    workbook's engine of that name.
    """

    models: tuple[str, ...] = ("fashion_cnn", "lenet5", "residual")
    sizes: tuple[int, ...] = (1, 64, 1024, 4096)
    peers: tuple[tuple[str, str], ...] = (
        ("engine:cuda_conv_graph", "float32"),
        ("engine:cuda_conv_graph_tf32", "tf32"),
        ("engine:cuda_conv_graph_bf16", "bf16"),
        *((name, precision) for precision in ("float32", "tf32", "bf16") for name in ("pytorch", "jax")),
        ("pytorch", "fp16"),
    )
    steps: int = 200


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure each peer's answers, and return the record. Raises `engines.EngineUnavailable` without a GPU."""
    engines.load(TRAINER)  # or why there is none
    versions = {library: machine.version(library) for library in ("torch", "jax", "jaxlib", "cupy-cuda13x")}
    record = results.new("gpu_image_inference", libraries=versions, sizes=plan.sizes, steps=plan.steps)
    with tempfile.TemporaryDirectory() as folder:
        tasks = {name: _task(Path(folder), name, plan, progress) for name in plan.models}
        return results.collect(record, runs(plan.peers, tasks, progress), save)


def _task(folder, name, plan, progress):
    """Train a network a little; return the settings of a process that answers with it."""
    progress(f"training {name} for {plan.steps} steps")
    network, X = trained(name, plan.steps)
    x = X[: max(*plan.sizes, 1)]
    exact = Network(engines.BASELINE, network.model, dtype=np.float64)
    exact.set_theta(network.engine.to_numpy(network.theta).astype(np.float64))
    exact.set_statistics(network.engine.to_numpy(network.statistics).astype(np.float64))
    path, data = str(folder / f"{name}.npz"), str(folder / f"{name}_data.npz")
    network.save(path)
    np.savez(data, x=x, wanted=exact.forward(x[:FEW]))
    return {"path": path, "data": data, "sizes": plan.sizes}


def trained(name, steps):
    """Return a network of a model in `RATES` that has seen MNIST for so many steps, and the digits, (n, 1, 28, 28)."""
    recipe = Recipe(model=MODELS[name], lr=RATES[name])
    X, y = load("mnist").train
    network = recipe.make_network(TRAINER)
    X_there, y_there = network.engine.asarray(X.reshape(len(X), -1)), network.engine.asarray(y)
    trainer = trainer_of(network, recipe.make_optimizer(network, len(y)), X_there, y_there, recipe.batch_size)
    trainer.epoch(epoch_order(len(y), 0, 0)[: steps * recipe.batch_size])
    trainer.close()
    return network, X.reshape(-1, *recipe.model.input)


def runs(of, tasks, progress):
    """Yield the runs of peers, pairs (who, precision): one for each size and way. tasks: settings, by model."""
    cases = {f"{model} {who} {precision}": (model, who, precision) for model in tasks for who, precision in of}

    def start(case):
        model, who, precision = cases[case]
        settings = json.dumps(tasks[model] | {"precision": precision})
        return processes.Waiting("experiments.lab.peers.predicting", who, settings)

    for case, answer in peers.in_turns(start, list(cases)):
        progress(case)
        model, who, precision = cases[case]
        about = {"model": model, "engine": who, "precision": precision}
        if isinstance(answer, dict):  # nothing but a reason
            yield about | {"n": None, "way": None, "device_us": [], "waited_us": []} | answer
            continue
        for run in answer:
            yield about | run | {"why_not": too_far(about | run)}

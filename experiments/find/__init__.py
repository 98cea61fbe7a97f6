"""How well does a small detector find digits in scenes, and blood cells in photographs, and how fast?"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments.lab import results
from mlpkit import engines
from mlpkit.kernels import gpu

from .read import table as table
from .train import Task


@dataclass(frozen=True)
class Plan:
    """tasks: what is trained, a process each, all at once, dealt to the GPUs in turn.

    engines: whose speed is measured, with the first network.
    """

    tasks: tuple[Task, ...] = tuple(Task(seed=seed) for seed in range(3))
    engines: tuple[str, ...] = ("cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16")
    network: str | None = None  # a file of one, where nothing is trained
    options: dict = field(default_factory=dict)


def cells(folder, seeds=3, **settings):
    """Return the tasks of blood cells: the folder of BCCD, which a reader downloads."""
    usual: dict = {"n": 20, "batch_size": 32, "lr": 3e-3, "weight_decay": 0.05, "epochs": 45, "form": "photographs"}
    usual |= settings
    return tuple(Task(data=str(folder), seed=seed, **usual) for seed in range(seeds))


def measure(save=results.save_part, progress=print, plan=Plan()):
    """Train, judge, and measure speed; return the record. Raises `engines.EngineUnavailable` where one can't run."""
    for engine in {*plan.engines, *(task.engine for task in plan.tasks)}:
        engines.load(engine)
    with tempfile.TemporaryDirectory() as folder:
        return results.collect(results.new("find"), _runs(plan, Path(folder), progress), save)


def _runs(plan, folder, progress):
    started = []
    gpus = gpu.names() if any(engines.on_gpu(task.engine) for task in plan.tasks) else [""]
    for number, task in enumerate(plan.tasks):
        result, env = folder / f"{number}.json", os.environ | {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]}
        command = [sys.executable, "-m", "experiments.find.train", json.dumps(asdict(task)), str(result)]
        started.append((subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env), result))
    for process, result in started:
        if process.wait():
            raise RuntimeError("a training ended with an error, which is above.")
        progress(f"{result.stem} of {len(started)} trained")
        yield {"kind": "training"} | json.loads(result.read_text())
    from .scenes import frozen
    from .speed import speeds

    network = plan.network or folder / "0.npz"
    for run in speeds(network, plan.engines, frozen().images, progress, **plan.options):
        yield {"kind": "speed"} | run

"""How many scenes a second does a processor search for digits, on one core and on two? All peers, boxes included.

The detector that comes along, batches of 64 scenes: `numba_conv`; PyTorch, channels last, a layer at a time and
compiled; and onnxruntime. Each in a process of its own, several times in turns, from bytes to boxes without doubles.
What makes boxes of a network's outputs is the same for all.
"""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from experiments.find.models import DETECTOR, come_along
from experiments.find.speed import BATCH, SCORE
from experiments.lab import results
from experiments.lab.on_cores import in_turns, reply, samples_us
from mlpkit import machine
from mlpkit.boxes import detections
from mlpkit.engines import BASELINE
from mlpkit.nn.network import Network
from mlpkit.words import counted

MOST = 1e-4  # of the largest output: how much one may differ from the baseline's, in float64
FEW = 4  # scenes whose outputs are compared


@dataclass(frozen=True)
class Plan:
    """peers: see `PEERS`. cores: that each may use. rounds: processes of each. batches: that are timed in each."""

    peers: tuple[str, ...] = ("numba_conv", "pytorch", "compiled", "onnxruntime")
    cores: tuple[int, ...] = (1, 2)
    rounds: int = 3
    batches: int = 20
    batch: int = BATCH


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure each peer, in turns, and return the record."""
    from .find.scenes import TEST_SEED, scenes

    versions = {library: machine.version(library) for library in ("torch", "onnxruntime", "numba")}
    record = results.new("find_cpu", libraries=versions, batch=plan.batch, score=SCORE)
    with tempfile.TemporaryDirectory() as folder:
        images = scenes(plan.batch, TEST_SEED, "test").images
        exact = Network(BASELINE, (network := come_along(BASELINE)).model, dtype=np.float64)
        exact.set_theta(network.theta.astype(np.float64))
        exact.set_statistics(network.statistics.astype(np.float64))
        np.savez(path := Path(folder) / "scenes.npz", images=images, wanted=exact.compiled(FEW)(images[:FEW] / 255))
        settings = {"data": str(path), "batches": plan.batches}
        asked = [({"engine": who, "cores": cores}, settings) for cores in plan.cores for who in plan.peers]
        return results.collect(record, in_turns("experiments.find_cpu", asked, plan.rounds, progress), save)


@results.reads
def a_second(record, who, cores):
    """Return how many scenes a second a peer searches: by the median of all its samples, None where there are none."""
    us = results.pooled_us(record, engine=who, cores=cores)
    return None if us is None else 1e6 * record["settings"]["batch"] / us


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    cores = {counted(run["cores"], "core"): run["cores"] for run in record["runs"]}
    return results.by_engine(record, "scenes a second", cores, partial(a_second, record), ",.0f", (16, 10))


# In a process of its own


def numba_conv(images, cores):
    return come_along("numba_conv").compiled(len(images))


def pytorch(images, cores, compiled=False):
    import torch

    from experiments.lab.peers.predicting import Task, each_array, through
    from experiments.lab.peers.predicting.pytorch import OPERATIONS

    def last(array):
        found = torch.from_numpy(array)
        return found.contiguous(memory_format=torch.channels_last) if found.ndim == 4 else found

    torch.set_num_threads(cores)
    layers = Task(str(DETECTOR), images, images).bound_layers()
    each_array(layers, last)
    ours = {"Flatten": lambda at, x: torch.flatten(x, 1)}
    ours["Concat"] = lambda at, x: torch.cat([through(branch, operations, x) for branch in at.branches], 1)
    operations = SimpleNamespace(**vars(OPERATIONS) | ours)
    forward = lambda x: through(layers, operations, x / 255)  # noqa: E731 (it is compiled, or not)
    forward = torch.compile(forward, dynamic=False, fullgraph=True) if compiled else forward

    def predict(images):
        with torch.inference_mode():
            return forward(torch.from_numpy(images).float().contiguous(memory_format=torch.channels_last)).numpy()

    return predict


def onnxruntime(images, cores):
    import onnxruntime as ort

    from mlpkit import onnx_io

    options = ort.SessionOptions()
    options.intra_op_num_threads = cores
    with tempfile.TemporaryDirectory() as folder:
        onnx_io.write(come_along(BASELINE), path := Path(folder) / "detector.onnx")
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"input": images * np.float32(1 / 255)})[0]


PEERS: dict[str, Any] = {
    "numba_conv": numba_conv, "pytorch": pytorch, "compiled": partial(pytorch, compiled=True),
    "onnxruntime": onnxruntime,
}  # fmt: skip


def measured(settings):
    """Return the samples of a peer, microseconds each, and how much its outputs differ from the baseline's."""
    with np.load(settings["data"]) as data:
        images, wanted = data["images"], data["wanted"]
    predict, loss = PEERS[settings["engine"]](images, settings["cores"]), come_along(BASELINE).model.loss
    difference = float(abs(predict(images)[: len(wanted)] - wanted).max() / abs(wanted).max())
    if not difference <= MOST:
        raise ValueError(f"its outputs differ from the baseline's by {difference:.2g} of the largest.")
    samples = samples_us(lambda: detections(loss, predict(images), SCORE), settings["batches"])
    return {"samples_us": samples, "difference": difference}


if __name__ == "__main__":
    reply(measured)

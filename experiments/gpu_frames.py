"""How long does a GPU take to make a picture of 1920 x 1080 pixels out of one with a quarter, or a sixteenth, of them?

The workbook's own network, chapter 23's, in each precision, against PyTorch's graphs of the same layers: see
`lab.peers.predicting`. Pixels come as bytes and go as floats; times are the GPU's, and those from the host and back.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.gpu_image_inference.measure import runs
from experiments.gpu_image_inference.read import us
from experiments.lab import results
from experiments.sharpen.train import Choice, begun
from mlpkit import engines, machine
from mlpkit.nn.enlarging import geometry
from mlpkit.training.recipe import Recipe

FRAME = 1080, 1920
NEEDS = "cuda_conv_graph"


@dataclass(frozen=True)
class Plan:
    """Scales, and who computes in which precision: peers of `lab.peers.predicting`."""

    scales: tuple[int, ...] = (2, 4)
    peers: tuple[tuple[str, str], ...] = (
        ("tiles:cuda_conv_graph", "float32"),
        ("tiles:cuda_conv_graph_tf32", "tf32"),
        ("tiles:cuda_conv_graph_bf16", "bf16"),
        *(("pytorch", precision) for precision in ("float32", "tf32", "bf16", "fp16")),
    )
    frame: tuple[int, int] = FRAME


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure each peer, and return the record. Raises `engines.EngineUnavailable` without a GPU."""
    engines.load(NEEDS)
    versions = {library: machine.version(library) for library in ("torch", "cupy-cuda12x", "cupy-cuda13x")}
    record = results.new("gpu_frames", libraries=versions, frame=plan.frame)
    with tempfile.TemporaryDirectory() as folder:
        tasks = {f"x{scale}": task(Path(folder), scale, plan.frame, progress) for scale in plan.scales}
        return results.collect(record, runs(plan.peers, tasks, progress), save)


def network_for(scale, frame, engine=engines.BASELINE, dtype="float32"):
    """Return our own network for a whole frame of a size, with its first weights: their values cost no time."""
    choice = Choice(scale=scale, channels={4: 15}.get(scale, 16), engine=engine)
    halo, _ = geometry(choice.model(64))
    size = tuple(length // scale + 2 * halo for length in frame)
    return begun(choice, Recipe(model=choice.model(size), dtype=dtype))


def task(folder, scale, frame, progress=print):
    """Write a network and a frame of noise that is blurred; return the settings of a process that predicts."""
    progress(f"x{scale}: the baseline, in float64")
    network, exact = network_for(scale, frame), network_for(scale, frame, dtype="float64")
    rng = np.random.default_rng(0)
    x = (rng.integers(256, size=(1, *network.model.input)) // 2 + 64).astype(np.uint8)
    exact.set_theta(network.theta.astype(np.float64))
    path, data = str(folder / f"x{scale}.npz"), str(folder / f"x{scale}_data.npz")
    network.save(path)
    np.savez(data, x=x, wanted=exact.forward(x))
    return {"path": path, "data": data, "sizes": (1,)}


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'milliseconds a frame':<38}{'GPU':>9}{'to wait':>9}"]
    for run in {(run["model"], run["engine"], run["precision"]): run for run in record["runs"]}.values():
        way, _, name = run["engine"].rpartition(":")
        who = run["model"], name, run["precision"], "in tiles" if way == "tiles" else ""
        found = [us(record, run["engine"], run["precision"], run["model"], 1, clock) for clock in CLOCKS]
        lines.append(f"{' '.join(who):<38}" + "".join("        -" if t is None else f"{t / 1e3:>9.3f}" for t in found))
    return "\n".join([*lines, *results.not_run([run for run in record["runs"] if run["why_not"]])])


CLOCKS = "device_us", "waited_us"

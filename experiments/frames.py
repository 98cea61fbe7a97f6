"""How many pictures of 1920 x 1080 pixels a second does a processor make, out of smaller ones? Two cores, all peers.

The workbook's own network of chapter 23, by `numba_conv` in strips; PyTorch, a layer at a time and compiled, channels
first and last; and onnxruntime. Each in a process of its own, which may use two cores, and several times in turns.
"""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gpu_frames import FRAME, task
from experiments.lab import results
from experiments.lab.on_cores import in_turns, reply, samples_us
from mlpkit import machine

MOST = 1e-5  # of the largest output: how much one may differ from the baseline's, in float64
STRIPS = {2: 270, 3: 180, 4: 135}  # rows of the small picture, by scale: half of it for each of two cores


@dataclass(frozen=True)
class Plan:
    """peers: see `PEERS`, on so many cores. rounds: processes of each. frames: that are timed in each."""

    scales: tuple[int, ...] = (2, 4)
    peers: tuple[str, ...] = ("numba_conv", "pytorch", "pytorch_last", "compiled", "compiled_last", "onnxruntime")
    frame: tuple[int, int] = FRAME
    cores: int = 2
    rounds: int = 3
    frames: int = 20


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure each peer, in turns, and return the record."""
    versions = {library: machine.version(library) for library in ("torch", "onnxruntime", "numba")}
    record = results.new("frames", libraries=versions, frame=plan.frame, cores=plan.cores)
    with tempfile.TemporaryDirectory() as folder:
        tasks = [{"scale": scale, "frames": plan.frames} | task(Path(folder), scale, plan.frame, progress)
                 for scale in plan.scales]  # fmt: skip
        asked = [({"model": f"x{each['scale']}", "engine": who, "cores": plan.cores}, each)
                 for each in tasks for who in plan.peers]  # fmt: skip
        return results.collect(record, in_turns("experiments.frames", asked, plan.rounds, progress), save)


def ms(record, who, model):
    """Return the milliseconds a frame of a peer: the median of all its samples, None where there are none."""
    us = results.pooled_us(record, engine=who, model=model)
    return None if us is None else us / 1e3


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    models = {run["model"]: run["model"] for run in record["runs"]}
    return results.by_engine(record, "milliseconds a frame", models, partial(ms, record), ".1f", (24, 9))


# In a process of its own


def numba_conv(settings, x):
    from mlpkit.executors.tiles import Tiles
    from mlpkit.nn.enlarging import geometry
    from mlpkit.nn.network import Network

    network = Network.load(settings["path"], "numba_conv")
    halo, scale = geometry(network.model)
    picture = np.ascontiguousarray(x[0, :, halo:-halo, halo:-halo])
    tiles = Tiles(network, (STRIPS[scale], picture.shape[2]), n=-(-picture.shape[1] // STRIPS[scale]))
    return lambda: tiles(picture)


def pytorch(settings, x, last=False, compiled=False):
    import torch

    from experiments.lab.peers.predicting import Task, each_array, through
    from experiments.lab.peers.predicting.pytorch import OPERATIONS

    torch.set_num_threads(settings["cores"])
    layout = torch.channels_last if last else torch.contiguous_format
    layers, x = Task(settings["path"], x, x).bound_layers(), torch.from_numpy(x).contiguous(memory_format=layout)
    each_array(layers, lambda array: _in_layout(torch.from_numpy(array), layout))
    forward = lambda x: through(layers, OPERATIONS, x)  # noqa: E731 (it is compiled, or not)
    forward = torch.compile(forward, dynamic=False, fullgraph=True) if compiled else forward

    def frame():
        with torch.inference_mode():
            return forward(x)[0].numpy()

    return frame


def _in_layout(array, layout):
    return array.contiguous(memory_format=layout) if array.ndim == 4 else array


def onnxruntime(settings, x):
    import onnxruntime as ort

    from mlpkit import onnx_io
    from mlpkit.nn.network import Network

    options = ort.SessionOptions()
    options.intra_op_num_threads = settings["cores"]
    with tempfile.TemporaryDirectory() as folder:
        onnx_io.write(Network.load(settings["path"]), path := Path(folder) / "enlarger.onnx")
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"input": x})[0][0]


PEERS: dict[str, Any] = {
    "numba_conv": numba_conv, "onnxruntime": onnxruntime, "pytorch": pytorch,
    "pytorch_last": partial(pytorch, last=True), "compiled": partial(pytorch, compiled=True),
    "compiled_last": partial(pytorch, last=True, compiled=True),
}  # fmt: skip


def measured(settings):
    """Return the samples of a peer, microseconds each, and how much its frame differs from the baseline's."""
    with np.load(settings["data"]) as data:
        x, wanted = (data["x"] / np.float32(255)).astype(np.float32), data["wanted"][0]
    frame = PEERS[settings["engine"]](settings, x)
    # In strips the frame's own pixels are mirrored at its edge, where the others have a halo.
    edge = 8 * settings["scale"] if settings["engine"] == "numba_conv" else 2
    inner = np.s_[:, edge:-edge, edge:-edge]
    difference = float(abs(frame()[inner] - wanted[inner]).max() / abs(wanted).max())
    if not difference <= MOST:
        raise ValueError(f"its frame differs from the baseline's by {difference:.2g} of the largest.")
    return {"samples_us": samples_us(frame, settings["frames"]), "difference": difference}


if __name__ == "__main__":
    reply(measured)

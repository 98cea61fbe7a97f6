"""How many pictures of 1920 x 1080 pixels a second does a processor make, out of smaller ones? Two cores, all peers.

The workbook's own network of chapter 23, by `numba_conv` in strips; PyTorch, a layer at a time and compiled, channels
first and last; and onnxruntime. Each in a process of its own, which may use two cores, and several times in turns.
"""

import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gpu_frames import FRAME, task
from experiments.lab import processes, results
from mlpkit import machine

MOST = 1e-5  # of the largest output: how much one may differ from the baseline's, in float64
STRIPS = {2: 270, 3: 180, 4: 135}  # rows of the small picture, by scale: half of it for each of two cores


@dataclass(frozen=True)
class Plan:
    """peers: see `PEERS`. onnx: a folder of files x2.onnx, x4.onnx; where it is None, they are made, by `onnx`."""

    scales: tuple[int, ...] = (2, 4)
    peers: tuple[str, ...] = ("numba_conv", "pytorch", "pytorch_last", "compiled", "compiled_last", "onnxruntime")
    frame: tuple[int, int] = FRAME
    cores: int = 2
    rounds: int = 3
    frames: int = 20
    onnx: str | None = None


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure each peer, in turns, and return the record."""
    versions = {library: machine.version(library) for library in ("torch", "onnxruntime", "numba")}
    record = results.new("frames", libraries=versions, frame=plan.frame, cores=plan.cores)
    with tempfile.TemporaryDirectory() as folder:
        tasks = {scale: task(Path(folder), scale, plan.frame, progress) for scale in plan.scales}
        for scale, each in tasks.items():
            each |= {"scale": scale, "onnx": _onnx_file(each["path"], plan.onnx, scale)}
        return results.collect(record, _runs(plan, tasks, progress), save)


def _onnx_file(path, folder, scale):
    if folder:
        return str(Path(folder) / f"x{scale}.onnx")
    with suppress(ImportError):
        return write_onnx(path, Path(path).with_suffix(".onnx"))
    return None


def _runs(plan, tasks, progress):
    env = os.environ | {name: str(plan.cores) for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS")}
    env |= {"OPENBLAS_NUM_THREADS": "1"}
    for number in range(plan.rounds):
        for scale, settings in tasks.items():
            for who in plan.peers:
                progress(f"x{scale}, {who}, round {number + 1}")
                asked = json.dumps(settings | {"cores": plan.cores, "frames": plan.frames})
                about = {"model": f"x{scale}", "engine": who, "round": number, "samples_us": [], "why_not": None}
                try:
                    yield about | processes.ask("experiments.frames", who, asked, env=env)
                except processes.Failed as error:
                    yield about | {"why_not": str(error)}


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

    options = ort.SessionOptions()
    options.intra_op_num_threads = settings["cores"]
    if settings["onnx"] is None:
        raise ValueError("there is no onnx here to write the network with.")
    session = ort.InferenceSession(settings["onnx"], options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0][0]


PEERS: dict[str, Any] = {
    "numba_conv": numba_conv, "onnxruntime": onnxruntime, "pytorch": pytorch,
    "pytorch_last": partial(pytorch, last=True), "compiled": partial(pytorch, compiled=True),
    "compiled_last": partial(pytorch, last=True, compiled=True),
}  # fmt: skip


def measured(who, settings):
    """Return the samples of a peer, milliseconds each, and how much its frame differs from the baseline's."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, some_cores(settings["cores"]))
    with np.load(settings["data"]) as data:
        x, wanted = (data["x"] / np.float32(255)).astype(np.float32), data["wanted"][0]
    frame = PEERS[who](settings, x)
    inner = slice(2, -2)  # in strips the frame's own pixels are mirrored at its edge, where the others have a halo
    halo = 8 * settings["scale"]
    cut = (slice(None), slice(halo, -halo), slice(halo, -halo)) if who == "numba_conv" else (slice(None), inner, inner)
    difference = float(abs(frame()[cut] - wanted[cut]).max() / abs(wanted).max())
    if not difference <= MOST:
        raise ValueError(f"its frame differs from the baseline's by {difference:.2g} of the largest.")
    for _ in range(3):
        frame()
    samples = []
    for _ in range(settings["frames"]):
        start = time.perf_counter()
        frame()
        samples.append(1e6 * (time.perf_counter() - start))
    return {"samples_us": samples, "difference": difference}


def some_cores(count):
    """Return so many processors of ours, each of another core where there are as many."""
    found: dict = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        found.setdefault(path.read_text().strip() if path.exists() else cpu, cpu)
    chosen = list(found.values())
    return (chosen + [cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in chosen])[:count]


class _Onnx:
    """Nodes and constants of a network of this chapter's layers, as ONNX has them."""

    def __init__(self):
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array):
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, kind, *inputs, **settings):
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [f"y{len(self.nodes)}"], **settings))
        return self.nodes[-1].output[0]

    def chain(self, layers, x):
        for at in layers:
            x = getattr(self, type(at.layer).__name__)(at, x)
        return x

    def Conv(self, at, x):
        return self.node("Conv", x, self.constant(at.W), *([self.constant(at.b)] if hasattr(at, "b") else []))

    def Crop(self, at, x):
        size = at.layer.size
        return self.node("Slice", x, *(self.constant(np.array(each)) for each in ([size] * 2, [-size] * 2, [2, 3])))

    def PixelShuffle(self, at, x):
        return self.node("DepthToSpace", x, blocksize=at.layer.scale, mode="CRD")

    def ReLU(self, at, x):
        return self.node("Relu", x)

    def Residual(self, at, x):
        return self.node("Add", *(self.chain(each, x) for each in at.branches))


def write_onnx(path, target):
    """Write a network of this chapter's layers, saved in `path`, as an ONNX file; return its path."""
    import onnx
    from onnx import TensorProto, helper

    from experiments.lab.peers.predicting import Task

    task, written = Task(str(path), np.empty(0), np.empty(0)), _Onnx()
    model, out = task.network.model, written.chain(task.bound_layers(), "x")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, *shape))
            for name, shape in (("x", model.input), (out, model.output))]  # fmt: skip
    graph = helper.make_graph(written.nodes, "enlarger", ends[:1], ends[1:], written.constants)
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(found)
    onnx.save(found, target)
    return str(target)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], json.loads(sys.argv[2]))))

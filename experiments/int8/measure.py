"""How the record "int8" is made: two networks are trained, written down for each library, and predict in turns."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.fashion import FIVE
from experiments.lab import processes, results
from experiments.lab.bench import whole
from experiments.lenet_best import BEST
from mlpkit import machine
from mlpkit.data import load
from mlpkit.nn.quantize import quantize
from mlpkit.onnx_io import write
from mlpkit.onnx_io.integers import write_integers

AVX2 = {  # what this process compiles for, and the libraries that let themselves be told; ONNX Runtime does not
    "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+popcnt,+sse4.2,+ssse3",
    "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
}  # fmt: skip
OURS = "ours float32", "ours int8"
OTHERS = (
    "onnxruntime float32", "onnxruntime qdq", "onnxruntime qdq signed", "onnxruntime static",
    "onnxruntime static reduced", "openvino float32", "openvino qdq", "pytorch compiled",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is measured: recipes by data set, sizes of batches, threads, peers by the processor that they may use.

    how: the calibration, of so many examples of the training set.
    """

    recipes: tuple = (("mnist", BEST[0].but(epochs=4)), ("fashion-mnist", FIVE.but(epochs=4)))
    sizes: tuple[int, ...] = (1, 8, 64)
    threads: tuple[int, ...] = (1, 2)
    peers: tuple = (("as it is", (*OURS, *OTHERS)), ("AVX2", (*OURS, "openvino float32", "openvino qdq")))
    rounds: int = 15
    how: str = "min-max"
    examples: int = 1000
    networks: tuple = ()  # files of networks that were trained already, in the recipes' order


def measure(save=results.save_part, progress=print, plan=Plan()):
    """Measure, and return the record. Raises ImportError where the package onnx is missing."""
    versions = {library: machine.version(library) for library in ("numba", "onnxruntime", "openvino", "torch", "onnx")}
    record = results.new("int8", libraries=versions, sizes=plan.sizes, how=plan.how, examples=plan.examples)
    with tempfile.TemporaryDirectory() as folder:
        return results.collect(record, _runs(plan, Path(folder), progress), save)


def _runs(plan, folder, progress):
    for number, (name, recipe) in enumerate(plan.recipes):
        task = _task(plan, number, name, recipe, folder, progress)
        for threads in plan.threads:
            for isa, peers in plan.peers:
                yield from _in_turns(plan, task | {"threads": threads}, isa, peers, progress)


def _task(plan, number, name, recipe, folder, progress):
    """Train a network and write all files; return the settings of a peer's process."""
    from mlpkit.nn.network import Network

    data = load(name)
    if plan.networks:
        network = Network.load(plan.networks[number], engine="numba_conv")
    else:
        progress(f"training on {name}")
        network, history = recipe.train(data, engine="numba_conv")
        whole(history)
    x, y = data.test
    predict, batches = network.compiled(500), range(0, len(x), 500)
    predictions = np.concatenate([predict(x[i : i + 500]).argmax(axis=1) for i in batches])
    calibration = data.train[0][: plan.examples]
    paths = {
        kind: str(folder / f"{name} {kind}.onnx")
        for kind in ("float32", "qdq", "qdq signed", "static", "static reduced")
    }
    integers = quantize(network, calibration, plan.how)
    write(network, paths["float32"])
    write_integers(integers, paths["qdq"])
    write_integers(integers, paths["qdq signed"], signed=True)
    for kind, reduced in (("static", False), ("static reduced", True)):
        _static(paths["float32"], paths[kind], calibration, reduced)
    own, stored = str(folder / f"{name}.npz"), str(folder / f"{name} data.npz")
    network.save(own)
    np.savez(stored, x=x, y=y, predictions=predictions, calibration=calibration)
    return {"model": str(name), "network": own, "data": stored, "files": paths, "sizes": plan.sizes, "how": plan.how}


def _static(path, to, calibration, reduced):
    """Let ONNX Runtime's own tool quantize a file, a scale for each channel: U8S8, or with weights of 7 bits."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Examples(CalibrationDataReader):  # type: ignore[misc]  # without types
        def __init__(self):
            self.left = iter(calibration.astype(np.float32).reshape(-1, 50, 1, 28, 28) / 255)

        def get_next(self):
            x = next(self.left, None)
            return None if x is None else {"input": x}

    quantize_static(path, to, Examples(), per_channel=True, reduce_range=reduced, activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8)  # fmt: skip


def _in_turns(plan, settings, isa, peers, progress):
    """Yield each peer's run: how its answers differ, and samples of all rounds."""
    threads = str(settings["threads"])
    env = {**os.environ, **(AVX2 if isa == "AVX2" else {})}
    env |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    waiting, runs = {}, dict[str, dict]()
    try:
        for peer in peers:
            waiting[peer] = processes.Waiting("experiments.int8.peer", peer, json.dumps(settings), env=env)
            try:
                waiting[peer].ready()
            except processes.Failed as error:
                runs[peer] = {"why_not": str(error)}
        for number in range(plan.rounds):
            progress(f"{settings['model']}, {threads} threads, {isa}: round {number + 1} of {plan.rounds}")
            for peer in peers:
                if "why_not" in runs.get(peer, ()):
                    continue
                answer = waiting[peer].answer()
                run = runs.setdefault(peer, answer | {"seconds": {n: [] for n in answer["seconds"]}})
                for n, seconds in answer["seconds"].items():
                    run["seconds"][n].append(seconds)
    finally:
        for each in waiting.values():
            each.__exit__()
    about = {"model": settings["model"], "threads": settings["threads"], "isa": isa}
    for peer, run in runs.items():
        yield about | {"peer": peer} | run

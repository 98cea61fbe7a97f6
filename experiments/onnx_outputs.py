"""Does a network compute the same once it is in an ONNX file? And one that PyTorch wrote, once it is read?

Judged by onnxruntime. The workbook's four models, LeNet-5 after an epoch on the digits, the others as they begin, go
out with their norms folded and not; files that PyTorch's exporters wrote come in. Kept are the largest logit and the
largest difference, over the same images; how many of them get another class; and of one file the logits themselves.
"""

import tempfile
from pathlib import Path

import numpy as np

from experiments.lab import results
from experiments.lenet_best import BEST
from mlpkit import data, onnx_io
from mlpkit.nn.models import LENET5, MODELS
from mlpkit.nn.network import Network

EXPORTED = results.ROOT / "tests" / "onnx_io" / "exported"
SHOWN = "lenet-torchscript"  # whose logits chapter 21 compares with


def measure(save=results.save_part, progress=print, networks=tuple(MODELS), images=2_000):
    import onnx
    import onnxruntime

    versions = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    record = results.new("onnx_outputs", images=images, versions=versions)
    return results.collect(record, _runs(networks, images, progress), save)


def _runs(networks, images, progress):
    mnist = data.load()
    for name in networks:
        progress(name)
        network = Network("numba_conv", MODELS[name])
        if MODELS[name] is LENET5:
            network, _ = BEST[0].train(mnist, "numba_conv")
        for fold in (True, False):
            yield _out(name, network, fold, mnist.test.X[:images])
    for path in sorted(EXPORTED.glob("*.onnx")):
        progress(path.stem)
        yield _in(path)


def _out(name, network, fold, X):
    x = np.reshape(X, (-1, *network.model.input)).astype(np.float32) / 255
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        onnx_io.write(network, path, fold)
        run = {"written": name, "fold": fold, "bytes": path.stat().st_size}
        parts = [x[i : i + 500] for i in range(0, len(x), 500)]
        ours = np.concatenate([network.forward(part) for part in parts])
        return run | _compared(ours, np.concatenate([theirs(path, part) for part in parts]))


def _in(path):
    network = onnx_io.read(path)
    x = inputs(network.model.input)
    wanted = theirs(path, x)
    kept = {"logits": wanted.tolist()} if path.stem == SHOWN else {}
    return {"read": path.stem, "model": str(network.model)} | _compared(network.forward(x), wanted) | kept


def inputs(shape, n=4):
    """Return the batch that networks from files are asked about."""
    return np.random.default_rng(21).random((n, *shape), np.float32)


def theirs(path, x):
    """Return what onnxruntime makes of a file and a batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def _compared(ours, wanted):
    largest, apart = float(abs(wanted).max()), float(abs(ours - wanted).max())
    changed = int((ours.argmax(axis=1) != wanted.argmax(axis=1)).sum())
    return {"largest": largest, "apart": apart, "changed": changed, "rows": len(ours)}


@results.reads
def table(record):
    """Return a line for each network that went out, and each that came in."""
    lines = [f"{'':24}  largest  apart    another class"]
    for run in record["runs"]:
        name = run.get("read") or f"{run['written']}, {'folded' if run['fold'] else 'as it is'}"
        lines.append(f"{name:24}{run['largest']:9.3f}  {run['apart']:.0e}  {run['changed']} of {run['rows']:,}")
    return "\n".join(lines)

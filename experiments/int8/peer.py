"""One library's predictions, in a process of its own: `python -m experiments.int8.peer NAME SETTINGS`.

It says how its answers to all test images differ from float32's, and then, each time that it is asked, how long a call
takes for each size of batch, in seconds.
"""

import json
import os
import sys
import time

import numpy as np

from experiments.lab.processes import wait_to_be_asked

SECONDS = 0.02  # of a sample, at least


def ours(settings, precision):
    """Return the workbook's compiled predictions."""
    from mlpkit.engines.loops import dot, simd
    from mlpkit.nn.network import Network
    from mlpkit.nn.quantize import quantize

    network = Network.load(settings["network"], engine="numba_conv")
    options = {}
    if precision == "int8":
        with np.load(settings["data"]) as data:
            options = {"precision": "int8", "calibration": quantize(network, data["calibration"], settings["how"])}
    return lambda n: network.compiled(n, **options), {"way": dot.way(), "register": simd.BYTES}


def onnxruntime(settings, model):
    """Return ONNX Runtime's predictions of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = settings["threads"], 1, 3
    session = onnxruntime.InferenceSession(settings["files"][model], options, providers=["CPUExecutionProvider"])
    return lambda n: lambda x: session.run(None, {"input": x})[0], {}


def openvino(settings, model):
    """Return OpenVINO's predictions of a file, compiled for each size."""
    import openvino

    core = openvino.Core()
    hints = {
        "INFERENCE_NUM_THREADS": settings["threads"],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }

    def predictor(n):
        read = core.read_model(settings["files"][model])
        read.reshape([n, 1, 28, 28])
        request = core.compile_model(read, "CPU", hints).create_infer_request()
        return lambda x: request.infer([x], share_inputs=True)[0]

    return predictor, {}


def pytorch(settings, _):
    """Return PyTorch's predictions, compiled for each size; weights as the workbook has them."""
    import torch

    from mlpkit.nn.network import Network

    torch.set_num_threads(settings["threads"])
    network, kinds = Network.load(settings["network"]), {"MaxPool": lambda one: torch.nn.MaxPool2d(one.size)}
    kinds |= {"ReLU": lambda one: torch.nn.ReLU(), "Flatten": lambda one: torch.nn.Flatten()}
    layers = []
    for at in network.layers:
        if hasattr(at, "W"):
            one, W = at.layer, at.W.T if at.W.ndim == 2 else at.W
            layer = (torch.nn.Linear(*at.W.shape) if at.W.ndim == 2
                     else torch.nn.Conv2d(W.shape[1], one.channels, one.size, one.stride, one.padding))  # fmt: skip
            layer.load_state_dict({"weight": torch.tensor(W), "bias": torch.tensor(at.b)})
            layers.append(layer)
        else:
            layers.append(kinds[type(at.layer).__name__](at.layer))
    with torch.no_grad():
        model = torch.compile(torch.nn.Sequential(*layers).eval(), mode="max-autotune-no-cudagraphs", dynamic=False)

    def predictor(n):
        def predict(x):
            with torch.inference_mode():
                return model(torch.from_numpy(x)).numpy()

        return predict

    return predictor, {}


PEERS = {"ours": ours, "onnxruntime": onnxruntime, "openvino": openvino, "pytorch": pytorch}


def main(name, settings):
    """Prepare, tell of the answers, and measure as often as somebody asks."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: settings["threads"]])
    library, _, model = name.partition(" ")
    predictor, about = PEERS[library](settings, model)
    with np.load(settings["data"]) as data:
        x, labels, predictions = data["x"], data["y"], data["predictions"]
    x = x.astype(np.float32).reshape(-1, 1, 28, 28) / 255
    n = max(settings["sizes"])
    predict = predictor(n)
    whole = len(x) // n * n
    found = np.concatenate([predict(x[i : i + n]).argmax(axis=1) for i in range(0, whole, n)])
    about |= {"changed": int((found != predictions[:whole]).sum()), "of": whole}
    about |= {"right": int((found == labels[:whole]).sum())}
    calls = {n: (predictor(n), np.ascontiguousarray(x[:n])) for n in settings["sizes"]}
    repeats = {n: max(1, int(SECONDS / min(_timed(*call, 3) for _ in range(3)))) for n, call in calls.items()}
    wait_to_be_asked()
    while True:
        print(json.dumps(about | {"seconds": {n: _timed(*call, repeats[n]) for n, call in calls.items()}}), flush=True)
        if not sys.stdin.readline():
            return


def _timed(predict, x, repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        predict(x)
    return (time.perf_counter() - begin) / repeats


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

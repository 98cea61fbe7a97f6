"""How many scenes a second: from bytes on the host to boxes without doubles there."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

import numpy as np

from mlpkit.boxes import detections
from mlpkit.nn.network import Network

BATCH, SCORE = 64, 0.25  # scenes at a time; the least score of a box, as a program that uses it would have it
ROUNDS, BATCHES = 10, 20


def speeds(path, engines, images, progress=print, rounds=ROUNDS, batches=BATCHES):
    """Yield runs: an engine, and seconds a batch of 64: of the network, of the boxes, of both, and of two threads.

    The network: to outputs on the host. The boxes: of outputs where the engine has them, and so in both. Two threads
    take turns at batches: while the GPU has one, the host makes boxes of another. Samples are means over so many
    batches; engines take turns.
    """
    batch = np.ascontiguousarray(images[:BATCH])
    compiled = {}
    for engine in engines:
        network = Network.load(path, engine)
        compiled[engine] = network, network.compiled(BATCH), Lock()
        progress(f"{engine}: compiled")
    samples: dict = {engine: {"network": [], "boxes": [], "both": [], "two threads": []} for engine in engines}
    with ThreadPoolExecutor(2) as pool:
        for number in range(1 + rounds):
            for engine, (network, predict, lock) in compiled.items():
                both, outputs = partial(_both, network, predict, lock, batch), predict(network.engine.asarray(batch))
                boxes = partial(detections, network.model.loss, outputs, SCORE)
                calls = {"network": partial(predict, batch), "boxes": boxes, "both": both}
                found = {what: _seconds(call, batches) for what, call in calls.items()}
                found["two threads"] = _seconds(both, batches, pool)
                for what, seconds in found.items() if number else ():  # the first round warms up
                    samples[engine][what].append(seconds)
    for engine, of in samples.items():
        yield {"engine": engine, "batch": BATCH, "score": SCORE, "seconds": of}


def _seconds(call, batches, pool=None):
    """Return the seconds of a call, of so many one after another, or shared by the threads of a pool."""
    start = time.perf_counter()
    if pool:
        for done in [pool.submit(call) for _ in range(batches)]:
            done.result()
    else:
        for _ in range(batches):
            call()
    return (time.perf_counter() - start) / batches


def _both(network, predict, lock, batch):
    with lock:  # what is compiled has room for one batch
        outputs = predict(network.engine.asarray(batch))
    return detections(network.model.loss, outputs, SCORE)

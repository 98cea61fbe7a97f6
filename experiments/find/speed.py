"""How many scenes a second: from bytes on the host to boxes without doubles there."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from mlpkit.boxes import detections
from mlpkit.nn.network import Network

BATCH, SCORE = 64, 0.25  # scenes at a time; the least score of a box, as a program that uses it would have it
ROUNDS, BATCHES = 10, 20


def speeds(path, engines, images, progress=print, rounds=ROUNDS, batches=BATCHES):
    """Yield runs: an engine, and seconds a batch of 64: of the network, of the boxes, of both, and of two threads.

    Two threads take turns at batches: while the GPU has one, the host makes boxes of another. Samples are means over so
    many batches; engines take turns.
    """
    batch = np.ascontiguousarray(images[:BATCH])
    compiled = {}
    for engine in engines:
        network = Network.load(path, engine)
        compiled[engine] = network.compiled(BATCH), network.model.loss
        progress(f"{engine}: compiled")
    samples: dict = {engine: {"network": [], "boxes": [], "both": [], "two threads": []} for engine in engines}
    with ThreadPoolExecutor(2) as pool:
        for number in range(1 + rounds):
            for engine, (predict, loss) in compiled.items():
                both = partial(_both, predict, loss, batch)
                calls = {"network": partial(predict, batch), "boxes": partial(detections, loss, predict(batch), SCORE)}
                found = {what: _seconds(call, batches) for what, call in (calls | {"both": both}).items()}
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


def _both(predict, loss, batch):
    return detections(loss, predict(batch), SCORE)

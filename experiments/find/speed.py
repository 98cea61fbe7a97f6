"""How many scenes a second: from bytes on the host to boxes without doubles there."""

import time
from functools import partial

import numpy as np

from mlpkit.boxes import detections
from mlpkit.nn.network import Network

BATCH, SCORE = 64, 0.25  # scenes at a time; the least score of a box, as a program that uses it would have it
ROUNDS, BATCHES = 10, 20


def speeds(path, engines, images, progress=print, rounds=ROUNDS, batches=BATCHES):
    """Yield runs: an engine's name, seconds a batch of 64 of the network alone, of the boxes alone, and of both.

    Samples are means over so many batches; engines take turns.
    """
    batch = np.ascontiguousarray(images[:BATCH])
    compiled = {}
    for engine in engines:
        network = Network.load(path, engine)
        compiled[engine] = network.compiled(BATCH), network.model.loss
        progress(f"{engine}: compiled")
    samples: dict = {engine: {"network": [], "boxes": [], "both": []} for engine in engines}
    for number in range(1 + rounds):
        for engine, (predict, loss) in compiled.items():
            calls = {
                "network": partial(predict, batch),
                "boxes": partial(detections, loss, predict(batch), SCORE),
                "both": partial(_both, predict, loss, batch),
            }
            for what, call in calls.items():
                start = time.perf_counter()
                for _ in range(batches):
                    call()
                if number:  # the first round warms up
                    samples[engine][what].append((time.perf_counter() - start) / batches)
    for engine, of in samples.items():
        yield {"engine": engine, "batch": BATCH, "score": SCORE, "seconds": of}


def _both(predict, loss, batch):
    return detections(loss, predict(batch), SCORE)

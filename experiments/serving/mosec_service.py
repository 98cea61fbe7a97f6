"""The same predictions behind mosec: its HTTP is Rust's, its batches go to a worker process."""

import os
import sys

import numpy as np
from mosec import Server, Worker

from mlpkit.nn.network import Network
from mlpkit.serving.calibration import probabilities

NETWORK = os.environ.setdefault("SERVED_NETWORK", sys.argv[1])  # a worker has other arguments


class Classify(Worker):
    """Takes 28 x 28 bytes, returns what our service returns."""

    def __init__(self):
        network = Network.load(NETWORK, "numba_conv")
        self.predict = network.compiled(64)
        self.shape = network.model.input

    def deserialize(self, data):
        return np.frombuffer(data, np.uint8).reshape(self.shape)

    def forward(self, data):
        rows = probabilities(self.predict(np.stack(data)))
        best = rows.argmax(axis=1).tolist()
        return [
            {"predictions": [{"classes": [{"name": str(label), "probability": float(row[label])}]}]}
            for label, row in zip(best, rows, strict=True)
        ]


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", sys.argv[2], "--log-level", "warning"]
    server = Server()
    server.append_worker(Classify, num=1, max_batch_size=64, max_wait_time=1, route="/classify")
    server.run()

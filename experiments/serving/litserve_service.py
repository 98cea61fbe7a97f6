"""The same predictions behind LitServe: FastAPI, batches in a worker process, and bodies that are always JSON."""

import sys

import litserve
import numpy as np

from mlpkit.nn.network import Network
from mlpkit.serving.calibration import probabilities

NETWORK, PORT = sys.argv[1], int(sys.argv[2])


class Classify(litserve.LitAPI):
    """Takes an image as JSON, returns what our service returns."""

    def setup(self, device):
        network = Network.load(NETWORK, "numba_conv")
        self.compiled = network.compiled(64)
        self.shape = network.model.input

    def decode_request(self, request):
        return np.array(request["images"], np.uint8).reshape(self.shape)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, x):
        return probabilities(self.compiled(x))

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        label = int(output.argmax())
        return {"predictions": [{"classes": [{"name": str(label), "probability": float(output[label])}]}]}


if __name__ == "__main__":
    api = Classify(max_batch_size=64, batch_timeout=0.001, api_path="/classify")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=PORT, generate_client_file=False, log_level="warning")

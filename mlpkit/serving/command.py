"""`python -m mlpkit serve`: read a network, calibrate its confidence, and serve it until SIGTERM."""

import socket

import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mlpkit import data
from mlpkit.nn.losses import SoftmaxCrossEntropy
from mlpkit.nn.network import Network

from .app import Service
from .calibration import probabilities, temperature
from .inputs import Reader

HEAD_SECONDS, HEAD_BYTES = 5, 32_768  # in which a request's head must have come
CONNECTIONS = 900


class Patient(HttpToolsProtocol):
    """uvicorn's protocol, which waits for the head of a request neither for ever nor at any length."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.head = 0
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def data_received(self, data):
        waiting = self.cycle is None or self.cycle.response_complete
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None  # which any byte would end
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.head = 0
            if timer is not None:
                timer.cancel()
        elif waiting and not self.transport.is_closing():
            self.head += len(data)
            self.timeout_keep_alive_task = timer
            if self.head > HEAD_BYTES:
                self.send_400_response("The head of this request is too long.")


def shape_of(network):
    """Return (channels, height, width) of a network's images. Raises ValueError unless it tells classes of images."""
    shape, output = network.model.input, network.model.output
    side = round(shape[-1] ** 0.5)
    if len(shape) == 1 and side * side == shape[0]:
        shape = (1, side, side)
    if (
        len(shape) != 3
        or shape[0] not in (1, 3)
        or len(output) != 1
        or not isinstance(network.model.loss, SoftmaxCrossEntropy)
    ):
        raise ValueError(f"serve takes a network that tells classes of grey or coloured images, not {network.model}.")
    return shape


def service(path, engine, of, longest, wait, room, seconds):
    """Return a `Service` of the network in a file. of: the name of the data set that it was trained on, or None."""
    network = Network.load(path, engine)
    shape, classes = shape_of(network), [str(label) for label in range(network.model.output[0])]
    degree = 1.0  # of an uncalibrated network
    if of:
        digits = data.load(of)
        if digits.train.X.shape[1:] != shape or len(digits.classes) != len(classes):
            raise ValueError(f"{path} was not trained on {of}: name its data set with --data, or --data none.")
        classes, (X, y) = list(digits.classes), digits.validation
        degree = temperature(np.concatenate([network.forward(X[i : i + 500]) for i in range(0, len(X), 500)]), y)
    compiled = network.compiled(longest)
    compiled(np.zeros((longest, *shape), np.uint8))  # what is compiled or allocated at first is so before a request

    def predict(rows):
        return probabilities(compiled(rows), degree)

    queue = dict(longest=longest, wait=wait, room=room)
    return Service(network, [predict], classes, Reader(shape, longest, of == "mnist"), seconds, **queue)


def run(service, host, port):
    """Serve until SIGTERM or Ctrl-C; then answer what was accepted, and return."""
    config = uvicorn.Config(
        service, http=Patient, ws="none", access_log=False, log_level="warning", timeout_keep_alive=HEAD_SECONDS,
        limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=int(service.seconds) + 1, server_header=False,
    )  # fmt: skip
    with socket.create_server((host, port), backlog=512) as sock:
        print(f"serving at http://{host}:{sock.getsockname()[1]}/, until Ctrl-C", flush=True)
        uvicorn.Server(config).run([sock])
    print("drained: every request that was accepted has its response", flush=True)

"""`python -m mlpkit serve`: read a network, calibrate its confidence, and serve it until SIGTERM or Ctrl-C."""

import logging
import signal
import socket

import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mlpkit import data
from mlpkit.nn.losses import SoftmaxCrossEntropy
from mlpkit.nn.network import Network
from mlpkit.words import counted

from .app import Service
from .calibration import probabilities, temperature
from .inputs import Reader

HEAD_SECONDS, HEAD_BYTES = 5, 32_768  # in which the head of a request must have come
CONNECTIONS = 900  # at a time; of more each request gets 503


class Patient(HttpToolsProtocol):
    """uvicorn's protocol, which waits for the head of a request neither for ever nor at any length."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.head = 0
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def data_received(self, data):
        waits = self.cycle is None or self.cycle.response_complete
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None  # else any byte would end it
        super().data_received(data)
        if not waits or not (self.cycle is None or self.cycle.response_complete):
            self.head = 0
            if timer is not None:
                timer.cancel()
        elif not self.transport.is_closing():
            self.head, self.timeout_keep_alive_task = self.head + len(data), timer
            if self.head > HEAD_BYTES:
                self.send_400_response("The head of this request is too long.")


def shape_of(network):
    """Return (channels, height, width) of a network's images. Raises ValueError unless it tells classes of images."""
    shape, model = network.model.input, network.model
    side = round(shape[-1] ** 0.5)
    shape = (1, side, side) if len(shape) == 1 and side * side == shape[0] else shape
    tells = isinstance(model.loss, SoftmaxCrossEntropy) and len(model.output) == 1
    if len(shape) != 3 or shape[0] not in (1, 3) or not tells:
        raise ValueError(f"serve takes a network that tells classes of grey or coloured images, not {model}.")
    return shape


def service(path, engine="numba_conv", of="mnist", longest=64, wait=0.0, capacity=256, seconds=2.0):
    """Return a `Service` of the network in a file.

    of: the data set that it was trained on, whose validation images calibrate it, or None. Others: see `Batcher` and
    `Service`. Raises what `Network.load` and `data.load` raise, and ValueError for a network of other images.
    """
    network, degree = Network.load(path, engine), 1.0
    shape, classes = shape_of(network), [str(label) for label in range(network.model.output[0])]
    if of:
        known = data.load(of)
        X, y = known.validation if known.validation and len(known.validation.X) else known.test
        if X.shape[1:] != shape or len(known.classes) != len(classes):
            raise ValueError(f"{path} was not trained on {of}: name its data set with --data, or --data none.")
        classes = list(known.classes)
        degree = temperature(np.concatenate([network.forward(X[i : i + 500]) for i in range(0, len(X), 500)]), y)
    compiled = network.compiled(longest)

    def predict(rows):
        return probabilities(compiled(rows), degree)

    predict(np.zeros((longest, *shape), np.uint8))  # what is compiled or allocated at first is so before a request
    queue = dict(longest=longest, wait=wait, capacity=capacity)
    return Service(network, [predict], classes, Reader(shape, longest, of == "mnist"), seconds, **queue)


def run(service, host, port):
    """Serve until SIGTERM or Ctrl-C; then answer what was accepted, and return the exit code."""
    config = uvicorn.Config(
        service, http=Patient, ws="none", access_log=False, log_level="error", timeout_keep_alive=HEAD_SECONDS,
        limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=int(service.seconds) + 1, server_header=False,
    )  # fmt: skip
    logging.getLogger("python_multipart").setLevel("ERROR")  # a line for each bad request would fill whatever reads it
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn, which hears it first, raises it again at its end
    with socket.create_server((host, port), backlog=512) as sock:
        print(f"serving at http://{host}:{sock.getsockname()[1]}/ until Ctrl-C", flush=True)
        uvicorn.Server(config).run([sock])
    lost = service.accepted - service.done
    print(f"{counted(service.accepted, 'request')} accepted, {lost} lost", flush=True)
    return 1 if lost else 0

"""`python -m mlpkit serve`: read a network, calibrate its confidence, and serve it until SIGTERM or Ctrl-C."""

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
from typing import Any

import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mlpkit import data
from mlpkit.nn.losses import SoftmaxCrossEntropy
from mlpkit.nn.network import Network
from mlpkit.words import counted

from .app import Service, check_deadline
from .calibration import probabilities, temperature
from .explain import pictures
from .inputs import Reader

HEAD_SECONDS, HEAD_BYTES = 5, 32_768  # in which the head of a request must have come
CONNECTIONS = 900  # at a time; of more each request gets 503
CALIBRATING = 500  # images that show ranges to an engine of integers
SMALL = 16_384  # bytes of a body that need not be awaited before its request is refused


class Answered:
    """What uvicorn keeps of a request, for one that has its response before it is a task."""

    response_complete, message_event = True, asyncio.Event()


class Patient(HttpToolsProtocol):
    """uvicorn's protocol, which waits for the head of a request neither for ever nor at any length.

    While the queue is full a small request is refused right here: 22 us of a Sapphire Rapids' core, for 58 on the way
    through uvicorn and the service. Else a service that is asked for far too much would do nothing but refuse. Those
    that entered before it in the same turn of the event loop count, though they are in no queue yet.
    """

    cycle: Any  # uvicorn's, or `Answered`

    def connection_made(self, transport):
        super().connection_made(transport)
        self.head = 0
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def data_received(self, data):
        before, waits = self.cycle, self.cycle is None or self.cycle.response_complete
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None  # else any byte would end it
        super().data_received(data)
        if not waits or self.cycle is not before:
            self.head = 0
            if timer is not None:
                timer.cancel()
        elif not self.transport.is_closing():
            self.head, self.timeout_keep_alive_task = self.head + len(data), timer
            if self.head > HEAD_BYTES:
                self.send_400_response("The head of this request is too long.")

    def on_headers_complete(self):
        alone = self.cycle is None or self.cycle.response_complete  # nothing before it waits for its response
        alone = alone and not self.flow.write_paused  # nor does its client leave responses unread
        full = alone and self.parser.should_keep_alive() and self.app.full(self.app.entering)
        to_classify = self.parser.get_method() == b"POST" and self.url.partition(b"?")[0] == b"/classify"
        if not full or not to_classify or self._body() > SMALL:
            self.app.enter()
            return super().on_headers_complete()
        self.cycle = Answered()
        self.transport.write(self.app.refusal(full))
        self.on_response_complete()

    def _body(self):
        """Return the bytes that a request's body will have; infinity where its head does not say."""
        said = [value for name, value in self.headers if name in (b"content-length", b"transfer-encoding", b"expect")]
        return int(said[0]) if len(said) == 1 and said[0].isdigit() and len(said[0]) < 9 else math.inf


def shape_of(network):
    """Return (channels, height, width) of a network's images. Raises ValueError unless it tells classes of images."""
    shape, model = network.model.input, network.model
    side = round(shape[-1] ** 0.5)
    shape = (1, side, side) if len(shape) == 1 and side * side == shape[0] else shape
    tells = isinstance(model.loss, SoftmaxCrossEntropy) and len(model.output) == 1
    if len(shape) != 3 or shape[0] not in (1, 3) or not tells:
        raise ValueError(f"serve takes a network that tells classes of grey or coloured images, not {model}.")
    return shape


def service(path, engine="numba_conv", of="mnist", longest=64, wait=0.0, capacity=256, target=0.005, seconds=2.0):
    """Return a `Service` of the network in a file.

    of: the data set that it was trained on, whose validation images calibrate it, or None. Others: see `Batcher` and
    `Service`. Raises what `Network.load` and `data.load` raise, and ValueError for a network of other images.
    """
    queue = dict(longest=longest, wait=wait, capacity=capacity, target=target)
    check_deadline(seconds, **queue)
    network, degree, shown = Network.load(path, engine), 1.0, None
    shape, classes = shape_of(network), [str(label) for label in range(network.model.output[0])]
    if of:
        known = data.load(of)
        X, y = known.validation if known.validation and len(known.validation.X) else known.test
        if X.shape[1:] != shape or len(known.classes) != len(classes):
            raise ValueError(f"{path} was not trained on {of}: name its data set with --data, or --data none.")
        classes = list(known.classes)
        shown = X[:CALIBRATING]
        degree = temperature(np.concatenate([network.forward(X[i : i + 500]) for i in range(0, len(X), 500)]), y)
    compiled = _compiled(network, longest, shown)

    def predict(rows):
        return probabilities(compiled(rows), degree)

    nothing = np.zeros((longest, *shape), np.uint8)
    predict(nothing)  # what is compiled or allocated at first is so before a request
    pictures(network, nothing[:1], [0])
    return Service(network, [predict], classes, Reader(shape, longest, of == "mnist"), seconds, **queue)


def _compiled(network, longest, shown):
    """Return the network's predictions; an engine that makes them in integers is shown images, for their ranges."""
    try:
        return network.compiled(longest)
    except TypeError as error:
        if shown is None:
            raise ValueError(f"{str(error).rstrip('.')}: serve takes them from --data.") from error
        return network.compiled(longest, calibration=shown)


def server(service):
    """Return a uvicorn.Server of a service."""
    config = uvicorn.Config(
        service, http=Patient, ws="none", access_log=False, log_level="error", timeout_keep_alive=HEAD_SECONDS,
        limit_concurrency=CONNECTIONS, proxy_headers=False, timeout_graceful_shutdown=int(service.seconds) + 1,
        server_header=False,
    )  # fmt: skip
    return uvicorn.Server(config)


def _listening(host, port):
    try:
        return socket.create_server((host, port), backlog=512)
    except (OSError, OverflowError, UnicodeError) as error:  # such as a port beyond 65,535, or a host of dots
        reason = getattr(error, "strerror", None) or error
        sentence = f"nothing can listen at {host}, port {port} ({reason}): choose another --host or --port."
        raise OSError(sentence) from error


def run(make, host, port):
    """Serve what make() returns until SIGTERM or Ctrl-C; then answer what was accepted, and return the exit code.

    A place that is taken is told at once, and not when all is calibrated; who comes before that waits.
    """
    with _listening(host, port) as sock:
        service = make()
        gc.collect()
        gc.freeze()  # else the collector looks through all that was imported, now and then, for a tenth of a second
        sys.setswitchinterval(0.001)  # seconds for which the event loop may keep the worker waiting for Python's lock
        logging.getLogger("python_multipart").setLevel("ERROR")  # lines for bad requests would fill what reads them
        signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn, which hears it first, raises it again at its end
        print(f"serving at http://{host}:{sock.getsockname()[1]}/ until Ctrl-C", flush=True)
        server(service).run([sock])
    lost = service.accepted - service.done
    print(f"{counted(service.accepted, 'request')} accepted, {lost} lost", flush=True)
    return 1 if lost else 0

"""The service: HTTP around the queue. The event loop reads and writes; what computes has threads of its own."""

import asyncio
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Annotated

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mlpkit import __version__

from .batching import Batcher, Closed, Full, Late
from .calibration import probabilities
from .explain import as_png, heat
from .inputs import MOST_BYTES, Reader, Refused
from .schema import Health, Predictions, described

SLOW = 10.0  # seconds that a body may take to come
SOON = 0.05  # seconds after which somebody looks whether the client is still there
LAG = 0.02  # seconds that the event loop may be behind: if it is more, a request waits here, and not in the queue
PREPARED = 64  # pictures that may wait to be decoded


class Service:
    """What the routes share. predict: a function of rows uint8. Others: see `build`."""

    def __init__(self, network, predictions, classes, temperature, reader, seconds, **queue):
        self.network, self.predictions, self.classes = network, predictions, classes
        self.temperature, self.reader, self.seconds, self.queue = temperature, reader, seconds, queue
        self.computing = ThreadPoolExecutor(1, "prepare")
        self.preparing, self.lag = 0, 0.0
        self.registry = CollectorRegistry()
        self.answered = Counter("mlpkit_requests", "Requests by HTTP status.", ["code"], registry=self.registry)
        self.took = Histogram("mlpkit_seconds", "From the head of a request to its response.", registry=self.registry)
        sizes = [2**power for power in range(11)]
        self.batches = Histogram("mlpkit_batch_rows", "Rows of a batch.", buckets=sizes, registry=self.registry)
        waiting = Gauge("mlpkit_waiting_rows", "Rows in the queue.", registry=self.registry)
        waiting.set_function(lambda: self.batcher.waiting)

    @asynccontextmanager
    async def running(self, _):
        """Have a queue while the server runs. At its end all that was accepted is computed."""
        self.loop = asyncio.get_running_loop()
        watch = lambda batch, _: self.batches.observe(sum(len(one.rows) for one in batch))  # noqa: E731
        self.batcher = Batcher(self.predictions, deliver=self.loop.call_soon_threadsafe, watch=watch, **self.queue)
        ticking = self.loop.create_task(self._tick())
        yield
        ticking.cancel()
        await self.loop.run_in_executor(None, self.batcher.close, self.seconds)

    async def _tick(self, every=0.005):
        """Measure how far the event loop is behind."""
        while True:
            due = self.loop.time() + every
            await asyncio.sleep(every)
            self.lag = self.loop.time() - due

    async def classify(self, request, k, explain):
        """Return the response to a request."""
        began, headers = time.perf_counter(), {}
        try:
            if self.lag > LAG or self.preparing >= PREPARED:
                raise Full(1)
            body = await read(request)
            rows = await self.rows(body, request.headers.get("content-type", ""))
            outputs = await self.outputs(rows, request.receive)
            found = await self.described(rows, outputs, k, explain)
            status = 200
        except Refused as error:
            status, found, headers = error.status, problem(error), error.headers
        except Full as error:
            status, found, headers = 429, problem(error), {"retry-after": str(error.seconds)}
        except Late as error:
            status, found = 504, problem(error)
        except Closed as error:
            status, found, headers = 503, problem(error), {"retry-after": "1", "connection": "close"}
        self.answered.labels(status).inc()
        self.took.observe(time.perf_counter() - began)
        return Response(found, status, headers, "application/json")

    async def rows(self, body, kind):
        """Return the images of a body. Bytes are looked at, and whatever has to be computed is so in a thread."""
        if not kind.startswith("application/octet-stream"):
            return await self.compute(self.reader.read, body, kind)
        return self.reader.read(body, kind)

    async def compute(self, function, *arguments):
        self.preparing += 1
        try:
            return await self.loop.run_in_executor(self.computing, function, *arguments)
        finally:
            self.preparing -= 1

    async def outputs(self, rows, receive):
        """Return the network's outputs of images; the request is dropped once it is late, or nobody waits for it."""
        future = self.loop.create_future()
        self.batcher.submit(rows, self.seconds, future)
        timers = [self.loop.call_later(self.seconds, expire, future), self.loop.call_later(SOON, self._watch, receive, future)]
        try:
            return await future
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
            raise Refused(499, "the client is gone.") from None
        finally:
            for timer in timers:
                timer.cancel()

    def _watch(self, receive, future):
        async def gone():
            while (await receive())["type"] != "http.disconnect":
                pass
            future.cancel()

        watching = self.loop.create_task(gone())
        future.add_done_callback(lambda _: watching.cancel())

    async def described(self, rows, outputs, k, explain):
        """Return the JSON of the k likeliest classes of each image."""
        found = probabilities(outputs, self.temperature)
        best = np.argsort(-found, axis=1, kind="stable")[:, :k].tolist()
        sure = found.tolist()
        answers = [
            {"classes": [{"name": self.classes[label], "probability": row[label]} for label in order]}
            for order, row in zip(best, sure, strict=True)
        ]
        if explain:
            pictures = await self.compute(self._explained, rows, [order[0] for order in best])
            for answer, (seen, because) in zip(answers, pictures, strict=True):
                answer |= {"seen": seen, "because": because}
        return json.dumps({"predictions": answers})

    def _explained(self, rows, labels):
        x = rows.reshape(-1, *self.network.model.input)
        pairs = zip(rows, (heat(self.network, x[i : i + 1], label) for i, label in enumerate(labels)), strict=True)
        return [(as_png(row), as_png(row, found)) for row, found in pairs]


def expire(future):
    if not future.done():
        future.set_exception(Late("there was no answer before the deadline."))


def problem(error):
    return json.dumps({"detail": str(error)})


async def read(request):
    """Return a request's body, which is looked at while it comes. Raises Refused where it is too large or too slow."""
    found, n = [], 0
    too_large = Refused(413, f"a body has at most {MOST_BYTES:,} bytes.", {"connection": "close"})
    declared = request.headers.get("content-length", "0")
    if int(declared) > MOST_BYTES if declared.isdecimal() and len(declared) < 19 else True:
        raise too_large
    try:
        async with asyncio.timeout(SLOW):
            async for part in request.stream():
                n += len(part)
                if n > MOST_BYTES:
                    raise too_large
                found.append(part)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {SLOW:g} s.", {"connection": "close"}) from None
    return b"".join(found)


def build(service):
    """Return the service as an ASGI application."""
    app = FastAPI(title="mlpkit", version=__version__, lifespan=service.running, docs_url=None, redoc_url=None)
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @app.post("/classify", response_model=Predictions, **described(service.reader))
    async def classify(
        request: Request, k: Annotated[int, Query(ge=1, le=len(service.classes))] = 1, explain: bool = False
    ):
        return await service.classify(request, k, explain)

    @app.get("/health")
    async def health() -> Health:
        return Health(status="ok", classes=service.classes, temperature=service.temperature)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics():
        return Response(generate_latest(service.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse)
    async def draw():
        return page

    return app

"""The service: HTTP around the queue. The event loop reads and writes; whatever computes has a thread of its own.

FastAPI describes the routes and serves the small ones. Requests for predictions pass it by (`Service.__call__`): on the
way through its layers one costs several times the event loop's time that its prediction in a batch does.
"""

import asyncio
import json
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from urllib.parse import parse_qsl

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mlpkit import __version__
from mlpkit.checks import check_positive
from mlpkit.words import short

from .batching import Batcher, Closed, Full, Late, checked
from .explain import pictures
from .inputs import ARRAYS, MOST_BYTES, Refused

MOST_SECONDS = 3_600  # that a request may wait
SLOW = 10.0  # seconds that a body may take to come
SOON = 0.05  # seconds after which somebody looks whether the client is still there
PREPARED = 64  # bodies that may wait to be decoded
FLAGS = {"true": True, "1": True, "false": False, "0": False}


def check_deadline(seconds, longest, wait=0.0, **queue):
    """Return a request's deadline in seconds. Raises TypeError or ValueError for a `Service`'s setting that is none."""
    checked(longest, wait, **queue)
    if not wait < check_positive("seconds", seconds) <= MOST_SECONDS:
        raise ValueError(f"seconds must be above wait, {wait:g}, and at most {MOST_SECONDS:,}, not {seconds:g}.")
    return seconds


class Service:
    """A network as an ASGI application.

    predictions: functions of images uint8 that return each class's probability, one for each worker. classes: their
    names. reader: makes images of bodies. seconds: a request's deadline. queue: a `Batcher`'s other arguments. Raises
    TypeError or ValueError for what is no setting.
    """

    def __init__(self, network, predictions, classes, reader, seconds, **queue):
        self.network, self.predictions, self.classes = network, predictions, classes
        self.reader, self.seconds, self.queue = reader, check_deadline(seconds, **queue), queue
        self.computing = ThreadPoolExecutor(1, "prepare")
        self.preparing, self.accepted, self.done = 0, 0, 0
        self.entering = 0  # requests whose tasks begin in this turn of the event loop
        self.refusals: dict[int, bytes] = {}  # by the seconds that they tell
        self.registry = CollectorRegistry()
        self.answered = Counter("mlpkit_requests", "Requests by HTTP status.", ["code"], registry=self.registry)
        self.refused = self.answered.labels(429)
        self.took = Histogram("mlpkit_seconds", "From the head of a request to its response.", registry=self.registry)
        sizes = [2**power for power in range(11)]
        self.batches = Histogram("mlpkit_batch_rows", "Images of a batch.", buckets=sizes, registry=self.registry)
        waiting = Gauge("mlpkit_waiting_rows", "Images in the queue.", registry=self.registry)
        waiting.set_function(lambda: self.batcher.waiting)
        self.others = _others(self)

    @asynccontextmanager
    async def running(self, _):
        """Have a queue while the server runs. At its end all that was accepted is computed."""
        self.loop = asyncio.get_running_loop()

        def watch(batch, _):
            self.batches.observe(sum(len(one.rows) for one in batch))

        self.batcher = Batcher(self.predictions, deliver=self.loop.call_soon_threadsafe, watch=watch, **self.queue)
        yield
        await self.loop.run_in_executor(None, self.batcher.close, self.seconds)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["path"] != "/classify":
            return await self.others(scope, receive, send)
        began = time.perf_counter()
        more: dict[str, str] = {}
        self.accepted += 1
        try:
            status, found = 200, await self.classify(scope, receive)
        except Refused as error:
            status, found, more = error.status, _problem(error), error.headers
        except Full as error:
            status, found, more = 429, _problem(error), {"retry-after": str(error.seconds)}
        except Late as error:
            status, found = 504, _problem(error)
        except Closed as error:
            status, found, more = 503, _problem(error), {"retry-after": "1", "connection": "close"}
        except Exception:  # a mistake of ours: it is told to whoever reads the log, and the service goes on
            logging.exception("a request to /classify failed")
            status, found = 500, json.dumps({"detail": "the service made a mistake, which is in its log."})
        self.answered.labels(status).inc()
        self.took.observe(time.perf_counter() - began)
        body = found.encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **more}
        heads = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": heads})
        await send({"type": "http.response.body", "body": body})
        self.done += 1

    async def classify(self, scope, receive):
        """Return the JSON of a request's predictions. Raises Refused, Full, Late or Closed."""
        if scope["method"] != "POST":
            raise Refused(405, "POST images to /classify.", {"allow": "POST"})
        if full := self.full():
            raise full
        k, explain = self._asked(scope["query_string"])
        headers = dict(scope["headers"])
        body = await read(headers, receive)
        kind = headers.get(b"content-type", b"").decode("latin-1")
        is_bytes = kind == ARRAYS  # nothing has to be computed then
        rows = self.reader.read(body, kind) if is_bytes else await self.compute(self.reader.read, body, kind)
        found = (await self.outputs(rows, receive)).tolist()
        if not all(math.isfinite(sum(row)) for row in found):
            raise Refused(500, "the network's outputs for this image are not finite: serve another network.")
        told = [self._answer(row, k) for row in found]
        if explain:
            labels = [self.classes.index(each["classes"][0]["name"]) for each in told]
            drawn = await self.compute(pictures, self.network, rows, labels)
            for each, (seen, because) in zip(told, drawn, strict=True):
                each |= {"seen": seen, "because": because}
        return json.dumps({"predictions": told})

    def enter(self):
        """Count a request that has no place in the queue yet: hundreds may come in one turn of the event loop."""
        if not self.entering:
            self.loop.call_soon(setattr, self, "entering", 0)
        self.entering += 1

    def full(self, ahead=0):
        """Return the Full that a request gets now, or None. ahead: requests before it that enter the queue soon."""
        return Full(1) if self.preparing >= PREPARED else self.batcher.full(ahead=ahead)

    def refusal(self, full):
        """Return the bytes of the response to a request that is refused, and count it."""
        self.accepted, self.done = self.accepted + 1, self.done + 1
        self.refused.inc()
        if full.seconds not in self.refusals:
            body = _problem(full)
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nretry-after: {full.seconds}"
            self.refusals[full.seconds] = f"HTTP/1.1 429 Too Many Requests\r\n{head}\r\n\r\n{body}".encode()
        return self.refusals[full.seconds]

    def _asked(self, query):
        """Return k and explain of a query string. Raises Refused."""
        given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {}
        k, explain = given.get("k", "1"), given.get("explain", "false")
        if not (k.isascii() and k.isdecimal() and len(k) < 5 and 1 <= int(k) <= len(self.classes)):
            raise Refused(422, f"k must be a whole number from 1 to {len(self.classes)}, not {short(k, 30)!r}.")
        if explain not in FLAGS:
            raise Refused(422, f"explain must be true or false, not {short(explain, 30)!r}.")
        return int(k), FLAGS[explain]

    def _answer(self, row, k):
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:k]
        return {"classes": [{"name": self.classes[label], "probability": row[label]} for label in best]}

    async def compute(self, function, *arguments):
        """Return what a function returns, called in a thread. Raises what it raises."""
        self.preparing += 1
        try:
            return await self.loop.run_in_executor(self.computing, function, *arguments)
        finally:
            self.preparing -= 1

    async def outputs(self, rows, receive):
        """Return each class's probability for images. What is late, or nobody waits for any more, is dropped."""
        future = self.loop.create_future()
        self.batcher.submit(rows, self.seconds, future)
        late = self.loop.call_later(self.seconds, _expire, future)
        look = self.loop.call_later(SOON, self._look, receive, future)
        try:
            return await future
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():  # not the request is cancelled: the server ends
                raise
            raise Refused(499, "the client is gone.") from None
        finally:
            late.cancel()
            look.cancel()

    def _look(self, receive, future):
        """Cancel a request once its client is gone."""

        async def gone():
            while (await receive())["type"] != "http.disconnect":
                pass
            future.cancel()

        looking = self.loop.create_task(gone())
        future.add_done_callback(lambda _: looking.cancel())


def _expire(future):
    if not future.done():
        future.set_exception(Late("there was no prediction before the deadline."))


def _problem(error):
    return json.dumps({"detail": str(error)})


async def read(headers, receive):
    """Return a request's body, which is looked at while it comes. Raises Refused where it is too large or too slow."""
    declared = headers.get(b"content-length", b"0")
    parts, n = [], int(declared) if declared.isdigit() and len(declared) < 19 else MOST_BYTES + 1
    n, more = (0, True) if n <= MOST_BYTES else (n, False)
    try:
        async with asyncio.timeout(SLOW):
            while more and n <= MOST_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(499, "the client is gone.")
                parts.append(message.get("body", b""))
                n, more = n + len(parts[-1]), message.get("more_body", False)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {SLOW:g} s.", {"connection": "close"}) from None
    if n > MOST_BYTES:
        raise Refused(413, f"a body has at most {MOST_BYTES:,} bytes.", {"connection": "close"})
    return b"".join(parts)


def _others(service):
    """Return what serves all other routes, and describes all of them."""
    app = FastAPI(title="mlpkit", version=__version__, lifespan=service.running, docs_url=None, redoc_url=None)
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/health")
    async def health() -> dict[str, str | list[str]]:
        return {"status": "ok", "classes": service.classes}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics():
        return Response(generate_latest(service.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse)
    async def draw():
        return page

    described = app.openapi()
    told = json.loads(files(__package__).joinpath("classify.json").read_text(encoding="utf-8"))
    told["paths"]["/classify"]["post"]["parameters"][0]["schema"]["maximum"] = len(service.classes)
    schemas, shape = told["components"]["schemas"], service.reader.shape
    pixels: dict = {"type": "integer", "minimum": 0, "maximum": 255}
    for size in reversed(shape[shape[0] == 1 :]):
        pixels = {"type": "array", "minItems": size, "maxItems": size, "items": pixels}
    schemas["Images"]["properties"]["images"] |= {"items": pixels, "maxItems": service.reader.most}
    schemas["Form"]["properties"]["picture"]["maxItems"] = service.reader.most
    described["paths"] |= told["paths"]
    described.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    return app

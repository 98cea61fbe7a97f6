"""An open-loop load: requests begin when a Poisson process says so, whether or not earlier ones have come back.

A closed loop, as `wrk` has one, sends its next request when the last one has come back: while a service stalls, it asks
for nothing, and so measures nothing. Here a request's latency counts from the moment at which it was to begin: what
waits for a connection waits on the clock.

`python -m experiments.serving.load '{"port": 8000, "rate": 500, "seconds": 5}' < body` prints what came back as JSON.
"""

import asyncio
import json
import sys
import time
from collections import deque
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram

SHARES = (50, 90, 99, 99.9, 100)  # percent


class Connection(asyncio.Protocol):
    """One connection, with at most one request under way. done: is called with the status, 0 for a broken one."""

    def connection_made(self, transport):
        self.transport, self.data = transport, b""
        self.done: Any = None

    def ask(self, request, done):
        self.done = done
        self.transport.write(request)

    def data_received(self, data):
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            self.data, done = b"", self.done
            done(int(head[9:12]))

    def connection_lost(self, error):
        if self.done:
            self.done(0)


async def load(request, port, rate, seconds, connections=512, seed=0):
    """Send `request`, bytes, `rate` times a second; return a dict: codes, and in us the latencies of status 200."""
    loop = asyncio.get_running_loop()
    free = deque([(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(connections)])
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))
    begin = time.perf_counter() + 0.1
    due = deque((begin + gaps.cumsum()).tolist())
    latencies = HdrHistogram(1, 60_000_000, 3)
    codes: dict[int, int] = {}

    def send(connection, start):
        def done(status):
            codes[status] = codes.get(status, 0) + 1
            if status == 200:
                latencies.record_value(int(1e6 * (time.perf_counter() - start)))
            connection.done = None
            if status:
                free.append(connection)

        connection.ask(request, done)

    last = due[-1] + 10
    while (due or len(free) < connections - codes.get(0, 0)) and time.perf_counter() < last:
        now = time.perf_counter()
        while due and due[0] <= now and free:
            send(free.popleft(), due.popleft())
        await asyncio.sleep(0.0005 if due else 0.01)
    found = {f"p{share:g}": latencies.get_value_at_percentile(share) for share in SHARES}
    took = time.perf_counter() - begin
    return {"offered": rate, "got": codes.get(200, 0) / took, "codes": codes, "unanswered": len(due), **found}


def post(body, kind="application/octet-stream", path="/classify"):
    """Return the bytes of a request."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


if __name__ == "__main__":
    import uvloop

    options = json.loads(sys.argv[1])
    kind = options.pop("kind", "application/octet-stream")
    print(json.dumps(uvloop.run(load(post(sys.stdin.buffer.read(), kind), **options))))

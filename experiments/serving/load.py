"""An open-loop load: requests begin when a Poisson process says so, whether or not earlier ones have come back.

A closed loop, as `wrk` has one, sends its next request when the last one has come back: while a service stalls, it asks
for nothing, and so measures nothing. Here a request's latency counts from the moment at which it was to begin: what
waits for a connection, or for this program, waits on the clock.

`python -m experiments.serving.load '{"port": 8000, "rate": 500, "seconds": 5}' < body` prints what came back as JSON.
"""

import json
import selectors
import socket
import sys
import time
from collections import deque
from contextlib import ExitStack

import numpy as np
from hdrh.histogram import HdrHistogram

SHARES = (50, 90, 99, 99.9, 100)  # percent
PAUSE = 0.0002  # seconds for which it sleeps when there is nothing to do: a selector's own wait is whole milliseconds


class Connection:
    """One connection, with at most one request under way, whose due time is `start`."""

    def __init__(self, port):
        self.socket, self.data, self.start = socket.create_connection(("127.0.0.1", port), timeout=10), b"", 0.0
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self):
        """Return the status of a response once it is whole, None before; 0 where there will be none."""
        try:
            more = self.socket.recv(65536)
        except OSError:
            more = b""
        if not more:
            return 0
        self.data += more
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return None
        self.data = b""
        return int(head[9:12])


def load(request, port, rate, seconds, connections=512, seed=0):
    """Send `request`, bytes, `rate` times a second; return a dict: codes, and in us the latencies of status 200."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        free = deque(Connection(port) for _ in range(connections))
        for each in free:
            stack.enter_context(each.socket)
            selector.register(each.socket, selectors.EVENT_READ, each)
        gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))
        begin = time.perf_counter() + 0.1
        due = deque((begin + gaps.cumsum()).tolist())
        found, took = _drive(request, selector, free, due, due[-1] + 10), time.perf_counter() - begin
    latencies, codes = HdrHistogram(1, 60_000_000, 3), {status: len(each) for status, each in found.items()}
    for latency in found.get(200, ()):
        latencies.record_value(max(1, int(1e6 * latency)))
    shares = {f"p{share:g}": latencies.get_value_at_percentile(share) for share in SHARES}
    return {"offered": rate, "got": codes.get(200, 0) / took, "codes": codes, "unanswered": len(due), **shares}


def _drive(request, selector, free, due, last):
    """Send what is due and receive what comes until all is done; return each status' latencies in seconds."""
    found: dict[int, list[float]] = {}
    total, gone = len(free), 0
    while (due or len(free) < total - gone) and (now := time.perf_counter()) < last:
        while due and due[0] <= now and free:
            connection = free.popleft()
            connection.start = due.popleft()
            connection.socket.sendall(request)
        ready = selector.select(0)
        if not ready:
            time.sleep(PAUSE)
        for key, _ in ready:
            connection, status = key.data, key.data.receive()
            if status is None:
                continue
            found.setdefault(status, []).append(time.perf_counter() - connection.start)
            if status in (0, 503):  # its service closes it
                selector.unregister(connection.socket)
                gone += 1
            else:
                free.append(connection)
    return found


def post(body, kind="application/octet-stream", path="/classify"):
    """Return the bytes of a request."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    kind = options.pop("kind", "application/octet-stream")
    print(json.dumps(load(post(sys.stdin.buffer.read(), kind), **options)))

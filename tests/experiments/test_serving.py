"""Queues as formulas have them, and a load that counts what a stall makes wait."""

import asyncio
import json
import time
from functools import partial

import numpy as np
import pytest

from experiments import batching
from experiments.lab import queueing
from mlpkit.serving.batching import Batcher


@pytest.mark.slow
def test_mean_waits_are_pollaczeks_and_khinchines():
    for busy in (0.2, 0.5, 0.8):
        came = queueing.arrivals(busy / 0.01, 200_000)
        waits = queueing.play(came, lambda n: 0.01, 1) - 0.01
        assert waits.mean() == pytest.approx(queueing.md1_wait(busy / 0.01, 0.01), rel=0.05)
    assert queueing.md1_wait(100, 0.01) == np.inf


def test_batches_settle_where_arithmetic_says():
    a, b, rate = 300e-6, 40e-6, 20_000
    came, sizes = queueing.arrivals(rate, 200_000), []
    queueing.play(came, lambda n: sizes.append(n) or a + b * n, 1000)
    assert np.mean(sizes) == pytest.approx(rate * a / (1 - rate * b), rel=0.05)


@pytest.mark.parametrize(("longest", "wait"), [(3, 0.0), (3, 0.02), (100, 0.005)])
def test_a_queue_that_is_played_is_the_queue_that_runs(longest, wait):
    """Requests that come in three heaps, to a worker whose batches take so long that the machine's noise is small."""
    came = np.array([0.0] * 4 + [0.3] * 2 + [0.6] * 7)
    played, sizes = [], []
    queueing.play(came, lambda n: played.append(n) or 0.05, longest, wait)

    async def main():
        loop = asyncio.get_running_loop()

        def predict(rows):
            sizes.append(len(rows))
            time.sleep(0.05)
            return rows

        batcher = Batcher([predict], longest, wait)
        for start in (0.0, 0.3, 0.6):
            with batcher._changed:  # all of a heap at the same moment
                for _ in range(int((came == start).sum())):
                    batcher.submit(np.zeros((1, 1)))
            await asyncio.sleep(0.3 if start < 0.6 else 0)
        assert await loop.run_in_executor(None, batcher.close, 20)

    asyncio.run(main())
    assert sizes == played


def test_the_record_of_a_small_plan_can_be_read():
    plan = batching.Plan("numba_conv", queues=((1, 0), (8, 0)), rates=(50, 100), seconds=0.2, rounds=1, samples=2)
    record = batching.measure(save=lambda record: None, progress=lambda what: None, plan=(plan,))
    rows, seconds = batching.curve(record, "numba_conv", "lenet5")
    assert list(rows) == list(batching.SIZES)
    assert (seconds > 0).all()
    assert set(batching.latency(record, 99, longest=8)) == {50, 100}
    assert batching.table(record).count("\n") == 4


def test_an_open_load_counts_what_a_stall_makes_wait():
    load = pytest.importorskip("experiments.serving.load", reason="no hdrhistogram here", exc_type=ImportError)
    body = json.dumps({}).encode()
    response = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    async def main():
        stalled = asyncio.Event()

        async def serve(reader, writer):
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                    if not stalled.is_set() and loop.time() > begin + 0.3:
                        stalled.set()
                        time.sleep(0.4)  # the whole service stops
                    writer.write(response)
            except asyncio.IncompleteReadError:
                writer.close()

        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        begin = loop.time()
        port = server.sockets[0].getsockname()[1]
        asked = partial(load.load, load.post(b"x"), port, 200, 1.0, connections=20)
        return await loop.run_in_executor(None, asked)

    found = asyncio.run(main())
    assert found["codes"] == {200: 200}
    assert found["p90"] > 100_000  # of 200 requests some 80 came in the stall; a closed loop has one that was slow
    assert found["p100"] >= 390_000

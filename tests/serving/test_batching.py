"""The queue: batches, order, deadlines, room, cancelled requests, and an end at which nobody is forgotten."""

import asyncio
import math
import threading
import time
from concurrent.futures import CancelledError, Future, wait

import numpy as np
import pytest

from mlpkit.serving import batching
from mlpkit.serving.batching import Batcher, Closed, Full, Late, Request


class Gate:
    """A prediction that doubles its rows, notes the size of each batch, and waits while it is shut."""

    def __init__(self, is_open=True):
        self.sizes, self.open, self.began = [], threading.Event(), threading.Event()
        if is_open:
            self.open.set()

    def __call__(self, rows):
        self.sizes.append(len(rows))
        self.began.set()
        assert self.open.wait(20)
        return rows * 2


def rows(*values):
    return np.array(values, np.float32)[:, None]


@pytest.fixture
def shut():
    """A gate that is shut, and a queue of which one request is already at it."""
    gate = Gate(is_open=False)
    batcher = Batcher([gate], 4, capacity=6)
    first = batcher.submit(rows(1))
    assert gate.began.wait(20)
    yield gate, batcher, first
    gate.open.set()
    assert batcher.close(20)


def test_each_request_gets_the_outputs_of_its_own_rows():
    batcher = Batcher([lambda x: x * 2], 8)
    sizes = np.random.default_rng(0).integers(1, 9, 200)
    sent = [np.random.default_rng(i).normal(size=(n, 3)) for i, n in enumerate(sizes)]
    found = [batcher.submit(each) for each in sent]
    assert batcher.close(20)
    for each, future in zip(sent, found, strict=True):
        np.testing.assert_array_equal(future.result(0), each * 2)


def test_what_waits_goes_into_one_batch_in_its_order_and_never_more_than_the_longest(shut):
    gate, batcher, _ = shut
    done = []
    for value in range(2, 8):
        batcher.submit(rows(value)).add_done_callback(lambda _, value=value: done.append(value))
    gate.open.set()
    assert batcher.close(20)
    assert gate.sizes == [1, 4, 2]
    assert done == [2, 3, 4, 5, 6, 7]


def test_a_request_of_many_rows_is_not_torn_and_waits_for_a_batch_of_its_own(shut):
    gate, batcher, _ = shut
    three, two = batcher.submit(rows(1, 2, 3)), batcher.submit(rows(4, 5))
    gate.open.set()
    assert two.result(20).tolist() == [[8], [10]]
    assert three.result(0).tolist() == [[2], [4], [6]]
    assert gate.sizes == [1, 3, 2]


def test_rows_that_no_batch_has_room_for_are_refused_at_once(shut):
    _, batcher, _ = shut
    for wrong in (rows(1, 2, 3, 4, 5), np.empty((0, 1))):
        with pytest.raises(ValueError, match="1 to 4 rows"):
            batcher.submit(wrong)


def test_a_queue_without_room_refuses_and_says_when_to_come_again(shut):
    gate, batcher, _ = shut
    kept = [batcher.submit(rows(1, 2)) for _ in range(2)]
    with pytest.raises(Full):
        batcher.submit(rows(1, 2, 3))  # one of them would fit
    kept += [batcher.submit(rows(1, 2))]
    with pytest.raises(Full) as error:
        batcher.submit(rows(1))
    assert error.value.seconds >= 1
    gate.open.set()
    wait(kept, 20)
    assert batcher.submit(rows(7)).result(20).tolist() == [[14]]


def test_cancelled_requests_leave_no_work_and_make_room(shut):
    gate, batcher, _ = shut
    gone = [batcher.submit(rows(1, 2)) for _ in range(3)]
    assert all(each.cancel() for each in gone)
    kept = batcher.submit(rows(3))  # there was no room, had they stayed
    assert batcher.waiting == 1
    gate.open.set()
    assert kept.result(20).tolist() == [[6]]
    assert gate.sizes == [1, 1]
    assert batcher.under_way == 0
    with pytest.raises(CancelledError):
        gone[0].result(0)


def test_a_request_beyond_its_deadline_is_told_so_and_not_computed(shut):
    gate, batcher, _ = shut
    late, kept = batcher.submit(rows(1), 0.01), batcher.submit(rows(2), 20)
    time.sleep(0.02)
    gate.open.set()
    with pytest.raises(Late, match="deadline"):
        late.result(20)
    assert kept.result(20).tolist() == [[4]]
    assert gate.sizes == [1, 1]


def test_late_requests_make_room_too(shut):
    _, batcher, _ = shut
    late = [batcher.submit(rows(1, 2), 0.01) for _ in range(3)]
    time.sleep(0.02)
    assert batcher.submit(rows(3)) is not None
    with pytest.raises(Late):
        late[0].result(20)


@pytest.fixture(autouse=True)
def long_while(monkeypatch):
    monkeypatch.setattr(batching, "WHILE", 30.0)  # a busy machine is never that late


def stay(batcher, *seconds, took=0.001):
    """Let batches of one request, which came so long ago, have their outputs, the last one when a while is over."""
    for each in seconds:
        batcher.under_way += 1
        batcher._judged = time.monotonic() - (batching.WHILE if each is seconds[-1] else 0)
        came = time.monotonic() - each
        batcher._settle([Request(rows(1), Future(), came, math.inf)], rows(2), None, took, time.monotonic())


def test_the_room_shrinks_by_as_much_as_the_shortest_stay_of_a_while_is_too_long():
    batcher = Batcher([lambda x: x], 64, capacity=936, target=0.02)
    assert batcher.limit == 1000
    stay(batcher, 5.0, 0.202, 3.0)  # the shortest is 10 times the target, beside two batches
    assert batcher.limit == pytest.approx(100, rel=0.1)
    stay(batcher, 5.0, 0.001, 3.0)  # a burst: some are soon done
    assert batcher.limit == pytest.approx(100, rel=0.1)
    assert batcher.close(20)


def test_a_lucky_batch_hides_no_queue_that_stands():
    batcher = Batcher([lambda x: x], 64, capacity=936, target=0.02)
    stay(batcher, 0.001, *np.linspace(0.202, 0.203, 7))
    assert batcher.limit == pytest.approx(100, rel=0.1)
    stay(batcher, *np.linspace(0.202, 0.203, 7), 0.001, 0.002, 0.003)
    assert batcher.limit == pytest.approx(100, rel=0.1)
    assert batcher.close(20)


def test_who_is_on_the_way_to_the_queue_takes_room_there():
    batcher = Batcher([lambda x: x], 64, target=1e-3)
    stay(batcher, 10.0)
    assert batcher.full(ahead=15) is None
    assert batcher.full(ahead=16)
    assert batcher.close(20)


def test_a_moment_in_which_all_stood_still_takes_no_room():
    batcher = Batcher([lambda x: x], 64, capacity=936, target=0.02)
    batcher._judged -= 3 * batching.WHILE  # nothing was settled meanwhile
    batcher.under_way = 1
    now = time.monotonic()
    batcher._settle([Request(rows(1), Future(), now - 1.0, math.inf)], rows(2), None, 0.001, now)
    assert batcher.limit == 1000
    assert batcher.close(20)


def test_bursts_that_are_refused_in_part_get_more_room_though_nobody_comes_between():
    batcher = Batcher([lambda x: x], 64, capacity=936, target=0.02)
    batcher.limit, batcher._refused = 100, True
    batcher._judged -= 3 * batching.WHILE
    batcher.under_way = 1
    now = time.monotonic()
    batcher._settle([Request(rows(1), Future(), now, math.inf)], rows(2), None, 0.001, now)
    assert batcher.limit == 110
    assert batcher.close(20)


def test_outputs_that_wait_until_they_are_taken_count_twice():
    batcher = Batcher([lambda x: x], 64, capacity=936, target=0.02)
    batcher._judged -= batching.WHILE
    batcher.under_way = 1
    ended = time.monotonic() - 0.1
    batcher._settle([Request(rows(1), Future(), ended, math.inf)], rows(2), None, 0.0, ended)
    assert batcher.limit == pytest.approx(100, rel=0.1)
    assert batcher.close(20)


def test_the_room_grows_by_a_tenth_a_while_as_long_as_there_is_too_little_and_has_a_least_size():
    gate = Gate(is_open=False)
    batcher = Batcher([gate], 4, capacity=60, target=1e-3)
    stay(batcher, 10.0)
    assert batcher.limit == 16
    kept = [batcher.submit(rows(value)) for value in range(16)]
    with pytest.raises(Full):
        batcher.submit(rows(1))
    assert batcher.full()
    stay(batcher, 0.0)
    assert (batcher.limit, batcher.full()) == (17, None)
    stay(batcher, 0.0)  # nobody was refused since
    assert batcher.limit == 17
    gate.open.set()
    wait(kept, 20)
    assert batcher.close(20)


def test_a_slow_prediction_has_the_room_that_its_batches_need():
    batcher = Batcher([lambda x: x], 64, capacity=936, target=0.02)
    stay(batcher, 2.01, took=1.0)
    assert batcher.limit == 1000
    assert batcher.close(20)


def test_a_request_of_more_rows_than_there_is_room_for_is_taken_if_it_is_alone():
    batcher = Batcher([lambda x: x], 64, target=1e-4)
    stay(batcher, 10.0)
    assert batcher.submit(np.ones((64, 1))).result(20).shape == (64, 1)
    assert batcher.close(20)


def test_a_wait_fills_a_batch_but_lasts_no_longer_than_it_says():
    gate = Gate()
    batcher = Batcher([gate], 3, wait=0.2)
    start = time.perf_counter()
    wait([batcher.submit(rows(value)) for value in (1, 2, 3)], 20)
    full = time.perf_counter() - start
    wait([batcher.submit(rows(4))], 20)
    alone = time.perf_counter() - start - full
    assert gate.sizes == [3, 1]
    assert full < 0.2 <= alone + 0.01
    assert batcher.close(20)


def test_at_its_end_all_that_was_accepted_is_computed_and_nothing_more_is_accepted(shut):
    gate, batcher, first = shut
    others = [batcher.submit(rows(value)) for value in (2, 3, 4, 5)]
    assert not batcher.close(0.05)
    with pytest.raises(Closed):
        batcher.submit(rows(9))
    gate.open.set()
    assert batcher.close(20)
    assert [future.result(0).tolist() for future in (first, *others)] == [[[2 * n]] for n in range(1, 6)]


def test_an_end_does_not_wait_for_company():
    batcher = Batcher([lambda x: x], 8, wait=60)
    future = batcher.submit(rows(1))
    assert batcher.close(20)
    assert future.result(0).tolist() == [[1]]


def test_a_prediction_that_fails_fails_its_batch_alone():
    def predict(x):
        if (x < 0).any():
            raise ArithmeticError("below zero")
        return x

    batcher = Batcher([predict], 1)
    bad, good = batcher.submit(rows(-1)), batcher.submit(rows(1))
    with pytest.raises(ArithmeticError, match="below zero"):
        bad.result(20)
    assert good.result(20).tolist() == [[1]]
    assert batcher.close(20)


def test_a_worker_for_each_prediction_works_at_the_same_time():
    gates = [Gate(is_open=False), Gate(is_open=False)]
    batcher = Batcher(gates, 1)
    futures = [batcher.submit(rows(1)), batcher.submit(rows(2))]
    assert all(gate.began.wait(20) for gate in gates)
    for gate in gates:
        gate.open.set()
    assert [future.result(20).item() for future in futures] == [2, 4]
    assert batcher.close(20)


@pytest.mark.parametrize("seed", range(3))
def test_of_thousands_from_many_threads_each_is_answered_once_whatever_is_cancelled(seed):
    batcher = Batcher([lambda x: x + 1, lambda x: x + 1], 16, capacity=100_000)
    found, lock = {}, threading.Lock()

    def client(number):
        rng = np.random.default_rng([seed, number])
        for i in range(200):
            value = 1000 * number + i
            future = batcher.submit(rows(value))
            cancelled = rng.random() < 0.2 and future.cancel()
            with lock:
                found[value] = future, cancelled

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batcher.close(30)
    assert batcher.waiting == batcher.under_way == 0
    assert len(found) == 1600
    for value, (future, cancelled) in found.items():
        assert future.cancelled() == cancelled
        assert cancelled or future.result(0).item() == value + 1


def test_futures_of_an_event_loop_are_settled_in_its_own_thread():
    async def main():
        loop = asyncio.get_running_loop()
        batcher = Batcher([lambda x: x * 2], 8, deliver=loop.call_soon_threadsafe)
        futures = [loop.create_future() for _ in range(20)]
        threads = set()
        for value, future in enumerate(futures):
            future.add_done_callback(lambda _: threads.add(threading.get_ident()))
            batcher.submit(rows(value), future=future)
        gone = loop.create_future()
        batcher.submit(rows(1), future=gone)
        gone.cancel()
        found = await asyncio.wait_for(asyncio.gather(*futures), 20)
        assert await loop.run_in_executor(None, batcher.close, 20)
        return [each.item() for each in found], threads

    found, threads = asyncio.run(main())
    assert found == [2 * value for value in range(20)]
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([], 4), "predictions"),
        (([len], 0), "longest"),
        (([len], 4, -1), "wait"),
        (([len], 4, 0, 3), "capacity"),
        (([len], 4, 0, 9, 0), "target"),
    ],
)
def test_a_queue_that_could_not_work_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Batcher(*arguments)

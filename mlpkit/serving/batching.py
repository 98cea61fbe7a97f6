"""Dynamic batching: requests wait in one queue, and a worker takes as many of them as fit into one prediction.

A prediction of 32 images takes far less than 32 of one image. So a worker that is free takes all that wait, at most
`longest` rows. Nobody has to wait for a batch to fill: while one is computed, the next one gathers, the longer the more
requests come. With `wait` above 0 a worker gives the first one company for at most so many seconds.

There is no HTTP in here and no event loop: a queue, its threads, and what they promise.

- Each request gets the outputs of its own rows, and requests are taken in the order in which they came.
- A request that finds no room is refused at once, with the seconds after which there may be some. How much room there
  is adapts: who is accepted is answered soon, however many ask (`Batcher._adapt`).
- One that has waited beyond its deadline, or that was cancelled, is dropped before it is computed.
- After `close` no request is accepted, and each that was accepted gets its outputs.
"""

import math
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlpkit.checks import check_count, check_not_negative, check_positive

LEAST, GROWS = 16, 10  # rows for which there is room always; by which share of it the room grows
WHILE, SHORTER = 0.1, 4  # seconds whose stays are looked at; one in so many of these is shorter than what counts


class Full(Exception):
    """The queue has no room. seconds: after how long it may have some, a whole number from 1 on."""

    def __init__(self, seconds):
        self.seconds = seconds
        super().__init__(f"too many requests are waiting: try again in {seconds} s.")


class Late(Exception):
    """A request waited beyond its deadline, and was not computed."""


class Closed(Exception):
    """The queue is closed: the service is about to end."""


@dataclass(eq=False)
class Request:
    """Rows (n, ...) that wait for their outputs (n, ...), which `future` will have. came, deadline: monotonic times."""

    rows: np.ndarray
    future: Any
    came: float
    deadline: float


def checked(longest, wait=0.0, capacity=1024, target=None):
    """Return a `Batcher`'s settings. Raises TypeError or ValueError for what is none."""
    longest, wait = check_count("longest", longest), check_not_negative("wait", wait)
    target = math.inf if target is None else check_positive("target", target)
    return longest, wait, check_count("capacity", capacity, longest), target


class Batcher:
    """One queue, and a thread for each prediction.

    predictions: functions of rows (n, ...) that return outputs (n, ...), n <= longest; each is called in a thread of
    its own, one batch at a time. longest: rows of the largest batch. wait: seconds for which the first one of a batch
    waits for others at most. capacity: rows that may wait at most. target: seconds that a request should stay at most,
    beside the time of two batches, the one before it and its own; None: however long. deliver: how a thread hands over
    results, a function that calls its first argument with the others: an event loop's `call_soon_threadsafe`. watch: is
    called with each batch's requests and the seconds of its prediction.
    """

    def __init__(self, predictions, longest, wait=0.0, capacity=1024, target=None, deliver=None, watch=None):
        self.longest, self.wait, self.capacity, self.target = checked(longest, wait, capacity, target)
        self.deliver = deliver or (lambda call, *arguments: call(*arguments))
        self.watch = watch or (lambda requests, seconds: None)
        self.waiting = 0  # rows in the queue
        self.under_way = 0  # rows that were accepted and have no outputs yet
        self.limit = self.most = self.capacity + self.longest * len(predictions)  # rows that may be under way
        self._judged, self._refused = time.monotonic(), False  # since when stays are looked at; was somebody refused?
        self._stays: list[float] = []
        self.row_seconds = 0.0  # a row's share of recent batches
        self._queue: deque[Request] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._workers = [threading.Thread(target=self._work, args=(each,), daemon=True) for each in predictions]
        check_count("predictions", len(self._workers))
        for worker in self._workers:
            worker.start()

    def submit(self, rows, seconds=math.inf, future=None):
        """Put rows (n, ...) into the queue, and return the future of their outputs (n, ...).

        seconds: for how long they may wait. future: a `concurrent.futures.Future`, or an event loop's; a new one of the
        first kind where None. Raises Full or Closed, and ValueError for rows that no batch has room for.
        """
        n, now = len(rows), time.monotonic()
        if not 1 <= n <= self.longest:  # else it would wait for ever
            raise ValueError(f"a request has 1 to {self.longest} rows, not {n}: send them in parts.")
        check_positive("seconds", min(seconds, 1e9))
        future = Future() if future is None else future
        with self._changed:
            if not self._open:
                raise Closed("the service is about to end: ask another one.")
            if not self._fits(n):
                self._forget(now)
            if not self._fits(n):
                raise self.full(n)
            self._queue.append(Request(rows, future, now, now + seconds))
            self.waiting += n
            self.under_way += n
            self._changed.notify()
        return future

    def _fits(self, n, ahead=0):
        under_way = self.under_way + ahead
        return self.waiting + ahead + n <= self.capacity and (not under_way or under_way + n <= self.limit)

    def full(self, n=1, ahead=0):
        """Return the Full that a request of n rows would get, or None. ahead: rows that will be there before it."""
        if self._fits(n, ahead):
            return None
        self._refused = True
        return Full(max(1, math.ceil(self.waiting * self.row_seconds / len(self._workers))))

    def close(self, seconds=None):
        """Accept no more requests; return whether all that were accepted are done within so many seconds."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        end = None if seconds is None else time.monotonic() + seconds
        for worker in self._workers:
            worker.join(None if end is None else max(0, end - time.monotonic()))
        return not any(worker.is_alive() for worker in self._workers)

    def _forget(self, now):
        """Drop requests that nobody waits for any more, to make room."""
        kept: deque[Request] = deque()
        late = []
        for one in self._queue:
            if one.deadline >= now and not one.future.cancelled():
                kept.append(one)
                continue
            self.waiting -= len(one.rows)
            if _begin(one.future):
                late.append(one)
            else:
                self.under_way -= len(one.rows)
        self._queue = kept
        if late:
            self.deliver(self._settle, late, None, _late())

    def _take(self):
        """Return the requests of the next batch, and those that are late; None once the queue is closed and empty."""
        with self._changed:
            while not (self._queue and self._is_due(time.monotonic())):
                if not self._queue and not self._open:
                    return None
                due = self._queue[0].came + self.wait - time.monotonic() if self._queue else None
                self._changed.wait(due)
            batch: list[Request] = []
            late: list[Request] = []
            rows, now = 0, time.monotonic()
            while self._queue and rows + len(self._queue[0].rows) <= self.longest:
                one = self._queue.popleft()
                self.waiting -= len(one.rows)
                if not _begin(one.future):  # cancelled while it waited: there is nothing to do
                    self.under_way -= len(one.rows)
                    continue
                (late if one.deadline < now else batch).append(one)
                rows += 0 if one.deadline < now else len(one.rows)
            if self._queue:
                self._changed.notify()  # another worker may be free
            return batch, late

    def _is_due(self, now):
        return not self._open or self.waiting >= self.longest or now >= self._queue[0].came + self.wait

    def _work(self, predict):
        """Take batches and deliver their outputs until the queue is closed and empty."""
        while (taken := self._take()) is not None:
            batch, late = taken
            if late:
                self.deliver(self._settle, late, None, _late())
            if not batch:
                continue
            start, outputs, error = time.perf_counter(), None, None
            try:
                outputs = predict(np.concatenate([one.rows for one in batch]) if batch[1:] else batch[0].rows)
            except Exception as raised:  # is told to those who asked, and the worker goes on
                error = raised
            took = time.perf_counter() - start
            a_row = took / sum(len(one.rows) for one in batch)
            self.row_seconds += 0.1 * (a_row - self.row_seconds) if self.row_seconds else a_row
            self.watch(batch, took)
            self.deliver(self._settle, batch, outputs, error, took, time.monotonic())

    def _settle(self, requests, outputs, error, took=0.0, ended=None):
        """Give each request the outputs of its rows, or the error. took, ended: their prediction's seconds, its end."""
        with self._changed:
            self.under_way -= sum(len(one.rows) for one in requests)
            if ended is not None:
                self._adapt(requests[0].came, took, ended)
        start = 0
        for one in requests:
            end = start + len(one.rows)
            if one.future.done():  # cancelled meanwhile
                pass
            elif error is not None:
                one.future.set_exception(error)
            else:
                one.future.set_result(outputs[start:end])
            start = end

    def _adapt(self, came, took, ended):
        """Look whether a queue stands; make less room at once where it does, more by and by where one was refused.

        A queue that stands is one in which even short stays of a while are too long (CoDel: Nichols and Jacobson 2012):
        a long one alone may be a burst, or a machine that did something else. The shortest one alone may be luck: what
        counts is the one that a quarter is below. Where r a second leave, n stay for n / r seconds (Little's law): so
        the room shrinks by as much as that stay is too long. How long outputs waited until they were taken counts
        twice: as long waits what comes, in a socket, where nobody sees it.
        """
        now, lasts = time.monotonic(), max(WHILE, took)
        self._stays.append((now - came) + (now - ended) - self.wait - 2 * took)
        if now < self._judged + lasts:
            return
        stay = sorted(self._stays)[len(self._stays) // SHORTER]
        if stay > self.target:
            if now <= self._judged + 2 * lasts:  # else nobody came, or all stood still: one stay tells of no queue
                self.limit = max(LEAST, int(self.limit * self.target / stay))
        elif self._refused:
            self.limit = min(self.most, self.limit + max(1, self.limit // GROWS))
        self._judged, self._stays, self._refused = now, [], False


def _late():
    return Late("it waited beyond its deadline, and was not computed.")


def _begin(future):
    """Return whether somebody still waits for a future; from now on one of `concurrent.futures` can't be cancelled."""
    begin = getattr(future, "set_running_or_notify_cancel", None)
    return begin() if begin else not future.cancelled()

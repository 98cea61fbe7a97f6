"""Waiting in a queue, by formula where there is one, and by playing it through where there is none."""

import numpy as np


def md1_wait(rate, seconds):
    """Return the mean seconds that a request waits for a server which takes `seconds` for each: the M/D/1 queue.

    rate: requests a second that come by chance (Poisson). Pollaczek and Khinchine: r s / (2 (1 - r)), r = rate s the
    share of the time in which the server works; from r = 1 on the queue grows without end: infinity.
    """
    busy = rate * seconds
    return busy * seconds / (2 * (1 - busy)) if busy < 1 else np.inf


def arrivals(rate, n, seed=0):
    """Return the times (n,) at which n requests come, `rate` a second on average, by chance."""
    return np.random.default_rng(seed).exponential(1 / rate, n).cumsum()


def play(came, seconds_of, longest, wait=0.0):
    """Return the latencies (n,) of requests that come at the times `came` (n,) to one worker, as `Batcher` has it.

    seconds_of(m): how long a batch of m takes. The worker takes all that wait, at most `longest`, once it is free; with
    fewer it waits until the first of them has waited for `wait` seconds.
    """
    latencies, free, first = np.empty(len(came)), 0.0, 0
    while first < len(came):
        start = max(free, came[first])
        full = came[first + longest - 1] if first + longest <= len(came) else np.inf
        start = max(start, min(full, came[first] + wait))
        last = min(np.searchsorted(came, start, side="right"), first + longest)
        free = start + seconds_of(last - first)
        latencies[first:last] = free - came[first:last]
        first = last
    return latencies

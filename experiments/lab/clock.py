"""Read the clock: of the host, of the GPU, and of several in turns, so that a busy moment meets all of them.

A call of CuPy returns when its work is asked for, not when it is done. So there are three times of it: until the call
returns, until the GPU is done, and the GPU's own, which two events on its stream tell. The last is only right while the
GPU has no need to wait for the host: `device_us` puts the events behind a kernel that keeps it busy until all has been
asked for.
"""

import time
from functools import cache

import numpy as np

from mlpkit import kernels


def seconds_of(call, *arguments, times=1):
    """Return the seconds of one call, as the mean of so many."""
    start = time.perf_counter()
    for _ in range(times):
        call(*arguments)
    return (time.perf_counter() - start) / times


def seconds_until_done(engine, call):
    """Return the seconds of a call until an engine has done what it asked for, and what the call returned."""
    engine.synchronize()
    start = time.perf_counter()
    result = call()
    engine.synchronize()
    return time.perf_counter() - start, result


def steps_in(seconds, once, most=100):
    """Return how many steps of `once` seconds each make a sample of so many seconds: from 1 to `most`, if not None."""
    steps = int(seconds / max(once, 1e-9))
    return max(1, steps if most is None else min(most, steps))


def in_turns(calls, rounds, settle=None, keep=None):
    """Return {name: samples}, taken in turns: each round takes one sample of each, in the order of `calls`.

    calls: {name: function that takes a sample and returns it}; who raises StopIteration takes no more. rounds: how many
    there are, or {name: how many of its samples}. settle(name): is called before each sample. keep(name, sample): is
    called after each, to save it at once.
    """
    samples: dict = {name: [] for name in calls}
    left = dict(rounds) if isinstance(rounds, dict) else dict.fromkeys(calls, rounds)
    while any(count > 0 for count in left.values()):
        for name in [name for name, count in left.items() if count > 0]:
            try:
                if settle:
                    settle(name)
                sample = calls[name]()
            except StopIteration:
                left[name] = 0
                continue
            left[name] -= 1
            samples[name].append(sample)
            if keep:
                keep(name, sample)
    return samples


# On a GPU


def asked_us(call, times=1):
    """Return the host's microseconds for a call, until it returns: the mean of so many, asked for without a pause."""
    _wait_for_stream()
    asked = seconds_of(call, times=times)
    _wait_for_stream()
    return asked * 1e6


def waited_us(call, times=1):
    """Return the microseconds of a call until the GPU is done, the mean of so many: what a program has to wait."""
    _wait_for_stream()
    start = time.perf_counter()
    for _ in range(times):
        call()
    _wait_for_stream()
    return (time.perf_counter() - start) / times * 1e6


def called_and_done_us(call, times=1):
    """Return the microseconds until all the calls have returned, and until the GPU is done in all of its streams."""
    import cupy as cp

    device = cp.cuda.Device()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    called = time.perf_counter()
    device.synchronize()
    return (called - start) * 1e6, (time.perf_counter() - start) * 1e6


def events_us(call, times=1):
    """Return the microseconds between an event before the calls and one after them, for each: on the GPU's clock."""
    import cupy as cp

    begin, end = cp.cuda.Event(), cp.cuda.Event()
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return cp.cuda.get_elapsed_time(begin, end) / times * 1e3


def device_us(call, times=1):
    """Return the GPU's microseconds for a call, the mean of so many, all asked for while the GPU was kept busy.

    The calls have to be few enough for the GPU's queue, which takes about a thousand kernels.
    """
    keep_busy(2 * times * asked_us(call, times) + 100)
    return events_us(call, times)


def recorded(call, times=1):
    """Return so many calls as a graph, whose `launch` runs them one after another on the current stream."""
    import cupy as cp

    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(cp.cuda.runtime.streamCaptureModeRelaxed)  # libraries touch other streams, ask for memory
        try:
            for _ in range(times):
                call()
        finally:
            graph = stream.end_capture()
    return graph


def quick_us(call, best=float("inf"), most=10, fill_us=1000.0):
    """Return the microseconds of a call, the least of three looks at a graph of up to `most` calls, about `fill_us`.

    The first call is not counted: it may compile. best: a call that takes more than three times as long is looked at
    once, by itself.
    """
    call()
    once = min(events_us(call), events_us(call))
    if once > 3 * best + 50:
        return once
    times = int(max(1, min(most, fill_us // once)))
    graph = recorded(call, times)
    graph.launch()
    return min(events_us(graph.launch) for _ in range(3)) / times


def keep_busy(us):
    """Ask for a kernel that keeps the GPU busy for so many microseconds, from when it begins."""
    _kernel("wait")((1,), (1,), (np.int64(1000 * us),))


def nothing():
    """Launch a kernel that does nothing."""
    _kernel("nothing")((1,), (32,), ())


@cache
def _kernel(name):
    return kernels.load("launches").get_function(name)


def _wait_for_stream():
    import cupy as cp

    cp.cuda.get_current_stream().synchronize()

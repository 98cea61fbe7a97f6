"""What a processor can do at most: multiply-adds that never leave its registers, and bytes that only pass by.

The two rates of the roofline of Williams, Waterman and Patterson (2009), both found by running them.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Barrier
from typing import Any

import numpy as np
from numba import njit

from experiments.lab import quiet
from experiments.lab.fma import FMA_FLOPS, fma
from mlpkit.words import counted


def peak(threads=1, flops=10**10):
    """Return GFLOP/s of float32 multiply-adds that never leave the registers, in `threads` threads at once.

    flops: how many operations each thread does. A multiply-add counts as two.
    """
    steps = max(1, flops // FMA_FLOPS)
    seconds = _together(threads, lambda: partial(fma, steps))
    return threads * steps * FMA_FLOPS / seconds / 1e9


def peaks(samples, flops, progress):
    """Yield a run of a record for each number of threads: samples of the peak, in GFLOP/s."""
    for threads in quiet.thread_counts():
        progress(f"peak, {counted(threads, 'thread')}")
        peak(threads, flops=1)  # compiles
        yield {"kind": "peak", "threads": threads, "samples_gflops": [peak(threads, flops) for _ in range(samples)]}


@njit(nogil=True)
def copy(a, b, c, times):
    """`a = b`, so many times over."""
    for _ in range(times):
        for i in range(a.size):
            a[i] = b[i]


@njit(nogil=True)
def triad(a, b, c, times):
    """`a = b + 3 c`, so many times over: the kernel that McCalpin's STREAM (1995) is known for."""
    for _ in range(times):
        for i in range(a.size):
            a[i] = b[i] + np.float32(3) * c[i]


STREAMS: dict[str, tuple[Any, int]] = {"copy": (copy, 2), "triad": (triad, 3)}  # (kernel, arrays that it touches)


def bandwidth(nbytes, kernel="triad", threads=1, traffic=4 * 10**9):
    """Return GB/s that `kernel` moves over float32 arrays of `nbytes` in all, shared out to `threads` threads.

    What is counted is what the program reads and writes, as STREAM does: a cache that has to read a line before it can
    write it moves more. traffic: how many bytes to move, the same ones again and again.
    """
    function, streams = STREAMS[kernel]
    n = max(1, nbytes // (4 * streams * threads))
    times = max(1, traffic // (4 * streams * threads * n))

    def prepare():
        arrays = [quiet.at_a_line(np.ones(n, np.float32)) for _ in range(streams)]
        arrays += arrays[-1:] * (3 - streams)
        function(*arrays, 1)
        return partial(function, *arrays, times)

    return threads * times * 4 * streams * n / _together(threads, prepare) / 1e9


def bandwidths(samples, sizes, traffic, progress):
    """Yield a run of a record for each number of threads, kernel and size in bytes: samples of bandwidth, in GB/s."""
    for threads in quiet.thread_counts():
        for kernel in STREAMS:
            for nbytes in sizes:
                progress(f"bandwidth of {kernel}, {counted(threads, 'thread')}, {nbytes // 1024:,} KiB")
                rates = [bandwidth(nbytes, kernel, threads, traffic) for _ in range(samples)]
                names = {"kind": "bandwidth", "kernel": kernel, "threads": threads, "bytes": nbytes}
                yield names | {"samples_gbps": rates}


def _together(threads, prepare):
    """Return the seconds that so many threads take, from a common start until the last is done.

    prepare: called in each thread before the start; returns the call to time, which has to release the GIL.
    """
    gate = Barrier(threads + 1, timeout=60)

    def work():
        call = prepare()
        gate.wait()  # ready
        gate.wait()  # go
        call()

    with ThreadPoolExecutor(threads) as pool, ExitStack() as at_end:
        at_end.callback(gate.abort)  # after Ctrl-C nobody waits any longer
        futures = [pool.submit(work) for _ in range(threads)]
        gate.wait()
        start = time.perf_counter()  # before the gate opens: afterwards this thread might have to wait for a core
        gate.wait()
        for future in futures:
            future.result()
        return time.perf_counter() - start

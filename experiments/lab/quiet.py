"""A machine as a measurement wants it: so many threads, none of them still spinning, arrays at a cache line."""

import time
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

from mlpkit import machine


def thread_counts():
    """Return the numbers of threads to measure: one, and one a core."""
    return sorted({1, machine.cores()})


@contextmanager
def with_threads(threads):
    """Let BLAS, and Numba's parallel loops, use so many threads, or as many as there are."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        with ThreadpoolController().limit(limits=threads, user_api="blas"):
            yield
    finally:
        numba.set_num_threads(before)


def at_a_line(array):
    """Return a contiguous copy of an array that begins at a cache line, so that no vector straddles two."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    copied = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def rest(longest=0.3, look_every=0.002):
    """Wait until no thread of this process computes or spins, at most `longest` seconds.

    The threads of OpenBLAS and of OpenMP spin while they wait for more work: for some time after their last they take a
    core from whoever is measured next.
    """
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(look_every)
        if time.process_time() - before < look_every / 4:
            return


def settle(call, seconds=0.1):
    """Wait until other threads are at rest, then call again and again for so long: before several cores are timed.

    Threads that wake together may wake on one core, and it takes the system some time to part them.
    """
    rest()
    end = time.perf_counter() + seconds
    call()
    while time.perf_counter() < end:
        call()

"""Copies between the host and the GPU, from pageable and from pinned memory, and batches that the host gathers."""

import time
from functools import partial
from itertools import product

import numpy as np

from experiments.lab.clock import called_and_done_us
from mlpkit.data import batches
from mlpkit.nn.models import MLP

from .step import PIXELS, Batch

GRADIENT = 4 * MLP.layout.size  # bytes, in float32


def copy_calls(n):
    """Return the copies of n bytes that there are to compare, as functions by (direction, memory at the other end)."""
    import cupy as cp
    import cupyx

    pageable = np.frombuffer(np.random.default_rng(0).bytes(n), np.uint8).copy()
    pinned = cupyx.empty_pinned(n, np.uint8)
    pinned[:] = pageable
    here, there = (cp.empty(n, np.uint8) for _ in range(2))
    return {
        ("to the GPU", "pageable"): partial(here.set, pageable),
        ("to the GPU", "pinned"): partial(here.set, pinned),
        ("to the GPU", "asarray"): partial(cp.asarray, pageable),  # which goes through a pinned buffer of CuPy's
        ("to the host", "pageable"): partial(here.get, out=pageable, blocking=False),
        ("to the host", "pinned"): partial(here.get, out=pinned, blocking=False),
        ("on the GPU", "GPU"): partial(there.data.copy_from_device_async, here.data, n),
    }


def copies(images, plan):
    """Yield the times of copies: one alone, and one of several that were asked for at once."""
    import cupy as cp

    of_batches = [n * PIXELS * itemsize for n in plan.batch_sizes for itemsize in (1, 4)]
    for n in sorted({*plan.copies, *of_batches, *(X.nbytes for X in images.X.values()), GRADIENT}):
        for (direction, memory), call in copy_calls(n).items():
            found = {"kind": "copy", "direction": direction, "memory": memory, "bytes": n}
            yield found | time_copy(call, n, plan.samples)
        cp.get_default_pinned_memory_pool().free_all_blocks()


def time_copy(call, n, samples):
    """Return the samples of a copy of n bytes; fewer of a long one."""
    together = max(1, min(20, (1 << 26) // n))
    samples = samples if n <= 1 << 24 else max(3, samples // 3)
    called_and_done_us(call, 3)
    alone = [called_and_done_us(call) for _ in range(samples)]
    queued = [called_and_done_us(call, together)[1] / together for _ in range(samples)]
    call_us, samples_us = np.round(alone, 2).T.tolist()
    return {"call_us": call_us, "samples_us": samples_us, "queued_us": np.round(queued, 2).tolist()}


def gathers(images, plan):
    """Yield times to gather a batch by itself, from all over the data set: the mean of an epoch's batches."""
    import cupyx

    for n, (dtype, X) in product(plan.batch_sizes, images.X.items()):
        orders = [images.full_batches(plan.recipe.but(batch_size=n), epoch) for epoch in range(plan.epochs)]
        for how, gather in (("in place", Batch(n, dtype, cupyx.empty_pinned).gather), ("anew", _gather_anew)):
            samples = [_mean_us(partial(gather, X, images.y), batches(order, n)) for order in orders]
            yield {"kind": "gather", "how": how, "dtype": dtype, "batch_size": n, "samples_us": samples}


def _gather_anew(X, y, index):
    return X[index], y[index]


def _mean_us(gather, indices):
    indices = list(indices)
    start = time.perf_counter()
    for index in indices:
        gather(index)
    return round((time.perf_counter() - start) * 1e6 / len(indices), 3)

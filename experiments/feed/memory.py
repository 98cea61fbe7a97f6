"""What memory costs to get, how much of it a training takes, and what happens when there is none left."""

import time
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from experiments.lab.bench import Stepper
from experiments.lab.clock import in_turns
from mlpkit.data import epoch_order
from mlpkit.executors import trainer_of

from .step import ENGINE


def allocations(images, plan):
    """Yield the times to get memory and to give it back, from CuPy's pools and from CUDA itself."""
    import cupy as cp

    makers = {
        ("GPU", True): cp.cuda.MemoryPool().malloc,
        ("GPU", False): cp.cuda.Memory,  # cudaMalloc, cudaFree
        ("pinned", True): cp.cuda.PinnedMemoryPool().malloc,
        ("pinned", False): cp.cuda.PinnedMemory,  # cudaHostAlloc, cudaFreeHost
    }
    for (memory, pooled), n in product(makers, plan.allocations):
        found = {"kind": "allocation", "memory": memory, "pooled": pooled, "bytes": n}
        times = [make_and_free(partial(makers[memory, pooled], n)) for _ in range(plan.samples)]
        make_us, free_us = np.round(times[1:], 2).T.tolist()
        yield found | {"first_us": round(times[0][0], 2), "samples_us": make_us, "free_us": free_us}


def make_and_free(make):
    """Return the microseconds of a call that makes something, and of letting it go."""
    start = time.perf_counter()
    made = make()
    got = time.perf_counter()
    del made
    return (got - start) * 1e6, (time.perf_counter() - got) * 1e6


def without_pool(images, plan):
    """Yield times of a step of CuPy's plain operations, whose every result is a new array."""
    import cupy as cp

    stepper = Stepper("cupy_naive", plan.recipe, (images.X["float32"], images.y))
    stepper.take(20)
    allocators: dict[bool, Any] = {True: nullcontext, False: partial(cp.cuda.using_allocator, None)}
    calls = {pooled: partial(_step_us, stepper, allocator) for pooled, allocator in allocators.items()}
    for pooled, samples in in_turns(calls, plan.epochs).items():
        yield {"kind": "step", "pooled": pooled, "samples_us": samples}


def _step_us(stepper, allocator):
    with allocator():
        stepper.take(2)
        return round(stepper.take(10)[0] * 1e6, 1)


def training_memory(images, plan):
    """Yield the bytes that a training takes of a pool of its own: used after each of its parts, and kept at the end."""
    for engine, dtype in (("cupy_naive", "float32"), (ENGINE, "float32"), (ENGINE, "uint8")):
        yield {"kind": "memory", "engine": engine, "dtype": dtype} | _memory_of(engine, images, dtype, plan)
    yield {"kind": "device", **device_memory()}


def _memory_of(engine, images, dtype, plan):
    import cupy as cp

    pool, used, recipe = cp.cuda.MemoryPool(), {}, plan.recipe
    with cp.cuda.using_allocator(pool.malloc):
        X, y = cp.asarray(images.X[dtype]), cp.asarray(images.y)
        used["data"] = pool.used_bytes()
        network, order = recipe.make_network(engine), cp.asarray(epoch_order(len(y), recipe.seed, 0))
        used["network"] = pool.used_bytes()  # and an epoch's order
        trainer = trainer_of(network, recipe.make_optimizer(network, len(y)), X, y, recipe.batch_size)
        trainer.epoch(order[: plan.check_steps * recipe.batch_size])
        used["steps"] = pool.used_bytes()
    recorded = getattr(trainer, "pool", None)  # a graph's arrays have a pool of their own
    return {"used": used, "kept": pool.total_bytes(), "graph": recorded.total_bytes() if recorded else 0}


def device_memory():
    """Return the GPU's free and total bytes, as its driver sees them."""
    import cupy as cp

    free, total = cp.cuda.runtime.memGetInfo()
    return {"free": free, "total": total}


def out_of_memory(images, plan):
    """Yield what happens where a program asks for more than there is, or than it has allowed itself."""
    import cupy as cp

    total = device_memory()["total"]
    limited = cp.cuda.MemoryPool()
    limited.set_limit(size=1 << 30)
    cases = {"the GPU": (cp.cuda.MemoryPool(), 2 * total), "a limit of 1 GiB": (limited, 2 << 30)}
    for name, (pool, asked) in cases.items():
        yield {"kind": "out of memory", "of": name, "asked": asked} | ask_for(asked, pool)
    yield {"kind": "given back"} | _given_back(1 << 30)


def ask_for(n, pool):
    """Return the error's name and text where a pool can't give n bytes, and whether the program goes on after it."""
    import cupy as cp

    with cp.cuda.using_allocator(pool.malloc):
        try:
            cp.empty(n, np.uint8)
            error: Any = None
        except MemoryError as raised:  # CuPy's own is one
            error = raised
        goes_on = int(cp.arange(10).sum()) == 45
    kind = type(error)
    return {"error": f"{kind.__module__}.{kind.__name__}", "text": str(error), "goes_on": goes_on}


def _given_back(n):
    """Return a pool's used and kept bytes: with an array of n bytes, without it, and after free_all_blocks."""
    import cupy as cp

    pool, states = cp.cuda.MemoryPool(), {}

    def note(name):
        states[name] = pool.used_bytes(), pool.total_bytes()

    with cp.cuda.using_allocator(pool.malloc):
        array = cp.empty(n, np.uint8)
        note("held")
        del array
        note("dropped")
        us = make_and_free(pool.free_all_blocks)[0]
        note("freed")
    return {"states": states, "samples_us": [round(us, 1)]}

"""How do the examples get to the GPU? The fastest step waits for its batch, whoever carries it.

This module times copies between the host and the device, from pageable memory and from pinned memory; a training step
that is fed in eight ways, from a copy a step to a data set that is there already; what memory costs to get, how much
of it a training takes and what happens when there is none left; and a CPU that works beside the GPU, on a share of
each batch or on the next epoch. The record "feed" holds all of it. The arithmetic is the engines'.

Times are the host's clock, in microseconds: until a call returns (`call_us`), and until the GPU has done what it was
asked for (`samples_us`).
"""

import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from mlpkit import engines
from mlpkit.data import batches, load
from mlpkit.engines import BASELINE
from mlpkit.lab import machine, results
from mlpkit.lab.bench import RTOL, GateError, Stepper, relative_error
from mlpkit.nn.network import PARAMETERS
from mlpkit.training.recipe import Recipe

from .feeding import ENGINE, PIXELS, WAYS, Batch, Images, NotFed, Overlapped, clocked
from .tandem import Ahead, in_tandem

GRADIENT = 4 * PARAMETERS  # bytes, in float32
AHEAD = 4  # epochs, each prepared while the one before it is trained
RECIPE = Recipe(lr=0.1)  # at 0.2 and batch 1024, float32's rounding alone moves the first losses by 0.3 %


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    samples: of each copy and allocation. copies, allocations: sizes in bytes. A sample of a way to feed is the mean of
    an epoch's steps; `epochs` of them. check_steps: whose losses are compared with the baseline's. shares: of a batch,
    for the CPU; a sample of those is the mean of `tandem_steps` steps.
    """

    samples: int = 25
    copies: tuple[int, ...] = tuple(4096 * 4**k for k in range(9))
    batch_sizes: tuple[int, ...] = (128, 1024)
    epochs: int = 7
    check_steps: int = 20
    allocations: tuple[int, ...] = (1 << 12, 1 << 20, 1 << 26)
    tandem_batch_sizes: tuple[int, ...] = (128, 4096)
    shares: tuple[float, ...] = (0, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)
    tandem_steps: int = 50
    recipe: Recipe = RECIPE


USUAL = Plan()


def run(train=None, save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record. train: (X, y), X (n, 784) uint8; MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    Raises EngineUnavailable where there is no GPU, and GateError where a way to feed computes something else.
    """
    engines.load(ENGINE)  # or why there is none
    images = Images(*(train or load(scaled=False).train))
    record = results.new("feed", plan=asdict(plan) | {"recipe": plan.recipe.to_dict()})
    return results.collect(record, _found(images, plan, progress), save)


def _found(images, plan, progress):
    for part in PARTS:
        progress(part.__name__.strip("_").replace("_", " "))
        yield from part(images, plan)


# Copies


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


def _copies(images, plan):
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
    clocked(call, 3)
    alone = [clocked(call) for _ in range(samples)]
    queued = [clocked(call, together)[1] / together for _ in range(samples)]
    call_us, samples_us = zip(*alone, strict=True)
    return {"call_us": _round(call_us), "samples_us": _round(samples_us), "queued_us": _round(queued)}


# Ways to feed a step


def check(losses, images, recipe, what):
    """Return the largest relative difference of first losses from the baseline's. Raises GateError above RTOL."""
    wanted = Stepper(BASELINE, recipe, (images.X["float32"], images.y)).take(len(losses))[1]
    error = relative_error(losses, wanted)
    if not error <= RTOL:
        raise GateError(f"{what} differs from {BASELINE}: its losses are off by {error:.1e}, in relation.")
    return error


def _feeds(images, plan):
    """Yield times a step of each way to feed, and of the parts that are the host's; the ways take turns."""
    for batch_size in plan.batch_sizes:
        recipe = plan.recipe.but(batch_size=batch_size)
        ways = [kind(images, recipe) for kind in WAYS]
        found = {way.title: _checked(way, images, recipe, plan) for way in ways}
        for turn in range(plan.epochs + 1):
            order = images.full_batches(recipe, turn)
            for way in ways:
                times, parts = clocked(partial(way.epoch, order)), way.watched(order)
                if turn:  # the first turn warms up
                    _add(found[way.title], times, len(order) // batch_size)
                    found[way.title]["parts"].append({part: round(us, 2) for part, us in parts.items()})
        yield from found.values()


def _checked(way, images, recipe, plan):
    found = {"kind": "feed", "way": way.title, "dtype": way.dtype, "batch_size": way.n}
    order = images.full_batches(recipe)[: plan.check_steps * way.n]
    losses = way.step.network.engine.to_numpy(way.epoch(order))
    if way.title != NotFed.title:
        found["loss_error"] = check(losses, images, recipe, f"the way {way.title!r}")
    way.step.restart()
    return found | {"steps": len(images.y) // way.n, "call_us": [], "samples_us": [], "parts": []}


def _add(found, times, steps):
    for name, us in zip(("call_us", "samples_us"), times, strict=True):
        found[name].append(round(us / steps, 3))


def _gathers(images, plan):
    """Yield times to gather a batch by itself, from all over the data set: the mean of an epoch's batches."""
    import cupyx

    for batch_size, (dtype, X) in product(plan.batch_sizes, images.X.items()):
        recipe, room = plan.recipe.but(batch_size=batch_size), Batch(batch_size, dtype, cupyx.empty_pinned)
        gathers = {
            "in place": partial(room.gather, X, images.y),
            "anew": lambda index, X=X: (X[index], images.y[index]),
        }
        for how, gather in gathers.items():
            found = {"kind": "gather", "how": how, "dtype": dtype, "batch_size": batch_size}
            yield found | {"samples_us": [_an_epoch(gather, images, recipe, turn) for turn in range(plan.epochs)]}


def _an_epoch(gather, images, recipe, turn):
    order = images.full_batches(recipe, turn)
    start = time.perf_counter()
    for index in batches(order, recipe.batch_size):
        gather(index)
    return round((time.perf_counter() - start) * 1e6 / (len(order) // recipe.batch_size), 3)


def _calls(images, plan):
    """Yield the host's time to ask for a copy and for the step that waits for it, while the GPU has nothing to do."""
    way, samples = Overlapped(images, plan.recipe), []
    way.gather(0, images.full_batches(plan.recipe)[: way.n])
    for _ in range(5 * plan.samples):
        way.step.number[...] = 0  # there is room for the losses of an epoch
        samples.append(clocked(partial(way.send, 0, None))[0])
    yield {"kind": "call", "what": "send a batch", "samples_us": _round(samples)}


# Memory


def _allocations(images, plan):
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
        make_us, free_us = zip(*times[1:], strict=True)
        yield found | {"first_us": round(times[0][0], 2), "samples_us": _round(make_us), "free_us": _round(free_us)}


def make_and_free(make):
    """Return the microseconds of a call that makes something, and of letting it go."""
    start = time.perf_counter()
    made = make()
    got = time.perf_counter()
    del made
    return (got - start) * 1e6, (time.perf_counter() - got) * 1e6


def _without_pool(images, plan):
    """Yield times of a step of CuPy's plain operations, whose every result is a new array."""
    import cupy as cp

    stepper = Stepper("cupy_naive", plan.recipe, (images.X["float32"], images.y))
    allocators: dict[bool, Any] = {True: nullcontext, False: partial(cp.cuda.using_allocator, None)}
    found: dict[bool, Any] = {pooled: {"kind": "step", "pooled": pooled, "samples_us": []} for pooled in allocators}
    stepper.take(20)
    for _ in range(plan.epochs):
        for pooled, allocator in allocators.items():
            with allocator():
                stepper.take(2)
                found[pooled]["samples_us"].append(round(stepper.take(10)[0] * 1e6, 1))
    yield from found.values()


def _training_memory(images, plan):
    """Yield the bytes that a training takes of a pool of its own: used after each of its parts, and kept at the end."""
    for engine, dtype in (("cupy_naive", "float32"), (ENGINE, "float32"), (ENGINE, "uint8")):
        yield {"kind": "memory", "engine": engine, "dtype": dtype} | _memory_of(engine, images, dtype, plan)
    yield {"kind": "device", **device_memory()}


def _memory_of(engine, images, dtype, plan):
    import cupy as cp

    from mlpkit.engines.cuda import graph as _graph

    pool, used = cp.cuda.MemoryPool(), []
    with cp.cuda.using_allocator(pool.malloc):
        X, y = cp.asarray(images.X[dtype]), cp.asarray(images.y)
        used.append(pool.used_bytes())
        stepper = Stepper(engine, plan.recipe, (X, y))
        used.append(pool.used_bytes())
        stepper.take(plan.check_steps)
        used.append(pool.used_bytes())
    epoch = _graph.epochs.get(stepper.network)
    return {
        "used": dict(zip(("data", "network", "steps"), used, strict=True)),
        "kept": pool.total_bytes(),
        "graph": epoch.pool.total_bytes() if epoch else 0,
    }


def device_memory():
    """Return the GPU's free and total bytes, as its driver sees them."""
    import cupy as cp

    free, total = cp.cuda.runtime.memGetInfo()
    return {"free": free, "total": total}


def _out_of_memory(images, plan):
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


# The CPU and the GPU in tandem


def _tandem(images, plan):
    """Yield times a step by the CPU's share of each batch; the shares take turns."""
    for batch_size in plan.tandem_batch_sizes:
        recipe = plan.recipe.but(batch_size=batch_size)
        order = images.full_batches(recipe)[: plan.tandem_steps * batch_size]
        steps, first = len(order) // batch_size, order[: plan.check_steps * batch_size]
        pairs = {share: in_tandem(images, recipe, share) for share in plan.shares}
        found = {share: {"kind": "tandem", "batch_size": batch_size, "share": share} for share in pairs}
        for share, pair in pairs.items():
            error = check(pair.losses(first), images, recipe, f"a share of {share} on the CPU")
            found[share] |= {"loss_error": error, "call_us": [], "samples_us": []}
        for _ in range(plan.epochs):
            for share, pair in pairs.items():
                machine.rest()
                pair.epoch(order)  # records its graph, the first time
                _add(found[share], clocked(partial(pair.epoch, order)), steps)
        yield from found.values()


def _rows(images, plan):
    """Yield times of the two alone, by the rows that they have: a step on the GPU, a gradient on the CPU."""
    for batch_size, share in product(plan.tandem_batch_sizes, plan.shares):
        cpu_rows = round(share * batch_size)
        for side, rows, clock in (("CPU", cpu_rows, _cpu_rows), ("GPU", batch_size - cpu_rows, _gpu_rows)):
            if rows:
                found = {"kind": "rows", "side": side, "batch_size": batch_size, "rows": rows}
                yield found | {"samples_us": clock(images, plan.recipe.but(batch_size=rows), plan)}


def _cpu_rows(images, recipe, plan):
    network, index = recipe.make_network(BASELINE), images.full_batches(recipe)[: recipe.batch_size]
    X, y = images.X["float32"], images.y
    machine.settle(lambda: network.loss_and_grad(X[index], y[index]), 0.02)
    return _round([clocked(lambda: network.loss_and_grad(X[index], y[index]))[0] for _ in range(plan.samples)])


def _gpu_rows(images, recipe, plan):
    way, order = NotFed(images, recipe), images.full_batches(recipe)[: 100 * recipe.batch_size]
    times = [clocked(partial(way.epoch, order))[1] for _ in range(plan.epochs + 1)]
    return _round([us * recipe.batch_size / len(order) for us in times[1:]])


# The CPU prepares the next epoch


def _prepare(images, plan):
    """Yield times an epoch: of preparing it, of training, of one after the other, and of both at once."""
    for name, augment in (("order", False), ("shifted images", True)):
        ahead = Ahead(images, plan.recipe, augment)
        calls: dict[str, Any] = {
            "prepare": (1, partial(ahead.prepare, 0)),
            "train": (1, ahead.train),
            "in sequence": (AHEAD, partial(ahead.epochs, AHEAD, at_once=False)),
            "at once": (AHEAD, partial(ahead.epochs, AHEAD, at_once=True)),
        }
        found: dict[str, Any] = {how: {"kind": "ahead", "what": name, "how": how, "samples_us": []} for how in calls}
        for turn in range(plan.epochs + 1):
            for how, (epochs, call) in calls.items():
                us = clocked(call)[1] / epochs
                found[how]["samples_us"] += [round(us, 1)] if turn else []  # the first turn warms up
        yield from found.values()


def _round(values):
    return [round(float(value), 2) for value in values]


PARTS = (
    _copies,
    _feeds,
    _gathers,
    _calls,
    _allocations,
    _without_pool,
    _training_memory,
    _out_of_memory,
    _rows,
    _tandem,
    _prepare,
)


# What the record says


def median_of(record, name="samples_us", **wanted):
    """Return the median of the samples of the run that has all of the wanted values, in microseconds."""
    (run,) = results.runs(record, **wanted)
    return results.median(run, name)


def parts_of(run):
    """Return the microseconds a step of the host's parts of a way to feed: the medians."""
    turns = run.get("parts") or [{}]
    return {part: float(np.median([turn[part] for turn in turns])) for part in turns[0]}


COPIED = {  # way: (memory on the host, how rows are gathered there, slots on the host and on the GPU)
    "pageable": ("pageable", "anew", math.inf, 1),
    "pinned": ("pinned", "in place", 1, 1),
    "overlapped": ("pinned", "in place", 2, 2),
    "overlapped, uint8": ("pinned", "in place", 2, 2),
}


def pieces(record, way, batch_size):
    """Return what a step takes that is fed by copies: microseconds of each piece, measured by itself."""
    memory, how, *_ = COPIED[way]
    (run,) = results.runs(record, kind="feed", way=way, batch_size=batch_size)
    n = batch_size * PIXELS * np.dtype(run["dtype"]).itemsize
    copy = partial(median_of, record, kind="copy", direction="to the GPU", memory=memory, bytes=n)
    return {
        "gather": median_of(record, kind="gather", how=how, dtype=run["dtype"], batch_size=batch_size),
        "calls": median_of(record, kind="call", what="send a batch"),
        "stage": copy("call_us") if memory == "pageable" else 0.0,  # the driver's copy into pinned memory
        "copy": copy() - copy("call_us"),
        "compute": median_of(record, kind="feed", way="not fed", batch_size=batch_size),
    }


def lanes(way, pieces, steps=6):
    """Return who works when, in microseconds, if each piece takes as long as by itself: rows for `plots.lanes`."""
    *_, on_host, on_gpu = COPIED[way]
    rows: dict[str, list] = {"host": [], "copies": [], "GPU": []}
    copied: dict[float, float] = {}  # when, by the step
    computed: dict[float, float] = {}
    now = 0.0
    for step in range(steps):
        now = max(now, copied.get(step - on_host, 0.0))
        for piece in ("gather", "calls", "stage"):
            rows["host"].append((piece, now, now + pieces[piece]))
            now += pieces[piece]
        start = max(now, copied.get(step - 1, 0.0), computed.get(step - on_gpu, 0.0))
        copied[step] = start + pieces["copy"]
        begin = max(copied[step], computed.get(step - 1, 0.0))
        computed[step] = begin + pieces["compute"]
        rows["copies"].append(("copy", start, copied[step]))
        rows["GPU"].append(("compute", begin, computed[step]))
    return rows


def table(record):
    """Return the record as text for the terminal: a line a run, with what was measured and the medians of its times."""
    return "\n".join(map(_line, record["runs"]))


def _line(run):
    facts = {k: v for k, v in run.items() if not k.endswith("_us") and not isinstance(v, list) and k != "kind"}
    times = {k.removesuffix("_us"): np.median(v) for k, v in run.items() if k.endswith("_us")} | parts_of(run)
    what = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
    return f"{run['kind']}: {what}; us: {', '.join(f'{k} {v:,.1f}' for k, v in times.items())}".removesuffix("; us: ")

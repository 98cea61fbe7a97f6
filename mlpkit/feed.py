"""How do the examples get to the GPU? The fastest step waits for its batch, whoever carries it.

This module times copies between the host and the device, from pageable memory and from pinned memory; a training step
that is fed in eight ways, from a copy a step to a data set that is there already; what memory costs to get, how much
of it a training takes and what happens when there is none left; and a CPU that works beside the GPU, on a share of
each batch or on the next epoch. The record "feed" holds all of it. The arithmetic is the engines'.

Times are the host's clock, in microseconds: until a call returns (`call_us`), and until the GPU has done what it was
asked for (`samples_us`).
"""

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import engines, machine, results
from .bench import BASELINE, RTOL, GateError, Stepper, median_us
from .data import batches, epoch_order, load
from .engines import numpy_baseline
from .network import SIZES
from .recipe import Recipe

ENGINE = "cuda_graph"  # whose kernels are a step, and whose way of feeding is the last
PIXELS, CLASS = SIZES[0], np.dtype(np.int64)
PARAMETERS = sum((n_in + 1) * n_out for n_in, n_out in pairwise(SIZES))
GRADIENT = 4 * PARAMETERS  # bytes, in float32
RECIPE = Recipe()
SHIFT = 2  # pixels that an image is moved, at most


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    samples: of each copy and allocation. copies: sizes in bytes. A sample of a way to feed is the mean of an epoch's
    steps; `epochs` of them. shares: of a batch, for the CPU; a sample of those is the mean of `tandem_steps` steps.
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


class Images:
    """The training set on the host: labels y (n,) int64, and X (n, 784) in both types."""

    def __init__(self, pixels, y):
        self.y = y
        self.X = {"uint8": pixels, "float32": numpy_baseline.scale(pixels, np.dtype(np.float32))}

    def full_batches(self, recipe, epoch=0):
        """Return an epoch's order, without the short batch at its end."""
        order = epoch_order(len(self.y), recipe.seed, epoch)
        return order[: len(order) // recipe.batch_size * recipe.batch_size]


def run(train=None, save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record. train: (X, y), X (n, 784) uint8; MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    Raises EngineUnavailable where there is no GPU, and GateError where a way to feed computes something else.
    """
    require_gpu()
    images = Images(*(train or load(scaled=False).train))
    record = results.new("feed", plan=asdict(plan) | {"recipe": plan.recipe.to_dict()})
    for part in PARTS:
        progress(part.__name__.strip("_").replace("_", " "))
        for found in part(images, plan):
            record["runs"].append(found)
            save(record)
    return record


def require_gpu():
    """Raise EngineUnavailable, with what is missing, where there is no GPU."""
    found = machine.gpu()
    if not found["found"]:
        raise engines.EngineUnavailable(f"feeding a GPU can't be measured on this machine: {found['why_not']}")


def synchronize():
    """Wait for all of the GPU's work, on every stream."""
    import cupy as cp

    cp.cuda.Device().synchronize()


def clocked(call, times=1):
    """Return the microseconds until the calls have returned, and until the GPU has done their work."""
    synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    called = time.perf_counter()
    synchronize()
    return (called - start) * 1e6, (time.perf_counter() - start) * 1e6


# Copies


def copy_calls(n):
    """Return the copies of n bytes that there are to compare, as functions by (direction, memory on the host)."""
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
        ("on the GPU", "none"): partial(there.data.copy_from_device_async, here.data, n),
    }


def _copies(images, plan):
    """Yield the times of copies: one alone, and one of several that were asked for at once."""
    import cupy as cp

    batches_ = [n * PIXELS * itemsize for n in plan.batch_sizes for itemsize in (1, 4)]
    for n in sorted({*plan.copies, *batches_, *(X.nbytes for X in images.X.values()), GRADIENT}):
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


def recorded(work, pool):
    """Return the kernels that `work` launches as a graph; arrays that it makes on the way come from `pool`."""
    import cupy as cp

    work()  # compiles
    stream = cp.cuda.Stream(non_blocking=True)
    with cp.cuda.using_allocator(pool.malloc), stream:
        stream.begin_capture()
        work()
        return stream.end_capture()


class Step:
    """A network on the GPU, and its step as a graph that reads a batch from arrays which are always the same."""

    def __init__(self, recipe, steps):
        import cupy as cp

        self.network = recipe.make_network(ENGINE)
        self.optimizer = recipe.make_optimizer(self.network, recipe.batch_size)
        self.first = self.network.engine.to_numpy(self.network.theta).copy()
        self.losses, self.number = cp.zeros(steps, np.float32), cp.zeros((), np.int32)
        self.rate = cp.full(1, recipe.lr, np.float32)
        self.pool = cp.cuda.MemoryPool()  # what a recorded step uses must be given to nobody else

    def graph(self, x, labels, before=lambda: None):
        """Return the graph of one step on x (n, 784), labels (n,), both on the GPU; `before` comes first."""

        def work():
            before()
            self.network.engine.gradient(self.network, x, labels, self.losses, self.number)
            self.optimizer.apply(self.rate, 1)

        return recorded(work, self.pool)

    def restart(self):
        """Return to the first parameters."""
        self.network.set_theta(self.first)
        self.number[...] = 0
        synchronize()


class Batch:
    """Room for a batch in one piece of memory, so that one copy carries labels and pixels."""

    def __init__(self, n, dtype, empty):
        self.memory = empty(n * (CLASS.itemsize + PIXELS * np.dtype(dtype).itemsize), np.uint8)
        self.labels = self.memory[: n * CLASS.itemsize].view(CLASS)
        self.x = self.memory[n * CLASS.itemsize :].view(dtype).reshape(n, PIXELS)

    def gather(self, X, y, index):
        """Copy the rows that `index` names. (With mode="raise", `take` would copy through a buffer of its own.)"""
        np.take(X, index, axis=0, out=self.x, mode="clip")
        np.take(y, index, out=self.labels, mode="clip")


class Way:
    """A way to feed a step. `epoch` asks for the steps of an epoch, and returns losses on the GPU before they are."""

    title = ""
    dtype = "float32"

    def __init__(self, images, recipe):
        self.images, self.recipe, self.n = images, recipe, recipe.batch_size
        self.X, self.y = images.X[self.dtype], images.y
        self.step = Step(recipe, len(self.y) // self.n)
        self.prepare()
        self.step.restart()

    def prepare(self):
        """Make the arrays and graphs."""
        raise NotImplementedError

    def epoch(self, order):
        self.step.number[...] = 0
        for turn, index in enumerate(batches(order, self.n)):
            self.feed(turn, index)
        return self.step.losses[: len(order) // self.n]

    def feed(self, turn, index):
        """Ask for the step on the examples that `index` names."""
        raise NotImplementedError


class NotFed(Way):
    """The same batch again and again: what the steps take by themselves."""

    title = "not fed"

    def prepare(self):
        import cupy as cp

        x, labels = cp.asarray(self.X[: self.n]), cp.asarray(self.y[: self.n])
        self.graph = self.step.graph(x, labels)

    def feed(self, turn, index):
        self.graph.launch()


class Pageable(Way):
    """NumPy gathers rows into a new array, and CuPy copies it."""

    title = "pageable"

    def prepare(self):
        import cupy as cp

        self.x, self.labels = cp.zeros((self.n, PIXELS), self.dtype), cp.zeros(self.n, CLASS)
        self.graph = self.step.graph(self.x, self.labels)

    def feed(self, turn, index):
        self.x.set(self.X[index])
        self.labels.set(self.y[index])
        self.graph.launch()


class Pinned(Way):
    """NumPy gathers rows into pinned memory, as soon as the last batch has left it; one copy carries them."""

    title = "pinned"

    def prepare(self):
        self.slot = Slot(self)

    def feed(self, turn, index):
        slot = self.slot
        slot.copied.synchronize()
        slot.host.gather(self.X, self.y, index)
        slot.device.memory.set(slot.host.memory)
        slot.copied.record()
        slot.graph.launch()


class Overlapped(Way):
    """Two slots: a second stream carries a batch into one while the step computes with the other."""

    title = "overlapped"

    def prepare(self):
        import cupy as cp

        self.copies = cp.cuda.Stream(non_blocking=True)
        self.slots = [Slot(self), Slot(self)]

    def feed(self, turn, index):
        slot = self.slots[turn % 2]
        slot.copied.synchronize()
        slot.host.gather(self.X, self.y, index)
        self.send(slot)

    def send(self, slot):
        """Ask for the copy of a slot's batch, once the last step with it is done, and for the step after that."""
        import cupy as cp

        self.copies.wait_event(slot.computed)
        slot.device.memory.set(slot.host.memory, self.copies)
        slot.copied.record(self.copies)
        cp.cuda.get_current_stream().wait_event(slot.copied)
        slot.graph.launch()
        slot.computed.record()


class OverlappedPixels(Overlapped):
    """The same with uint8: a quarter of the bytes, and one more kernel, which scales them."""

    title = "overlapped, uint8"
    dtype = "uint8"


class Slot:
    """Where a batch waits on the host, where it goes on the GPU, the step that reads it there, and how far they are."""

    def __init__(self, way):
        import cupy as cp
        import cupyx

        self.host = Batch(way.n, way.dtype, cupyx.empty_pinned)
        self.device = Batch(way.n, way.dtype, cp.zeros)
        x, scale = _as_float32(self.device.x)
        self.graph = way.step.graph(x, self.device.labels, scale)
        self.copied, self.computed = (cp.cuda.Event(disable_timing=True) for _ in range(2))


def _as_float32(x):
    """Return the array that a step reads, and what writes it: nothing where x is float32 already."""
    import cupy as cp

    if x.dtype == np.float32:
        return x, lambda: None
    scaled = cp.empty(x.shape, np.float32)
    return scaled, lambda: cp.divide(x, np.float32(255), out=scaled)


class Indexed(Way):
    """The data set is on the GPU, and CuPy takes the rows, two more launches a step."""

    title = "resident, taken"

    def prepare(self):
        import cupy as cp

        self.X, self.y = cp.asarray(self.X), cp.asarray(self.y)
        self.x, self.labels = cp.zeros((self.n, PIXELS), self.dtype), cp.zeros(self.n, CLASS)
        self.graph = self.step.graph(self.x, self.labels)

    def epoch(self, order):
        import cupy as cp

        return super().epoch(cp.asarray(order))

    def feed(self, turn, index):
        import cupy as cp

        cp.take(self.X, index, axis=0, out=self.x)
        cp.take(self.y, index, out=self.labels)
        self.graph.launch()


class Resident(Way):
    """The data set is on the GPU, and so is the order of an epoch; to gather is the first kernel of the graph."""

    title = "resident"

    def prepare(self):
        import cupy as cp

        self.X, self.y = cp.asarray(self.X), cp.asarray(self.y)

    def epoch(self, order):
        import cupy as cp

        step = self.step
        return step.network.engine.train_epoch(step.network, step.optimizer, self.X, self.y, cp.asarray(order), self.n)


class ResidentPixels(Resident):
    """The same with uint8: what the engine `cuda_graph` does where it is given pixels."""

    title = "resident, uint8"
    dtype = "uint8"


WAYS: tuple[type[Way], ...] = (
    NotFed,
    Pageable,
    Pinned,
    Overlapped,
    OverlappedPixels,
    Indexed,
    Resident,
    ResidentPixels,
)
TITLES = tuple(way.title for way in WAYS)


def check(losses, images, recipe, what):
    """Return the largest relative difference of first losses from the baseline's. Raises GateError above RTOL."""
    wanted = Stepper(BASELINE, recipe, (images.X["float32"], images.y)).take(len(losses))[1]
    error = np.max(np.abs(losses / wanted - 1))
    if not error <= RTOL:
        raise GateError(f"{what} differs from {BASELINE}: its losses are off by {error:.1e}, in relation.")
    return float(error)


def _feeds(images, plan):
    """Yield times a step of each way to feed; the ways take turns, an epoch each."""
    for batch_size in plan.batch_sizes:
        recipe = plan.recipe.but(batch_size=batch_size)
        ways = [kind(images, recipe) for kind in WAYS]
        found = {way.title: _checked(way, images, recipe, plan) for way in ways}
        for turn in range(plan.epochs + 1):
            order = images.full_batches(recipe, turn)
            for way in ways:
                times = clocked(partial(way.epoch, order))
                if turn:  # the first turn warms up
                    _add(found[way.title], times, len(order) // batch_size)
        yield from found.values()


def _checked(way, images, recipe, plan):
    found = {"kind": "feed", "way": way.title, "dtype": way.dtype, "batch_size": way.n}
    order = images.full_batches(recipe)[: plan.check_steps * way.n]
    losses = way.step.network.engine.to_numpy(way.epoch(order))
    if way.title != NotFed.title:
        found["loss_error"] = check(losses, images, recipe, f"the way {way.title!r}")
    way.step.restart()
    return found | {"steps": len(images.y) // way.n, "call_us": [], "samples_us": []}


def _add(found, times, steps):
    for name, us in zip(("call_us", "samples_us"), times, strict=True):
        found[name].append(round(us / steps, 3))


def _host_work(images, plan):
    """Yield what the host does for a step, each thing by itself: times a step, the mean of an epoch's."""
    import cupy as cp
    import cupyx

    for batch_size in plan.batch_sizes:
        recipe = plan.recipe.but(batch_size=batch_size)
        for dtype, X in images.X.items():
            room = Batch(batch_size, dtype, cupyx.empty_pinned)
            gathers = {
                "gather": partial(room.gather, X, images.y),
                "gather anew": lambda index, X=X: (X[index], images.y[index]),
            }
            for name, gather in gathers.items():
                found = {"kind": "host", "what": name, "dtype": dtype, "batch_size": batch_size}
                yield found | {"samples_us": [_an_epoch(gather, images, recipe, t) for t in range(plan.epochs)]}
        way = Overlapped(images, recipe)
        way.slots[0].host.gather(way.X, way.y, images.full_batches(recipe)[:batch_size])
        calls = {"calls": partial(way.send, way.slots[0]), "launch": way.slots[0].graph.launch}
        event = cp.cuda.Event(disable_timing=True)
        calls |= {"record": event.record, "wait": partial(way.copies.wait_event, event)}
        for name, call in calls.items():
            found = {"kind": "host", "what": name, "dtype": "float32", "batch_size": batch_size}
            yield found | {"samples_us": _round([_call_alone(call, way.step) for _ in range(5 * plan.samples)])}


def _call_alone(call, step):
    step.number[...] = 0  # there is room for the losses of an epoch
    return clocked(call)[0]


def _an_epoch(gather, images, recipe, turn):
    order = images.full_batches(recipe, turn)
    start = time.perf_counter()
    for index in batches(order, recipe.batch_size):
        gather(index)
    return round((time.perf_counter() - start) * 1e6 / (len(order) // recipe.batch_size), 3)


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
    allocators = {True: nullcontext, False: partial(cp.cuda.using_allocator, None)}
    found = {pooled: {"kind": "step", "pooled": pooled, "samples_us": []} for pooled in allocators}
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

    from .engines import _graph

    pool, used = cp.cuda.MemoryPool(), []
    with cp.cuda.using_allocator(pool.malloc):
        X, y = cp.asarray(images.X[dtype]), cp.asarray(images.y)
        used.append(pool.used_bytes())
        stepper = Stepper(engine, plan.recipe, (X, y))
        used.append(pool.used_bytes())
        stepper.take(plan.check_steps)
        used.append(pool.used_bytes())
    epoch = _graph._epochs.get(stepper.network)
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

    pool, states = cp.cuda.MemoryPool(), []
    with cp.cuda.using_allocator(pool.malloc):
        array = cp.empty(n, np.uint8)
        states.append((pool.used_bytes(), pool.total_bytes()))
        del array
        states.append((pool.used_bytes(), pool.total_bytes()))
        us = make_and_free(pool.free_all_blocks)[0]
        states.append((pool.used_bytes(), pool.total_bytes()))
    return {"states": dict(zip(("held", "dropped", "freed"), states, strict=True)), "samples_us": [round(us, 1)]}


# The CPU and the GPU in tandem


class Tandem:
    """The first rows of each batch are the GPU's, the last `cpu_rows` the CPU's; neither has none.

    In a step the GPU begins with its rows. Meanwhile its parameters are copied to the host, where the baseline takes
    the gradient of the other rows; that is copied to the GPU, which adds the two up and updates.
    """

    def __init__(self, images, recipe, cpu_rows):
        import cupy as cp

        self.n, self.cpu_rows, self.gpu_rows = recipe.batch_size, cpu_rows, recipe.batch_size - cpu_rows
        self.X, self.y = images.X["float32"], images.y
        self.step = Step(recipe, len(self.y) // self.n)
        self.host = recipe.make_network(_pinned_baseline())
        self.order = cp.zeros(len(self.y), CLASS)
        self.grad = cp.zeros(PARAMETERS, np.float32)  # the CPU's
        self.share, self.update = self._share(cp.asarray(self.X), cp.asarray(self.y)), self._update()
        self.copies = cp.cuda.Stream(non_blocking=True)
        self.copied, self.updated = (cp.cuda.Event(disable_timing=True) for _ in range(2))
        self.step.restart()

    def _share(self, X, y):
        """Return the graph of the gradient of the GPU's rows."""
        import cupy as cp

        from .engines._cuda import kernel

        step, (n, rows) = self.step, (self.n, self.gpu_rows)
        x, labels = cp.zeros((rows, PIXELS), np.float32), cp.zeros(rows, CLASS)
        rates, first = cp.zeros(len(y) // n), cp.zeros((), np.int64)  # the kernel looks up a rate as well
        rate, t = (cp.zeros(1, np.float32) for _ in range(2))
        sizes = np.int32(n), np.int32(PIXELS)
        given = X, y, self.order, step.number, *sizes, x, labels, rates, first, rate, t
        self.kept = given  # a graph keeps addresses, not arrays
        gather = kernel("layers", "next_batch", np.float32, PIXEL="float")

        def work():
            gather((rows,), (256,), given)
            step.network.engine.gradient(step.network, x, labels, step.losses, step.number)

        return recorded(work, step.pool)

    def _update(self):
        """Return the graph that adds the gradients up, each with the weight of its rows, and updates."""
        import cupy as cp

        network, weight = self.step.network, self.cpu_rows / self.n

        def work():
            cp.multiply(network.grad, np.float32(1 - weight), out=network.grad)
            network.engine.axpy(np.float32(weight), self.grad, network.grad)
            self.step.optimizer.apply(self.step.rate, 1)

        return recorded(work, self.step.pool)

    def epoch(self, order):
        """Take a step on each batch of the order, and return the losses of the GPU's rows and of the CPU's."""
        self.order[: len(order)].set(order)
        self.step.number[...] = 0
        losses = [self.take(index[self.gpu_rows :]) for index in batches(order, self.n)]
        return self.step.losses[: len(losses)], losses

    def take(self, index):
        import cupy as cp

        self.copies.wait_event(self.updated)
        self.step.network.theta.get(self.copies, out=self.host.theta, blocking=False)
        self.share.launch()
        self.copies.synchronize()
        loss = self.host.loss_and_grad(self.X[index], self.y[index])
        self.grad.set(self.host.grad, self.copies)
        self.copied.record(self.copies)
        cp.cuda.get_current_stream().wait_event(self.copied)
        self.update.launch()
        self.updated.record()
        return loss

    def losses(self, order):
        """Take the steps of an order, and return the losses of whole batches."""
        gpu, cpu = self.epoch(order)
        weight = self.cpu_rows / self.n
        return (1 - weight) * gpu.get() + weight * np.array(cpu)


def _pinned_baseline():
    """Return the baseline, whose networks keep their parameters in pinned memory."""
    import cupyx

    def pinned(array, dtype=None):
        made = cupyx.empty_pinned(array.shape, dtype or array.dtype)
        made[...] = array
        return made

    return SimpleNamespace(**vars(numpy_baseline) | {"asarray": pinned})


class Alone:
    """One of the two has all rows, and nothing is copied between them."""

    def __init__(self, engine, images, recipe):
        self.stepper = Stepper(engine, recipe, (images.X["float32"], images.y))

    def epoch(self, order):
        return [part for part, _ in self.stepper.run(self.stepper.engine.asarray(order))]

    def losses(self, order):
        return np.concatenate([self.stepper.engine.to_numpy(part) for part in self.epoch(order)])


def in_tandem(images, recipe, share):
    """Return what trains with a share of each batch on the CPU."""
    cpu_rows = round(share * recipe.batch_size)
    if cpu_rows in (0, recipe.batch_size):
        return Alone(BASELINE if cpu_rows else ENGINE, images, recipe)
    return Tandem(images, recipe, cpu_rows)


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
                pair.epoch(order[:batch_size])
                _add(found[share], clocked(partial(pair.epoch, order)), steps)
        yield from found.values()


def _rows(images, plan):
    """Yield times of the two alone, by the rows that they have: a step on the GPU, a gradient on the CPU."""
    for batch_size, share in product(plan.tandem_batch_sizes, plan.shares):
        cpu_rows = round(share * batch_size)
        for side, rows in (("CPU", cpu_rows), ("GPU", batch_size - cpu_rows)):
            if rows:
                time_rows = {"CPU": _cpu_rows, "GPU": _gpu_rows}[side]
                found = {"kind": "rows", "side": side, "batch_size": batch_size, "rows": rows}
                yield found | {"samples_us": time_rows(images, plan.recipe.but(batch_size=rows), plan)}


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


def shifted(pixels, moves, out):
    """Write images (n, 784), each moved by its own (down, right) pixels, into `out`; what leaves comes in opposite."""
    images, room = pixels.reshape(-1, 28, 28), out.reshape(-1, 28, 28)
    for move in product(range(-SHIFT, SHIFT + 1), repeat=2):
        rows = np.flatnonzero((moves == move).all(axis=1))
        room[rows] = np.roll(images[rows], move, axis=(1, 2))


class Ahead:
    """Epochs on the GPU; for each of them the CPU has prepared something: an order, or an order and images."""

    def __init__(self, images, recipe, augment):
        import cupy as cp
        import cupyx

        self.images, self.recipe, self.augment = images, recipe, augment
        self.way = ResidentPixels(images, recipe)
        self.staging = cupyx.empty_pinned(images.X["uint8"].shape, np.uint8)
        self.rng, self.sent = np.random.default_rng(recipe.seed), cp.cuda.Event(disable_timing=True)
        self.prepare(0)

    def prepare(self, epoch):
        """Make an epoch's order, and its images in the staging memory once the last ones have left it."""
        self.order = self.images.full_batches(self.recipe, epoch)
        if self.augment:
            moves = self.rng.integers(-SHIFT, SHIFT + 1, (len(self.staging), 2))
            self.sent.synchronize()
            shifted(self.images.X["uint8"], moves, self.staging)

    def train(self):
        """Ask for the epoch that is prepared, its images first."""
        if self.augment:
            self.way.X.set(self.staging)
            self.sent.record()
        self.way.epoch(self.order)

    def epochs(self, count, at_once):
        """Train epochs, and prepare the one after each. at_once: while it is trained, and not afterwards."""
        for epoch in range(count):
            self.train()
            if not at_once:
                synchronize()
            self.prepare(epoch)
            synchronize()


def _prepare(images, plan, count=4):
    """Yield times an epoch: of preparing it, of training, of one after the other, and of both at once."""
    for name, augment in (("order", False), ("shifted images", True)):
        ahead = Ahead(images, plan.recipe, augment)
        calls: dict[str, tuple[int, Any]] = {
            "prepare": (1, partial(ahead.prepare, 0)),
            "train": (1, ahead.train),
            "in sequence": (count, partial(ahead.epochs, count, at_once=False)),
            "at once": (count, partial(ahead.epochs, count, at_once=True)),
        }
        found = {how: {"kind": "ahead", "what": name, "how": how, "samples_us": []} for how in calls}
        for turn in range(plan.epochs + 1):
            for how, (epochs, call) in calls.items():
                us = clocked(call)[1] / epochs
                found[how]["samples_us"] += [round(us, 1)] if turn else []  # the first turn warms up
        yield from found.values()


def _round(values, digits=2):
    return [round(float(value), digits) for value in values]


PARTS = (
    _copies,
    _feeds,
    _host_work,
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
    return float(np.median(run[name]))


def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(_LINES[run["kind"]](run) for run in record["runs"])


def _line(*names):
    def line(run):
        case = ", ".join(str(run[name]) for name in names)
        return f"{run['kind']:<12}{case:<40}{median_us(run):>12,.1f} us"

    return line


def _copy_line(run):
    us = median_us(run)
    alone = _line("direction", "memory", "bytes")(run)
    called, queued = np.median(run["call_us"]), np.median(run["queued_us"])
    return f"{alone} (call {called:,.1f}, queued {queued:,.1f}), {run['bytes'] / us / 1e3:,.2f} GB/s"


def _feed_line(run):
    called = np.median(run["call_us"])
    return f"{_line('way', 'batch_size')(run)} a step (host {called:,.1f}), losses {run.get('loss_error', 0):.0e} off"


def _memory_line(run):
    used = ", ".join(f"{part} {count / 1e6:,.1f}" for part, count in run["used"].items())
    kept, graph = (f"{run[name] / 1e6:,.1f}" for name in ("kept", "graph"))
    return f"memory      {run['engine']}, {run['dtype']}: {used}, kept {kept} MB, graph {graph} MB"


def _allocation_line(run):
    first, free = run["first_us"], np.median(run["free_us"])
    return f"{_line('memory', 'pooled', 'bytes')(run)}, first {first:,.1f}, free {free:,.1f}"


def _error_line(run):
    return f"asked for {run['asked']:,} of {run['of']}: {run['error']}: {run['text']} (goes on: {run['goes_on']})"


_LINES: dict[str, Any] = {
    "copy": _copy_line,
    "feed": _feed_line,
    "host": _line("what", "dtype", "batch_size"),
    "allocation": _allocation_line,
    "step": lambda run: f"{_line('pooled')(run)} a step of cupy_naive",
    "memory": _memory_line,
    "device": lambda run: f"GPU memory  {run['free']:,} of {run['total']:,} bytes free",
    "out of memory": _error_line,
    "given back": lambda run: f"given back  {run['states']}, free_all_blocks {median_us(run):,.0f} us",
    "rows": _line("side", "rows"),
    "tandem": _line("batch_size", "share"),
    "ahead": _line("what", "how"),
}

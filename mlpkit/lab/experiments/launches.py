"""What does it cost to ask a GPU for work? The host's time for each call, the GPU's, and what clocks say about both.

A call of CuPy returns when the work is asked for, not when it is done. So there are three times: until the call
returns, until the GPU is done, and the GPU's own, which two events on its stream tell. The last is only right while the
GPU has no need to wait for the host, so here events stand behind a kernel that keeps it busy until all has been asked
for. The record "launches" holds these times for products of several sizes, for the usual calls, for graphs of kernels,
and for steps of engines at several batch sizes.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain, product
from typing import Any

import numpy as np

from mlpkit import engines, kernels
from mlpkit.data import load
from mlpkit.engines import BASELINE
from mlpkit.lab import machine, results
from mlpkit.lab.bench import Stepper, median_us
from mlpkit.lab.results import median as median
from mlpkit.nn.network import PARAMETERS, SIZES
from mlpkit.training.recipe import Recipe

RECIPE = Recipe(lr=0.01)  # a small rate: a batch of 16 must not diverge
LIBRARIES = ("cupy-cuda12x", "cupy-cuda13x", "torch")  # whose versions the record names


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. calls: in a sample, asked for without a pause.

    rows: of the first layer's input, in the clocks' products. nodes: of graphs of empty kernels. graphs, steps: the
    engines whose steps are recorded, and how many in a graph. engines: to take steps at all batch sizes; a sample is
    the mean of as many steps as fit into `sample_seconds`, after `settle` seconds of steps; there are `rounds` of them.
    """

    samples: int = 15
    calls: int = 50
    rows: tuple[int, ...] = (128, 1024, 8192, 65536, 262144)
    nodes: tuple[int, ...] = (1, 10, 100, 1000)
    graphs: tuple[str, ...] = ("cuda_graph_cublas", "cuda_graph")
    steps: tuple[int, ...] = (1, 10, 100, 429)
    engines: tuple[str, ...] = ("cupy_naive", "cupy_fused", "cuda_graph_cublas", "cuda_graph", BASELINE)
    batch_sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    sample_seconds: float = 0.03
    rounds: int = 7
    settle: float = 0.02


USUAL = Plan()


def run(train=None, save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record. train: (X, y), MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load("cupy_naive")  # or why there is none
    train = train or load().train
    versions = {library: machine.version(library) for library in LIBRARIES}
    record = results.new("launches", plan=asdict(plan), recipe=RECIPE.to_dict(), libraries=versions)
    parts = (_clocks, _calls, _empty_graphs, _step_graphs, _batches)
    return results.collect(record, chain.from_iterable(part(train, plan, progress) for part in parts), save)


# The clocks


def asked_us(call, calls=1):
    """Return the host's microseconds for a call, until it returns: the mean of so many, asked for without a pause."""
    _wait_for_gpu()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    asked = time.perf_counter() - start
    _wait_for_gpu()
    return asked / calls * 1e6


def waited_us(call, calls=1):
    """Return the microseconds of a call until the GPU is done, the mean of so many: what a program has to wait."""
    _wait_for_gpu()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _wait_for_gpu()
    return (time.perf_counter() - start) / calls * 1e6


def events_us(call, calls=1):
    """Return the microseconds between an event before the calls and one after them, for each: on the GPU's clock."""
    import cupy as cp

    begin, end = cp.cuda.Event(), cp.cuda.Event()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return cp.cuda.get_elapsed_time(begin, end) / calls * 1e3


def device_us(call, calls=1):
    """Return the GPU's microseconds for a call, the mean of so many, all asked for while the GPU was kept busy.

    The calls have to be few enough for the GPU's queue, which takes about a thousand kernels.
    """
    keep_busy(2 * calls * asked_us(call, calls) + 100)
    return events_us(call, calls)


def keep_busy(us):
    """Ask for a kernel that keeps the GPU busy for so many microseconds, from when it begins."""
    _kernel("wait")((1,), (1,), (np.int64(1000 * us),))


def nothing():
    """Launch a kernel that does nothing."""
    _kernel("nothing")((1,), (32,), ())


@cache
def _kernel(name):
    return kernels.load("launches").get_function(name)


def _wait_for_gpu():
    import cupy as cp

    cp.cuda.get_current_stream().synchronize()


def _samples(clock, call, plan, calls=1):
    clock(call, calls)  # compiles, and fills the pool
    return [round(clock(call, calls), 3) for _ in range(plan.samples)]


# The parts of the record


def _clocks(train, plan, progress):
    import cupy as cp

    W = cp.ones(SIZES[:2], np.float32)
    for rows in plan.rows:
        progress(f"clocks, {rows:,} rows")
        x, out = cp.ones((rows, SIZES[0]), np.float32), cp.empty((rows, SIZES[1]), np.float32)
        call = partial(cp.matmul, x, W, out=out)
        times = {clock.__name__: _samples(clock, call, plan) for clock in (asked_us, waited_us, events_us)}
        times["device_us"] = _samples(device_us, call, plan, 10)
        yield {"kind": "clocks", "rows": rows, "flops": 2 * rows * SIZES[0] * SIZES[1]} | times


def _calls(train, plan, progress):
    for name, call in usual_calls().items():
        progress(f"cost of {name}")
        times = {clock.__name__: _samples(clock, call, plan, plan.calls) for clock in (asked_us, device_us)}
        yield {"kind": "call", "name": name} | times


def usual_calls(n=128):
    """Return a function without arguments for each of the calls that a step at batch n is made of."""
    import cupy as cp

    from mlpkit.engines import cupy_fused
    from mlpkit.engines.cuda.cublas import RELU_AUX_BIAS, Product, mask

    hidden = SIZES[1]
    X, index = cp.ones((10 * n, SIZES[0]), np.float32), cp.arange(n)
    x, W1, out = X[:n], cp.ones(SIZES[:2], np.float32), cp.empty((n, hidden), np.float32)
    z, W, b = (cp.ones(shape, np.float32) for shape in ((n, hidden), (hidden, hidden), hidden))
    theta, grad = cp.ones(PARAMETERS, np.float32), cp.ones(PARAMETERS, np.float32)
    planned = cache(lambda: Product(x, W1, out, RELU_AUX_BIAS, b, mask(n, hidden)))  # where cuBLASLt has it
    calls: dict[str, Callable[[], Any]] = {
        "x[:64]": lambda: x[:64],
        "cp.empty": lambda: cp.empty((n, hidden), np.float32),
        "RawKernel, empty": partial(_kernel("nothing"), (1,), (32,), ()),
        "ElementwiseKernel, SGD": partial(cupy_fused.sgd_update, theta, grad, 1e-9),
        "cp.maximum(z, 0)": lambda: cp.maximum(z, 0),
        "z + b": lambda: z + b,
        "theta -= lr * grad": lambda: _sgd(theta, grad, 1e-9),
        "z.sum(axis=0)": lambda: z.sum(axis=0),
        "X[index]": lambda: X[index],
        "z @ W": lambda: z @ W,
        "x @ W1": lambda: x @ W1,
        "cuBLASLt: relu(x @ W1 + b)": lambda: planned()(x, W1, out),
    }
    return calls


def _sgd(theta, grad, lr):
    theta -= lr * grad


def _empty_graphs(train, plan, progress):
    for nodes in plan.nodes:
        progress(f"graphs of {nodes} empty kernels")
        times = record_times(partial(_many, nothing, nodes), 1, plan)
        one_by_one = [round(waited_us(nothing, nodes) * nodes, 3) for _ in range(plan.samples)]
        yield {"kind": "nodes", "nodes": nodes, "one_by_one_us": one_by_one} | times


def _many(call, times):
    for _ in range(times):
        call()


def _step_graphs(train, plan, progress):
    from mlpkit.engines.cuda import graph as _graph

    for engine in plan.graphs:
        stepper = Stepper(engine, RECIPE, train)
        stepper.take(max(plan.steps))  # the epoch's arrays are there then, and the order and the rates in them
        epoch = _graph.epochs[stepper.network]
        for steps in plan.steps:
            progress(f"graph of {steps} steps of {engine}")
            one = partial(epoch.enqueue, stepper.network, stepper.optimizer, RECIPE.batch_size)
            enqueue = partial(_many, one, steps)
            many = max(1, min(100, max(plan.steps)) // steps)  # launches: the epoch's arrays have room for so many
            times = record_times(enqueue, many, plan, partial(epoch.step.fill, 0), epoch.pool)
            yield {"kind": "graph", "engine": engine, "steps": steps} | times


def record_times(enqueue, launches, plan, prepare=lambda: None, pool=None):
    """Return what a graph of the kernels that `enqueue` asks for costs, in microseconds.

    record_us, instantiate_us: to make it. launch_us: of the host, and device_us: of the GPU, for one of so many
    launches without a pause. prepare: is called before those.
    """
    graphs, times = [], []
    for _ in range(3):
        *graph, recorded, instantiated = _record(enqueue, pool)
        graphs.append(graph)
        times.append((round(recorded, 1), round(instantiated, 1)))
    (_, executable), (recording, instantiating) = graphs[0], zip(*times, strict=True)
    samples = [_launch_times(executable, launches, prepare) for _ in range(plan.samples)]
    _wait_for_gpu()
    for graph in graphs:
        _destroy(*graph)
    launching, running = zip(*samples[1:], strict=True)
    found = {"record_us": recording, "instantiate_us": instantiating, "launch_us": launching, "device_us": running}
    return {name: list(values) for name, values in found.items()}


def _record(enqueue, pool):
    """Return a graph, its executable form, and the microseconds that it took to make each of them."""
    import cupy as cp

    runtime, stream = cp.cuda.runtime, cp.cuda.Stream(non_blocking=True)
    with cp.cuda.using_allocator((pool or cp.cuda.MemoryPool()).malloc), stream:
        start = time.perf_counter()
        runtime.streamBeginCapture(stream.ptr, runtime.streamCaptureModeRelaxed)
        enqueue()
        graph = runtime.streamEndCapture(stream.ptr)
        recorded = time.perf_counter()
        executable = runtime.graphInstantiate(graph)
        done = time.perf_counter()
    return graph, executable, (recorded - start) * 1e6, (done - recorded) * 1e6


def _launch_times(executable, launches, prepare):
    """Return microseconds of the host and of the GPU for each of so many launches of a graph."""
    import cupy as cp

    launch = partial(cp.cuda.runtime.graphLaunch, executable, cp.cuda.get_current_stream().ptr)
    prepare()
    host = asked_us(launch, launches)
    prepare()
    keep_busy(2 * launches * host + 100)
    return round(host, 3), round(events_us(launch, launches), 3)


def _destroy(graph, executable):
    import cupy as cp

    cp.cuda.runtime.graphExecDestroy(executable)
    cp.cuda.runtime.graphDestroy(graph)


def _batches(train, plan, progress):
    """Yield steps of each engine at each batch size; all of them take turns, so that all meet a slow moment."""
    sets = {name: tuple(map(engines.load(name).asarray, train)) for name in plan.engines}
    cases = []
    for batch_size, (name, data) in product(plan.batch_sizes, sets.items()):
        progress(f"first steps at batch {batch_size:,}, {name}")
        stepper = Stepper(name, RECIPE.but(batch_size=batch_size), data)
        case = {"kind": "batch", "engine": name, "batch_size": batch_size, "samples_us": []}
        cases.append((stepper, case | {"steps_a_sample": _steps_a_sample(stepper, plan)}))
    for turn in range(plan.rounds):
        progress(f"steps at all batch sizes, round {turn + 1} of {plan.rounds}")
        for stepper, case in cases:
            machine.settle(stepper.take_one, plan.settle)
            case["samples_us"].append(round(stepper.take(case["steps_a_sample"])[0] * 1e6, 3))
    yield from (case for _, case in cases)


def _steps_a_sample(stepper, plan):
    stepper.take(2)
    steps = max(1, min(429, int(plan.sample_seconds / stepper.take(2)[0])))
    stepper.take(steps)  # a graph engine makes room for so many, once
    return steps


# What the record says


def curve(record, engine):
    """Return the batch sizes at which an engine took steps, and the microseconds of one at each."""
    runs = results.runs(record, kind="batch", engine=engine)
    return [run["batch_size"] for run in runs], [median_us(run) for run in runs]


def first_win(record, engine, baseline=BASELINE):
    """Return the smallest batch size from which on an engine is always faster than the baseline; None without one."""
    (sizes, ours), (_, theirs) = curve(record, engine), curve(record, baseline)
    wins = [us < other for us, other in zip(ours, theirs, strict=True)]
    lost = max((i for i, won in enumerate(wins) if not won), default=-1)
    return sizes[lost + 1] if lost + 1 < len(sizes) else None


def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(_LINES[run["kind"]](run) for run in record["runs"])


def _times(*names):
    return lambda run: ", ".join(f"{name.removesuffix('_us')} {median(run, name):,.1f}" for name in names) + " us"


_ALL = _times("record_us", "instantiate_us", "launch_us", "device_us")
_CLOCKS = _times("asked_us", "waited_us", "events_us", "device_us")
_LINES: dict[str, Callable[[dict], str]] = {
    "clocks": lambda run: f"{run['rows']:>8,} rows x W1: {_CLOCKS(run)}",
    "call": lambda run: f"{run['name']:<28}{_times('asked_us', 'device_us')(run)}",
    "nodes": lambda run: f"graph of {run['nodes']} empty kernels: {_ALL(run)}; {_times('one_by_one_us')(run)}",
    "graph": lambda run: f"graph of {run['steps']} steps, {run['engine']}: {_ALL(run)}",
    "batch": lambda run: f"{run['engine']:<20}batch {run['batch_size']:>6,}{median_us(run):>12,.1f} us a step",
}

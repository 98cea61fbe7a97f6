"""How the record "launches" is made: products, the usual calls, graphs of kernels and engines' steps, each timed."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain, product
from typing import Any

import numpy as np

from experiments.lab import quiet, results
from experiments.lab.bench import Stepper
from experiments.lab.clock import asked_us, device_us, events_us, in_turns, nothing, recorded, steps_in, waited_us
from experiments.lab.launched import kernels_of
from mlpkit import data, engines, machine
from mlpkit.engines import BASELINE
from mlpkit.nn.models import MLP
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

from .graphs import record_times

RECIPE = Recipe(lr=0.01)  # a small rate: a batch of 16 must not diverge
LIBRARIES = ("cupy-cuda12x", "cupy-cuda13x", "torch")  # whose versions the record names


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. calls: in a sample, asked for without a pause.

    rows: of the first layer's input, in the clocks' products. split: rows of the products that may be split. nodes: of
    graphs of empty kernels. graphs, steps: the engines whose steps are recorded, and how many in a graph. engines: to
    take steps at all batch sizes; a sample is the mean of as many steps as fit into `sample_seconds`, after `settle`
    seconds of steps; there are `rounds` of them.
    """

    samples: int = 15
    calls: int = 50
    rows: tuple[int, ...] = (128, 1024, 8192, 65536, 262144)
    split: tuple[int, ...] = (16, 64, 128, 256, 1024)
    nodes: tuple[int, ...] = (1, 10, 100, 1000)
    graphs: tuple[str, ...] = ("cuda_graph_cublas", "cuda_graph")
    steps: tuple[int, ...] = (1, 10, 100, 429)
    engines: tuple[str, ...] = ("cupy_naive", "cupy_fused", "cuda_graph_cublas", "cuda_graph", BASELINE)
    batch_sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    sample_seconds: float = 0.03
    rounds: int = 7
    settle: float = 0.02


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Measure everything, and return the record. train: (X, y), MNIST's where None is given.

    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load("cupy_naive")  # or why there is none
    train = train or data.load(scaled=True).train
    versions = {library: machine.version(library) for library in LIBRARIES}
    record = results.new("launches", plan=asdict(plan), recipe=RECIPE.to_dict(), libraries=versions)
    parts = (_clocks, _calls, _split_sums, _empty_graphs, _step_graphs, _batches)
    return results.collect(record, chain.from_iterable(part(train, plan, progress) for part in parts), save)


def _samples(clock, call, plan, calls=1):
    clock(call, calls)  # compiles, and fills the pool
    return [round(clock(call, calls), 3) for _ in range(plan.samples)]


def _clocks(train, plan, progress):
    import cupy as cp

    inputs, hidden, *_ = MLP.sizes()
    W = cp.ones((inputs, hidden), np.float32)
    for rows in plan.rows:
        progress(f"clocks, {rows:,} rows")
        x, out = cp.ones((rows, inputs), np.float32), cp.empty((rows, hidden), np.float32)
        call = partial(cp.matmul, x, W, out=out)
        times = {clock.__name__: _samples(clock, call, plan) for clock in (asked_us, waited_us, events_us)}
        times["device_us"] = _samples(device_us, call, plan, 10)
        yield {"kind": "clocks", "rows": rows, "flops": 2 * rows * inputs * hidden} | times


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

    inputs, hidden, *_ = MLP.sizes()
    X, index = cp.ones((10 * n, inputs), np.float32), cp.arange(n)
    x, W1, out = X[:n], cp.ones((inputs, hidden), np.float32), cp.empty((n, hidden), np.float32)
    z, W, b = (cp.ones(shape, np.float32) for shape in ((n, hidden), (hidden, hidden), hidden))
    theta, grad = (cp.ones(MLP.layout.size, np.float32) for _ in range(2))
    planned = cache(lambda: Product(x, W1, out, RELU_AUX_BIAS, b, mask(n, hidden)))  # where cuBLASLt has it
    calls: dict[str, Callable[[], Any]] = {
        "x[:64]": lambda: x[:64],
        "cp.empty": lambda: cp.empty((n, hidden), np.float32),
        "RawKernel, empty": nothing,
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


def _split_sums(train, plan, progress):
    """Yield a step's plain products by cuBLAS with a workspace, so that it may split their sums, and without."""
    from mlpkit.engines.cuda.cublas import WORKSPACE, Product

    inputs, hidden, *_, classes = MLP.sizes()
    shapes = {
        "x W1": (inputs, hidden),
        "a W2": (hidden, hidden),
        "a W4": (hidden, classes),
        "dz W4^T": (classes, hidden),
    }
    for n, (name, (k, m)) in product(plan.split, shapes.items()):
        progress(f"split sums, {name} at batch {n:,}")
        for workspace in (WORKSPACE, 0):
            a, b, out = _matrices(n, k, m, transposed=name.endswith("^T"))
            multiply = partial(Product(a, b, out, workspace=workspace), a, b, out)
            kernels = len(kernels_of(recorded(multiply)))
            times = record_times(partial(_many, multiply, plan.calls), 1, plan.samples)["device_us"]
            case = {"kind": "split", "name": name, "n": n, "k": k, "m": m, "workspace": workspace, "kernels": kernels}
            yield case | {"device_us": [round(us / plan.calls, 3) for us in times]}


def _matrices(n, k, m, transposed):
    """Return arrays of ones, a (n, k), b (k, m), and out (n, m); transposed: b is one that is stored, transposed."""
    import cupy as cp

    b = cp.ones((m, k), np.float32).T if transposed else cp.ones((k, m), np.float32)
    return cp.ones((n, k), np.float32), b, cp.empty((n, m), np.float32)


def _empty_graphs(train, plan, progress):
    for nodes in plan.nodes:
        progress(f"graphs of {nodes} empty kernels")
        times = record_times(partial(_many, nothing, nodes), 1, plan.samples)
        one_by_one = [round(waited_us(nothing, nodes) * nodes, 3) for _ in range(plan.samples)]
        yield {"kind": "nodes", "nodes": nodes, "one_by_one_us": one_by_one} | times


def _many(call, times):
    for _ in range(times):
        call()


def _step_graphs(train, plan, progress):
    for engine in plan.graphs:
        stepper = Stepper(engine, RECIPE, train)
        stepper.take(max(plan.steps))  # the order and the rates are on the GPU then
        trainer = stepper.trainer
        for steps in plan.steps:
            progress(f"graph of {counted(steps, 'step')} of {engine}")
            enqueue = partial(_many, partial(trainer.enqueue, RECIPE.batch_size), steps)
            launches = max(1, min(100, max(plan.steps)) // steps)  # the trainer has room for so many losses
            times = record_times(enqueue, launches, plan.samples, trainer.restart, trainer.pool)
            yield {"kind": "graph", "engine": engine, "steps": steps} | times


def _batches(train, plan, progress):
    """Yield steps of each engine at each batch size; all of them take turns, so that all meet a slow moment."""
    sets = {name: tuple(map(engines.load(name).asarray, train)) for name in plan.engines}
    steppers, steps = {}, {}
    for batch_size, name in product(plan.batch_sizes, plan.engines):
        progress(f"first steps at batch {batch_size:,}, {name}")
        stepper = steppers[batch_size, name] = Stepper(name, RECIPE.but(batch_size=batch_size), sets[name])
        stepper.take(2)
        steps[batch_size, name] = steps_in(plan.sample_seconds, stepper.take(2)[0], most=429)
    progress(f"steps at all batch sizes, in {plan.rounds} rounds")
    calls = {case: partial(_step_us, stepper, steps[case]) for case, stepper in steppers.items()}
    samples = in_turns(calls, plan.rounds, lambda case: quiet.settle(steppers[case].take_one, plan.settle))
    for (batch_size, name), times in samples.items():
        case = {"kind": "batch", "engine": name, "batch_size": batch_size, "samples_us": times}
        yield case | {"steps_a_sample": steps[batch_size, name]}


def _step_us(stepper, steps):
    return round(stepper.take(steps)[0] * 1e6, 3)

"""What does it cost to wait, and where does a step's time go? Barriers, handovers, and engines that avoid them.

The record "persistence" holds the time of one barrier between blocks in two forms, of a number handed to another block
and back in two forms, of a graph's empty kernel; the time of a training step with each engine that does whole epochs,
at several batch sizes; and what the blocks of the persistent kernel do in a step, by the GPU's timer. (A mark after a
barrier may be written before the barrier is over: then the wait counts for the stage behind it.)
"""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from mlpkit import engines, kernels
from mlpkit.data import epoch_order, load
from mlpkit.lab import results
from mlpkit.nn.network import Network
from mlpkit.training.recipe import Recipe

from .launches import device_us, events_us, nothing

ENGINES = ("cuda_graph", "cuda_graph_epoch", "cuda_three_kernels", "cuda_persistent")
MARKS = 12  # that a step has room for, in persistent.cu
ALLOW_LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
# What a block's first thread is about to do where `persistent.cu` calls mark(step, 0), mark(step, 1), ...
STAGES = {
    "column": (
        "first layer",
        "wait for dz3, update W3 (half of the warps; the others W2)",
        "wait for dz1",
        "update W1",
        "write W1's digits",
    ),
    "row": (
        "wait for W2",
        "load W4 and the biases",
        "load W2",
        "wait for a1",
        "second layer",
        "third layer",
        "last layer and loss",
        "back through the third",
        "back through the second",
        "update W4",
        "wait for W3",
        "load it",
    ),
}


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. rounds: barriers or handovers in a sample, and half as many in
    another, whose difference leaves out the launch. blocks, clusters: numbers of blocks that wait at a grid's barrier,
    and at a cluster's. nodes: of a graph of empty kernels. batch_sizes, optimizers: of the engines' steps. marked:
    steps whose stages are written down.
    """

    samples: int = 15
    rounds: int = 2000
    blocks: tuple[int, ...] = (2, 16, 64, 128)
    clusters: tuple[int, ...] = (2, 8, 16)
    nodes: int = 1000
    batch_sizes: tuple[int, ...] = (32, 64, 128, 256)
    optimizers: tuple[str, ...] = ("sgd", "adam")
    marked: int = 64


USUAL = Plan()


def run(train=None, save=results.save, progress=print, plan=USUAL):
    """Measure everything, and return the record. train: (X, y), X (n, 784) uint8; MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load("cupy_naive")  # or why there is none
    train = train or load(scaled=False).train
    record = results.new("persistence", plan=asdict(plan))
    parts = (_waits, _nodes, _steps, _stages)
    return results.collect(record, chain.from_iterable(part(train, plan, progress) for part in parts), save)


# Waiting


def _waits(train, plan, progress):
    for name, blocks, call in waits(plan):
        progress(f"{name}, {blocks} blocks")
        yield {"kind": "wait", "name": name, "blocks": blocks, "samples_us": _each_us(call, plan)}


def waits(plan):
    """Yield (name, blocks, a function that does so many rounds of it)."""
    import cupy as cp

    def launch(name, blocks, threads, words, rounds):
        memory = [cp.zeros(64, np.uint64) for _ in range(words)]
        kernels.load("handover").get_function(name)((blocks,), (threads,), (*memory, np.int32(rounds)))

    held = cp.cuda.Device().attributes["MultiProcessorCount"]
    for blocks in plan.blocks:
        if blocks <= held:  # else some would wait for blocks that can't begin
            yield "grid barrier", blocks, partial(launch, "grid_barrier", blocks, 512, 1)
    yield "number and flag", 2, partial(launch, "with_flag", 2, 1, 2)
    yield "packet", 2, partial(launch, "with_packet", 2, 1, 1)
    for blocks in plan.clusters:
        if blocks <= _largest_cluster(int(cp.cuda.Device().compute_capability)):
            yield "cluster barrier", blocks, _cluster(blocks)


def _largest_cluster(capability):
    """Return how many blocks a cluster may have: 8 wherever there are clusters, 16 on the data centre's chips."""
    return 0 if capability < 90 else 16 if capability in (90, 100, 103) else 8


def _cluster(blocks):
    import cupy as cp

    kernel = kernels.load("cluster_barrier", BLOCKS=blocks).get_function("cluster_barrier")
    if blocks > 8:
        cp.cuda.driver.funcSetAttribute(kernel.kernel.ptr, ALLOW_LARGE_CLUSTERS, 1)
    return lambda rounds: kernel((blocks,), (512,), (np.int32(rounds),))


def _each_us(call, plan):
    """Return samples of the microseconds of one round; `call` does as many as it is told to."""
    few, many = plan.rounds // 2, plan.rounds
    call(many)  # compiles
    pairs = [(events_us(partial(call, few)), events_us(partial(call, many))) for _ in range(plan.samples)]
    return [round((long - short) / (many - few), 4) for short, long in pairs]


def _nodes(train, plan, progress):
    import cupy as cp

    progress("a graph's empty kernels")
    graphs = []
    for count in (plan.nodes // 2, plan.nodes):
        nothing()  # compiles
        with cp.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            for _ in range(count):
                nothing()
            graphs.append(stream.end_capture())
            graphs[-1].launch(stream)
    short, long = ([events_us(graph.launch) for _ in range(plan.samples)] for graph in graphs)
    each = [round((b - a) / (plan.nodes - plan.nodes // 2), 4) for a, b in zip(short, long, strict=True)]
    yield {"kind": "wait", "name": "graph node", "blocks": 1, "samples_us": each}


# Steps


def _steps(train, plan, progress):
    for optimizer in plan.optimizers:
        for batch_size in plan.batch_sizes:
            for name in ENGINES:
                progress(f"steps of {name}, {optimizer}, batch {batch_size}")
                yield {
                    "kind": "step",
                    "engine": name,
                    "optimizer": optimizer,
                    "batch_size": batch_size,
                    "samples_us": step_us(name, optimizer, batch_size, train, plan.samples),
                }


def step_us(name, optimizer, batch_size, train, samples):
    """Return samples of the GPU's microseconds for a step: the mean over a whole epoch, short batch included."""
    epoch, steps = epoch_of(name, optimizer, batch_size, train)
    for _ in range(2):
        epoch()  # compiles, records, warms up
    return [round(device_us(epoch) / steps, 4) for _ in range(samples)]


def epoch_of(name, optimizer, batch_size, train):
    """Return a function that trains for an epoch, and the number of its steps."""
    recipe = Recipe(optimizer=optimizer, lr=1e-3, batch_size=batch_size)
    network = Network(name)
    engine: Any = network.engine
    takes = recipe.make_optimizer(network, len(train[1]))
    order = epoch_order(len(train[1]), 0, 0)
    arrays = [engine.asarray(array) for array in (*train, order)]
    return partial(engine.train_epoch, network, takes, *arrays, batch_size), recipe.steps_an_epoch(len(order))


# Stages of the persistent kernel


def _stages(train, plan, progress):
    for batch_size in plan.batch_sizes:
        progress(f"stages of a step, batch {batch_size}")
        for kind, ns in stages(batch_size, train, plan.marked).items():
            yield {"kind": "stages", "block": kind, "batch_size": batch_size, "names": STAGES[kind], "ns": ns}


def stages(batch_size, train, steps):
    """Return for each kind of block the `stage_ns` of a step."""
    import cupy as cp

    from mlpkit.engines import cuda_persistent

    epoch, _ = epoch_of("cuda_persistent", "sgd", batch_size, train)
    network, optimizer = epoch.args[:2]
    with cuda_persistent.marked(steps):
        macros = cuda_persistent.macros_of(network.sizes, optimizer, batch_size)
        epoch()
    blocks = cuda_persistent.compiled(**macros)[-2]
    place = kernels.load("persistent", **macros).get_global("marks")
    marks = cp.ndarray((blocks, steps, MARKS), np.int64, place).get()
    return {
        kind: stage_ns(part[..., : len(STAGES[kind])])
        for kind, part in zip(STAGES, np.split(marks, [cuda_persistent.COLUMN_BLOCKS]), strict=True)
    }


def stage_ns(marks):
    """Return the nanoseconds from each mark to the next one, from a step's last to the next step's first.

    marks (blocks, steps, stages) int64: the GPU's timer, which may go on by 32 ns at a time. So not single stages are
    returned, but means over all blocks and steps, a list; they add up to a step.
    """
    took = np.concatenate([marks[:, :-1, 1:], marks[:, 1:, :1]], axis=2) - marks[:, :-1]
    return took.mean(axis=(0, 1)).round(1).tolist()


# The record as a table


def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'a barrier; a number there and back':<36}{'blocks':>8}{'us':>10}"]
    for run in results.runs(record, kind="wait"):
        lines.append(f"{run['name']:<36}{run['blocks']:>8}{np.median(run['samples_us']):>10.3f}")
    plan = record["settings"]["plan"]
    sizes = "".join(f"{size:>8}" for size in plan["batch_sizes"])
    lines += ["", f"{'us a step, by batch size':<24}{'optimizer':<10}{sizes}"]
    for name in ENGINES:
        for optimizer in plan["optimizers"]:
            runs = results.runs(record, kind="step", engine=name, optimizer=optimizer)
            times = "".join(f"{np.median(run['samples_us']):>8.2f}" for run in runs)
            lines.append(f"{name:<24}{optimizer:<10}{times}")
    for run in results.runs(record, kind="stages"):
        lines += ["", f"{run['block']} blocks, batch {run['batch_size']}"]
        lines += stage_lines(run)
    return "\n".join(lines)


def stage_lines(run):
    """Return a line for each stage of a run of the kind "stages"."""
    return [f"    {name:<40}{ns:>8,.0f} ns" for name, ns in zip(run["names"], run["ns"], strict=True)]

"""How the record "gpu_image_limit" is made: steps, kernels, and stages of a step."""

from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any

from experiments.lab import results
from experiments.lab.clock import device_us, waited_us
from mlpkit import data, engines, executors
from mlpkit.data import epoch_order
from mlpkit.executors import trainer_of
from mlpkit.kernels import gpu
from mlpkit.kernels.conv import blocked

from .. import timeline
from ..gpu_image_peers import LENET
from ..persistence.stages import written
from .stages import IDLE, STAGES, of_blocks


def _executor_s(network, *rest, **more):
    executor: Any = executors.of(network.engine)
    return executor.Trainer(network, *rest, **more)


def _two_kernels(*arguments, **more):
    from .two_kernels import Trainer  # takes CuPy

    return Trainer(*arguments, **more)


# Who trains: an engine, and what makes its trainer
VARIANTS = {
    "one kernel": ("cuda_conv_fused", _executor_s),
    "two kernels": ("cuda_conv_fused", _two_kernels),
    "graph": ("cuda_conv_graph", _executor_s),
    "graph, TF32": ("cuda_conv_graph_tf32", _executor_s),
    "graph, bfloat16": ("cuda_conv_graph_bf16", _executor_s),
    "GPU, the baseline's lines": ("cupy_naive", trainer_of),
    "NumPy": ("numpy_baseline", trainer_of),
}
FLOAT32, FEWER = ("one kernel", "two kernels", "graph"), ("graph, TF32", "graph, bfloat16")


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. batch_sizes: of the steps; stamped: of those whose stages are written
    down, in so many steps. repeats: of a kernel in a graph of its own. changes: macros of the one kernel. traced:
    whether the graph's kernels are, which takes PyTorch.
    """

    samples: int = 7
    batch_sizes: tuple[int, ...] = (32, 64, 128, 256)
    stamped: tuple[int, ...] = (32, 64, 128)
    steps: int = 50
    repeats: int = 50
    changes: tuple[tuple[str, int], ...] = (("PAIRS", 0), ("BLOCK_THREADS", 384))
    traced: bool = True


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Measure everything, and return the record. train: (X, y), X uint8 pixels; MNIST's where None is given.

    Raises `engines.EngineUnavailable` where there is no GPU whose blocks may have as much memory as Hopper's.
    """
    engines.load("cupy_naive")  # or why there is none
    if (here := gpu.shared_memory()) < blocked.SHARED:
        wanted, here = blocked.SHARED >> 10, here >> 10
        raise engines.EngineUnavailable(
            f"gpu_image_limit needs a GPU whose blocks may have {wanted} KiB of shared memory, and this one has {here}."
        )
    train = train or data.load().train
    record = results.new("gpu_image_limit", plan=vars(plan))
    parts = (_steps, _stages, _changed, _apart, _kernels)
    return results.collect(record, chain.from_iterable(part(train, plan, progress) for part in parts), save)


def trainer(variant, recipe, train, **more):
    """Return a variant's trainer on train, (X, y), an epoch's order, and the network. more: for the trainer."""
    name, make = VARIANTS[variant]
    network = recipe.make_network(name)
    X, y, order = map(network.engine.asarray, (*train, epoch_order(len(train[1]), recipe.seed, 0)))
    return make(network, recipe.make_optimizer(network, len(y)), X, y, recipe.batch_size, **more), order, network


def _steps(train, plan, progress):
    for batch_size, variant in product(plan.batch_sizes, FLOAT32):
        progress(f"steps: {variant}, batch {batch_size}")
        yield {"kind": "step", "way": variant, "batch_size": batch_size} | _step_us(variant, batch_size, train, plan)


def _step_us(variant, batch_size, train, plan, **more):
    """Return samples of the GPU's microseconds of a step, the mean over a whole epoch; and of the host's."""
    made, order, _ = trainer(variant, LENET.but(batch_size=batch_size), train, **more)
    epoch, steps = partial(made.epoch, order), -(-len(order) // batch_size)
    for _ in range(2):
        epoch()  # records, warms up
    clocks = {"samples_us": device_us, "host_us": waited_us}
    found = {name: [round(clock(epoch) / steps, 4) for _ in range(plan.samples)] for name, clock in clocks.items()}
    made.close()
    return found


def _changed(train, plan, progress):
    for macro, value in plan.changes:
        progress(f"one kernel with {macro}={value}")
        change = {"kind": "changed", "macro": macro, "value": value, "batch_size": 128}
        yield change | _step_us("one kernel", 128, train, plan, **{macro: value})


def _apart(train, plan, progress):
    """Yield the microseconds of each of the two kernels, from many of it one after another in a graph."""
    from mlpkit.executors.cuda.graph import recorded

    for batch_size, (kernel, other) in product(plan.stamped, (("images", "update"), ("update", "images"))):
        progress(f"kernel {kernel}, batch {batch_size}")
        made, order, _ = trainer("two kernels", LENET.but(batch_size=batch_size), train)
        made.epoch(order)  # fills what the kernels read
        made.restart()  # they read the order from its beginning
        setattr(made, other, lambda *arguments, **options: None)  # so that a step is one of them
        graph = recorded(partial(_repeat, made.enqueue, batch_size, plan.repeats), made.pool)
        samples = [round(device_us(graph.launch) / plan.repeats, 4) for _ in range(plan.samples)]
        made.close()
        yield {"kind": "apart", "kernel": kernel, "batch_size": batch_size, "samples_us": samples}


def _repeat(call, argument, times):
    for _ in range(times):
        call(argument)


def _stages(train, plan, progress):
    for batch_size in plan.stamped:
        progress(f"stages of a step, batch {batch_size}")
        made, order, _ = trainer("one kernel", LENET.but(batch_size=batch_size), train, STAMPED_STEPS=plan.steps)
        made.epoch(order)
        stamps = written("limit", made, made.blocks)
        made.close()
        facts = {"kind": "stages", "batch_size": batch_size}
        working = batch_size * made.macros["IMAGE_BLOCKS"]
        yield facts | {"block": "with an image"} | of_blocks(stamps[:working], STAGES)
        if working < len(stamps):
            yield facts | {"block": "without"} | of_blocks(stamps[working:], IDLE)


def _kernels(train, plan, progress):
    """Yield what `timeline` tells of the graph's kernels: last, as a profiler may leave the launches slower."""
    if plan.traced:
        wanted = timeline.Plan(names=("cuda_conv_graph",), samples=3, asked=(4, 20), ahead=(2, 4), whole=100)
        found = timeline.measure(lambda record: None, progress, wanted, train, LENET)
        yield from ({"kind": "kernels", "way": "graph", "batch_size": LENET.batch_size} | run for run in found["runs"])

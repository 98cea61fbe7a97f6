"""Ways for blocks to wait for each other, so many rounds in one launch: barriers, and numbers handed over and back."""

from functools import partial

import numpy as np

from mlpkit import kernels
from mlpkit.lab.clock import events_us, nothing

ALLOW_LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED


def waits(plan):
    """Yield (name, blocks, a function that does so many rounds of it)."""
    import cupy as cp

    held = cp.cuda.Device().attributes["MultiProcessorCount"]
    for blocks in plan.blocks:
        if blocks <= held:  # else some would wait for blocks that can't begin
            yield "grid barrier", blocks, partial(_handover, "grid_barrier", blocks, 512, 1)
    yield "number and flag", 2, partial(_handover, "with_flag", 2, 1, 2)
    yield "packet", 2, partial(_handover, "with_packet", 2, 1, 1)
    for blocks in plan.clusters:
        if blocks <= _largest_cluster(int(cp.cuda.Device().compute_capability)):
            yield "cluster barrier", blocks, _cluster(blocks)


def _handover(name, blocks, threads, words, rounds):
    """Launch a kernel of handover.cu, with so many words of memory, each in a line of its own."""
    import cupy as cp

    memory = [cp.zeros(64, np.uint64) for _ in range(words)]
    kernels.load("handover").get_function(name)((blocks,), (threads,), (*memory, np.int32(rounds)))


def _largest_cluster(capability):
    """Return how many blocks a cluster may have: 8 wherever there are clusters, 16 on the data centre's chips."""
    return 0 if capability < 90 else 16 if capability in (90, 100, 103) else 8


def _cluster(blocks):
    import cupy as cp

    kernel = kernels.load("cluster_barrier", BLOCKS=blocks).get_function("cluster_barrier")
    if blocks > 8:
        cp.cuda.driver.funcSetAttribute(kernel.kernel.ptr, ALLOW_LARGE_CLUSTERS, 1)
    return lambda rounds: kernel((blocks,), (512,), (np.int32(rounds),))


def round_us(call, rounds, samples):
    """Return samples of the microseconds of one round; `call` does as many as it is told to."""
    return _each_us({count: partial(call, count) for count in (rounds // 2, rounds)}, samples)


def node_us(nodes, samples):
    """Return samples of the microseconds that one more empty kernel in a graph takes."""
    return _each_us({count: _graph(count).launch for count in (nodes // 2, nodes)}, samples)


def _each_us(calls, samples):
    """Return samples of the microseconds of one more. calls: {few: does so many, many: does so many}."""
    (few, do_few), (many, do_many) = calls.items()
    for call in calls.values():
        call()  # compiles, or brings the graph to the GPU
    pairs = [(events_us(do_few), events_us(do_many)) for _ in range(samples)]
    return [round((long - short) / (many - few), 4) for short, long in pairs]


def _graph(count):
    import cupy as cp

    nothing()  # compiles
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        for _ in range(count):
            nothing()
        return stream.end_capture()

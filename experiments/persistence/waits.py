"""Ways for blocks to wait for each other, so many rounds in one launch: barriers, and numbers handed over and back."""

from functools import partial

import numpy as np

from experiments.lab.clock import events_us
from mlpkit import kernels
from mlpkit.kernels import gpu

ALLOW_LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
LINES = 1 << 18  # of 128 bytes: more than half of the L2 cache


def waits(plan):
    """Yield (name, blocks, a function that does so many rounds of it)."""
    import cupy as cp

    at_once = cp.cuda.Device().attributes["MultiProcessorCount"]
    for blocks in plan.blocks:
        if blocks <= at_once:  # else some would wait for blocks that can't begin
            yield "grid barrier", blocks, partial(_handover, "grid_barrier", blocks, 512, 1)
    yield "number and flag", 2, partial(_handover, "with_flag", 2, 1, 2)
    yield "packet", 2, partial(_messages, cp.empty(32, np.uint64), cp.empty(2, np.uint32), (0, 1), 2, 0)
    for blocks in plan.clusters:
        if blocks <= _largest_cluster(gpu.capability()):
            yield "cluster barrier", blocks, _cluster(blocks)


def _handover(name, blocks, threads, words, rounds):
    """Launch a kernel of handover.cu, with so many words of memory, each in a line of its own."""
    import cupy as cp

    memory = [cp.zeros(64, np.uint64) for _ in range(words)]
    kernels.load("handover").get_function(name)((blocks,), (threads,), (*memory, np.int32(rounds)))


def _messages(messages, where, pair, blocks, shared_bytes, rounds):
    """Let two of so many blocks send each other messages (32,): in which memory; where (2,): the blocks are."""
    kernel = kernels.load("handover").get_function("with_message")
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    messages.fill(0)
    arguments = messages, *map(np.int32, pair), where, np.int32(rounds)
    kernel((blocks,), (1,), arguments, shared_mem=shared_bytes)


def handovers(pairs, places, rounds):
    """Yield for so many pairs of multiprocessors, by chance, their numbers, and the microseconds of a round at places.

    The places, by chance too, are the same for all pairs. There is a block on each multiprocessor, and two of them wait
    for each other.
    """
    import cupy as cp

    blocks, rng = cp.cuda.Device().attributes["MultiProcessorCount"], np.random.default_rng(0)
    memory, where = cp.zeros((LINES, 16), np.uint64), cp.empty(2, np.uint32)
    lines = rng.integers(LINES - 1, size=places)
    whole = gpu.shared_memory()  # of which a multiprocessor has no second: a block each
    for _ in range(pairs):
        pair = rng.choice(blocks, 2, replace=False)
        calls = [partial(_messages, memory[line : line + 2].ravel(), where, pair, blocks, whole) for line in lines]
        calls[0](10)  # compiles
        yield where.get().tolist(), [round(events_us(partial(call, rounds)) / rounds, 4) for call in calls]


def clock_rates(milliseconds, busy):
    """Return for each multiprocessor, in the order of their numbers, its clocks a nanosecond, idle or busy."""
    import cupy as cp

    blocks = cp.cuda.Device().attributes["MultiProcessorCount"]
    kernel, whole = gpu.with_shared_memory(kernels.load("clocks").get_function("clocks")), gpu.shared_memory()
    found, out = cp.empty((blocks, 3), np.int64), cp.empty((blocks, 512), np.float32)
    kernel((blocks,), (512,), (np.int64(1e6 * milliseconds), np.bool_(busy), found, out), shared_mem=whole)
    numbers, clocks, ns = found.get()[found[:, 0].argsort().get()].T
    return numbers.tolist(), (clocks / ns).round(4).tolist()


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


def node_us(nodes, samples, blocks, threads, shared_bytes):
    """Return samples of the microseconds that one more empty kernel of such blocks takes in a graph."""
    shape = blocks, threads, shared_bytes
    return _each_us({count: _graph(count, *shape).launch for count in (nodes // 2, nodes)}, samples)


def _each_us(calls, samples):
    """Return samples of the microseconds of one more. calls: {few: does so many, many: does so many}."""
    (few, do_few), (many, do_many) = calls.items()
    for call in calls.values():
        call()  # compiles, or brings the graph to the GPU
    pairs = [(events_us(do_few), events_us(do_many)) for _ in range(samples)]
    return [round((long - short) / (many - few), 4) for short, long in pairs]


def _graph(count, blocks, threads, shared_bytes):
    import cupy as cp

    kernel = kernels.load("launches").get_function("nothing")
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        for _ in range(count):
            kernel((blocks,), (threads,), (), shared_mem=shared_bytes)
        return stream.end_capture()

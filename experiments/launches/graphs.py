"""What a graph of kernels costs: to record it, to make it ready to run, to launch it, and on the GPU."""

import time
from functools import partial

import numpy as np

from experiments.lab.clock import asked_us, events_us, keep_busy

TO_MAKE = 3  # graphs, so that the times to make one are three


def record_times(enqueue, launches, samples, prepare=lambda: None, pool=None):
    """Return what a graph of the kernels that `enqueue` asks for costs, in microseconds.

    record_us, instantiate_us: to make it. launch_us: of the host, and device_us: of the GPU, for one of so many
    launches without a pause; so many samples of each. prepare: is called before those.
    """
    made = [_record(enqueue, pool) for _ in range(TO_MAKE)]
    executable = made[0][1]
    times = [_launch_times(executable, launches, prepare) for _ in range(1 + samples)][1:]  # the first warms up
    _destroy(made)
    names = "record_us", "instantiate_us", "launch_us", "device_us"
    columns = [*zip(*(recorded for _, _, recorded in made), strict=True), *zip(*times, strict=True)]
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


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
    return graph, executable, np.round([(recorded - start) * 1e6, (done - recorded) * 1e6], 1).tolist()


def _launch_times(executable, launches, prepare):
    """Return microseconds of the host and of the GPU for each of so many launches of a graph."""
    import cupy as cp

    launch = partial(cp.cuda.runtime.graphLaunch, executable, cp.cuda.get_current_stream().ptr)
    prepare()
    host = asked_us(launch, launches)
    prepare()
    keep_busy(2 * launches * host + 100)
    return round(host, 3), round(events_us(launch, launches), 3)


def _destroy(made):
    import cupy as cp

    cp.cuda.get_current_stream().synchronize()
    for graph, executable, _ in made:
        cp.cuda.runtime.graphExecDestroy(executable)
        cp.cuda.runtime.graphDestroy(graph)

"""The GPU's time of a pass: several calls, recorded in a graph, so that nobody waits for the host in between."""


def recorded(call, times=1):
    """Return so many calls as a graph, whose `launch` runs them one after another on the current stream."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)  # libraries touch other streams, too
        try:
            for _ in range(times):
                call()
        finally:
            graph = stream.end_capture()
    return graph


def events_us(call):
    """Return the microseconds between an event before a call and one after it, on the GPU's clock."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end) * 1e3


def quick_us(call, best=float("inf"), most=10, fill_us=1000.0):
    """Return the microseconds of a call, the least of three looks at a graph of up to `most` calls, about `fill_us`.

    The first call is not counted: it may compile. best: a call that takes more than three times as long is looked at
    once, by itself.
    """
    call()
    once = min(events_us(call), events_us(call))
    if once > 3 * best + 50:
        return once
    times = int(max(1, min(most, fill_us // once)))
    graph = recorded(call, times)
    graph.launch()
    return min(events_us(graph.launch) for _ in range(3)) / times

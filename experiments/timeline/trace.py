"""What CUPTI writes down of some steps, through PyTorch's profiler, and which of it is one step."""

import json
import math
import tempfile
import time
from pathlib import Path


def traced(stepper, steps):
    """Return what CUPTI writes down of so many steps: `kernels`, copies and fills among them, and `calls` of the host.

    A kernel: name, begin, duration (us), blocks, begin of the call that asked for it. A call: name, begin, duration.
    """
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # the first time CUPTI sets itself up
        stepper.take(steps)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            time.sleep(0.002)
            stepper.ask(steps)
            stepper.engine.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return from_trace(json.loads(path.read_text())["traceEvents"])


def from_trace(events):
    """Return `kernels` and `calls`, each in the order of time, from the events of a trace in Chrome's format."""
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    asked = {_correlation(event): event for event in spans if event.get("cat") in ("cuda_runtime", "cuda_driver")}
    kernels = [
        [event["name"][:200], event["ts"], event["dur"], _blocks(event), _asked(event, asked)]
        for event in spans
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    calls = [[event["name"], event["ts"], event["dur"]] for event in asked.values()]
    return {"kernels": sorted(kernels, key=_begin), "calls": sorted(calls, key=_begin)}


def _correlation(event):
    return event["args"].get("correlation")


def _blocks(event):
    """Return how many blocks a kernel has, None for a copy or a fill."""
    return math.prod(event["args"]["grid"]) if "grid" in event["args"] else None


def _asked(event, asked):
    return asked[_correlation(event)]["ts"] if _correlation(event) in asked else None


def _begin(span):
    return span[1]


def one_step(trace, a_step, steps):
    """Return the kernels of a step in the middle of a trace of so many, and the host's calls from its begin to its end.

    The times count from the first kernel's begin. A step is what comes again and again; where none does, because all
    steps are one kernel, that is what is returned.
    """
    kernels, names = trace["kernels"], [name for name, *_ in trace["kernels"]]
    period, repeats = max(1, a_step), a_step * (steps - 1)
    starts = range(len(names) - repeats - period + 1)
    first = next((i for i in starts if names[i : i + repeats] == names[i + period : i + period + repeats]), 0)
    middle = first + a_step * (steps // 2)
    chosen = kernels[middle : middle + a_step] or kernels
    zero, end = chosen[0][1], max(begin + us for _, begin, us, *_ in chosen)
    asked = [at for *_, at in chosen if at is not None]
    calls = [call for call in trace["calls"] if min([zero, *asked]) <= call[1] <= end]
    return (
        [[n, _since(at, zero), round(us, 3), k, _since(a, zero)] for n, at, us, k, a in chosen],
        [[n, _since(at, zero), round(us, 3)] for n, at, us in calls],
    )


def _since(timestamp, zero):
    return None if timestamp is None else round(timestamp - zero, 3)
